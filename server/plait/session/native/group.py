"""Readers behind one link that see the same and are up to date: each change is cast to all of them at once."""

from typing import Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.transport import Frame, LinkedTransport, Multicast
from plait.session.native.follower import PLAIT, ChangeFrame, Follower
from plait.state.revision import Revision
from plait.state.view import View

__all__ = ["LinkGroup"]

# Bytes that are cast before the transports count them, and ask the other node whether it has received them.
_UNCOUNTED: Final = 16 * 1024


class LinkGroup:
    """Connections of one thread behind one link whose readers are up to date.

    A connection leaves the group before a change is held back from its reader: see `Connection.leave_group`.
    """

    __slots__ = ("_actor", "_link", "_members", "_numbers", "_source", "_uncounted", "_version", "_view")

    def __init__(self, link: Multicast, actor: Actor, view: View, version: int) -> None:
        self._link = link
        # The view of all members, which does not vary.
        self._view = view
        self._actor = actor
        self._members: dict[Connection, tuple[Follower, LinkedTransport]] = {}
        # The members' numbers on the link.
        self._numbers: list[int] = []
        self._version = version
        # The source that the readers assume for a change without one; empty if the next change must name its source.
        # A member that is the source itself may assume another source, as it does not get its own changes.
        self._source = ""
        # Bytes that were cast and that the members' transports have not counted.
        self._uncounted = 0

    @classmethod
    def enter(cls, actor: Actor, connection: Connection, follower: Follower, transport: LinkedTransport) -> None:
        """Add a connection to the group of its link, directly after both got the last change."""
        groups, key = actor.sockets.groups, (transport.link, connection.view)
        group = groups.get(key)
        if group is None:
            group = groups[key] = cls(transport.link, actor, connection.view, follower.version)
        assert isinstance(group, cls)
        group._members[connection] = follower, transport
        group._numbers.append(transport.number)
        connection.group = group
        del actor.sockets.single[connection]

    def remove(self, connection: Connection) -> None:
        """Send changes to a connection separately from now on."""
        follower, transport = self._members.pop(connection)
        self._numbers.remove(transport.number)
        connection.group = None
        self._actor.sockets.single[connection] = None
        if not self._members:
            del self._actor.sockets.groups[self._link, self._view]
        follower.continue_after(self._version)

    def deliver(self, revision: Revision, source: object) -> int:
        """Cast the change that made `revision` to all members but its source; return the number of receivers."""
        frame = self._actor.sockets.change_frame(PLAIT, revision, self._view)
        assert isinstance(frame, ChangeFrame)
        self._version = revision.version
        numbers = self._numbers
        if isinstance(source, Connection) and source in self._members:
            own = self._members[source][1].number
            numbers = [number for number in numbers if number != own]
        sent: Frame = frame.short if frame.source == self._source else frame
        self._source = frame.source
        if numbers:
            self._link.cast_all(sent, numbers)
        self._uncounted += len(sent.data)
        if self._uncounted > _UNCOUNTED:
            size, self._uncounted = self._uncounted, 0
            for _, transport in tuple(self._members.values()):  # A slow transport leaves the group.
                transport.count_sent(size)
        return len(numbers)
