"""One connection to a NATS server: requests, and their answers."""

import asyncio
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from plait.errors import StoreError
from plait.store.nats.api import ANSWER_TIMEOUT, Answer, Lost, NotPermitted
from plait.store.nats.url import NatsUrl
from plait.store.outcomes import Unreachable

__all__ = ["Line", "connect"]

# Seconds.
_CONNECT_TIMEOUT: Final = 1
_LOGIN_TIMEOUT: Final = 3
_CLOSE_TIMEOUT: Final = 1.0
# A connection is lost if the server does not answer a ping for so long; the seconds between pings.
_PING_TIMEOUT: Final = 1
_PING_INTERVAL: Final = 0.5
# Bytes that may wait to be sent, before senders wait; and bytes of answers that may wait to be read.
_SEND_BUFFER: Final = 64 * 1024 * 1024
_RECEIVE_BUFFER: Final = 512 * 1024 * 1024
_NEVER: Final = 10**9
_OLDEST_SERVER: Final = (2, 12)
_NO_RESPONDERS: Final = "503"
# The server's error for a message that the user may not send, with its subject; nats-py may write it in small letters.
_MAY_NOT_SEND: Final = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)


class _Pending:
    """A request that waits for its answers: for one, or for all up to the one without data that is the last."""

    __slots__ = ("answers", "future", "is_last", "subject")

    def __init__(
        self, subject: str, future: "asyncio.Future[list[Answer]]", is_last: Callable[[Answer], bool] | None
    ) -> None:
        self.subject = subject
        self.future = future
        self.answers: list[Answer] = []
        self.is_last = is_last

    def add(self, answer: Answer) -> bool:
        """Add an answer, and return whether it is the last one."""
        self.answers.append(answer)
        if self.is_last is not None and not self.is_last(answer):
            return False
        if not self.future.done():
            self.future.set_result(self.answers)
        return True

    def fail(self, error: StoreError) -> None:
        """End the request without its answers."""
        if not self.future.done():
            self.future.set_exception(error)


class Line:
    """A connection that is used until it is lost. `on_lost` is called once then, or when it is closed."""

    def __init__(self, client: Client, on_lost: Callable[["Line"], None]) -> None:
        self._client = client
        self._on_lost = on_lost
        self._pending: dict[str, _Pending] = {}
        self._tokens = count()
        self._prefix = client.new_inbox() + "."
        self._pings: asyncio.Task[None] | None = None
        # The ping that waits for its answer.
        self._flush: asyncio.Task[None] | None = None
        self.is_lost = False
        # The most bytes of one message, without its headers.
        self.max_payload = client.max_payload - 4096
        # Identifies one run of the server to which it leads.
        self.server = str(client._server_info.get("server_id", ""))

    async def begin(self) -> None:
        """Listen for answers."""
        await self._client.subscribe(
            f"{self._prefix}*", cb=self._receive, pending_msgs_limit=_NEVER, pending_bytes_limit=_RECEIVE_BUFFER
        )
        # The first ping of the driver overtakes the subscription; an error comes before the answer to the second.
        for _ in range(2):
            await self._client.flush(timeout=_NEVER)
        self._pings = asyncio.get_running_loop().create_task(self._ping(), name="plait pings NATS")

    def refuse(self, trouble: str) -> None:
        """Fail the requests that the server refuses with an error that is not about the connection."""
        if (found := _MAY_NOT_SEND.search(trouble)) is not None:
            for each in self._pending.values():
                if each.subject.casefold() == found[1].casefold():
                    each.fail(NotPermitted(f"the user has no permission to publish to {each.subject}"))

    async def request(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, *, timeout: float = ANSWER_TIMEOUT
    ) -> Answer:
        """Send a message, and return the answer. Raises Unreachable and Lost."""
        return (await self._request(subject, data, headers, None, timeout))[0]

    async def collect(
        self, subject: str, data: bytes, is_last: Callable[[Answer], bool], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Send a message, and return its answers up to the last one. Raises Unreachable and Lost."""
        return await self._request(subject, data, None, is_last, timeout)

    async def send(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Send a message without an answer. Raises Unreachable."""
        if self.is_lost:
            raise Unreachable("the connection is lost")
        try:
            await self._client.publish(subject, data, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise Unreachable(_explain(error)) from error

    async def close(self) -> None:
        """Close the connection."""
        self.drop()
        if self._pings is not None:
            self._pings.cancel()
        await _close(self._client)
        if self._pings is not None:
            await asyncio.wait([self._pings])
        if self._flush is not None:
            self._flush.cancel()
            await asyncio.wait([self._flush])
            if not self._flush.cancelled():
                self._flush.exception()  # Retrieve the exception that has ended the pings.

    def drop(self) -> None:
        """Use the connection no more, and fail the requests that wait. `close` must be called, too."""
        if not self.is_lost:
            self.is_lost = True
            pending, self._pending = self._pending, {}
            for each in pending.values():
                each.fail(Lost("the connection was lost before the answer came"))
            self._on_lost(self)

    # Inside

    async def _request(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None,
        is_last: Callable[[Answer], bool] | None,
        timeout: float,
    ) -> list[Answer]:
        if self.is_lost:
            raise Unreachable("the connection is lost")
        loop = asyncio.get_running_loop()
        token = str(next(self._tokens))
        pending = self._pending[token] = _Pending(subject, loop.create_future(), is_last)
        timer = loop.call_later(timeout, pending.fail, Lost(f"no answer came within {timeout:g} seconds"))
        try:
            await self._client.publish(subject, data, reply=self._prefix + token, headers=headers)
            answers = await pending.future
        except (nats.errors.Error, OSError) as error:
            raise Unreachable(_explain(error)) from error
        finally:
            timer.cancel()
            self._pending.pop(token, None)
        if not answers[0].data and answers[0].headers.get("Status") == _NO_RESPONDERS:
            raise Unreachable("JetStream does not answer: it is not enabled, or the stream has no leader now")
        return answers

    async def _receive(self, message: Msg) -> None:
        token = message.subject[len(self._prefix) :]
        if (pending := self._pending.get(token)) is not None:
            pending.add(Answer(message.headers or {}, message.data))

    async def _ping(self) -> None:
        try:
            while not self.is_lost and self._client.is_connected:
                # Not cancelled after the timeout: the driver logs an error for an answer that comes later.
                self._flush = asyncio.get_running_loop().create_task(self._client.flush(timeout=_NEVER))
                await asyncio.wait([self._flush], timeout=_PING_TIMEOUT)
                if not self._flush.done():
                    break
                self._flush.result()
                await asyncio.sleep(_PING_INTERVAL)
        except (nats.errors.Error, OSError):
            pass
        self.drop()


async def connect(url: NatsUrl, server: str, on_lost: Callable[[Line], None]) -> Line:
    """Return a connection to one of the servers of a URL. Raises Unreachable."""
    client = Client()
    lines: list[Line] = []
    troubles: list[Exception] = []

    async def closed() -> None:
        for line in lines:
            line.drop()

    async def note(error: Exception) -> None:
        """Keep the first error. Each one also ends the connection, is raised by its cause, or refuses a request."""
        if not troubles:
            troubles.append(error)
        for line in lines:
            line.refuse(str(error))

    try:
        async with asyncio.timeout(_LOGIN_TIMEOUT):
            await client.connect(
                [server],
                name="plait",
                **_login(url),
                allow_reconnect=False,
                # A server that is slow is no reason to fail if there is no other one to try.
                connect_timeout=_CONNECT_TIMEOUT if len(url.servers) > 1 else _LOGIN_TIMEOUT,
                ping_interval=_NEVER,
                pending_size=_SEND_BUFFER,
                closed_cb=closed,
                error_cb=note,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
            )
            _check(client)
            line = Line(client, on_lost)
            lines.append(line)
            await line.begin()
            if troubles:
                raise troubles[0]
            return line
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        await _close(client)
        # After a refused connection, the driver only says that there are no servers.
        raise Unreachable(_explain(troubles[0] if troubles else error)) from error
    except ModuleNotFoundError:
        await _close(client)
        raise Unreachable("creds and nkey need the package nkeys: pip install nkeys") from None
    except BaseException:
        await _close(client)
        raise


def _login(url: NatsUrl) -> dict[str, Any]:
    """Return the options of a connection that prove who this is. Raises OSError for files that cannot be read."""
    found: dict[str, Any] = {"user": url.user, "password": url.password, "token": url.token}
    if url.creds is not None:
        found["user_credentials"] = url.creds
    if url.nkey is not None:
        found["nkeys_seed"] = url.nkey
    if url.has_tls or url.tlsca is not None or url.tlscert is not None:
        found["tls"] = context = ssl.create_default_context(cafile=url.tlsca)
        if url.tlscert is not None:
            context.load_cert_chain(url.tlscert, url.tlskey)
    return {name: value for name, value in found.items() if value is not None}


def _check(client: Client) -> None:
    """Raise Unreachable for a server that cannot keep a store."""
    version = client.connected_server_version
    if (version.major, version.minor) < _OLDEST_SERVER:
        needed = ".".join(map(str, _OLDEST_SERVER))
        raise Unreachable(f"the server is NATS {version.major}.{version.minor}; plait needs {needed} or newer")
    if not client._server_info.get("jetstream"):
        raise Unreachable("JetStream is not enabled on the server")


async def _close(client: Client) -> None:
    """Close a connection, even if the server reads nothing."""
    writer = getattr(client._transport, "_io_writer", None)
    with suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()
    if writer is not None:
        writer.transport.abort()


def _explain(error: BaseException) -> str:
    """Return in one line what an error of the driver means."""
    if isinstance(error, TimeoutError):
        return "the server does not answer in time"
    return " ".join(str(error).split()).removeprefix("nats: ") or type(error).__name__
