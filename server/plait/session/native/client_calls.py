"""Runs, streams, answers and cancels the rpcs that a client of the native protocol calls. No I/O."""

from collections.abc import Callable
from functools import partial

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.outcome import RunningCall
from plait.actor.rpc import Method, Sent
from plait.actor.transport import Frame
from plait.errors import CallFailed, InvalidArguments, PlaitError
from plait.instruments.protocol import NO_INSTRUMENTS, find_outcome, tell_limit
from plait.parts.queries.live_queries import Door, QueryReader, find_queries
from plait.session.native.follower import Follower
from plait_schemas.codec import printable
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.frames import encode
from plait_schemas.messages import Call, Error, Made, Result

__all__ = ["ClientCalls"]


class ClientCalls:
    """The running calls of one socket."""

    __slots__ = ("_actor", "_calls", "_connection", "_follower", "_follows", "_turns")

    def __init__(self, actor: Actor, connection: Connection, follower: Follower) -> None:
        self._actor = actor
        self._connection = connection
        # Sends each answer after the earlier changes.
        self._follower = follower
        # The calls by ref, with their turns once these exist.
        self._calls: dict[int, Call] = {}
        self._turns: dict[int, RunningCall | QueryReader] = {}
        # Whether the client has followed a query.
        self._follows = False

    def receive(self, call: Call, size: int) -> None:
        """Begin a call whose message has `size` bytes."""
        actor, connection = self._actor, self._connection
        connection.begin_message("call", actor.instruments, actor.key)
        try:
            self._begin(call, size)
        except PlaitError as error:
            self._fail(call.ref, error)
            actor.instruments.message_ended(connection.trace, error.code)

    def cancel(self, ref: int) -> None:
        """Cancel a stream or a concurrent call; skip any other call that has not begun, and drop its result."""
        self._calls.pop(ref, None)
        turn = self._turns.pop(ref, None)
        if turn is not None:
            turn.abandon()

    def close(self) -> None:
        """Cancel all calls, except calls whose turn in the mailbox has begun: they finish."""
        self._calls.clear()
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            turn.abandon(is_closed=True)

    def resume(self) -> None:
        """Send the results of queries that the client has missed, as it has caught up."""
        if self._follows:
            find_queries(self._actor).resume(self._connection)

    # Inside

    def _begin(self, call: Call, size: int) -> None:
        actor, connection = self._actor, self._connection
        if call.ref in self._calls:
            raise InvalidArguments(f"a call with the ref {call.ref} is already running")
        if call.have is not None:
            self._follow(call, call.have)
            return
        method = actor.kind.method(call.method)
        connection.rights.check_call(method)
        arguments = method.arguments(call.args, call.kwargs, limits=actor.limits)
        done = partial(self._finish, call, method, connection.trace)
        sink = partial(self._stream, call) if method.is_stream else None
        self._calls[call.ref] = call
        made = partial(self._tell_made, call) if call.optimistic else None
        turn = actor.turns.call(
            method, arguments, done, sink=sink, connection=connection, by_client=True, size=size, on_made=made
        )
        if self._calls.get(call.ref) is call:
            self._turns[call.ref] = turn
        if method.is_stream:
            actor.turns.end_message(connection.trace, turn)

    def _follow(self, call: Call, have: str) -> None:
        """Follow a query, from the result with the tag `have` on."""
        actor, connection, follower = self._actor, self._connection, self._follower
        method = actor.kind.query(call.method)
        connection.rights.check_call(method)
        asked = method.ask(call.args, call.kwargs, limits=actor.limits)

        def send(chunk: bytes) -> None:
            follower.send(Frame(encode(Result(call.ref, done=False, value=msgspec.Raw(chunk)))))

        def fail(error: PlaitError) -> None:
            del self._calls[call.ref]
            self._turns.pop(call.ref, None)
            self._fail(call.ref, error)

        self._calls[call.ref] = call
        self._follows = True
        try:
            door = Door(send, fail, lambda: follower.is_slow)
            reader = find_queries(actor).open(asked, connection, door, have=have)
        except PlaitError:
            del self._calls[call.ref]
            raise
        if self._calls.get(call.ref) is call:
            self._turns[call.ref] = reader
        else:  # The first result has closed the socket.
            reader.abandon()
        actor.instruments.message_ended(connection.trace, "ok")

    def _tell_made(self, call: Call, version: int) -> None:
        if self._calls.get(call.ref) is call:
            self._follower.send_ahead(Made(call.ref, version))

    def _finish(self, call: Call, method: Method, trace: object, result: object, error: BaseException | None) -> None:
        is_cancelled = self._calls.get(call.ref) is not call
        if not is_cancelled:
            error = self._answer(call.ref, method, result, error)
        if not method.is_stream and self._actor.instruments is not NO_INSTRUMENTS:
            outcome = "ok" if error is None else "cancelled" if is_cancelled else find_outcome(error)
            self._actor.instruments.message_ended(trace, outcome)

    def _answer(self, ref: int, method: Method, result: object, error: BaseException | None) -> BaseException | None:
        """Send the outcome of a call; return its error, or a CallFailed if its result is not JSON."""
        del self._calls[ref]
        self._turns.pop(ref, None)
        if error is None and not method.is_stream:
            nothing = result is None and not method.returns_value
            try:
                self._follower.send(_make_result(ref, msgspec.UNSET if nothing else result, done=True))
            except EncodeError as failure:
                error = CallFailed(f"the result of {method.name} is not JSON: {failure}")
        if error is not None:
            tell_limit(self._actor.instruments, error)
            self._fail(ref, self._actor.explain(error, self._connection))
        return error

    def _stream(self, call: Call, what: Sent, value: object) -> Callable[[], None]:
        if what == "error":
            assert isinstance(value, str)
            frame = Frame(encode(Error(CallFailed.code, printable(value), call.ref)))
        else:
            frame = _make_result(call.ref, value, done=what == "end")

        def send() -> None:
            if self._calls.get(call.ref) is not call:
                return  # The call was cancelled.
            if what != "chunk":
                # The client may use the ref again, even if the method is still running.
                del self._calls[call.ref]
                self._turns.pop(call.ref, None)
            self._follower.send(frame)

        return send

    def _fail(self, ref: int, error: PlaitError) -> None:
        self._follower.send_later(Error(error.code, str(error), ref, error.path))


def _make_result(ref: int, value: object, *, done: bool) -> Frame:
    raw = msgspec.UNSET if value is msgspec.UNSET else msgspec.Raw(encode_given(value))
    return Frame(encode(Result(ref, done, raw)))
