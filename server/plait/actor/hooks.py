"""Runs the author's hooks of one awake thread, each as a turn."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from plait.actor.connection import Connection
from plait.actor.logs import log_error
from plait.actor.mailbox import Turn, current_turn
from plait.actor.outcome import make_resolver, maybe_await
from plait.actor.thread import Thread
from plait.actor.turns import TurnRunner
from plait.instruments.protocol import TRACE
from plait.state.commit import Maker

__all__ = ["Hooks"]

_CONNECT_HOOKS: Final = frozenset(
    {"connection_tags", "on_connect", "should_be_readonly", "should_send_protocol_messages"}
)


# So many turns of `on_state_changed` that a change has led to may make a change themselves.
_MOST_IN_A_ROW: Final = 1000


class _ChangeTurn(Turn):
    """One run of `on_state_changed`."""

    __slots__ = ("has_changed", "row")

    def __init__(self, name: str, work: Callable[[], Any], **options: Any) -> None:
        super().__init__(name, work, **options)
        # Whether it has made a change, and how many have that the same change has led to, which share the list.
        self.has_changed = False
        self.row = [0]


class Hooks:
    """Runs the hooks of `thread` as turns of `actor`, and `on_error` for exceptions that they raise."""

    __slots__ = ("_actor", "_thread", "_turns")

    def __init__(self, actor: Any, thread: Thread[Any], turns: TurnRunner) -> None:
        self._actor = actor
        self._thread = thread
        self._turns = turns

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
        """Queue a hook, for a message of `size` bytes from `connection`, and return its turn; None if it does not run.

        `trace` is that of its cause.
        """
        if not self.has(name) or self._turns.refusal is not None:
            return None

        work = partial(getattr(self._thread, name), *args)
        turn = Turn(name, work, actor=self._actor, connection=connection, by_client=by_client, trace=trace)
        self._turns.begin(turn, partial(self._finish, turn), size=size)
        return turn

    def post_change(
        self, state: Any, connection: Connection | None, *, size: int, trace: Any, maker: Maker | None
    ) -> None:
        """Queue `on_state_changed` for a change that the turn `maker` has made, of `size` bytes from `connection`.

        It does not run again when it has made changes too often in a row; `on_error` is told.
        """
        if self._turns.refusal is not None:
            return
        work = partial(self._thread.on_state_changed, state, connection or "server")
        turn = _ChangeTurn("on_state_changed", work, actor=self._actor, connection=connection, trace=trace)
        if (cause := self._find_cause(maker)) is not None:
            turn.row = cause.row
            cause.row[0] += not cause.has_changed
            cause.has_changed = True
            if cause.row[0] > _MOST_IN_A_ROW:
                endless = (
                    f"on_state_changed has made a change {_MOST_IN_A_ROW:,} times in a row, and is not called again"
                )
                self.report(RuntimeError(endless), connection, trace)
                return
        self._turns.begin(turn, partial(self._finish, turn), size=size)

    def _find_cause(self, maker: Any) -> _ChangeTurn | None:
        """Return the run of `on_state_changed` that is the turn `maker`, or waits for it."""
        chain = () if maker is None else maker.chain()
        return next((turn for turn in chain if isinstance(turn, _ChangeTurn) and turn.actor is self._actor), None)

    def _finish(self, turn: Turn, _: object, error: BaseException | None) -> None:
        if error is not None:
            self.report(error, turn.connection, turn.trace)

    async def run(
        self, name: str, *args: Any, connection: Connection | None = None, request: Request | None = None
    ) -> Any:
        """Run a hook and return its result. Raises what it raises, and the loss of a change that it was based on."""
        if not self.has(name):
            return None
        return await self._run(name, partial(getattr(self._thread, name), *args), connection, request)

    async def _run(
        self,
        name: str,
        work: Callable[[], Any],
        connection: Connection | None,
        request: Request | None,
        *,
        sees_durable: bool = False,
    ) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        trace = None if request is None else _find_trace(connection, request)
        turn = Turn(name, work, actor=self._actor, connection=connection, request=request, trace=trace)
        turn.sees_durable = sees_durable
        if connection is not None:
            turn.party = connection.party
        self._turns.begin(turn, make_resolver(future))
        return await future

    def connect(
        self,
        connection: Connection,
        request: Request,
        *,
        admit: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Run the hooks that configure a connection, call `admit` to add it to the thread, then run `on_connect`.

        `admit` returns whether the connection has joined. `done` is called with the exception of a hook, if any.
        """
        if not _CONNECT_HOOKS & self._thread._kind.overrides:
            admit()
            done(None)
            return

        async def work() -> None:
            thread, turn.sees_durable = self._thread, True
            connection.tags = tuple(await maybe_await(thread.connection_tags(connection, request)))
            if await maybe_await(thread.should_be_readonly(connection, request)):
                connection.readonly = True
            connection.protocol_enabled = await maybe_await(thread.should_send_protocol_messages(connection, request))
            turn.sees_durable = False
            if admit():
                await maybe_await(thread.on_connect(connection, request))

        def finished(_: object, error: BaseException | None) -> None:
            if (refusal := self._turns.refusal) is not None and error is not None:
                connection.leave(refusal.close_code, str(refusal))
            elif error is not None:
                self.report(error, connection, turn.trace)
            done(error)

        trace = _find_trace(connection, request)
        turn = Turn("on_connect", work, actor=self._actor, connection=connection, request=request, trace=trace)
        self._turns.begin(turn, finished, size=0)

    async def is_readonly(self, connection: Connection, request: Request) -> bool:
        """Run `should_be_readonly` for a request."""
        if not self.has("should_be_readonly"):
            return False

        work = partial(self._thread.should_be_readonly, connection, request)
        return bool(await self._run("should_be_readonly", work, connection, request, sees_durable=True))

    def report(self, error: BaseException, connection: Connection | None, trace: Any = None) -> None:
        """Run `on_error`; if that raises, log both errors.

        `trace` is that of its cause, by default the calling turn's.
        """
        if isinstance(error, asyncio.CancelledError) or self._turns.refusal is not None:
            return
        if trace is None and (calling := current_turn()) is not None:
            trace = calling.trace

        def finished(_: object, failure: BaseException | None) -> None:
            if failure is not None:
                log_error(error, self._actor.key, connection)
                log_error(failure, self._actor.key, connection)

        work = partial(self._thread.on_error, error, connection)
        turn = Turn("on_error", work, actor=self._actor, connection=connection, trace=trace)
        self._turns.begin(turn, finished)

    async def run_last(self, timeout: float | None, *, caller: Turn) -> None:
        """Run `on_destroyed` while no other turn runs, and `on_error` if it raises, then the app's listeners.

        Each is cancelled after `timeout`. `caller` is the turn that waits for it: what they call of the threads of its
        chain runs inside of that.
        """
        events = self._actor.events

        def make(name: str, work: Callable[[], Any], trace: Any) -> Turn:
            return Turn(name, work, actor=self._actor, parent=caller, origin=caller.origin, trace=trace)

        if self.has("on_destroyed"):
            turn = make("on_destroyed", self._thread.on_destroyed, caller.trace)
            try:
                await self._run_last(turn, timeout)
            except Exception as error:
                await self._report_last(
                    error, make("on_error", partial(self._thread.on_error, error, None), turn.trace), timeout
                )
        if events.has("thread.destroyed"):
            tell = partial(events.emit, "thread.destroyed", self._thread)
            try:
                await self._run_last(make("thread.destroyed", tell, caller.trace), timeout)
            except Exception as error:  # It took too long.
                log_error(error, self._actor.key, None)

    async def _report_last(self, error: Exception, turn: Turn, timeout: float | None) -> None:
        try:
            await self._run_last(turn, timeout)
        except Exception as failure:
            log_error(error, self._actor.key, None)
            log_error(failure, self._actor.key, None)

    async def _run_last(self, turn: Turn, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        turn.on_end(make_resolver(future))
        expiry = None if timeout is None else loop.call_later(timeout, turn.expire)
        try:
            self._turns.run_last(turn)
            await future
        finally:
            if expiry is not None:
                expiry.cancel()


def _find_trace(connection: Connection | None, request: Request) -> Any:
    """Return the trace of a request, or else of the message with which its connection joins."""
    return request.scope.get(TRACE, None if connection is None else connection.trace)
