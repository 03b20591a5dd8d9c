"""Runs, streams and answers the rpcs that a client of the Cloudflare Agents protocol calls. No I/O."""

from collections.abc import Callable
from functools import partial

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.outcome import RunningCall
from plait.actor.rpc import Method, Sent
from plait.actor.transport import Frame, Transport
from plait.errors import CallFailed, PlaitError
from plait.instruments.protocol import find_outcome, tell_limit
from plait_schemas.cloudflare import Call, Result, encode
from plait_schemas.codec import printable
from plait_schemas.encoding import EncodeError, encode_given

__all__ = ["CloudflareCalls"]


class CloudflareCalls:
    """The running calls of one socket."""

    __slots__ = ("_actor", "_connection", "_is_closed", "_streams", "_transport")

    def __init__(self, actor: Actor, connection: Connection, transport: Transport) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        # The streaming turns, by the identity of their Call objects, since a client may use an id twice.
        self._streams: dict[int, RunningCall] = {}
        self._is_closed = False

    def receive(self, call: Call, size: int) -> None:
        """Begin a call whose message has `size` bytes."""
        actor, connection = self._actor, self._connection
        connection.begin_message("call", actor.instruments, actor.key)
        try:
            method = actor.kind.method(call.method)
            connection.rights.check_call(method)
            arguments = method.arguments(call.args, limits=actor.limits)
        except PlaitError as error:
            self.fail(call, str(error))
            actor.instruments.message_ended(connection.trace, error.code)
            return
        if method.is_stream and self._is_closed:
            # The socket was closed while the call waited for `on_connect`.
            actor.instruments.message_ended(connection.trace, "cancelled")
            return
        turn = actor.turns.call(
            method,
            arguments,
            partial(self._finish, call, method, connection.trace),
            sink=partial(self._stream, call) if method.is_stream else None,
            connection=connection,
            by_client=True,
            size=size,
        )
        if method.is_stream:
            self._streams[id(call)] = turn
            actor.turns.end_message(connection.trace, turn)

    def close(self) -> None:
        """Cancel the streaming calls, as the socket is closed; the others finish."""
        self._is_closed = True
        for turn in self._streams.values():
            turn.abandon(is_closed=True)
        self._streams.clear()

    def fail(self, call: Call, message: str) -> None:
        """Refuse a call, after everything that was sent before, even if earlier changes fail."""
        frame = Frame(encode(Result(call.id, False, error=message)))
        self._actor.state.after(lambda _: self._transport.send(frame))

    # Inside

    def _finish(self, call: Call, method: Method, trace: object, result: object, error: BaseException | None) -> None:
        if method.is_stream:
            self._streams.pop(id(call), None)
        elif error is None:
            nothing = result is None and not method.returns_value
            try:
                self._transport.send(_make_result(call, msgspec.UNSET if nothing else result, done=True))
            except EncodeError as failure:
                error = CallFailed(f"the result of {method.name} is not JSON: {failure}")
        if error is not None:
            tell_limit(self._actor.instruments, error)
            self.fail(call, str(self._actor.explain(error, self._connection)))
        if not method.is_stream:
            self._actor.instruments.message_ended(trace, "ok" if error is None else find_outcome(error))

    def _stream(self, call: Call, what: Sent, value: object) -> Callable[[], None]:
        if what == "error":
            assert isinstance(value, str)
            send = partial(self.fail, call, printable(value))
        else:
            send = partial(self._transport.send, _make_result(call, value, done=what == "end"))
        if what == "chunk":
            return send

        def end() -> None:
            self._streams.pop(id(call), None)  # The method may still be running.
            send()

        return end


def _make_result(call: Call, value: object, *, done: bool) -> Frame:
    if (type(value) is not int or value.bit_length() > 63) and value is not msgspec.UNSET:
        value = msgspec.Raw(encode_given(value))
    return Frame(encode(Result(call.id, True, value, done)))
