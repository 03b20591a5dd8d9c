"""One HTTP request to one thread: its checks, its body, and the outcome of its call."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Arguments, Method
from plait.author_code import Interrupted
from plait.errors import CallFailed
from plait.instruments.protocol import TRACE
from plait.session.event_stream import EventStream
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey
from plait.web.authentication import Action
from plait.web.fairness import LARGE
from plait.web.http.streamed import Encode, ResponseLines, StreamedCall, StreamedResponse
from plait.web.server_context import ServerContext, find_lease, find_party
from plait_schemas.encoding import EncodeError, encode_given

__all__ = ["Exchange", "answer_json", "read_conditions", "read_tags"]

T = TypeVar("T")
S = TypeVar("S", bound=EventStream)

# Seconds after which the server watches for a disconnect of the client; most calls end earlier.
_SOON: Final = 0.1


class Exchange:
    """One request to one thread."""

    def __init__(self, context: ServerContext, request: Request, key: ThreadKey, principal: Principal | None) -> None:
        self.context = context
        self.request = request
        self.key = key
        self.principal = principal
        self.lease = find_lease(request)
        # The party that the limits charge for the request.
        self.party = find_party(request, principal)
        # Whether an agent of the thread has been called.
        self.has_called = False

    @cached_property
    def _lines(self) -> ResponseLines:
        """The lines of a streamed answer."""
        return ResponseLines(self.context.limits.write_buffer)

    async def check(self, action: Action) -> None:
        """Raise Forbidden if the principal may not do something with the thread."""
        await self.context.identity.check(self.principal, self.key, action)
        self.lease.check()

    async def check_call(self, method: Method | None) -> bool:
        """Raise Forbidden if the principal may not call a method; return whether it may approve, if that matters."""
        action = "call" if method is None else method.action
        await self.check("call" if action == "stop" else action)
        return action == "approve" or (action in ("stop", "send") and await self.may("approve"))

    async def may(self, action: Action) -> bool:
        """Return whether the principal may do something with the thread."""
        return await self.context.identity.may(self.principal, self.key, action)

    async def body(self) -> bytes:
        """Return the body, and charge for its size."""
        body = await self.raw_body()
        self.context.requests.charge(self.request, self.principal, body)
        return body

    async def raw_body(self) -> bytes:
        """Return the body, which is not decoded."""
        body = await self.request.body()
        self.lease.check()
        return body

    async def enter(self, size: int, *, may_approve: bool = False) -> tuple[Actor, Connection]:
        """Return the thread, and a connection for this request, which has its rights and is the source of its change.

        A request with a large body, of `size` bytes, waits for the scheduler first.
        The caller must use the thread before it awaits anything else, as with `Node.actor`.
        """
        rights = Rights(self.principal, await self.may("write"), may_approve=may_approve)
        actor = await self.context.actor(self.principal, self.key)
        connection = self.connect(actor, rights)
        with actor.usage.keep_awake():
            if await actor.sockets.is_readonly(connection, self.request):
                connection.readonly = True
            if size >= LARGE:
                await self.context.scheduler.wait_for_slot()
        self.lease.check()
        return actor, connection

    def connect(self, actor: Actor, rights: Rights) -> Connection:
        """Return a connection for this request, without running the hooks of connections."""
        connection = actor.sockets.make_connection(_make_id(), self._lines, rights=rights, party=self.party)
        connection.trace = self.request.scope.get(TRACE)
        connection.lease = self.lease
        return connection

    async def outcome(self, future: asyncio.Future[T]) -> T:
        """Return the result of a call. Raises CallFailed in place of exceptions that are not plait's."""
        try:
            return await future
        except (Exception, Interrupted) as error:
            raise self.context.failures.explain(error, self.key) from None

    async def outcome_unless_left(self, future: asyncio.Future[T], leave: Callable[[], object]) -> T:
        """Return the result of a call, as `outcome` does. The body must have been read.

        If the client disconnects first, cancels `future`, calls `leave` and raises ClientDisconnect.
        """
        loop, watcher = asyncio.get_running_loop(), None

        def watch() -> None:
            nonlocal watcher
            watcher = loop.create_task(self._wait_for_disconnect(future), name="plait disconnect")

        timer = loop.call_later(_SOON, watch)
        try:
            return await self.outcome(future)
        except asyncio.CancelledError:
            leave()
            if future.cancelled() and watcher is not None and watcher.done():
                raise ClientDisconnect from None
            raise
        finally:
            timer.cancel()
            if watcher is not None:
                watcher.cancel()

    async def call(self, actor: Actor, method: Method, arguments: Arguments, connection: Connection) -> Any:
        """Return the result of a method that does not stream, as `outcome` does."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        actor.turns.call(
            method, arguments, make_resolver(future), connection=connection, request=self.request, by_client=True
        )
        return await self.outcome(future)

    def stream(
        self, actor: Actor, method: Method, arguments: Arguments, connection: Connection, encode: Encode
    ) -> StreamedCall:
        """Call a method that streams."""
        call = StreamedCall(self._lines, encode, actor)
        call.begin(method, arguments, connection, self.request)
        self.lease.open(call.close, connection_id=connection.id)
        return call

    async def stream_events(self, actor: Actor, cls: type[S], open_: Callable[[S], Awaitable[None]]) -> Response:
        """Answer with a stream of events, which `open_` opens.

        The stream counts as a socket of its address. Raises TooMany, Unavailable, and the exceptions of `open_`.
        """
        if (refusal := actor.sockets.find_refusal()) is not None:
            raise refusal
        addresses, host = self.context.addresses, self.request.client.host if self.request.client else ""
        stream = cls(actor, _make_id(), self.principal, ended=partial(addresses.leave, host))
        with actor.usage.keep_awake():
            addresses.enter(host)
            await open_(stream)
        self.lease.open(stream.end, connection_id=stream.connection.id)
        self.lease.check()
        return StreamedResponse(stream.lines(), media_type="text/event-stream", ended=stream.end)

    async def _wait_for_disconnect(self, future: asyncio.Future[Any]) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        future.cancel()


def _make_id() -> str:
    return f"http-{os.urandom(8).hex()}"


def read_tags(request: Request, name: str) -> set[str]:
    """Return the entity tags of a header; for `if-none-match`, weak ones as strong ones."""
    tags = {each.strip() for line in request.headers.getlist(name) for each in line.split(",")} - {""}
    return {each.removeprefix("W/") for each in tags} if name == "if-none-match" else tags


def read_conditions(request: Request) -> tuple[set[str], set[str]]:
    """Return the entity tags of `if-match` and those of `if-none-match`."""
    return read_tags(request, "if-match"), read_tags(request, "if-none-match")


def answer_json(value: object) -> Response:
    """Answer with a value. Raises CallFailed if it is not JSON."""
    try:
        return Response(encode_given(value), media_type="application/json")
    except EncodeError as error:
        raise CallFailed(f"the result is not JSON: {error}") from None
