"""Taking back what one source has changed."""

from collections.abc import Sequence
from typing import Final

from plait.errors import Conflict, NotFound
from plait.past import Past
from plait.pipeline import Commit, Pipeline
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, decode_ops, invert
from plait_schemas.rebase import rebase

__all__ = ["undo"]

_MARK: Final = "undo"


async def undo(pipeline: Pipeline, past: Past, source: str) -> Commit | None:
    """Take back the last change of `source` that has not been taken back; None when there is none that is kept.

    It is a change like any other. Raises Conflict when somebody else has changed the same since, and StoreError.
    """
    rows = await _rows(pipeline, past, 0)
    undone = {int(row.source.split(" ")[1]) for row in rows if row.source.startswith(f"{_MARK} ") and _by(row, source)}
    target = next((row for row in reversed(rows) if row.source == source and row.version not in undone), None)
    if target is None:
        return None
    try:
        before = await past.document(target.version - 1)
    except NotFound:
        return None
    later = await _rows(pipeline, past, target.version)
    document = pipeline.history.current.tree
    inverse = invert(before, decode_ops(target.ops))
    others = [row for row in later if row.source != source and not _by(row, source)]
    contested = rebase(inverse, _ops(others), document).conflicts
    result = rebase(inverse, _ops(later), document)
    if contested or result.is_lost:
        raise Conflict("somebody else has changed the same since", path=(contested or result.conflicts)[0])
    return pipeline.change(result.ops, "server", name=f"{_MARK} {target.version} {source}")


async def _rows(pipeline: Pipeline, past: Past, after: int) -> list[ChangeRow]:
    """Return the changes behind a version, or those of them that are kept, with the ones on their way to the disk."""
    while True:
        rows = await past.kept(after)
        newer = pipeline.history.since(rows[-1].version if rows else after, pipeline.history.current.version)
        if newer is not None:
            return rows + newer


def _by(row: ChangeRow, source: str) -> bool:
    """Tell whether a change takes back one of a source."""
    return row.source.startswith(f"{_MARK} ") and row.source.split(" ", 2)[2] == source


def _ops(rows: Sequence[ChangeRow]) -> list[Op]:
    return [op for row in rows for op in decode_ops(row.ops)]
