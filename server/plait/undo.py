"""Taking back what one source has changed."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from plait.commit import Commit
from plait.errors import Conflict, NotFound
from plait.past import Past
from plait.pipeline import Pipeline
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, PatchError, apply, decode_ops, invert
from plait_schemas.rebase import rebase

__all__ = ["undo"]

_MARK: Final = "undo "


class _Step(NamedTuple):
    version: int
    source: str
    ops: list[Op]


async def undo(pipeline: Pipeline, past: Past, source: str) -> Commit | None:
    """Take back the last change of `source` that has not been taken back; None when there is none that is kept.

    It is a change like any other. A change of which others have left nothing is passed over. Raises Conflict when
    somebody else has changed the same since, and StoreError.
    """
    passed: set[int] = set()
    while True:
        target = _last(await _rows(pipeline, past, 0), source, passed)
        if target is None:
            return None
        if target.version > pipeline.history.durable.version:
            await pipeline.settled()
            continue
        try:
            before = await past.document(target.version - 1)
        except NotFound:
            return None
        later = await _rows(pipeline, past, target.version)
        if [row.version for row in later[:1]] not in ([], [target.version + 1]):
            continue  # Meanwhile the log has been shortened.
        if _last([target, *later], source, passed) is not target:
            continue  # Meanwhile there has been another.
        try:
            ops = _inverse(target, before, later)
        except PatchError as error:
            raise Conflict(f"it does not fit any more: {error}") from None
        if ops:
            return pipeline.change(ops, "server", name=f"{_MARK}{target.version} {source}")
        passed.add(target.version)


async def _rows(pipeline: Pipeline, past: Past, after: int) -> list[ChangeRow]:
    """Return the changes behind a version, or those of them that are kept, with the ones on their way to the disk."""
    while True:
        durable = max(after, pipeline.history.durable.version)
        rows = await past.kept(after)
        newer = pipeline.history.since(rows[-1].version if rows else durable, pipeline.history.current.version)
        if newer is not None:
            return rows + newer


def _last(rows: Sequence[ChangeRow], source: str, passed: Collection[int]) -> ChangeRow | None:
    """Return the last change of a source that has not been taken back, nor passed over."""
    undone = {version for row in rows if (version := _undone(row.source)) is not None}
    for row in reversed(rows):
        if row.source == source and row.version not in undone and row.version not in passed:
            return row
    return None


def _undone(source: str) -> int | None:
    """Return the version that a change takes back, None if it is not of that sort."""
    return int(source.split(" ", 2)[1]) if source.startswith(_MARK) else None


def _inverse(target: ChangeRow, before: Any, later: Sequence[ChangeRow]) -> list[Op]:
    """Return what takes back a change, behind later ones. Raises Conflict and PatchError."""
    made = decode_ops(target.ops)
    ops = invert(before, made)
    document = apply(before, made)
    for step in _standing(document, later):
        document = apply(document, step.ops)
        result = rebase(ops, step.ops, document)
        if result.is_lost or (result.conflicts and step.source != target.source):
            raise Conflict("somebody else has changed the same since", path=next(iter(result.conflicts), None))
        ops = result.ops
    return ops


def _standing(document: Any, rows: Iterable[ChangeRow]) -> list[_Step]:
    """Return changes of a document as they are without those among them that have been taken back."""
    steps = [_Step(row.version, row.source, decode_ops(row.ops)) for row in rows]
    for taking in list(steps):
        versions = [step.version for step in steps]
        undone = _undone(taking.source)
        if undone is None or undone not in versions:
            continue
        start, end = versions.index(undone), versions.index(taking.version)
        there = apply(document, (op for step in steps[:start] for op in step.ops))
        between = _without(steps[start], steps[start + 1 : end], there)
        if between is not None:
            steps[start : end + 1] = between
    return steps


def _without(change: _Step, later: Iterable[_Step], document: Any) -> list[_Step] | None:
    """Return later changes of a document as they are without the first one; None when they lean on it."""
    inverse = invert(document, change.ops)
    document = apply(document, change.ops)
    found = []
    for step in later:
        document = apply(document, step.ops)
        result = rebase(step.ops, inverse, document)
        if result.conflicts or result.is_lost:
            return None
        found.append(step._replace(ops=result.ops))
        inverse = [op for op in result.over if op is not None]
    return found
