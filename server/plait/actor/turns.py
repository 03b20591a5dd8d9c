"""Runs the turns of one awake thread, in its mailbox or concurrently; all of them begin and end here."""

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from contextvars import Context
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from starlette.requests import Request

from plait.actor.call_chain import find_refusal
from plait.actor.connection import Connection, Lease
from plait.actor.endpoints import EndpointMethod
from plait.actor.logs import about, log_error
from plait.actor.mailbox import Mailbox
from plait.actor.outcome import Done, RunningCall
from plait.actor.relatives import Relatives
from plait.actor.rpc import Arguments, Method, StreamSink
from plait.actor.streaming import StreamReader, StreamRunner
from plait.actor.turn import Turn, TurnOwner, current_turn, find_client_turn, latest_turn
from plait.actor.usage import Usage
from plait.errors import PlaitError, TooMany, Unauthenticated, Unavailable
from plait.instruments.protocol import TRACE, Instruments, find_outcome
from plait.limits import Limits
from plait.state.pipeline import Pipeline

__all__ = ["TurnActor", "TurnRunner", "find_trace"]

log = logging.getLogger("plait.thread")

_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
# Shared by all threads without concurrent turns, to save memory.
_NO_TURNS: Final[dict[Turn, None]] = {}


class TurnActor(TurnOwner, Protocol):
    """An actor, as its turns and sockets use it; `Actor` describes the members."""

    limits: Limits
    usage: Usage
    # None without a family.
    relatives: Relatives | None

    @property
    def thread(self) -> Any: ...

    @property
    def state(self) -> Pipeline: ...

    @property
    def turns(self) -> "TurnRunner": ...


class TurnRunner:
    """Runs the turns of `actor`; the outcome of a gated turn waits until earlier changes are durable."""

    __slots__ = ("_actor", "_concurrent", "_loop", "_thread", "mailbox", "refusal")

    def __init__(self, actor: TurnActor) -> None:
        self._actor = actor
        self._thread = actor.thread
        self._loop = asyncio.get_running_loop()
        self.mailbox = Mailbox(self._loop)
        # The turns that run outside of the mailbox: concurrent rpcs and streams, and the last turn.
        self._concurrent: dict[Turn, None] = _NO_TURNS
        # The error that ends all turns; None while turns may run.
        self.refusal: PlaitError | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no turn is running or waiting."""
        return self.mailbox.is_idle and not self._concurrent

    # Called by sessions and routes

    def call(
        self,
        method: Method,
        arguments: Arguments,
        done: Done,
        *,
        sink: StreamSink | None = None,
        reader: StreamReader | None = None,
        connection: Connection | None = None,
        request: Request | None = None,
        by_client: bool = False,
        size: int = 0,
        on_made: Callable[[int], None] | None = None,
    ) -> RunningCall:
        """Run an rpc; `size` is the size of the call from `connection`.

        `done` is called with the outcome when all earlier changes are durable. The chunks of a stream go to `sink`; a
        generator waits for `reader` or `connection`. `on_made` is called with the version of the first change, just
        before that is sent.
        """
        (args, kwargs), thread = arguments, self._thread
        trace = connection.trace if connection is not None and by_client else self.find_trace()
        streaming = None
        if method.is_stream:
            assert sink is not None
            streaming = StreamRunner(
                sink, done, gate=self._actor.state.after, connection=connection, report=self.report, reader=reader
            )
            done = streaming.finish
            work = partial(streaming.run, method, thread, args, kwargs)
        else:
            work = partial(method.function, thread, *args, **kwargs)
        turn = Turn(
            f"rpc {method.name}",
            work,
            actor=self._actor,
            connection=connection,
            request=request,
            by_client=by_client,
            approves=method.action in ("approve", "stop") and connection is not None and connection.rights.may_approve,
            parent=None if by_client else current_turn(),
            origin=None if by_client else find_client_turn(),
            trace=trace,
            births=(),
            on_made=on_made,
        )
        if streaming is not None:
            if (relatives := self._actor.relatives) is not None:
                streaming.births = partial(relatives.wait_for_births, turn)
            turn.hurry, streaming.explain = streaming.hurry, turn.explain_loss
            if method.is_run:
                streaming.lose = partial(self._lose_reader, turn)
        self.begin(turn, done, size=size, is_gated=True, is_concurrent=method.is_concurrent)
        return turn

    def request(
        self,
        request: Request,
        done: Done,
        *,
        party: Hashable,
        lease: Lease | None = None,
        endpoint: EndpointMethod | None = None,
        arguments: Mapping[str, Any] = _NO_ARGUMENTS,
    ) -> RunningCall:
        """Run an endpoint, or `on_request`, for a principal or address; call `done` with its result as `call` does."""
        name, work = "on_request", partial(self._thread.on_request, request)
        if endpoint is not None:
            name, work = f"endpoint {endpoint.attribute}", partial(endpoint.function, self._thread, **arguments)
        turn = Turn(name, work, actor=self._actor, request=request, trace=request.scope.get(TRACE), births=())
        turn.party, turn.lease = party, lease
        self.begin(turn, done, is_gated=True, is_concurrent=endpoint is not None and endpoint.is_concurrent)
        return turn

    def end_message(self, trace: object, turn: RunningCall | None) -> None:
        """Tell the instruments when a message has ended: its turn, if any, has ended, and its changes are durable."""
        if turn is None:
            self._end_message(trace, None, None)
        else:
            turn.on_end(partial(self._end_message, trace))

    def _end_message(self, trace: object, _: object, error: BaseException | None) -> None:
        end = self._actor.instruments.message_ended
        self._actor.state.after(lambda failure: end(trace, find_outcome(failure or error)))

    def _lose_reader(self, turn: Turn) -> None:
        self._actor.instruments.limit_hit("write_buffer")
        turn.on_abandon = lambda _: None

    # Turns of any kind

    def begin(
        self,
        turn: Turn,
        done: Done,
        *,
        size: int | None = None,
        is_gated: bool = False,
        is_concurrent: bool = False,
        context: Context | None = None,
        party: Hashable = None,
    ) -> None:
        """Run a turn, and call `done` after its end; if it is gated, once the changes before the end are durable.

        The turn runs after the earlier turns of the charged party, or else of `party`.
        With a `size`, its connection is charged for a message of this many bytes until the turn ends. Calls of
        `on_destroyed` to its own thread are answered at once, as they can make no change.
        """
        if turn.by_client and turn.connection is not None:
            turn.party, turn.lease = turn.connection.party, turn.connection.lease
        if is_gated and not (self.mailbox.is_held and turn.parent is not None and turn.parent.holds(self.mailbox)):
            done = partial(self._answer, turn, done)
        if size is not None and turn.connection is not None:
            turn.size = turn.connection.begin_turn(size)
        if turn.parent is not None:
            if (refusal := find_refusal(turn)) is not None:
                turn.on_end(done)
                turn.end(None, refusal)
                return
            turn.count()
        if is_concurrent and not self.mailbox.is_held:
            self._add_concurrent(turn)
            turn.on_end(done)
            turn.start(self._loop, context)
            return
        turn.on_end(done)
        if turn.party is not None and (excess := self.mailbox.find_excess(turn.party, self._actor.limits)) is not None:
            turn.end(None, excess)
        else:
            if not self._actor.usage.is_watched:
                self._actor.usage.watch()  # The node checks its `turn_timeout`.
            self.mailbox.post(turn, turn.party or party)

    def post(
        self,
        name: str,
        *args: Any,
        connection: Connection | None = None,
        by_client: bool = False,
        size: int = 0,
        trace: object = None,
    ) -> Turn | None:
        """Queue a hook, for a message of `size` bytes from `connection`; return its turn, or None if turns have ended.

        `trace` is the trace of the cause. If the hook raises, `on_error` gets the exception.
        """
        if self.refusal is not None:
            return None
        work = partial(getattr(self._thread, name), *args)
        turn = Turn(name, work, actor=self._actor, connection=connection, by_client=by_client, trace=trace)
        self.begin(turn, partial(self.report_turn, turn), size=size, party=getattr(connection, "party", None))
        return turn

    def report(self, error: BaseException, connection: Connection | None, trace: object = None) -> None:
        """Run `on_error`; if that raises, log both errors.

        `trace` is the trace of the cause, by default the calling turn's.
        """
        if isinstance(error, asyncio.CancelledError) or self.refusal is not None:
            return
        if trace is None and (calling := current_turn()) is not None:
            trace = calling.trace

        def log_failure(_: object, failure: BaseException | None) -> None:
            if failure is not None:
                log_error(error, self._actor.key, connection)
                log_error(failure, self._actor.key, connection)

        work = partial(self._thread.on_error, error, connection)
        self.begin(Turn("on_error", work, actor=self._actor, connection=connection, trace=trace), log_failure)

    def report_turn(self, turn: Turn, _: object, error: BaseException | None) -> None:
        """Report the exception of a turn without a caller, unless its client had no rights. For use as a Done."""
        if error is not None and not (turn.is_abandoned and isinstance(error, Unauthenticated)):
            self.report(error, turn.connection, turn.trace)

    def find_excess(self, party: Hashable) -> TooMany | None:
        """Return the error if no other turn of a party may wait; None if it may."""
        return self.mailbox.find_excess(party, self._actor.limits)

    def begin_beside(self, turn: Turn, context: Context | None = None) -> None:
        """Run a turn concurrently with others, even while other turns are held or refused."""
        self._add_concurrent(turn)
        turn.start(self._loop, context)

    def run_last(self, turn: Turn) -> None:
        """Run a turn while all others are held."""
        self._add_concurrent(turn)
        self.mailbox.run_last(turn)

    def time_out(self, now: float, timeout: float | None) -> None:
        """Cancel the running turn and its nested turns after `timeout`, and log their stacks."""
        mailbox = self.mailbox
        elapsed = now - mailbox.started
        if mailbox.running is None or timeout is None or elapsed < timeout:
            return
        if mailbox.is_held and self.refusal is None:
            return  # The turn waits for the end of the thread, whose hooks have timeouts of their own.
        for turn in (mailbox.running, *mailbox.nested):
            if turn.task is None or turn.task.is_timed_out:
                continue
            log.error(
                "%s has run for %g s and is cancelled (turn_timeout); its stack:\n%s",
                turn.name,
                elapsed,
                turn.task.stack().rstrip(),
                extra=about(self._actor.key, turn.connection),
            )
            turn.time_out()

    async def wait(self) -> None:
        """Wait until the tasks of the running turns have ended; waiting turns may have started another one."""
        tasks = [self.mailbox.task, *(turn.task for turn in self._concurrent if turn.task is not None)]
        if running := [task for task in tasks if task is not None]:
            await asyncio.wait(running)

    def hold(self) -> None:
        """Begin no other turn until `refuse`; later turns wait, except in a call chain."""
        self.mailbox.is_held = True

    def refuse(self, error: PlaitError, *, besides: Collection[Turn] = ()) -> None:
        """End the waiting turns and all later turns with an error; cancel the concurrent turns except for `besides`."""
        self.refusal = error
        self.mailbox.refuse(error)
        for turn in self._concurrent:
            if turn not in besides:
                turn.cancel()

    def cancel(self) -> None:
        """Cancel the running and the waiting turns."""
        self.mailbox.close()
        for turn in self._concurrent:
            turn.cancel()

    # For the pipeline

    find_turn = staticmethod(current_turn)

    def find_own_turn(self) -> Turn | None:
        """Return the turn in which the calling code runs, if it is a turn of this thread."""
        turn = current_turn()
        return turn if turn is not None and turn.actor is self._actor else None

    def find_loss(self) -> PlaitError | None:
        """Return the error that cut the calling code's turn of this thread short; the turn may have ended."""
        turn = latest_turn()
        return turn.loss if turn is not None and turn.actor is self._actor else None

    def find_trace(self) -> object:
        """Return the trace of the cause of the calling code's changes."""
        return find_trace(self._actor.instruments)

    def cut(self, failure: PlaitError, told: Collection[asyncio.Task[object]]) -> None:
        """Cut the turns with running code short, except the `told` tasks, which get the error as an exception."""
        if self.mailbox.is_held:
            return  # The end of the thread ends its turns.
        for turn in (self.mailbox.running, *self.mailbox.nested, *self._concurrent):
            if turn is None or not turn.is_running or turn.is_waiting:
                continue
            if turn.task is not None and turn.task not in told:
                turn.cut(failure)

    # Inside

    def _answer(self, turn: Turn, done: Done, result: object, error: BaseException | None) -> None:
        if error is not None and isinstance(error, asyncio.CancelledError):
            error = self.refusal or Unavailable("the server is shutting down")
        if turn.births and (relatives := self._actor.relatives) is not None:
            done = partial(relatives.answer, turn, done)
        self._actor.state.after(partial(_answer_durable, turn, done, result, error))

    def _add_concurrent(self, turn: Turn) -> None:
        turn.on_end(lambda *_: self._finish_concurrent(turn))
        if self._concurrent is _NO_TURNS:
            self._concurrent = {}
        self._concurrent[turn] = None

    def _finish_concurrent(self, turn: Turn) -> None:
        self._concurrent.pop(turn, None)
        self._actor.usage.renew(is_used=turn.is_use)


def _answer_durable(
    turn: Turn, done: Done, result: object, error: BaseException | None, failure: PlaitError | None
) -> None:
    if (found := failure or error) is not None:
        found = turn.explain_loss(found)
    done(result, found)


def find_trace(instruments: Instruments) -> object:
    """Return the trace that causes of the calling code have as parent: the trace of its turn.

    A turn of another app in this process has a trace of that app's instruments.
    """
    turn = current_turn()
    if turn is not None and turn.actor.instruments is instruments:
        return turn.trace
    return instruments.find_parent()
