"""The changes of a log without those that have been undone."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plait.state.budget import Budget
from plait.store.protocol import ChangeRow
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, Owned, compact

__all__ = ["REDO", "UNDO", "Step", "TakenBack", "drop_undone", "parse_taken_back"]

UNDO: Final = "undo"
REDO: Final = "redo"
"""The source of an undo or a redo begins with this; the version that it takes back and whose that was follow."""


class Step(NamedTuple):
    """A change, decoded."""

    version: int
    source: str
    ops: Sequence[Op]


class TakenBack(NamedTuple):
    """What an undo takes back: the changes of a source from one version to another. A redo takes back an undo."""

    first: int
    last: int
    source: str
    is_redo: bool


def parse_taken_back(source: str) -> TakenBack | None:
    """Return what a change with this source takes back, None if it is no undo and no redo."""
    name, _, rest = source.partition(" ")
    if name not in (UNDO, REDO) or not rest:
        return None
    versions, _, whose = rest.partition(" ")
    first, _, last = versions.partition("-")
    return TakenBack(int(first), int(last or first), whose, name == REDO)


def drop_undone(document: Any, rows: Iterable[ChangeRow], budget: Budget) -> list[Step]:
    """Return the changes of a document, rebased so that those that have been undone, and their undos, are left out.

    So are undos that have been redone, and their redos. An undone change is kept, with its undo, if other changes
    depend on it, or if it was not undone completely. Raises PatchError, and Conflict when it is too much work.
    """
    steps = [Step(row.version, row.source, budget.decode(row)) for row in rows]
    needed: set[int] = set()
    while undone := _find_undone(steps, needed):
        walk = _Walk(document, undone, budget)
        try:
            return [found for step in steps if (found := walk.take(step)) is not None]
        except _NeededError as error:
            needed.add(error.version)
    return steps


def _find_undone(steps: Sequence[Step], needed: Collection[int]) -> dict[int, int]:
    """Return by which undo or redo each change has been taken back that is left out; those in `needed` take none."""
    sources = {step.version: step.source for step in steps}
    taking = [
        (step.version, taken)
        for step in steps
        if step.version not in needed and (taken := parse_taken_back(step.source)) is not None
    ]
    undone = {taken.first: version for version, taken in taking if taken.is_redo and taken.first in sources}
    for version, taken in taking:
        if taken.is_redo or version in undone or taken.first not in sources:
            continue
        found = [
            each
            for each in range(taken.first, taken.last + 1)
            if taken.first == taken.last or sources.get(each) == taken.source
        ]
        if undone.keys().isdisjoint(found):
            undone |= dict.fromkeys(found, version)
    return undone


class _NeededError(Exception):
    """What an undo or a redo takes back cannot be left out: others depend on it, or it was not taken back wholly."""

    def __init__(self, version: int) -> None:
        self.version = version


_Inverse = tuple[int, Sequence[Op]]
"""What leads back to before a change that has been undone, and the version of its undo."""


class _Walk:
    """Applies changes to a document, with what leads from there to the same without those that have been undone."""

    def __init__(self, document: Any, undone: Mapping[int, int], budget: Budget) -> None:
        self._budget = budget
        # What is left out, by what has taken it back.
        self._undone = undone
        self._taking = frozenset(undone.values())
        self._document = document
        self._owned: Owned = {}
        # The operations that lead to the document without what is left out: the inverses of the changes left out, the
        # last one first. Those next to each other that one undo takes back are one, as in that undo: what others insert
        # then comes to the same place.
        self._inverses: list[_Inverse] = []

    def take(self, step: Step) -> Step | None:
        """Apply the next change, and return it as it is without the undone ones; None if it is left out."""
        if step.version in self._undone:
            before, self._owned = self._document, {}  # The inverse may share parts with the document.
            self._apply(step.ops)
            self._inverses = _join([(self._undone[step.version], invert(before, step.ops))], self._inverses)
        elif step.version in self._taking:
            self._apply(step.ops)
            self._drop_inverse(step.version, step.ops)
        else:
            return self._keep(step)
        return None

    def _keep(self, step: Step) -> Step:
        self._apply(step.ops)
        self._inverses, ops = self._bring_past(self._inverses, step.ops)
        return step._replace(ops=ops)

    def _drop_inverse(self, version: int, ops: Sequence[Op]) -> None:
        """Drop the inverse of what `ops` have taken back, and rebase the inverses before it over `ops`."""
        versions = [each for each, _ in self._inverses]
        index = versions.index(version)
        moved, ops = self._bring_past(self._inverses[:index], ops)
        if versions.count(version) > 1 or compact(self._inverses[index][1]) != compact(ops):
            raise _NeededError(version)  # It was incomplete, or restored something at another place.
        self._inverses = _join(moved, self._inverses[index + 1 :])

    def _bring_past(self, inverses: Sequence[_Inverse], ops: Sequence[Op]) -> tuple[list[_Inverse], Sequence[Op]]:
        """Return inverses as they are after the last change, `ops`, and that as it is after the inverses.

        As with an undo, of two insertions at one place the one that a change has made is the first.
        """
        document, own, moved = self._document, Owned(), list[_Inverse]()
        for version, inverse in inverses:
            if moved:
                document = self._budget.apply(document, moved[-1][1], own)
            result = self._budget.rebase(inverse, ops, document)
            if result.conflicts or result.is_lost:
                raise _NeededError(version)
            moved.append((version, result.ops))
            ops = result.over
        return moved, ops

    def _apply(self, ops: Sequence[Op]) -> None:
        self._document = self._budget.apply(self._document, ops, self._owned)


def _join(first: Sequence[_Inverse], second: Sequence[_Inverse]) -> list[_Inverse]:
    """Return inverses one after the other; the two in the middle become one if they have the same undo."""
    if first and second and first[-1][0] == second[0][0]:
        version, ops = first[-1]
        return [*first[:-1], (version, compact([*ops, *second[0][1]])), *second[1:]]
    return [*first, *second]
