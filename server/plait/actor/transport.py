"""The interfaces between a socket and its thread: frames, transports, receivers and sessions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from plait.state.revision import Revision

__all__ = [
    "HIGH_WATER",
    "Cancellable",
    "ClientSession",
    "Frame",
    "LinkedTransport",
    "Multicast",
    "OneWay",
    "Receiver",
    "Transport",
]

HIGH_WATER: Final = 64 * 1024
"""Waiting bytes above which a peer counts as slow, in transports that have their own buffer."""


class Frame(msgspec.Struct, eq=False, gc=False):
    """One message to clients. A Struct, as making it takes a third of the time of an ordinary object."""

    data: bytes
    is_text: bool = True
    # The WebSocket encodings, plain and with a ping; all sockets share them.
    wire: bytes | None = None
    pinged: bytes | None = None


class Cancellable(Protocol):
    """Work that has not begun."""

    def cancel(self) -> None:
        """Cancel the work."""
        ...


class Transport(Protocol):
    """Sends frames to one peer; only `drain` waits."""

    # Whether pings reach the peer, and the receiver gets their pongs.
    can_ping: bool

    def attach(self, receiver: "Receiver") -> None:
        """Pass the peer's messages to `receiver` from now on; nothing is read before the first call."""
        ...

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly; `Receiver.drained` is called when it has caught up."""
        ...

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it when the socket is closed."""
        ...

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        """Send a frame with a WebSocket ping; the peer answers with the `payload` when it has received the frame."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin to close the socket; further calls do nothing."""
        ...

    def pause(self) -> None:
        """Read nothing more from the peer until `resume`, or until the socket is closed."""
        ...

    def resume(self) -> None:
        """Resume reading, unless `stop_reading` was called."""
        ...

    def stop_reading(self) -> None:
        """Read nothing more from the peer until the socket is closed."""
        ...

    def schedule(self, work: Callable[[], None]) -> "Cancellable | None":
        """Do costly work at once, or queue it and return a handle to cancel it, so that peers take turns."""
        ...

    async def drain(self) -> None:
        """Wait while the peer reads too slowly; return at once if the socket is closed."""
        ...


class OneWay:
    """The methods that a transport does not need if its peer sends nothing."""

    can_ping = False

    def attach(self, receiver: "Receiver") -> None:
        raise AssertionError("the peer sends no messages")

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        raise AssertionError("the peer answers no pings")

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def stop_reading(self) -> None:
        pass

    def schedule(self, work: Callable[[], None]) -> None:
        work()


class Multicast(Protocol):
    """A link to sockets at another node."""

    def cast_all(self, frame: Frame, numbers: Sequence[int]) -> None:
        """Send a frame to the sockets with these numbers."""
        ...


class LinkedTransport(ABC):
    """A base of transports whose sockets are behind a link. The link sends one frame to many sockets at once."""

    __slots__ = ()

    @property
    @abstractmethod
    def link(self) -> Multicast:
        """The link."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the socket on the link."""

    @abstractmethod
    def count_sent(self, size: int) -> None:
        """Count bytes that the link has sent to this socket together with others."""


class Receiver(Protocol):
    """Receives the messages and events of a transport."""

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Handle a message from the peer; if `is_text`, it is valid UTF-8."""
        ...

    def pong(self, payload: bytes) -> None:
        """Handle the peer's answer to a ping."""
        ...

    def drained(self) -> None:
        """Continue sending, as a slow peer has caught up."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Handle the end of the socket. Called once."""
        ...


class ClientSession(Protocol):
    """Sends frames of a thread to a connection."""

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send the frame of the change that made `revision`, the last durable one."""
        ...

    def send(self, frame: Frame) -> None:
        """Send any other frame."""
        ...

    def finish(self) -> None:
        """Send all frames that wait for a slow peer, as the socket is about to be closed."""
        ...

    def send_presence(self, frame: Frame) -> None:
        """Send a frame of presence."""
        ...
