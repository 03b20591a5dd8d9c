"""Taking back what one source has changed."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from plait.commit import Commit
from plait.errors import Conflict, NotFound
from plait.past import Past
from plait.pipeline import Pipeline
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, Owned, PatchError, apply, decode_ops, invert
from plait_schemas.rebase import Rebased, rebase

__all__ = ["undo"]

_MARK: Final = "undo "
# How far it is looked back: over so many changes, as long as those that stand have no more bytes of operations.
_REACH: Final = 10_000
_REACH_SIZE: Final = 4 * 1024 * 1024
# What one call may do, of which each operation that is brought behind another is 1; about a tenth of a second.
_MOST_WORK: Final = 150_000


# The cost of a step besides its operations.
_EACH: Final = 80


class _Step(NamedTuple):
    version: int
    source: str
    ops: list[Op]


class _Work:
    """Counts what is done for one call."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def take(self, count: int) -> None:
        """Note what is about to be done. Raises Conflict when that is too much."""
        self._left -= count
        if self._left < 0:
            raise Conflict("too much has been changed since")


async def undo(pipeline: Pipeline, past: Past, source: str) -> Commit | None:
    """Take back the last change of `source` that has not been taken back; None when there is none within reach.

    It is a change like any other. A change of which others have left nothing is passed over. Raises Conflict when
    somebody else has changed the same since, or too much has been changed, and StoreError.
    """
    history, work = pipeline.history, _Work()
    while True:
        top = history.durable.version
        if _concerns(source, history.since(top, history.current.version)):
            await pipeline.settled()
            continue
        # The changes behind the one that is looked at, the last one first.
        later: list[ChangeRow] = []
        async with aclosing(_changes_of(source, past, top, later)) as targets:
            async for target in targets:
                try:
                    before = await past.document(target.version - 1)
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
                    return pipeline.change(ops, "server", name=f"{_MARK}{target.version} {source}")
            else:
                return None


async def _changes_of(source: str, past: Past, top: int, later: list[ChangeRow]) -> AsyncIterator[ChangeRow]:
    """Yield the changes up to `top` that a source has made and that have not been taken back, the last one first.

    Those behind it are then in `later`, without what was taken back before anything else was changed.
    """
    undone: set[int] = set()
    size, version = 0, top + 1
    while rows := await past.before(version):
        for row in rows:
            version = row.version
            if version <= top - _REACH or size > _REACH_SIZE:
                return
            if row.source == source and version not in undone:
                yield row
            if (taken_back := _undone(row.source)) is not None:
                undone.add(taken_back)
            if later and _undone(later[-1].source) == version:
                size -= len(later.pop().ops)
            else:
                later.append(row)
                size += len(row.ops)


def _concerns(source: str, rows: Iterable[ChangeRow] | None) -> bool:
    """Tell whether any of these changes is one of a source, or takes one back."""
    return any(row.source == source or _undone(row.source) is not None for row in rows or ())


def _undone(source: str) -> int | None:
    """Return the version that a change takes back, None if it is not of that sort."""
    return int(source.split(" ", 2)[1]) if source.startswith(_MARK) else None


def _inverse(target: ChangeRow, before: Any, later: Sequence[ChangeRow], work: _Work) -> list[Op]:
    """Return what takes back a change, behind later ones. Raises Conflict and PatchError."""
    made = decode_ops(target.ops)
    ops = invert(before, made)
    document = apply(before, made)
    own: Owned = {}
    for step in _standing(document, later, work):
        document = apply(document, step.ops, own)
        result = _rebase(ops, step.ops, document, work)
        if result.is_lost or (result.conflicts and step.source != target.source):
            raise Conflict("somebody else has changed the same since", path=next(iter(result.conflicts), None))
        ops = result.ops
    return ops


def _standing(document: Any, rows: Iterable[ChangeRow], work: _Work) -> list[_Step]:
    """Return changes of a document as they are without those among them that have been taken back."""
    steps = [_Step(row.version, row.source, decode_ops(row.ops)) for row in rows]
    for taking in list(steps):
        versions = [step.version for step in steps]
        undone = _undone(taking.source)
        if undone is None or undone not in versions:
            continue
        start, end = versions.index(undone), versions.index(taking.version)
        there = apply(document, (op for step in steps[:start] for op in step.ops))
        between = _without(steps[start], steps[start + 1 : end], there, work)
        if between is not None:
            steps[start : end + 1] = between
    return steps


def _without(change: _Step, later: Iterable[_Step], document: Any, work: _Work) -> list[_Step] | None:
    """Return later changes of a document as they are without the first one; None when they lean on it."""
    inverse = invert(document, change.ops)
    own: Owned = {}
    document = apply(document, change.ops)
    found = []
    for step in later:
        document = apply(document, step.ops, own)
        result = _rebase(step.ops, inverse, document, work)
        if result.conflicts or result.is_lost:
            return None
        found.append(step._replace(ops=result.ops))
        inverse = [op for op in result.over if op is not None]
    return found


def _rebase(ops: Sequence[Op], over: Sequence[Op], document: Any, work: _Work) -> Rebased:
    work.take(_EACH + len(ops) * len(over))
    return rebase(ops, over, document)
