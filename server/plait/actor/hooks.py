"""Runs the author's hooks of one awake thread, each as a turn."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from starlette.requests import Request

from plait.actor.connection import Connection
from plait.actor.logs import log_error
from plait.actor.mailbox import Mailbox, Turn, make_resolver
from plait.actor.thread import Thread
from plait.errors import PlaitError
from plait.instruments import TRACE
from plait_schemas.codes import TRY_AGAIN_LATER

__all__ = ["Hooks", "maybe_await"]

T = TypeVar("T")


async def maybe_await(value: Awaitable[T] | T) -> T:
    """Return the result of a hook, which may be awaitable."""
    if inspect.isawaitable(value):
        return cast(T, await value)
    return value


_CONNECT_HOOKS: Final = frozenset(
    {"connection_tags", "on_connect", "should_be_readonly", "should_send_protocol_messages"}
)


class Hooks:
    """Runs the hooks of `thread` as turns of `owner`, and `on_error` for exceptions that they raise."""

    __slots__ = ("_mailbox", "_owner", "_thread")

    def __init__(self, owner: Any, thread: Thread[Any], mailbox: Mailbox) -> None:
        self._owner = owner
        self._thread = thread
        self._mailbox = mailbox

    def has(self, name: str) -> bool:
        """Whether the class overrides a hook."""
        return name in self._thread._kind.overrides

    def post(
        self,
        name: str,
        *args: Any,
        connection: Connection | None = None,
        by_client: bool = False,
        size: int = 0,
        trace: Any = None,
    ) -> Turn | None:
        """Queue a hook, for a message of `size` bytes from `connection`, and return its turn; None without the hook.

        `trace` is that of its cause.
        """
        if not self.has(name):
            return None

        def finished(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.report(error, connection)

        work = partial(getattr(self._thread, name), *args)
        turn = Turn(
            name,
            work,
            owner=self._owner,
            connection=connection,
            by_client=by_client,
            instruments=self._owner.instruments,
            trace=trace,
        )
        if connection is not None:
            connection.track_turn(turn, size)
        turn.on_end(finished)
        self._mailbox.post(turn)
        return turn

    async def run(
        self, name: str, *args: Any, connection: Connection | None = None, request: Request | None = None
    ) -> Any:
        """Run a hook and return its result. Raises what the hook raises."""
        if not self.has(name):
            return None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        work = partial(getattr(self._thread, name), *args)
        turn = self._make(name, work, connection, request)
        turn.on_end(make_resolver(future))
        self._mailbox.post(turn)
        return await future

    def connect(
        self,
        connection: Connection,
        request: Request,
        *,
        join: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Run the hooks that configure a connection, call `join` to add it to the thread, then run `on_connect`.

        `join` returns whether the connection has joined; it is not called if the client has disconnected. `done` is
        called with the exception of a hook, or with the error why nobody may join.
        """
        refusal: PlaitError | None = None
        if self._owner.instruments is not None and TRACE not in request.scope:
            self._owner.begin_message(connection, "join")
            done = self._owner.end_message_with(connection.trace, done)

        def admit() -> bool:
            nonlocal refusal
            if connection.is_closed:
                return False
            refusal = self._owner.connections.refusal(self._owner.limits.connections_per_thread)
            if refusal is None:
                return join()
            self._owner.tell_limit(refusal)
            connection.leave(TRY_AGAIN_LATER, str(refusal))
            return False

        if not _CONNECT_HOOKS & self._thread._kind.overrides:
            admit()
            done(refusal)
            return

        async def work() -> None:
            thread = self._thread
            connection.tags = tuple(await maybe_await(thread.connection_tags(connection, request)))
            if await maybe_await(thread.should_be_readonly(connection, request)):
                connection.readonly = True
            connection.protocol_enabled = await maybe_await(thread.should_send_protocol_messages(connection, request))
            if admit():
                await maybe_await(thread.on_connect(connection, request))

        def finished(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.report(error, connection)
            done(error or refusal)

        turn = self._make("on_connect", work, connection, request)
        connection.track_turn(turn)
        turn.on_end(finished)
        self._mailbox.post(turn)

    async def is_readonly(self, connection: Connection, request: Request) -> bool:
        """Run `should_be_readonly` for a request."""
        answer = await self.run("should_be_readonly", connection, request, connection=connection, request=request)
        return bool(answer)

    def report(self, error: BaseException, connection: Connection | None) -> None:
        """Run `on_error`; if that raises, log both errors."""
        if isinstance(error, asyncio.CancelledError):
            return

        def finished(_: object, failure: BaseException | None) -> None:
            if failure is not None:
                log_error(error, self._owner.key, connection)
                log_error(failure, self._owner.key, connection)

        work = partial(self._thread.on_error, error, connection)
        turn = self._make("on_error", work, connection, None)
        turn.on_end(finished)
        self._mailbox.post(turn)

    def _make(self, name: str, work: Callable[[], Any], connection: Connection | None, request: Request | None) -> Turn:
        """Return a turn that a request causes, if there is one."""
        trace = None
        if request is not None:
            trace = request.scope.get(TRACE, None if connection is None else connection.trace)
        return Turn(
            name,
            work,
            owner=self._owner,
            connection=connection,
            request=request,
            instruments=self._owner.instruments,
            trace=trace,
        )
