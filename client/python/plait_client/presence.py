"""The presences of a thread's connections."""

from typing import Any

import msgspec

from plait_client.errors import TooLarge
from plait_client.events import Dropped
from plait_client.outbox import check_size, is_too_large
from plait_schemas.codec import decode_json
from plait_schemas.encoding import encode_given
from plait_schemas.messages import Presence, PresenceDiff

__all__ = ["Presences"]


class Presences:
    """The presence of every connection, by its id, and that of this client."""

    def __init__(self) -> None:
        self.all: dict[str, Any] = {}
        self._own: Presence | None = None
        # Whether it was reported that the own presence is too large for a socket.
        self._is_told = False

    def set(self, data: Any, max_frame: float) -> Presence:
        """Set this client's presence; return the frame to send. Raises TooLarge."""
        frame = Presence(msgspec.Raw(encode_given(data)))
        check_size(frame, max_frame)
        self._own = None if data is None else frame
        self._is_told = False
        return frame

    @property
    def own(self) -> Any:
        """The presence of this client; None for nothing."""
        return None if self._own is None else decode_json(self._own.data)

    def resend(self, max_frame: float) -> Presence | Dropped | None:
        """Return the frame to send on a new socket, if any; a presence too large for the socket is reported once."""
        if self._own is None or not is_too_large(self._own, max_frame):
            return self._own
        if self._is_told:
            return None
        self._is_told = True
        return Dropped(TooLarge(int(max_frame)))

    def forget(self) -> None:
        """Forget the others' presences: the answer to a join without a version does not mention that there are none."""
        self.all = {}

    def receive(self, frame: PresenceDiff) -> None:
        """Apply a frame: all presences, or the changed ones; the mapping before stays as it was."""
        if frame.snapshot is not msgspec.UNSET:
            self.all = _decode(frame.snapshot)
        left = frozenset(frame.left)
        kept = {id: data for id, data in self.all.items() if id not in left}
        self.all = kept | _decode(frame.joined) | _decode(frame.updated)


def _decode(presences: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {id: decode_json(data) for id, data in presences.items()}
