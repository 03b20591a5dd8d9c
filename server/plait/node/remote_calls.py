"""Answers requests of other nodes about the threads of this node."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import msgspec

from plait.actor.outcome import make_resolver, wait_for_durable
from plait.actor.rpc import Method, Sent
from plait.actor.turn import Turn
from plait.agents.agent import AgentMethod, Given
from plait.errors import CallFailed, Indeterminate, NotFound
from plait.node.awake import MOST_AWAKE, count_people, report_awake
from plait.node.forking import Fork
from plait.node.importing import Import, read_header
from plait.node.json_calls import decode_arguments
from plait.node.local_thread import THREAD_METHODS, LocalThread, OwnThreads, find_part
from plait.node.remote_chain import Chains
from plait.node.remote_errors import encode_error
from plait.node.remote_requests import (
    CallMethod,
    CallPart,
    CallThread,
    Disconnect,
    ExportThread,
    ForkThread,
    ImportThread,
    ListThreads,
    OfThread,
    ReadAwake,
    ReadMetrics,
    ReadPeople,
    ReadState,
    Request,
    RunAgent,
    SetState,
    StateReply,
    decode_envelope,
)
from plait.node.remote_values import (
    decode_attributes,
    decode_part_arguments,
    encode_end,
    encode_result,
)
from plait.node.transfers import Transfers
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import decode_json

__all__ = ["CallStream", "RemoteCalls", "Reply"]

_encode: Final = msgspec.msgpack.Encoder().encode


class CallStream(Protocol):
    """The caller's end of a call: receives chunks, and sends the body after its request."""

    # Called for each chunk that the caller has read.
    on_room: Callable[[], object]

    def put(self, data: bytes) -> None:
        """Send a chunk at once."""
        ...

    async def send_chunk(self, data: bytes) -> None:
        """Send a chunk when the caller has read most of the earlier chunks."""
        ...

    def body(self) -> AsyncIterator[bytes]:
        """Iterate over the body that the caller sends after its request."""
        ...


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The end of a call: its result or its error, and whether it has stored something, or may have."""

    may_have_stored: bool
    data: bytes
    is_error: bool = False


class RemoteCalls:
    """Answers the requests of other nodes."""

    def __init__(self, node: OwnThreads, transfers: Transfers, chains: Chains) -> None:
        self._node = node
        self._transfers = transfers
        self._chains = chains
        # Returns the metrics of the process.
        self.read_metrics: Callable[[], bytes] = bytes
        # Closes the sockets and streams of a target, and returns their number.
        self.disconnect: Callable[[Disconnect], int] = lambda _: 0

    async def answer(self, data: bytes, stream: CallStream) -> Reply | None:
        """Handle a request in a context of its own; return None if this node is shutting down or is not the owner.

        If the calling task is cancelled, because the caller was cancelled or is lost, a call that has not begun is
        skipped, and a stream is cancelled.
        """
        envelope = decode_envelope(data)
        waiting, request = self._chains.enter(envelope.chain), envelope.request
        key = request.key if isinstance(request, OfThread) else None
        may_begin = self._node.may_begin or isinstance(request, Disconnect)
        if not may_begin or not (key is None or self._node.may_serve(key)):
            return None
        try:
            result = await self._do(request, stream)
        except asyncio.CancelledError:  # The caller has left, or this node must end.
            cut = Indeterminate("the call was cut off: it may have been executed")
            return _make_reply(waiting, encode_error(cut, key), is_error=True)
        except BaseException as error:  # Includes Interrupted, which the caller raises again.
            return _make_reply(waiting, encode_error(error, key), is_error=True)
        return _make_reply(waiting, result)

    # Inside

    async def _do(self, request: Request, stream: CallStream) -> bytes:
        match request:
            case ReadState():
                return _encode(await self._read_state(request.key))
            case SetState():
                return _encode(await self._set_state(request))
            case CallMethod():
                return await self._call(request, stream)
            case RunAgent():
                return await self._run(request, stream)
            case CallPart():
                return await self._call_part(request, stream)
            case ExportThread():
                await self._send(self._transfers.export_thread(request.key), stream)
                return b""
            case ImportThread():
                await self._import(request, stream)
                return b""
            case ForkThread():
                kind, limits = self._node.find_any_kind(request.key.kind), self._node.limits
                work = Fork(kind, request.source, request.key.name, at=request.at, limits=limits)
                await self._transfers.fork_thread(work)
                return b""
            case ReadMetrics() | ReadAwake() | ReadPeople() | Disconnect():
                return await self._ask_process(request)
            case ListThreads():
                return _encode([listed async for listed in self._node.list_own(request)])
            case CallThread():
                return await self._call_thread(request)

    async def _ask_process(self, request: ReadMetrics | ReadAwake | ReadPeople | Disconnect) -> bytes:
        match request:
            case ReadMetrics():
                return self.read_metrics()
            case ReadAwake():
                return _encode(await report_awake(self._node.actors, MOST_AWAKE))
            case ReadPeople():
                return _encode(await count_people(self._node.actors, request.kind))
            case Disconnect():
                return _encode(self.disconnect(request))

    async def _call_thread(self, request: CallThread) -> bytes:
        if request.method not in THREAD_METHODS:
            raise NotFound(f"handles have no method {request.method!r}")
        args = [decode_json(each) for each in request.arguments.positional]
        kwargs = {name: decode_json(each) for name, each in request.arguments.named.items()}
        thread = self._find(request.key)
        return encode_result(request.method, await thread.call_thread(request.method, *args, **kwargs))

    def _find(self, key: ThreadKey) -> LocalThread:
        return LocalThread(self._node, self._node.find_any_kind(key.kind), key)

    async def _read_state(self, key: ThreadKey) -> StateReply:
        self._node.find_any_kind(key.kind)
        state = (await self._node.actor(key, is_used=False)).state
        current = state.current
        return await wait_for_durable(StateReply(state.epoch, current.version, current.json), state.after)

    async def _set_state(self, request: SetState) -> StateReply:
        kind = self._node.find_any_kind(request.key.kind)
        actor = await self._node.actor(request.key)
        state, current = actor.state, actor.state.current
        if request.epoch is not None and (state.epoch, current.version) != (request.epoch, request.version):
            return await wait_for_durable(StateReply(state.epoch, current.version, current.json), state.after)
        version = await actor.thread.set_state(kind.state_type.read(request.json, self._node.limits))
        return StateReply(state.epoch, version, is_set=True)

    async def _call(self, request: CallMethod, stream: CallStream) -> bytes:
        method = self._node.find_any_kind(request.key.kind).method(request.method, by_client=False)
        args, kwargs = decode_arguments(method, request.arguments, self._node.limits)
        return await self._finish(request.key, method, args, kwargs, stream)

    async def _run(self, request: RunAgent, stream: CallStream) -> bytes:
        method = self._node.find_any_kind(request.key.kind).method(f"run:{request.agent}")
        assert isinstance(method, AgentMethod)
        given = Given(
            input=method.agent.decode(msgspec.Raw(request.input), limits=self._node.limits),
            session_id=request.session_id,
            user_id=request.user_id,
            attributes=decode_attributes(request.attributes, request.typed),
        )
        return await self._finish(request.key, method, [given], {}, stream)

    async def _finish(
        self, key: ThreadKey, method: Method, args: list[Any], kwargs: dict[str, Any], stream: CallStream
    ) -> bytes:
        thread = self._find(key)
        if not method.is_stream:
            return encode_result(method.name, await thread.call_typed(method, args, kwargs))
        await _stream(thread, method, args, kwargs, stream)
        return b""

    async def _send(self, chunks: AsyncGenerator[bytes], stream: CallStream) -> None:
        """Send bytes piece by piece, at the caller's speed."""
        async with aclosing(chunks):
            async for chunk in chunks:
                await stream.send_chunk(chunk)

    async def _import(self, request: ImportThread, stream: CallStream) -> None:
        with TemporaryDirectory(prefix="plait-") as folder:
            file = Path(folder) / "thread"
            with file.open("wb") as written:
                async for data in stream.body():
                    written.write(data)
            kind = self._node.find_any_kind(request.key.kind)
            work = Import(file, kind, read_header(file), request.key.name, self._node.limits)
            await self._transfers.import_thread(work, replace=request.replace)

    async def _call_part(self, request: CallPart, stream: CallStream) -> bytes:
        thread, name, method = self._find(request.key), request.part, request.method
        part = find_part(self._node.find_any_kind(request.key.kind), name)
        args, kwargs = decode_part_arguments(part, method, request.arguments)
        if method in part.streaming:
            await self._send(thread.stream_part(name, method, args, kwargs), stream)
            return b""
        if request.has_body:
            args.append(stream.body())
        return encode_result(f"{name}.{method}", await thread.call_part(name, method, args, kwargs))


async def _stream(
    thread: LocalThread, method: Method, args: list[Any], kwargs: dict[str, Any], stream: CallStream
) -> None:
    """Pass the outputs of a streaming rpc on; return, or raise its error, when its turn has ended."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(what: Sent, value: Any) -> None:
        if what != "chunk":
            value = encode_end(CallFailed(value) if what == "error" else None)
        stream.put(value)

    encode, done = partial(encode_result, method.name), make_resolver(finished)
    turn, window = await thread.begin_stream(method, args, kwargs, put=put, done=done, encode=encode)
    stream.on_room = window.free
    try:
        await asyncio.shield(finished)
    except asyncio.CancelledError:
        if finished.cancelled():
            raise
        turn.abandon()
        await finished


def _make_reply(waiting: Turn | None, data: bytes, *, is_error: bool = False) -> Reply:
    return Reply(waiting is not None and waiting.may_have_stored, data, is_error)
