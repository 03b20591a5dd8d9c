"""Undo of the last change of one source, and redo; the later changes of others are kept."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from plait.errors import Conflict, NotFound
from plait.state.budget import Budget
from plait.state.change_log import ChangeLog
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.state.source import Client
from plait.state.undone import REDO, UNDO, drop_undone, parse_taken_back
from plait.store.thread_rows import ChangeRow
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, Owned, PatchError, apply, compact, decode_ops

__all__ = ["redo", "undo"]

# Maximum changes that an undo looks back, and maximum bytes of the changes that it must keep.
_REACH: Final = 10_000
_REACH_SIZE: Final = 32 * 1024 * 1024
# Changes of one text are undone together if they are small and follow each other quickly: the maximum microseconds
# between two changes, and the maximum characters of each.
_PAUSE: Final = 1_000_000
_MOST_TYPED: Final = 64
# Changes with more bytes of operations count as large, without decoding them.
_MOST_BYTES: Final = 1024


class _Target(NamedTuple):
    """Changes that are undone together, in order, and the changes after the first of them, the last one first."""

    rows: Sequence[ChangeRow]
    later: Sequence[ChangeRow]


_Find = Callable[[str, ChangeLog, int], AsyncGenerator[_Target, None]]


async def undo(pipeline: Pipeline, change_log: ChangeLog, source: str, client: Client | None = None) -> Commit | None:
    """Undo the last change of `source` that was not undone yet, by another change; None if no such change is in reach.

    Text that was typed without a pause is undone at once. Changes that others have completely overwritten are skipped.
    With a `client`, its permissions are checked. Raises Conflict if others have changed the same place since, or too
    much has changed, Forbidden, and StoreError.
    """
    return await _take_back(pipeline, change_log, source, UNDO, _find_changes, client=client)


async def redo(pipeline: Pipeline, change_log: ChangeLog, source: str, client: Client | None = None) -> Commit | None:
    """Redo the last change of `source` that was undone and not redone; None if `source` has made a change since then.

    Raises the errors of `undo`.
    """
    return await _take_back(pipeline, change_log, source, REDO, _find_undos, client=client)


async def _take_back(
    pipeline: Pipeline, change_log: ChangeLog, source: str, name: str, find: _Find, *, client: Client | None
) -> Commit | None:
    history, budget = pipeline.history, Budget()
    while True:
        top = history.durable.version
        if _has_change_of(source, history.since(top, history.current.version)):
            await pipeline.wait_until_durable()
            continue
        async with aclosing(find(source, change_log, top)) as targets:
            async for target in targets:
                first, last = target.rows[0].version, target.rows[-1].version
                if client is not None and pipeline.views is not None:
                    # The steps below could reveal changes of others at a place that is hidden by now.
                    ops = [op for row in target.rows for op in decode_ops(row.ops)]
                    pipeline.views.check(ops, client, pipeline.current)
                try:
                    before = await change_log.document(first - 1)
                except NotFound:
                    return None
                newer = history.since(top, history.current.version)
                if newer is None or _has_change_of(source, newer):
                    break
                try:
                    ops = _invert_changes(target.rows, before, [*reversed(target.later), *newer], budget)
                except PatchError as error:
                    raise Conflict(f"the change cannot be undone in the current state: {error}") from None
                if ops:
                    versions = first if first == last else f"{first}-{last}"
                    # The log may contain a field that the type no longer has.
                    maker = f"{name} {versions} {source}"
                    return pipeline.change(ops, "server", name=maker, by=client, drops_unknown=True)
            else:
                return None


# Finding changes to undo


async def _find_changes(source: str, change_log: ChangeLog, top: int) -> AsyncGenerator[_Target, None]:
    """Yield the changes of a source up to `top` that were not undone, the last one first."""
    reader = _LogReader()
    undone: set[int] = set()
    # Changes that were typed without a pause, the last one first, and the number of changes after them.
    typed: list[ChangeRow] = []
    count = 0
    async with aclosing(reader.read(change_log, top)) as rows:
        async for row in rows:
            taken = parse_taken_back(row.source)
            if taken is not None and taken.source == source and not taken.is_redo and row.version not in reader.redone:
                undone.update(range(taken.first, taken.last + 1))
            is_own = row.source == source and row.version not in undone
            if typed and is_own and _goes_on(row, typed[-1]):
                typed.append(row)
                count = len(reader.later)
                continue
            is_of_source = row.source == source or (taken is not None and taken.source == source)
            if typed and (is_of_source or row.at < typed[-1].at - _PAUSE):
                yield _Target(typed[::-1], reader.later[:count])
                typed = []
            if is_own:
                typed = [row]
                count = len(reader.later)
    if typed:
        yield _Target(typed[::-1], reader.later[:count])


async def _find_undos(source: str, change_log: ChangeLog, top: int) -> AsyncGenerator[_Target, None]:
    """Yield the undos for a source since its last change that were not redone, the last one first."""
    reader = _LogReader()
    async with aclosing(reader.read(change_log, top)) as rows:
        async for row in rows:
            if row.source == source:
                return
            taken = parse_taken_back(row.source)
            if taken is not None and taken.source == source and not taken.is_redo and row.version not in reader.redone:
                yield _Target([row], reader.later[:])


class _LogReader:
    """Reads the changes up to a version, the last one first, and keeps the changes after the current one."""

    def __init__(self) -> None:
        # The kept changes, without pairs of a change and the undo directly after it.
        self.later: list[ChangeRow] = []
        # The versions of the undos that were redone.
        self.redone: set[int] = set()

    async def read(self, change_log: ChangeLog, top: int) -> AsyncGenerator[ChangeRow, None]:
        """Yield the changes that are within reach."""
        size, version = 0, top + 1
        while rows := await change_log.before(version):
            for row in rows:
                version = row.version
                if version <= top - _REACH or size > _REACH_SIZE:
                    return
                if (taken := parse_taken_back(row.source)) is not None and taken.is_redo:
                    self.redone.add(taken.first)
                yield row
                if self._is_undone_by_next(row):
                    size -= len(self.later.pop().ops)
                else:
                    self.later.append(row)
                    size += len(row.ops)

    def _is_undone_by_next(self, row: ChangeRow) -> bool:
        taken = parse_taken_back(self.later[-1].source) if self.later else None
        if taken is None or self.later[-1].version in self.redone:
            return False
        return taken.first == taken.last == row.version


def _goes_on(row: ChangeRow, newer: ChangeRow) -> bool:
    """Return whether two changes were typed in one text without a pause in between."""
    path = _find_text(row)
    return path is not None and newer.at - row.at <= _PAUSE and path == _find_text(newer)


def _find_text(row: ChangeRow) -> str | None:
    """Return the place of the text in which a few characters were typed or deleted; None for any other change."""
    if len(row.ops) > _MOST_BYTES or b'"splice"' not in row.ops:
        return None
    ops = decode_ops(row.ops)
    count = sum((op.remove or 0) + len(op.insert or "") for op in ops)
    paths = {op.path if op.op == "splice" else None for op in ops}
    return paths.pop() if len(paths) == 1 and count <= _MOST_TYPED else None


def _has_change_of(source: str, rows: Iterable[ChangeRow] | None) -> bool:
    """Whether any of the changes was made by a source, or is an undo or a redo."""
    return any(row.source == source or parse_taken_back(row.source) is not None for row in rows or ())


def _invert_changes(targets: Sequence[ChangeRow], before: Any, later: Sequence[ChangeRow], budget: Budget) -> list[Op]:
    """Return the operations that undo changes, rebased over the others of `later`, the changes after the first target.

    Raises Conflict and PatchError.
    """
    made = budget.decode(targets[0])
    ops = invert(before, made)
    document = apply(before, made)
    own: Owned = {}
    steps = drop_undone(document, later, budget)
    versions = {target.version for target in targets}
    taken = [each for step in steps if (each := parse_taken_back(step.source)) is not None]
    for step in steps:
        if step.version in versions:
            ops = compact([*invert(document, step.ops), *ops])
            document = budget.apply(document, step.ops, own)
            continue
        document = budget.apply(document, step.ops, own)
        result = budget.rebase(ops, step.ops, document)
        # Both changes removed the same text, and an undo has restored it: undoing this change, too, would restore it
        # twice.
        is_back = _count_removed(result.ops) < _count_removed(ops) and any(
            each.first <= step.version <= each.last for each in taken
        )
        if result.is_lost or is_back or (result.conflicts and step.source != targets[0].source):
            raise Conflict("others have changed the same place since", path=next(iter(result.conflicts), None))
        ops = result.ops
    return ops


def _count_removed(ops: Iterable[Op]) -> int:
    """Return the number of characters that operations remove from texts; every other operation counts as one."""
    return sum((op.remove or 0) if op.op == "splice" else 1 for op in ops)
