"""The open connections of one thread, and broadcasts to them, which are encoded once per protocol."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from plait.actor.connection import Connection, ConnectionGroup, Wire
from plait.actor.presence import Presence
from plait.actor.transport import Frame, Multicast
from plait.errors import PlaitError, TooMany
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.source import Source
from plait.state.view import EVERYTHING, View
from plait_schemas.codes import REPLACED
from plait_schemas.messages import PresenceDiff

__all__ = ["Connections"]

# Frames of a revision that are kept for connections which join or are answered later.
_MOST_KEPT: Final = 16
_REPLACED: Final = "another socket has joined as this client"

# Shared by all threads without connections, to save memory.
_NOTHING: Final[dict[Any, Any]] = {}


class Connections:
    """The open connections of one thread, in the order in which they joined."""

    __slots__ = (
        "_framed",
        "_frames",
        "_ids",
        "_instruments",
        "_members",
        "_presence",
        "_refusal",
        "groups",
        "has_views",
        "on_change",
        "single",
    )

    def __init__(self, instruments: Instruments = NO_INSTRUMENTS) -> None:
        self._instruments = instruments
        # Whether connections may see different parts of the state.
        self.has_views = False
        # Called for each change after it is sent; None without a hook for changes.
        self.on_change: Callable[[Commit], None] | None = None
        self._presence: Presence | None = None
        self._members: dict[Connection, None] = _NOTHING
        # The connections that get each change separately, and the groups of the others, one for each link and view.
        self.single: dict[Connection, None] = _NOTHING
        self.groups: dict[tuple[Multicast, View], ConnectionGroup] = _NOTHING
        # The number of connections with each id: nearly always one.
        self._ids: dict[str, int] = _NOTHING
        # The error for further connections; None while they are accepted.
        self._refusal: PlaitError | None = None
        # The last sent revision, and its frames.
        self._framed: Revision | None = None
        self._frames: dict[tuple[Wire, View], Frame | None] = _NOTHING

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._members))

    @property
    def presence(self) -> Presence:
        """The data that clients, and agents of the server, show to others."""
        if self._presence is None:
            self._presence = Presence(self.send_presence)
        return self._presence

    @property
    def has_presence(self) -> bool:
        """Whether the last sent presence has any member."""
        return self._presence is not None and bool(self._presence)

    def find_by_tag(self, tag: str | None) -> list[Connection]:
        """Return the connections that have `tag`, or all if it is None."""
        return [each for each in self._members if tag is None or tag in each.tags]

    def find_by_id(self, id: str) -> list[Connection]:
        """Return the connections of one client."""
        return [each for each in self._members if each.id == id] if id in self._ids else []

    def close(self, error: PlaitError) -> None:
        """Refuse further connections with an error."""
        self._refusal = error

    def expel(self, error: PlaitError) -> None:
        """Close all connections, and refuse further ones."""
        self.close(error)
        for connection in self:
            connection.leave(error.close_code, str(error))

    def refusal(self, most: int) -> PlaitError | None:
        """Return the error with which another connection may not join, with `most` as the limit; None if it may."""
        if self._refusal is not None:
            return self._refusal
        if len(self) >= most:
            many = f"the thread has {len(self)} connections, which is the limit; try again later"
            return TooMany(many, limit="connections_per_thread")
        return None

    def add(self, connection: Connection) -> None:
        """Add a connection, which receives broadcasts from now on."""
        if self._members is _NOTHING:
            self._members, self._ids, self.single, self.groups = {}, {}, {}, {}
        self._members[connection] = self.single[connection] = None
        self._ids[connection.id] = self._ids.get(connection.id, 0) + 1

    def replace(self, connection: Connection) -> bool:
        """Close the other sockets of a client that uses only its last one; return False if this is not the last."""
        arrival = connection.arrival
        if arrival is None:
            return True
        others = self.find_by_id(connection.id)
        if any(other.arrival is not None and other.arrival > arrival for other in others):
            connection.leave(REPLACED, _REPLACED)
            return False
        for other in others:
            other.leave(REPLACED, _REPLACED)
        return True

    def discard(self, connection: Connection) -> None:
        """Remove a connection, if it is there."""
        if connection in self._members:
            connection.leave_group()
            del self._members[connection], self.single[connection]
            self._ids[connection.id] -= 1
            if not self._ids[connection.id]:
                del self._ids[connection.id]

    def send_change(self, commit: Commit) -> None:
        """Send a change that is durable, and then call `on_change`."""
        if commit.revision.version == 0:
            return
        if commit.maker is not None:
            commit.maker.tell_made(self, commit.version)
        if not self._members:
            self.note_unseen()
        count = self.broadcast_change(commit.revision, source=commit.source)
        if commit.began is not None:
            self._instruments.change_sent(commit.trace, count)
        if self.on_change is not None:
            self.on_change(commit)

    def note_unseen(self) -> None:
        """Note that a change was made while there were no connections."""

    def broadcast_change(self, revision: Revision, *, source: Source) -> int:
        """Send a change to every connection that follows the state, except its source; return their number."""
        wire: Wire | None = None
        view, has_views = EVERYTHING, self.has_views
        frame: Frame | None = None
        count = 0
        single = tuple(self.single)  # A connection that enters or leaves a group gets the change only once.
        if self.groups:
            for group in tuple(self.groups.values()):
                count += group.deliver(revision, source)
        for connection in single:
            session = connection.session
            if session is not None and connection is not source and connection.follows:
                if connection.wire is not wire or (has_views and connection.view is not view):
                    wire, view = connection.wire, connection.view
                    frame = self.change_frame(wire, revision, view)
                if frame is not None:
                    session.deliver(frame, revision)
                    count += 1
        if len(self._frames) > _MOST_KEPT:
            self._frames = {}
        return count

    def change_frame(self, wire: Wire, revision: Revision, view: View) -> Frame | None:
        """Return the frame of `wire` for a revision and a view; the frames of the last revision are cached."""
        if revision is not self._framed:
            self._framed = revision
            self._frames = {}
        if view is not EVERYTHING and wire.sends_operations and revision.change is not None:
            view = view.stand_in(revision.change)
        if (wire, view) in self._frames:
            return self._frames[wire, view]
        frame = self._frames[wire, view] = wire.encode_change(revision, view)
        return frame

    def send_presence(self, diff: PresenceDiff) -> None:
        """Send a change of presence to every connection that follows the state."""
        frames: dict[Wire, Frame | None] = {}
        for connection in self:
            if connection.session is None or not connection.follows:
                continue
            if connection.wire not in frames:
                frames[connection.wire] = connection.wire.encode_presence(diff)
            if (frame := frames[connection.wire]) is not None:
                connection.session.send_presence(frame)

    def broadcast(
        self,
        data: object,
        *,
        event: str | None = None,
        sender: str | None = None,
        without: Collection[Connection] = (),
    ) -> None:
        """Send a message, or an event with this name, to every connection except those in `without`.

        `sender` is the connection's id of an event that a client has emitted.
        """
        frames: dict[Wire, Frame | None] = {}
        for connection in self:
            if connection in without:
                continue
            if (wire := connection.wire) not in frames:
                frames[wire] = wire.encode_message(data) if event is None else wire.encode_event(event, data, sender)
            frame = frames[wire]
            if frame is not None:
                connection.send_frame(frame)
