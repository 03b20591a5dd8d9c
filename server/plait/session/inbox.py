"""What a client sends before its thread has let it in, kept until then."""

from collections.abc import Callable
from typing import Final

from plait.connection import Connection
from plait.transport import Transport
from plait_schemas.codes import INTERNAL_ERROR

__all__ = ["Inbox"]

# Messages that may wait, until nothing more is read.
_WAITING: Final = 64


class Inbox:
    """Keeps messages, in their order, until `on_connect` has finished; `take` gets them then."""

    __slots__ = ("_connection", "_messages", "_take", "_transport")

    def __init__(self, connection: Connection, transport: Transport, take: Callable[[bytes, bool], None]) -> None:
        self._connection = connection
        self._transport = transport
        self._take = take
        # None when nothing is kept any more.
        self._messages: list[tuple[bytes, bool]] | None = []

    def keep(self, data: bytes, is_text: bool) -> bool:
        """Keep a message; False when it may be handled at once."""
        if self._messages is None:
            return False
        self._messages.append((data, is_text))
        if len(self._messages) >= _WAITING:
            self._transport.pause()
        return True

    def opened(self, error: BaseException | None) -> None:
        """Take note that `on_connect` has finished, or of what it raised, which closes the connection."""
        if error is not None:
            self._connection.close(INTERNAL_ERROR, "the thread could not take the connection")
            return
        messages, self._messages = self._messages or [], None
        if len(messages) >= _WAITING:
            self._transport.resume()
        for data, is_text in messages:
            self._take(data, is_text)
