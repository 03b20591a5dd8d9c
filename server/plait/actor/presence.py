"""Presence: data that each connection, or an agent of the server, shows to others while it is there. Never stored.

Changes are collected for a moment, so that others get a limited number of frames per second.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from plait.actor.transport import Frame
from plait_schemas.codec import decode_json
from plait_schemas.messages import PresenceDiff

__all__ = ["Presence"]

# Seconds for which changes are collected.
_GATHER: Final = 0.05


# Shared by all threads without presence, to save memory.
_NOBODY: Final[dict[str, bytes]] = {}


class Presence:
    """The presence of one thread: JSON by connection id, or by a name that server code has chosen."""

    __slots__ = ("_members", "_snapshot", "_tell", "_timer", "_told")

    def __init__(self, tell: Callable[[PresenceDiff], None]) -> None:
        # Broadcasts a diff.
        self._tell = tell
        # The current presence, and the last sent presence: the same object until something changes.
        self._members: dict[str, bytes] = _NOBODY
        self._told: dict[str, bytes] = _NOBODY
        # The cached frame of the last sent presence.
        self._snapshot: Frame | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether the last sent presence has any member."""
        return bool(self._told)

    def values(self) -> dict[str, Any]:
        """Return the current presence, decoded."""
        return {id: decode_json(data) for id, data in self._members.items()}

    def set(self, id: str, data: bytes | None) -> None:
        """Set the presence of `id`, as JSON; None removes it."""
        if data is not None and data != b"null":
            self._copy_members()[id] = data
        elif id in self._members:
            del self._copy_members()[id]
        else:
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER, self.flush)

    def snapshot(self, write: Callable[[PresenceDiff], Frame]) -> Frame:
        """Return a frame with the last sent presence, to which the next diff applies.

        `write` encodes the presence; the frame is cached until the next diff.
        """
        if self._snapshot is None:
            self._snapshot = write(PresenceDiff(snapshot={id: msgspec.Raw(data) for id, data in self._told.items()}))
        return self._snapshot

    def flush(self) -> None:
        """Send the changes since the last diff at once, without waiting for more."""
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
        """Stop sending diffs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _copy_members(self) -> dict[str, bytes]:
        """Return the current presence for a change; copy it first if it is the last sent one."""
        if self._members is self._told:
            self._members = self._told.copy()
        return self._members
