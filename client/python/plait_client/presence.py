"""Who is here: what the connections of a thread let each other see."""

import logging
from typing import Any

import msgspec

from plait_client.limit import FrameLimit
from plait_schemas.codec import decode_json
from plait_schemas.messages import Presence, PresenceDiff

__all__ = ["Presences"]

logger = logging.getLogger(__name__)


class Presences:
    """The presence of every connection, by its id, and that of this client."""

    def __init__(self) -> None:
        self.others: dict[str, Any] = {}
        self._own: Presence | None = None

    def set(self, frame: Presence) -> None:
        """Keep what this client says of itself; null for nothing."""
        self._own = None if bytes(frame.data) == b"null" else frame

    def again(self, limit: FrameLimit) -> list[Presence]:
        """Return what is to be said on a new socket, which may take less than the one before."""
        if self._own is None:
            return []
        if not limit.allows(self._own):
            logger.warning("the presence is larger than the server takes, and others do not see it")
            return []
        return [self._own]

    def forget(self) -> None:
        """Know of nobody: who joins without a state that it has is not told that nobody is here."""
        self.others = {}

    def receive(self, frame: PresenceDiff) -> None:
        """Take in a snapshot, or what has changed; the mapping before is left as it was."""
        if frame.snapshot is not msgspec.UNSET:
            self.others = _decode(frame.snapshot)
        left = frozenset(frame.left)
        kept = {id: data for id, data in self.others.items() if id not in left}
        self.others = kept | _decode(frame.joined) | _decode(frame.updated)


def _decode(presences: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {id: decode_json(data) for id, data in presences.items()}
