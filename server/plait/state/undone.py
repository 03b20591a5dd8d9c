"""Leaves undone changes out of a log."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plait.state.budget import Budget
from plait.store.thread_rows import ChangeRow
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, Owned, compact

__all__ = ["REDO", "UNDO", "DecodedChange", "TakenBack", "drop_undone", "parse_taken_back"]

UNDO: Final = "undo"
REDO: Final = "redo"
"""The source of an undo or a redo begins with this word, before the undone versions and the source of these."""


class DecodedChange(NamedTuple):
    """A change, decoded."""

    version: int
    source: str
    ops: Sequence[Op]


class TakenBack(NamedTuple):
    """The changes of a source, from one version to another, that an undo takes back; for a redo, the undo."""

    first: int
    last: int
    source: str
    is_redo: bool


def parse_taken_back(source: str) -> TakenBack | None:
    """Return the changes that a change with this source takes back; None if it is neither an undo nor a redo."""
    name, _, rest = source.partition(" ")
    if name not in (UNDO, REDO) or not rest:
        return None
    versions, _, whose = rest.partition(" ")
    first, _, last = versions.partition("-")
    return TakenBack(int(first), int(last or first), whose, name == REDO)


def drop_undone(document: Any, rows: Iterable[ChangeRow], budget: Budget) -> list[DecodedChange]:
    """Return the changes of a document without the undone ones and their undos; the others are rebased.

    Undos that were redone, and their redos, are left out, too. An undone change is kept, with its undo, if other
    changes depend on it, or if it was not undone completely. Raises PatchError, and Conflict when it would take too
    long.
    """
    steps = [DecodedChange(row.version, row.source, budget.decode(row)) for row in rows]
    needed: set[int] = set()
    while undone := _find_undone(steps, needed):
        walk = _Walk(document, undone, budget)
        try:
            return [found for step in steps if (found := walk.take(step)) is not None]
        except _NeededError as error:
            needed.add(error.version)
    return steps


def _find_undone(steps: Sequence[DecodedChange], needed: Collection[int]) -> dict[int, int]:
    """Return the changes to leave out, each with the version of its undo or redo; undos in `needed` do not count."""
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
    """The changes that an undo or a redo takes back are needed: others depend on them, or the undo was incomplete."""

    def __init__(self, version: int) -> None:
        self.version = version


_Inverse = tuple[int, Sequence[Op]]
"""The version of an undo, and the operations that invert the changes that it takes back."""


class _Walk:
    """Applies changes to a document, and keeps the operations that lead to the document without the undone changes."""

    def __init__(self, document: Any, undone: Mapping[int, int], budget: Budget) -> None:
        self._budget = budget
        # The versions that are left out, each with the version of its undo or redo.
        self._undone = undone
        self._taking = frozenset(undone.values())
        self._document = document
        self._owned: Owned = {}
        # The operations that lead to the document without the undone changes: the inverses of these changes, the last
        # one first. Neighbours that one undo takes back are joined, as in the undo, so that insertions of others get
        # the same place.
        self._inverses: list[_Inverse] = []

    def take(self, step: DecodedChange) -> DecodedChange | None:
        """Apply the next change, and return it rebased over the undone ones; None if it is left out."""
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

    def _keep(self, step: DecodedChange) -> DecodedChange:
        self._apply(step.ops)
        self._inverses, ops = self._bring_past(self._inverses, step.ops)
        return step._replace(ops=ops)

    def _drop_inverse(self, version: int, ops: Sequence[Op]) -> None:
        """Drop the inverse of the changes that `ops` take back, and rebase the inverses before it over `ops`."""
        versions = [each for each, _ in self._inverses]
        index = versions.index(version)
        moved, ops = self._bring_past(self._inverses[:index], ops)
        if versions.count(version) > 1 or compact(self._inverses[index][1]) != compact(ops):
            raise _NeededError(version)  # The undo was incomplete, or restored something at another place.
        self._inverses = _join(moved, self._inverses[index + 1 :])

    def _bring_past(self, inverses: Sequence[_Inverse], ops: Sequence[Op]) -> tuple[list[_Inverse], Sequence[Op]]:
        """Transform inverses and the last change, `ops`, so that each can be applied after the other.

        Of two insertions at one place, the change's comes first, as with an undo.
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
    """Return inverses one after the other; the two neighbours in the middle become one if they have the same undo."""
    if first and second and first[-1][0] == second[0][0]:
        version, ops = first[-1]
        return [*first[:-1], (version, compact([*ops, *second[0][1]])), *second[1:]]
    return [*first, *second]
