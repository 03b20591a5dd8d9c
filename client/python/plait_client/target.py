"""The target of a connection: the URL, the token, and opening a socket."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from ssl import SSLContext
from typing import Any, Final, Protocol

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.uri import parse_uri

from plait_client.errors import ClientError
from plait_client.keepalive import QUIET
from plait_schemas import codes
from plait_schemas.messages import ANSWER_HEADER, SUBPROTOCOL

__all__ = ["ABNORMAL", "ClientSocket", "NotOpened", "Target", "Token", "check_url", "no_token"]

Token = str | Callable[[], str | Awaitable[str]] | None

ABNORMAL: Final = 1006
"""The close code of a connection that was lost, or not made."""

_PASSING: Final = frozenset({408, 425, 429})
"""Statuses from 400 to 499 that another attempt may not get."""

_ENDING: Final = frozenset({401, 403, 410})
"""The statuses that are final for a client that has joined its thread before: the others pass with a deploy."""

_REFUSALS: Final = {401: codes.UNAUTHENTICATED, 403: codes.FORBIDDEN, 404: codes.NOT_FOUND}


class NotOpened(Exception):
    """No socket was opened; the message is for people, and `code` is the close code that fits best."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Transport(Protocol):
    """The transport of a socket."""

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class ClientSocket(AbstractAsyncContextManager[Any], Protocol):
    """The part of a WebSocket that a carrier uses: the ClientConnection of `websockets`, for example."""

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that the server has chosen."""
        ...

    @property
    def close_code(self) -> int | None:
        """The close code, if the socket was closed."""
        ...

    @property
    def close_reason(self) -> str | None:
        """The close reason, if the socket was closed."""
        ...

    @property
    def transport(self) -> Transport:
        """The transport of the socket."""
        ...

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...

    async def send(self, message: bytes, *, text: bool | None = None) -> None:
        """Send a message, as a text if `text` is true."""
        ...

    async def close(self) -> None:
        """Close the socket."""
        ...


class Target(msgspec.Struct, frozen=True):
    """The URL and the credentials of a connection."""

    url: str
    token: Token = None
    headers: dict[str, str] = {}
    ssl: SSLContext | None = None

    @property
    def quiet(self) -> float:
        """The seconds of silence after which a client asks whether the server is still there."""
        return QUIET

    @property
    def has_fresh_tokens(self) -> bool:
        """Whether there may be another token than the last one: a string never changes."""
        return callable(self.token)

    async def fetch_token(self, timeout: float | None) -> str | None:
        """Return the token to show now.

        Raises the error of the author's function, ClientError if other code cancelled the function, and TimeoutError.
        """
        if self.token is None or isinstance(self.token, str):
            return self.token
        try:
            async with asyncio.timeout(timeout):
                fetched = self.token()
                return await fetched if inspect.isawaitable(fetched) else fetched
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ClientError("what the function waits for was cancelled") from error

    async def open(self, *, was_joined: bool = False) -> ClientSocket:
        """Return a new socket. Raises NotOpened, and ClientError if no other attempt would get further."""
        # None would be an error for a `wss://` URL; without it, the certificates of the system are used.
        tls: dict[str, Any] = {} if self.ssl is None else {"ssl": self.ssl}
        try:
            socket = await _Connect(
                self.url,
                additional_headers=self.headers,
                close_timeout=2,
                compression=None,
                max_size=None,
                ping_interval=None,
                subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
                **tls,
            )
        except InvalidStatus as error:
            raise NotOpened(_code_of(error, was_joined=was_joined), _refusal(error)) from error
        except (OSError, WebSocketException) as error:
            raise NotOpened(ABNORMAL, str(error) or type(error).__name__) from error
        except (ImportError, ValueError) as error:
            # A library for the proxy is missing, or a header cannot be sent.
            raise ClientError(f"no socket can be opened: {error}") from error
        return socket


class _Connect(connect):
    """Follows no redirect: the first frame shows the token, which is for the server at the URL."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def check_url(url: str) -> None:
    """Raise ValueError for a URL at which no socket can ever be opened."""
    try:
        if not url.isprintable() or " " in url:
            raise ValueError("it has spaces or control characters; write them as %20, for example")
        # The host as it is encoded for its look-up.
        parse_uri(url).host.encode("idna")
    except (InvalidURI, ValueError) as error:
        reason = error.msg if isinstance(error, InvalidURI) else error
        raise ValueError(f"no socket can be opened at {url!r}: {reason}") from None


def no_token(error: Exception) -> str:
    """Return a text for people about an error of the function that fetches the token."""
    return f"no token could be fetched: {error!r}"


def _refusal(error: InvalidStatus) -> str:
    """Return a text for people about the answer to the request."""
    locations = ", ".join(error.response.headers.get_all("Location"))
    return f"{error}, which leads to {locations} and is not followed" if locations else str(error)


def _code_of(error: InvalidStatus, *, was_joined: bool) -> int:
    """Return the close code that fits an answer to the request best. Raises ClientError for a permanent answer.

    Only answers of plait are final. During a deploy, a proxy may answer with any status.
    """
    status = error.response.status_code
    if ANSWER_HEADER not in error.response.headers or (was_joined and status not in _ENDING):
        return ABNORMAL
    if status in _REFUSALS:
        return _REFUSALS[status]
    if 400 <= status <= 499 and status not in _PASSING:
        raise ClientError(str(error)) from error
    return ABNORMAL
