"""Keeps one reader of the native protocol up to date; who reads too slowly gets what it missed in one frame."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection, PlainWire
from plait.actor.transport import Frame, Transport
from plait.errors import CorruptThread
from plait.state.revision import Revision
from plait.store.protocol import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.codes import TRY_AGAIN_LATER
from plait_schemas.messages import Changes, Joined, PresenceDiff, Snapshot, Version, encode
from plait_schemas.patch import Op, decode_ops

__all__ = ["PLAIT", "Follower", "PlaitWire"]


class PlaitWire(PlainWire):
    """Tells of a change by its operations."""

    def encode_change(self, revision: Revision) -> Frame:
        row = revision.change
        assert row is not None
        source = encode_json(row.source)
        return Frame(b'{"type":"change","version":%d,"ops":%b,"source":%b}' % (row.version, row.ops, source))

    def encode_message(self, data: object) -> Frame:
        if isinstance(data, bytes | bytearray | memoryview):
            return Frame(bytes(data), is_text=False)
        return Frame(b'{"type":"message","data":%b}' % encode_json(data))

    def encode_event(self, name: str, data: object) -> Frame:
        return Frame(b'{"type":"event","name":%b,"data":%b}' % (encode_json(name), encode_json(data)))

    def encode_presence(self, diff: PresenceDiff) -> Frame:
        return Frame(encode(diff))


PLAIT: Final = PlaitWire()


# Operations of so many bytes are sent even if the state is smaller: by them a client brings its own pushes, which are
# under way or were made while it was away, to their right places. By a whole state it can only guess.
_WORTH_IT: Final = 16 * 1024


class Follower:
    """Sends each change while the reader keeps up, and otherwise none until it has caught up: then one for all.

    What else it is sent meanwhile waits as well, and comes behind that.
    """

    __slots__ = ("_actor", "_held", "_held_size", "_misses_presence", "_transport", "is_behind", "version")

    def __init__(self, actor: Actor, transport: Transport) -> None:
        self._actor = actor
        self._transport = transport
        # The version that the reader has been told of.
        self.version = 0
        self.is_behind = False
        # Frames that wait until the reader has caught up, and their bytes. None when there are none, as an empty deque
        # is large.
        self._held: deque[Frame] | None = None
        self._held_size = 0
        # Whether it has not been told who has come and gone.
        self._misses_presence = False

    async def read_missed(self, have: Version | None) -> list[ChangeRow] | None:
        """Return the changes behind what the reader has, as `join` takes them; None for more than are sent.

        Raises StoreError.
        """
        if have is None or have[0] != self._actor.pipeline.history.epoch:
            return None
        try:
            return await self._actor.change_log.changes(have[1], size=self._worth)
        except CorruptThread:  # The state is there, and whoever comes back would ask for the same for ever.
            return None

    def join(
        self, connection: Connection, have: Version | None, rows: Sequence[ChangeRow] | None, last_ref: int = 0
    ) -> Joined:
        """Begin with what is durable, and return what tells the reader of it.

        `rows` are those that `read_missed` has returned.
        """
        history = self._actor.pipeline.history
        durable = history.durable
        self.version = durable.version
        # Who is not shown the state is told of none.
        version = durable.version if connection.protocol_enabled else 0
        key = str(self._actor.key)
        joined = Joined(connection.id, key, history.epoch, version, last_ref, connection.readonly)
        if not connection.protocol_enabled or not durable.has_state:
            return joined
        joined = msgspec.structs.replace(joined, list_keys=dict(self._actor.kind.cls.list_keys))
        missed = self._missed(have, rows)
        if missed is None or _size(missed) > self._worth:
            return msgspec.structs.replace(joined, state=msgspec.Raw(durable.require_json()))
        return msgspec.structs.replace(joined, ops=_ops(missed)) if missed else joined

    def _missed(self, have: Version | None, rows: Sequence[ChangeRow] | None) -> list[ChangeRow] | None:
        """Return the changes between what the reader has and what is durable, None when they do not lead there."""
        history = self._actor.pipeline.history
        durable = history.durable.version
        if have is None or have[0] != history.epoch or not 0 <= have[1] <= durable or not history.durable.is_stored:
            return None
        return history.since(have[1], durable, rows or ())

    def deliver(self, frame: Frame, revision: Revision, *, in_step: bool = False) -> None:
        """Send the frame of a change, or let the reader fall behind unless it is to be kept `in_step`."""
        if self.is_behind or (self._transport.is_backed_up and not in_step):
            self.is_behind = True
            return
        self.version = revision.version
        self._transport.send(frame)

    def skip(self, version: int) -> None:
        """Take note that the reader knows of a version by an answer of its own."""
        self.version = max(self.version, version)

    def send(self, frame: Frame) -> None:
        """Send any other frame, behind the changes before it and what else waits."""
        if not self.is_behind and not self._held:
            self._transport.send(frame)
            return
        if self._held is None:
            self._held = deque()
        self._held.append(frame)
        self._held_size += len(frame.data)
        if self._held_size > self._actor.limits.write_buffer:
            self._held = None
            self._transport.close(TRY_AGAIN_LATER, "the reader is too slow for what is sent to it")
        elif not self._transport.is_backed_up:
            self.drained()

    def send_presence(self, frame: Frame) -> None:
        """Send who has come and gone, or who is here when the reader has caught up."""
        if self._transport.is_backed_up:
            self._misses_presence = True
        else:
            self._transport.send(frame)

    def drained(self) -> None:
        """Send what waits, as much as the reader takes, which did not read fast enough and has caught up."""
        self._send_missed()
        while self._held and not self._transport.is_backed_up:
            self._send_held(self._held)
        if self._misses_presence and not self._transport.is_backed_up:
            self.send_presence_snapshot()

    def catch_up(self) -> None:
        """Send all that waits, whether the reader takes it or not."""
        self._send_missed()
        while self._held:
            self._send_held(self._held)

    def send_presence_snapshot(self) -> None:
        """Send who is here."""
        self._misses_presence = False
        self._transport.send(self._actor.presence.snapshot(PLAIT.encode_presence))

    # Inside

    @property
    def _worth(self) -> int:
        """How many bytes of operations are sent rather than the whole state."""
        return max(self._actor.pipeline.history.durable.size, _WORTH_IT)

    def _send_held(self, held: deque[Frame]) -> None:
        frame = held.popleft()
        if not held:
            self._held = None
        self._held_size -= len(frame.data)
        self._transport.send(frame)

    def _send_missed(self) -> None:
        """Send the changes that the reader has missed, in one frame."""
        if not self.is_behind:
            return
        self.is_behind = False
        history = self._actor.pipeline.history
        durable = history.durable
        if durable.version <= self.version:
            return
        rows = history.since(self.version, durable.version)
        if rows is not None and _size(rows) <= self._worth:
            frame = encode(Changes(self.version, durable.version, _ops(rows)))
        else:
            frame = encode(Snapshot(history.epoch, durable.version, msgspec.Raw(durable.require_json())))
        self.version = durable.version
        self._transport.send(Frame(frame))


def _size(rows: Iterable[ChangeRow]) -> int:
    return sum(len(row.ops) for row in rows)


def _ops(rows: Iterable[ChangeRow]) -> list[Op]:
    return [op for row in rows for op in decode_ops(row.ops)]
