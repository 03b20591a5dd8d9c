"""What stands of a log: its changes as they are without those that have been taken back."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plait.store.protocol import ChangeRow
from plait.work import Work
from plait_schemas.patch import Op, Owned, invert

__all__ = ["MARK", "Step", "standing", "undone"]

MARK: Final = "undo "
"""Begins the source of a change that takes back another."""


class Step(NamedTuple):
    """A change, decoded."""

    version: int
    source: str
    ops: Sequence[Op]


def undone(source: str) -> int | None:
    """Return the version that a change with this source takes back, None if it is not of that sort."""
    return int(source.split(" ", 2)[1]) if source.startswith(MARK) else None


def standing(document: Any, rows: Iterable[ChangeRow], work: Work) -> list[Step]:
    """Return changes of a document as they are without those among them that have been taken back.

    Those that others lean on stand, as do those that were not taken back as a whole, and the ones that take them back.
    Raises PatchError, and Conflict when it is too much work.
    """
    steps = [Step(row.version, row.source, work.decode(row)) for row in rows]
    needed: set[int] = set()
    while takers := _takers(steps, needed):
        walk = _Walk(document, takers, work)
        try:
            return [found for step in steps if (found := walk.take(step)) is not None]
        except _NeededError as error:
            needed.add(error.version)
    return steps


def _takers(steps: Iterable[Step], needed: Collection[int]) -> dict[int, int]:
    """Return which change takes back which, by their versions."""
    there: set[int] = set()
    takers: dict[int, int] = {}
    for step in steps:
        taken = undone(step.source)
        if taken in there and taken not in needed:
            there.discard(taken)
            takers[step.version] = taken
        else:
            there.add(step.version)
    return takers


class _NeededError(Exception):
    """A change cannot be left out, as others lean on it, or it has left something behind."""

    def __init__(self, version: int) -> None:
        self.version = version


class _Walk:
    """Carries out changes on a document, with and without those that are left out."""

    def __init__(self, document: Any, takers: Mapping[int, int], work: Work) -> None:
        self._work = work
        self._takers = takers
        self._left_out = frozenset(takers.values())
        self._with = self._without = document
        self._owned_with: Owned = {}
        self._owned_without: Owned = {}
        # What leads from the one to the other: what takes back each of those left out, the last one first.
        self._inverses: list[tuple[int, Sequence[Op]]] = []

    def take(self, step: Step) -> Step | None:
        """Carry out the next change; returns what stands of it."""
        if step.version in self._left_out:
            before, self._owned_with = self._with, {}  # What takes it back may refer to parts of the document.
            self._carry_out(step.ops)
            self._inverses.insert(0, (step.version, invert(before, step.ops)))
        elif step.version in self._takers:
            self._carry_out(step.ops)
            self._forget(self._takers[step.version], step.ops)
        else:
            return self._keep(step)
        return None

    def _keep(self, step: Step) -> Step:
        result = self._work.rebase(step.ops, [op for _, ops in self._inverses for op in ops], self._without)
        if result.conflicts or result.is_lost:
            raise _NeededError(self._needed_by(step))
        self._without = self._work.apply(self._without, result.ops, self._owned_without)
        self._carry_out(step.ops)
        versions = [version for version, ops in self._inverses for _ in ops]
        moved: dict[int, list[Op]] = {version: [] for version, _ in self._inverses}
        for index, op in zip(result.indices, result.over, strict=True):
            moved[versions[index]].append(op)
        self._inverses = list(moved.items())
        return step._replace(ops=result.ops)

    def _forget(self, version: int, ops: Sequence[Op]) -> None:
        """Take note that `ops` have taken back a change that was left out, and bring behind them what comes first."""
        document, own, moved = self._with, Owned(), list[tuple[int, Sequence[Op]]]()
        for index, (other, inverse) in enumerate(self._inverses):
            if other == version:
                if list(inverse) != list(ops):
                    raise _NeededError(version)  # Something of it was gone already, or came back at another place.
                self._inverses = [*moved, *self._inverses[index + 1 :]]
                return
            result = self._work.rebase(inverse, ops, document)
            if result.conflicts or result.is_lost:
                raise _NeededError(version)
            document = self._work.apply(document, result.ops, own)
            moved.append((other, result.ops))
            ops = result.over

    def _needed_by(self, step: Step) -> int:
        """Return the first of the changes left out that another leans on."""
        document, own, over = self._with, Owned(), list[Op]()
        for version, ops in self._inverses:
            over += ops
            document = self._work.apply(document, ops, own)
            result = self._work.rebase(step.ops, over, document)
            if result.conflicts or result.is_lost:
                return version
        return self._inverses[-1][0]

    def _carry_out(self, ops: Sequence[Op]) -> None:
        self._with = self._work.apply(self._with, ops, self._owned_with)
