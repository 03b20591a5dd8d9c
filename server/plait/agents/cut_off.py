"""The mark of a thread whose run was cut off as the server shut down; the next run finds and removes it."""

from typing import Final

from plait.actor.actor import Actor
from plait.parts.stage import Stage
from plait.state.commit import Commit
from plait.store.protocol import Record
from plait_schemas.codec import encode_json

__all__ = ["MARK", "is_marked", "mark"]

MARK: Final = ("agents", "cut-off")
"""The part and the key of the record."""


class _Mark:
    """Is stored with what a run has written."""

    is_ready = True

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.is_dirty = True

    async def prepare(self) -> None:
        """Do nothing: nothing has to be read."""

    def records(self) -> list[Record]:
        return [Record(*MARK, encode_json({"run": self._run_id}))]

    def submitted(self, commit: Commit) -> None:
        self.is_dirty = False


def mark(stage: Stage, run_id: str) -> None:
    """Let the thread be marked with the next commit."""
    stage.drafts[MARK] = _Mark(run_id)


async def is_marked(core: Actor) -> bool:
    """Whether a thread is marked; it is not any more from now on. Raises StoreError."""
    if await core.records.read(*MARK) is None:
        return False
    core.records.write([Record(*MARK, None)])
    return True
