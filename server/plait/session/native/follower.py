"""Sends changes to one reader of the native protocol; slow readers get their missed changes in one frame."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Wire
from plait.actor.transport import Frame, Transport
from plait.errors import CorruptThread
from plait.session.paced import paced_of
from plait.state.missed import MissedChanges
from plait.state.revision import Revision
from plait.state.view import EVERYTHING, View
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.codes import TRY_AGAIN_LATER
from plait_schemas.frames import encode
from plait_schemas.messages import Changes, Joined, PresenceDiff, ServerMessage, Snapshot, Version
from plait_schemas.patch import Op

__all__ = ["PLAIT", "ChangeFrame", "Follower", "PlaitWire"]


class ChangeFrame(Frame, kw_only=True, gc=True):
    """A change with its source; `short` leaves the source out, for readers whose last change had the same source."""

    source: str
    # The bytes of the data without the source.
    _end: int
    _short: Frame | None = None

    @property
    def short(self) -> Frame:
        """The frame without the source."""
        if self._short is None:
            self._short = Frame(self.data[: self._end] + b"}")
        return self._short


class PlaitWire(Wire):
    """Encodes frames of the native protocol; changes are sent as operations."""

    sends_operations = True

    def encode_change(self, revision: Revision, view: View) -> ChangeFrame:
        row = revision.change
        assert row is not None
        if view is not EVERYTHING:
            row = view.show(row, revision)
            assert row is not None
        begin = b'{"type":"change","version":%d,"ops":%b' % (row.version, row.ops)
        data = b'%b,"source":%b}' % (begin, encode_json(row.source))
        return ChangeFrame(data, source=row.source, _end=len(begin))

    def encode_message(self, data: object) -> Frame:
        if isinstance(data, bytes | bytearray | memoryview):
            return Frame(bytes(data), is_text=False)
        return Frame(b'{"type":"message","data":%b}' % encode_json(data))

    def encode_event(self, name: str, data: object, sender: str | None = None) -> Frame:
        origin = b"" if sender is None else b',"from":%b' % encode_json(sender)
        return Frame(b'{"type":"event","name":%b,"data":%b%b}' % (encode_json(name), encode_json(data), origin))

    def encode_presence(self, diff: PresenceDiff) -> Frame:
        return Frame(encode(diff))


PLAIT: Final = PlaitWire()


# Up to this many bytes of operations are sent even if the state is smaller: a client can rebase its unanswered pushes
# over operations, but has to guess with a whole state.
_WORTH_IT: Final = 16 * 1024


class Follower:
    """Sends each change while the reader keeps up; a slow reader gets one frame for all missed changes later.

    Other frames wait as well, and are sent after that frame.
    """

    __slots__ = (
        "_actor",
        "_connection",
        "_held",
        "_held_size",
        "_may_vary",
        "_misses_presence",
        "_source",
        "_transport",
        "_view",
        "has_state",
        "is_behind",
        "on_drained",
        "version",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        transport: Transport,
        *,
        source: str | None = "server",
        has_state: bool = True,
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        # The view of the last state that was sent, and whether another one may follow.
        self._view = connection.view
        self._may_vary = actor.state.views_vary
        # The source that the reader assumes for a change without one; None if every change must name its source.
        self._source = source
        # The last version that was sent to the reader.
        self.version = 0
        self.is_behind = False
        # Frames that wait until the reader has caught up, and their bytes; None instead of an empty deque, which is
        # large.
        self._held: deque[Frame] | None = None
        self._held_size = 0
        # Whether the reader has missed changes of presence.
        self._misses_presence = False
        # Whether the reader is sent the state and its changes.
        self.has_state = has_state
        # Called when the reader has caught up.
        self.on_drained: Callable[[], object] | None = None

    async def read_missed(self, have: Version | None) -> MissedChanges | None:
        """Return the changes after the version `have`, for `join`; None if the whole state is sent instead.

        Raises StoreError.
        """
        if have is None or have[0] != self.epoch or self._may_vary:
            return None
        try:
            return await self._actor.log.missed(have[1], most=self._worth)
        except CorruptThread:  # The state is intact, and the client would ask for the changes forever.
            return None

    def join(self, have: Version | None, read: MissedChanges | None, last_ref: int = 0) -> Joined:
        """Begin at the durable state, and return the `joined` frame.

        `read` is the result of `read_missed`.
        """
        actor, connection = self._actor, self._connection
        self._view = connection.view
        epoch, durable = self.epoch, actor.state.durable
        self.version = durable.version
        # A client that gets no state gets no version either.
        version = durable.version if connection.protocol_enabled else 0
        joined = Joined(connection.id, str(actor.key), epoch, version, last_ref, connection.readonly)
        if not connection.protocol_enabled:
            return joined
        joined = msgspec.structs.replace(
            joined, list_keys=dict(actor.kind.list_keys), texts=actor.kind.state_type.texts
        )
        if not durable.has_state or not self.has_state:
            return joined
        if have is None or have[0] != epoch or not 0 <= have[1] <= durable.version or not durable.is_stored:
            missed = None
        elif have[1] == durable.version:
            return joined
        else:
            missed = self._find_missed(read or MissedChanges(have[1]))
        if missed is None:
            return msgspec.structs.replace(joined, state=msgspec.Raw(self._encode(durable)))
        return msgspec.structs.replace(joined, ops=missed)

    def tell_joined(self, protocol: str, joined: Joined) -> None:
        """Tell the instruments what the reader got to join: a whole state, changes or nothing."""
        is_whole, is_more = joined.state is not msgspec.UNSET, joined.ops is not msgspec.UNSET
        sent = "snapshot" if is_whole else "changes" if is_more else "nothing"
        self._actor.instruments.joined(self._actor.key.kind, protocol, sent)

    def deliver(self, frame: Frame, revision: Revision, *, in_step: bool = False) -> None:
        """Send the frame of a change, as PLAIT encodes it; hold it back from a slow reader, unless `in_step`."""
        if not self.has_state:
            self.version = revision.version
            return
        if self.is_behind or (self._transport.is_backed_up and not in_step):
            if not self.is_behind:
                self._actor.instruments.reader_lagged(self._actor.key.kind)
            self.is_behind = True
            return
        if self._may_vary and self._connection.view is not self._view:
            if in_step:
                self._send_whole()
            else:  # Whole pictures for many readers take some time.
                self.is_behind = True
                paced_of(self._actor).add(self.drained)
            return
        self.version = revision.version
        assert isinstance(frame, ChangeFrame)
        if frame.source == self._source:
            frame = frame.short
        elif self._source is not None:
            self._source = frame.source
        self._transport.send(frame)

    @property
    def epoch(self) -> str:
        """The epoch of what the reader sees."""
        epoch = self._actor.state.epoch
        return epoch if self._view is EVERYTHING else self._view.name(epoch)

    def show(self, change: ChangeRow, revision: Revision) -> ChangeRow:
        """Return a change, which made a revision, as the reader sees it."""
        if self._view is EVERYTHING:
            return change
        shown = self._view.show(change, revision)
        assert shown is not None
        return shown

    def review(self) -> None:
        """Send the whole picture if the reader sees other places than before."""
        self._actor.sockets.review(self._connection)
        if self._connection.view is not self._view and not self.is_behind:
            self._send_whole()

    def continue_after(self, version: int) -> None:
        """Continue after the changes that a group has sent, up to `version`."""
        self.version = version
        self._source = ""  # The next change names its source.

    @property
    def is_slow(self) -> bool:
        """Whether the reader has not caught up with everything that was sent."""
        return self.is_behind or bool(self._held) or self._transport.is_backed_up

    def skip(self, version: int) -> None:
        """Skip a version that the reader knows from the answer to its push."""
        self.version = max(self.version, version)

    def answer(self, data: bytes, version: int) -> None:
        """Send the answer to a push, after everything that was sent before. It tells the reader the `version`."""
        self.catch_up()
        self.skip(version)
        self._transport.send(Frame(data))
        if self._may_vary and self._connection.view is not self._view:
            self._send_whole()

    def send(self, frame: Frame) -> None:
        """Send any other frame, after the changes and frames before it."""
        if not self.is_behind and not self._held:
            self._transport.send(frame)
            return
        if self._held is None:
            self._held = deque()
        self._held.append(frame)
        self._held_size += len(frame.data)
        if self._held_size > self._actor.limits.write_buffer:
            self._held = None
            self._actor.instruments.limit_hit("write_buffer")
            self._transport.close(TRY_AGAIN_LATER, "the client reads too slowly")
        elif not self._transport.is_backed_up and self._connection.view is self._view:
            self.drained()

    def send_ahead(self, message: ServerMessage) -> None:
        """Send a message at once, before the changes and frames that wait for a slow reader."""
        self._transport.send(Frame(encode(message)))

    def send_later(self, message: ServerMessage) -> None:
        """Send a message when all changes made so far are durable, or have failed."""
        frame = Frame(encode(message))
        self._actor.state.after(lambda _: self.send(frame))

    def send_presence(self, frame: Frame) -> None:
        """Send a change of presence, or the whole presence when the reader has caught up."""
        if self._transport.is_backed_up:
            self._misses_presence = True
        else:
            self._transport.send(frame)

    def drained(self) -> None:
        """Send waiting frames until the reader is slow again, as it has caught up."""
        if self.is_behind and not self._transport.is_backed_up:
            self._send_missed()
        while self._held and not self._transport.is_backed_up:
            self._send_held(self._held)
        if self._misses_presence and not self._transport.is_backed_up:
            self.send_presence_snapshot()
        self._tell_drained()

    def catch_up(self) -> None:
        """Send everything that waits, even if the reader is slow."""
        if not self.is_behind and not self._held:
            return
        if self.is_behind:
            self._send_missed()
        while self._held:
            self._send_held(self._held)
        self._tell_drained()

    def send_presence_snapshot(self) -> None:
        """Send the whole presence."""
        self._misses_presence = False
        self._transport.send(self._actor.sockets.presence.snapshot(PLAIT.encode_presence))

    # Inside

    @property
    def _worth(self) -> int:
        """The maximum bytes of operations that are sent instead of the whole state."""
        return max(self._actor.state.durable.size, _WORTH_IT)

    def _find_missed(self, missed: MissedChanges) -> Sequence[Op] | None:
        """Return the missed operations up to the durable version; None if the whole state is sent instead.

        They may not be in memory, too long, or not known as operations on the picture. If the view may vary, a place
        that is seen now may have been hidden in between.
        """
        if self._may_vary or (rows := self._actor.log.since(missed.version)) is None:
            return None
        missed.add(rows)
        return self._view.filter(missed.ops) if missed.size <= self._worth else None

    def _encode(self, revision: Revision) -> bytes:
        """Return a revision as the reader sees it, as JSON."""
        return revision.require_json() if self._view is EVERYTHING else self._view.json(revision)

    def _tell_drained(self) -> None:
        if self.on_drained is not None and not self.is_slow:
            self.on_drained()

    def _send_held(self, held: deque[Frame]) -> None:
        frame = held.popleft()
        if not held:
            self._held = None
        self._held_size -= len(frame.data)
        self._transport.send(frame)

    def _send_missed(self) -> None:
        """Send the missed changes in one frame."""
        self.is_behind = False
        durable = self._actor.state.durable
        if durable.version <= self.version:
            return
        missed = self._find_missed(MissedChanges(self.version)) if self._connection.view is self._view else None
        if missed is None:
            self._send_whole()
            return
        frame = encode(Changes(self.version, durable.version, missed))
        self.version = durable.version
        self._transport.send(Frame(frame))

    def _send_whole(self) -> None:
        if not self._connection.follows or not self.has_state:
            return
        durable, self._view = self._actor.state.durable, self._connection.view
        self.version = durable.version
        self._transport.send(Frame(encode(Snapshot(self.epoch, durable.version, msgspec.Raw(self._encode(durable))))))
