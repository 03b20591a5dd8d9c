"""Undo of the last change of one source; the later changes of others are kept."""

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

__all__ = ["UNDO_PREFIX", "Step", "drop_undone", "parse_undone", "undo"]

UNDO_PREFIX: Final = "undo "
"""The source of an undo begins with this; the undone version and the source of the undone change follow."""


class Step(NamedTuple):
    """A change, decoded."""

    version: int
    source: str
    ops: Sequence[Op]


def parse_undone(source: str) -> int | None:
    """Return the version that a change with this source undoes, None if it is not an undo."""
    return int(source.split(" ", 2)[1]) if source.startswith(UNDO_PREFIX) else None


def drop_undone(document: Any, rows: Iterable[ChangeRow], work: Work) -> list[Step]:
    """Return the changes of a document, rebased so that those that have been undone, and their undos, are left out.

    An undone change is kept, with its undo, if other changes depend on it, or if it was not undone completely. Raises
    PatchError, and Conflict when it is too much work.
    """
    steps = [Step(row.version, row.source, work.decode(row)) for row in rows]
    needed: set[int] = set()
    while undos := _find_undos(steps, needed):
        walk = _Walk(document, undos, work)
        try:
            return [found for step in steps if (found := walk.take(step)) is not None]
        except _NeededError as error:
            needed.add(error.version)
    return steps


def _find_undos(steps: Iterable[Step], needed: Collection[int]) -> dict[int, int]:
    """Return the version that each undo has undone, by the undo's version."""
    there: set[int] = set()
    undos: dict[int, int] = {}
    for step in steps:
        undone = parse_undone(step.source)
        if undone in there and undone not in needed:
            there.discard(undone)
            undos[step.version] = undone
        else:
            there.add(step.version)
    return undos


class _NeededError(Exception):
    """A change cannot be left out, as others depend on it, or its undo was not complete."""

    def __init__(self, version: int) -> None:
        self.version = version


class _Walk:
    """Applies changes to two copies of a document: one with the undone changes, one without."""

    def __init__(self, document: Any, undos: Mapping[int, int], work: Work) -> None:
        self._work = work
        self._undos = undos
        self._left_out = frozenset(undos.values())
        self._with = self._without = document
        self._owned_with: Owned = {}
        self._owned_without: Owned = {}
        # The operations from `_with` to `_without`: the inverse of each change left out, the last one first.
        self._inverses: list[tuple[int, Sequence[Op]]] = []

    def take(self, step: Step) -> Step | None:
        """Apply the next change, and return it as it is without the undone ones; None if it is left out."""
        if step.version in self._left_out:
            before, self._owned_with = self._with, {}  # The inverse may share parts with the document.
            self._apply(step.ops)
            self._inverses.insert(0, (step.version, invert(before, step.ops)))
        elif step.version in self._undos:
            self._apply(step.ops)
            self._drop_inverse(self._undos[step.version], step.ops)
        else:
            return self._keep(step)
        return None

    def _keep(self, step: Step) -> Step:
        result = self._work.rebase(step.ops, [op for _, ops in self._inverses for op in ops], self._without)
        if result.conflicts or result.is_lost:
            raise _NeededError(self._find_needed(step))
        self._without = self._work.apply(self._without, result.ops, self._owned_without)
        self._apply(step.ops)
        versions = [version for version, ops in self._inverses for _ in ops]
        moved: dict[int, list[Op]] = {version: [] for version, _ in self._inverses}
        for index, op in zip(result.indices, result.over, strict=True):
            moved[versions[index]].append(op)
        self._inverses = list(moved.items())
        return step._replace(ops=result.ops)

    def _drop_inverse(self, version: int, ops: Sequence[Op]) -> None:
        """Drop the inverse of a change that `ops` have undone, and rebase the inverses before it over `ops`."""
        document, own, moved = self._with, Owned(), list[tuple[int, Sequence[Op]]]()
        for index, (other, inverse) in enumerate(self._inverses):
            if other == version:
                if list(inverse) != list(ops):
                    raise _NeededError(version)  # The undo was incomplete, or restored something at another place.
                self._inverses = [*moved, *self._inverses[index + 1 :]]
                return
            result = self._work.rebase(inverse, ops, document)
            if result.conflicts or result.is_lost:
                raise _NeededError(version)
            document = self._work.apply(document, result.ops, own)
            moved.append((other, result.ops))
            ops = result.over

    def _find_needed(self, step: Step) -> int:
        """Return the version of the first change left out on which `step` depends."""
        document, own, over = self._with, Owned(), list[Op]()
        for version, ops in self._inverses:
            over += ops
            document = self._work.apply(document, ops, own)
            result = self._work.rebase(step.ops, over, document)
            if result.conflicts or result.is_lost:
                return version
        return self._inverses[-1][0]

    def _apply(self, ops: Sequence[Op]) -> None:
        self._with = self._work.apply(self._with, ops, self._owned_with)


# How far an undo looks back: the most changes, and the most bytes of those that it has to keep.
_REACH: Final = 10_000
_REACH_SIZE: Final = 32 * 1024 * 1024


async def undo(pipeline: Pipeline, change_log: ChangeLog, source: str) -> Commit | None:
    """Undo the last change of `source` that has not been undone, by a new change; None when there is none in reach.

    Changes that others have completely overwritten are skipped. Raises Conflict when somebody else has changed the same
    place since, or too much has been changed, and StoreError.
    """
    history, work = pipeline.history, Work()
    while True:
        top = history.durable.version
        if _has_change_of(source, history.since(top, history.current.version)):
            await pipeline.wait_until_durable()
            continue
        # The changes after the target, the last one first.
        later: list[ChangeRow] = []
        async with aclosing(_find_targets(source, change_log, top, later)) as targets:
            async for target in targets:
                try:
                    before = await change_log.document(target.version - 1)
                except NotFound:
                    return None
                newer = history.since(top, history.current.version)
                if newer is None or _has_change_of(source, newer):
                    break
                try:
                    ops = _invert_change(target, before, [*reversed(later), *newer], work)
                except PatchError as error:
                    raise Conflict(f"the change cannot be undone on the current state: {error}") from None
                if ops:
                    # The type may have lost a field that is in the log.
                    name = f"{UNDO_PREFIX}{target.version} {source}"
                    return pipeline.change(ops, "server", name=name, drops_unknown=True)
            else:
                return None


async def _find_targets(
    source: str, change_log: ChangeLog, top: int, later: list[ChangeRow]
) -> AsyncGenerator[ChangeRow, None]:
    """Yield the changes of a source up to `top` that have not been undone, the last one first.

    `later` then has the changes after the yielded one, without those that were undone at once.
    """
    undone_versions: set[int] = set()
    size, version = 0, top + 1
    while rows := await change_log.before(version):
        for row in rows:
            version = row.version
            if version <= top - _REACH or size > _REACH_SIZE:
                return
            if row.source == source and version not in undone_versions:
                yield row
            if (undone := parse_undone(row.source)) is not None:
                undone_versions.add(undone)
            if later and parse_undone(later[-1].source) == version:
                size -= len(later.pop().ops)
            else:
                later.append(row)
                size += len(row.ops)


def _has_change_of(source: str, rows: Iterable[ChangeRow] | None) -> bool:
    """Whether any of the changes is one of a source, or an undo."""
    return any(row.source == source or parse_undone(row.source) is not None for row in rows or ())


def _invert_change(target: ChangeRow, before: Any, later: Sequence[ChangeRow], work: Work) -> list[Op]:
    """Return the operations that undo a change, rebased over the later ones. Raises Conflict and PatchError."""
    made = work.decode(target)
    ops = invert(before, made)
    document = apply(before, made)
    own: Owned = {}
    steps = drop_undone(document, later, work)
    undone_versions = {parse_undone(step.source) for step in steps}
    for step in steps:
        document = work.apply(document, step.ops, own)
        result = work.rebase(ops, step.ops, document)
        # Both changes removed the same, and an undo has put it back: the inverse has no operation left for it.
        is_back = len(result.ops) < len(ops) and step.version in undone_versions
        if result.is_lost or is_back or (result.conflicts and step.source != target.source):
            raise Conflict("somebody else has changed the same place since", path=next(iter(result.conflicts), None))
        ops = result.ops
    return ops
