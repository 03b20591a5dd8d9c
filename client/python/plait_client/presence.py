"""Who is here: what the connections of a thread let each other see."""

from typing import Any, Final

import msgspec

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.messages import Presence, PresenceDiff

__all__ = ["Presences"]

_NOTHING: Final = msgspec.Raw(b"null")


class Presences:
    """The presence of every connection, by its id, and that of this client."""

    def __init__(self) -> None:
        self.others: dict[str, Any] = {}
        self._own = _NOTHING

    def set(self, data: Any) -> Presence:
        """Let others see `data` of this client; return the frame that says so."""
        self._own = msgspec.Raw(encode_json(data))
        return Presence(self._own)

    def again(self) -> list[Presence]:
        """Return what is to be said on a new socket."""
        return [] if bytes(self._own) == b"null" else [Presence(self._own)]

    def receive(self, frame: PresenceDiff) -> None:
        """Take in a snapshot, or what has changed; the mapping before is left as it was."""
        if frame.snapshot is not msgspec.UNSET:
            self.others = _decode(frame.snapshot)
        left = frozenset(frame.left)
        kept = {id: data for id, data in self.others.items() if id not in left}
        self.others = kept | _decode(frame.joined) | _decode(frame.updated)


def _decode(presences: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {id: decode_json(data) for id, data in presences.items()}
