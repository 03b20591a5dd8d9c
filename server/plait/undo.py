"""Taking back what one source has changed."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

from plait.commit import Commit
from plait.errors import Conflict, NotFound
from plait.past import Past
from plait.pipeline import Pipeline
from plait.standing import MARK, standing, undone
from plait.store.protocol import ChangeRow
from plait.work import Work
from plait_schemas.patch import Op, Owned, PatchError, apply, invert

__all__ = ["undo"]

# How far it is looked back: over so many changes, as long as what is to be kept of them has no more bytes.
_REACH: Final = 10_000
_REACH_SIZE: Final = 32 * 1024 * 1024


async def undo(pipeline: Pipeline, past: Past, source: str) -> Commit | None:
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
                    # The type may not have a field any more that the log has.
                    name = f"{MARK}{target.version} {source}"
                    return pipeline.change(ops, "server", name=name, drops_unknown=True)
            else:
                return None


async def _changes_of(source: str, past: Past, top: int, later: list[ChangeRow]) -> AsyncGenerator[ChangeRow, None]:
    """Yield the changes up to `top` that a source has made and that have not been taken back, the last one first.

    Those behind it are then in `later`, without what was taken back before anything else was changed.
    """
    taken_back: set[int] = set()
    size, version = 0, top + 1
    while rows := await past.before(version):
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
