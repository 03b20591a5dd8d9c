"""Who is here: what each connection, or an agent of the server, shows of itself while it is there. Never stored.

Changes are gathered for a moment, so that however often they come, others are told at most so many times a second.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from plait.actor.transport import Frame
from plait_schemas.codec import decode_json
from plait_schemas.messages import PresenceDiff

__all__ = ["Presence"]

# Seconds for which changes are gathered.
_GATHER: Final = 0.05


# Most threads have nobody who shows anything; they share this.
_NOBODY: Final[dict[str, bytes]] = {}


class Presence:
    """The presence of one thread: JSON by connection id, or by a name that server code gave."""

    __slots__ = ("_loop", "_members", "_snapshot", "_tell", "_timer", "_told")

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[PresenceDiff], None]) -> None:
        self._loop = loop
        # Sends everybody what has changed.
        self._tell = tell
        # One object with what everybody was told last, until somebody shows something else.
        self._members: dict[str, bytes] = _NOBODY
        self._told: dict[str, bytes] = _NOBODY
        # The frame of what everybody was told, once somebody has asked for it.
        self._snapshot: Frame | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether anybody is here, as far as everybody has been told."""
        return bool(self._told)

    def values(self) -> dict[str, Any]:
        """Return what everybody shows, decoded."""
        return {id: decode_json(data) for id, data in self._members.items()}

    def set(self, id: str, data: bytes | None) -> None:
        """Show JSON for `id`, or with None nothing any more."""
        if data is not None and data != b"null":
            self._own()[id] = data
        elif id in self._members:
            del self._own()[id]
        else:
            return
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self.flush)

    def snapshot(self, write: Callable[[PresenceDiff], Frame]) -> Frame:
        """Return all that everybody has been told, so that what changes next is the same for all.

        `write` makes it a frame, once for all who ask until they are told something else.
        """
        if self._snapshot is None:
            self._snapshot = write(PresenceDiff(snapshot={id: msgspec.Raw(data) for id, data in self._told.items()}))
        return self._snapshot

    def flush(self) -> None:
        """Tell everybody what has changed since they were told last."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        before, after = self._told, self._members
        joined = {id: msgspec.Raw(data) for id, data in after.items() if id not in before}
        updated = {id: msgspec.Raw(data) for id, data in after.items() if before.get(id, data) != data}
        left = [id for id in before if id not in after]
        self._told = after
        if joined or updated or left:
            self._snapshot = None
            self._tell(PresenceDiff(joined=joined, updated=updated, left=left))

    def close(self) -> None:
        """Tell nobody anything more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _own(self) -> dict[str, bytes]:
        if self._members is self._told:
            self._members = self._told.copy()
        return self._members
