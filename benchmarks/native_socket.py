"""A blocking client of the native protocol, which keeps a state up to date as far as the benchmark needs it."""

from typing import Any

import msgspec

from benchmarks.message_socket import MessageSocket
from benchmarks.protocols import NATIVE, join, native_call
from plait_schemas.codec import decode_json
from plait_schemas.frames import decode_server
from plait_schemas.messages import Error, Joined, Result
from plait_schemas.patch import apply

__all__ = ["NativeSocket"]


class NativeSocket(MessageSocket):
    """One socket, which has joined when the constructor returns; `have` and `document` are those of an earlier one."""

    def __init__(self, port: int, path: str, have: tuple[str, int] | None = None, document: Any = None) -> None:
        super().__init__(port, path, NATIVE.subprotocol)
        self.send(join(have))
        frame = self.read()
        # Seconds from the connect to the last byte, and to a state that is up to date.
        self.arrived = self.age
        joined = decode_server(frame)
        assert isinstance(joined, Joined), frame[:500]
        # Whether it got the whole state.
        self.is_whole = isinstance(joined.state, msgspec.Raw)
        self.document = take(document, joined)
        self.shown = self.age
        self.place = joined.epoch, joined.version

    def call(self, method: str, *args: int) -> Any:
        """Call an rpc, and return its result."""
        self.send(native_call(method, list(args)))
        while True:
            message = decode_server(self.read())
            assert not isinstance(message, Error), f"{method}: {message}"
            if isinstance(message, Result):
                return decode_json(message.value) if isinstance(message.value, msgspec.Raw) else None


def take(document: Any, joined: Joined) -> Any:
    """Return the state after a `joined` frame."""
    if isinstance(joined.state, msgspec.Raw):
        return decode_json(joined.state)
    return document if isinstance(joined.ops, msgspec.UnsetType) else apply(document, joined.ops)
