"""Taking back what one source has changed, over the changes that still stand."""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from plait.errors import Conflict, NotFound
from plait.state.commit import Commit
from plait.state.log import ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.work import Work
from plait.store.protocol import ChangeRow
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, Owned, PatchError, apply

__all__ = ["MARK", "Step", "standing", "undo", "undone"]

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


# How far it is looked back: over so many changes, as long as what is to be kept of them has no more bytes.
_REACH: Final = 10_000
_REACH_SIZE: Final = 32 * 1024 * 1024


async def undo(pipeline: Pipeline, change_log: ChangeLog, source: str) -> Commit | None:
    """Take back the last change of `source` that has not been taken back; None when there is none within reach.

    It is a change like any other. A change of which others have left nothing is passed over. Raises Conflict when
    somebody else has changed the same since, or too much has been changed, and StoreError.
    """
    history, work = pipeline.history, Work()
    while True:
        top = history.durable.version
        if _concerns(source, history.since(top, history.current.version)):
            await pipeline.settled()
            continue
        # The changes behind the one that is looked at, the last one first.
        later: list[ChangeRow] = []
        async with aclosing(_changes_of(source, change_log, top, later)) as targets:
            async for target in targets:
                try:
                    before = await change_log.document(target.version - 1)
                except NotFound:
                    return None
                newer = history.since(top, history.current.version)
                if newer is None or _concerns(source, newer):
                    break
                try:
                    ops = _inverse(target, before, [*reversed(later), *newer], work)
                except PatchError as error:
                    raise Conflict(f"it does not fit any more: {error}") from None
                if ops:
                    # The type may not have a field any more that the log has.
                    name = f"{MARK}{target.version} {source}"
                    return pipeline.change(ops, "server", name=name, drops_unknown=True)
            else:
                return None


async def _changes_of(
    source: str, change_log: ChangeLog, top: int, later: list[ChangeRow]
) -> AsyncGenerator[ChangeRow, None]:
    """Yield the changes up to `top` that a source has made and that have not been taken back, the last one first.

    Those behind it are then in `later`, without what was taken back before anything else was changed.
    """
    taken_back: set[int] = set()
    size, version = 0, top + 1
    while rows := await change_log.before(version):
        for row in rows:
            version = row.version
            if version <= top - _REACH or size > _REACH_SIZE:
                return
            if row.source == source and version not in taken_back:
                yield row
            if (taken := undone(row.source)) is not None:
                taken_back.add(taken)
            if later and undone(later[-1].source) == version:
                size -= len(later.pop().ops)
            else:
                later.append(row)
                size += len(row.ops)


def _concerns(source: str, rows: Iterable[ChangeRow] | None) -> bool:
    """Tell whether any of these changes is one of a source, or takes one back."""
    return any(row.source == source or undone(row.source) is not None for row in rows or ())


def _inverse(target: ChangeRow, before: Any, later: Sequence[ChangeRow], work: Work) -> list[Op]:
    """Return what takes back a change, behind later ones. Raises Conflict and PatchError."""
    made = work.decode(target)
    ops = invert(before, made)
    document = apply(before, made)
    own: Owned = {}
    steps = standing(document, later, work)
    taken_back = {undone(step.source) for step in steps}
    for step in steps:
        document = work.apply(document, step.ops, own)
        result = work.rebase(ops, step.ops, document)
        # What both have taken out, and somebody has put back, is there again: nothing would be left for it.
        is_back = len(result.ops) < len(ops) and step.version in taken_back
        if result.is_lost or is_back or (result.conflicts and step.source != target.source):
            raise Conflict("somebody else has changed the same since", path=next(iter(result.conflicts), None))
        ops = result.ops
    return ops
