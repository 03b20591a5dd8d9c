"""What is between a socket and its thread: frames, and the ends that hand them to each other."""

from collections.abc import Callable
from typing import Final, Protocol

from plait.state.revision import Revision

__all__ = ["HIGH_WATER", "Cancellable", "Frame", "Receiver", "Session", "Transport"]

HIGH_WATER: Final = 64 * 1024
"""Bytes that wait before a peer counts as slow, where plait holds them itself."""


class Frame:
    """One message to clients. `wire` keeps what a transport made of it, so that it is made once for all sockets."""

    __slots__ = ("data", "is_text", "wire")

    def __init__(self, data: bytes, *, is_text: bool = True) -> None:
        self.data = data
        self.is_text = is_text
        self.wire: bytes | None = None


class Cancellable(Protocol):
    """What has not begun."""

    def cancel(self) -> None:
        """Do not begin it."""
        ...


class Transport(Protocol):
    """Carries frames to one peer; nothing that it does waits."""

    # Whether `ping` reaches the peer, and its pong comes back to the receiver.
    can_ping: bool

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer does not read as fast as is written; the receiver is told when it has caught up."""
        ...

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it when the socket is closed."""
        ...

    def ping(self, payload: bytes) -> None:
        """Send a WebSocket ping."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin to close the socket; more calls change nothing."""
        ...

    def pause(self) -> None:
        """Read nothing more from the peer until `resume`, or until the socket is closed."""
        ...

    def resume(self) -> None:
        """Read on, unless `stop_reading` was called."""
        ...

    def stop_reading(self) -> None:
        """Read nothing more from the peer until the socket is closed."""
        ...

    def take_turn(self, work: Callable[[], None]) -> "Cancellable | None":
        """Do what may cost much at once, or when it is its turn; what is returned gives that up."""
        ...

    async def drain(self) -> None:
        """Wait while the peer does not read fast enough; returns at once when the socket is closed."""
        ...


class Receiver(Protocol):
    """Takes what comes from a transport."""

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Take a message from the peer; text is known to be UTF-8."""
        ...

    def pong(self, payload: bytes) -> None:
        """Take the peer's answer to a ping."""
        ...

    def drained(self) -> None:
        """Take note that the peer, which did not read fast enough, has caught up."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Take note that the socket is closed. Called once."""
        ...


class Session(Protocol):
    """Takes what a thread tells a connection."""

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send the frame that tells of a change to `revision`."""
        ...

    def send(self, frame: Frame) -> None:
        """Send any other frame."""
        ...

    def finish(self) -> None:
        """Send all that waits for the peer to catch up: nothing comes behind it but the end of the socket."""
        ...

    def send_presence(self, frame: Frame) -> None:
        """Send who has come and gone."""
        ...
