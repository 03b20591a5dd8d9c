"""All errors that the client raises.

ClientError
├── Refused         a push was refused by the server, or for what others did first, or for its size
├── Unanswered      a push was answered too long ago: it may have been applied
├── CallError       a call failed
├── TooLarge        a call, a message or a presence was not sent, as the server takes none of its size
├── Disconnected    there is no connection, or it was lost before the answer to a call
└── Closed          the client has stopped for good: it was closed, or the server does not want it
"""

from typing import Final

__all__ = ["CallError", "ClientError", "Closed", "Disconnected", "Refused", "TooLarge", "Unanswered", "close_message"]


class ClientError(Exception):
    """Base of all errors of this package."""


class _Answered(ClientError):
    """The server refused a request: `code` is one of the protocol's, `path` leads to the mistake, if any."""

    def __init__(self, code: str, message: str, path: str | None = None) -> None:
        super().__init__(code, message, path)
        self.code = code
        self.message = message
        self.path = path

    def __str__(self) -> str:
        # The path of the whole state is empty.
        return f"{self.message} ({self.code}: {self.path})" if self.path else f"{self.message} ({self.code})"


class Refused(_Answered):
    """A push was refused: its change is no longer shown."""


class Unanswered(_Answered):
    """The answer to a push is lost: the change is not shown, but may have been applied."""


class CallError(_Answered):
    """A call of an rpc failed."""


class TooLarge(ClientError):
    """A message has more bytes than `limit`, which the server takes, and was not sent."""

    code: Final = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"this has more than the {self.limit} bytes that the server takes ({self.code})"


class Disconnected(ClientError):
    """There is no connection, or it was lost before the answer to a call came."""


class Closed(ClientError):
    """The client has stopped for good; `code` is the WebSocket close code that says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


_MESSAGES: Final = {
    1000: "the client was closed",
    1008: "the server does not allow this",
    4400: "the server did not understand a frame, or had none in time",
    4401: "authentication required",
    4403: "this is not allowed",
    4404: "there is no such thread",
    4408: "another socket has joined as this client",
    4409: "the thread's state has another schema than this client was made for",
    4410: "the thread was destroyed",
}


def close_message(code: int, reason: str) -> str:
    """Return the meaning of a final close code, with the reason from the server."""
    message = _MESSAGES.get(code, "the server closed the connection for good")
    return f"{message}: {reason}" if reason else message
