"""The methods of handles for a thread that this node owns."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import SentClient
from plait.actor.handle import Identity
from plait.actor.kind import Kind
from plait.actor.outcome import Done, RunningCall, make_resolver, wait_for_durable
from plait.actor.rpc import Method, Sent
from plait.agents.agent import AgentMethod
from plait.errors import CallFailed
from plait.limits import Limits
from plait.node.json_calls import pass_arguments, pass_result
from plait.node.remote_requests import Listed, ListThreads
from plait.parts.env.app_env import AppEnv
from plait.parts.part import Part, find_parts
from plait.state.change_log import Change
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["THREAD_METHODS", "LocalThread", "OwnThreads", "StreamWindow", "find_part"]


class ThreadMethod(NamedTuple):
    """A method of threads that handles also have: the type of its result, and whether it only reads."""

    result: Any = None
    reads: bool = False


THREAD_METHODS: Final[Mapping[str, ThreadMethod]] = {
    "update": ThreadMethod(int),
    "splice": ThreadMethod(int),
    "append": ThreadMethod(int),
    "undo": ThreadMethod(int | None),
    "history": ThreadMethod(list[Change], reads=True),
    "identity": ThreadMethod(Identity, reads=True),
    "terminate": ThreadMethod(),
    "destroy": ThreadMethod(),
    "interrupt": ThreadMethod(bool),
}
"""The methods of threads that handles also have."""

# The number of unread chunks at which a generator waits for its reader.
_AHEAD: Final = 16


Put = Callable[[Sent, Any], None]
"""Receives an output of a stream."""


class OwnThreads(Protocol):
    """The threads of this node, for server code here and at other nodes; `Node` describes the methods."""

    limits: Limits
    env: AppEnv

    def check_loop(self) -> None: ...

    async def actor(
        self,
        key: ThreadKey,
        *,
        is_used: bool = True,
        creates: bool = True,
        prepare: Callable[[Actor], None] | None = None,
    ) -> Actor: ...

    async def is_stored(self, key: ThreadKey) -> bool: ...

    async def stored_actor(self, key: ThreadKey) -> Actor: ...

    async def destroy(self, key: ThreadKey) -> None: ...

    def interrupt(self, key: ThreadKey, message: Any) -> bool: ...

    @property
    def actors(self) -> list[Actor]: ...

    @property
    def may_begin(self) -> bool: ...

    def check_may_begin(self, key: ThreadKey) -> None: ...

    def owns(self, key: ThreadKey) -> bool: ...

    def may_serve(self, key: ThreadKey) -> bool: ...

    def find_any_kind(self, name: str) -> Kind: ...

    def list_own(self, query: ListThreads) -> AsyncIterator[Listed]: ...


class LocalThread:
    """Uses a thread of this process, waking it when needed."""

    def __init__(self, node: OwnThreads, kind: Kind, key: ThreadKey) -> None:
        self._node = node
        self._kind = kind
        self._key = key

    async def state(self) -> Any:
        actor = await self._node.actor(self._key, is_used=False)
        return await wait_for_durable(actor.state.current.copy(), actor.state.after)

    async def set_state(self, value: Any) -> int:
        actor = await self._node.actor(self._key)
        return await actor.thread.set_state(value)

    async def call_thread(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of THREAD_METHODS of the thread itself."""
        reads = THREAD_METHODS[method].reads
        match method:
            case "destroy":
                return await self._node.destroy(self._key)
            case "interrupt":
                return self._node.interrupt(self._key, *args)
            case "identity":
                actor = await self._node.actor(self._key, is_used=False)
                thread = actor.thread
                found = Identity(thread.user_id, thread.created_at, thread.terminated_at)
                return await wait_for_durable(found, actor.state.after)
            case "terminate":
                actor = await self._node.stored_actor(self._key)
            case _:
                actor = await self._node.actor(self._key, is_used=not reads)
        if method == "undo":  # A client that another node has sent is a dict.
            args = msgspec.convert(args, tuple[str | SentClient])
        with actor.usage.keep_awake(is_used=not reads):
            done = await getattr(actor.thread, method)(*args, **kwargs)
        return None if THREAD_METHODS[method].result is None else done

    async def call(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if method.is_run:  # The agent itself converts its input and output; attributes are objects of this process.
            return await self.call_typed(method, args, kwargs)
        given = pass_arguments(method, args, kwargs, self._node.limits)
        return pass_result(method, await self.call_typed(method, *given))

    async def call_typed(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method with arguments that fit its annotations, and return its result."""
        actor = await self._node.actor(self._key)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        turn = actor.turns.call(method, (list(args), dict(kwargs)), make_resolver(future))
        try:
            return await future
        except asyncio.CancelledError:
            if isinstance(method, AgentMethod):
                turn.abandon()  # A waiting run leaves the queue.
            else:
                turn.skip()
            raise
        finally:
            del future  # The future's exception holds this frame.

    async def stream(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any]:
        outputs: asyncio.Queue[tuple[Sent, Any]] = asyncio.Queue()

        def put(what: Sent, value: object) -> None:
            outputs.put_nowait((what, value))

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                put("error", error)

        encode: Callable[[Any], Any] = (lambda chunk: chunk) if method.is_run else partial(pass_result, method)
        if not method.is_run:
            args, kwargs = pass_arguments(method, args, kwargs, self._node.limits)
        turn, window = await self.begin_stream(method, args, kwargs, put=put, done=done, encode=encode)
        try:
            while True:
                what, value = await outputs.get()
                if what == "error":
                    raise value if isinstance(value, BaseException) else CallFailed(value)
                if what == "end":
                    return
                window.free()
                yield value
        finally:
            turn.abandon()

    async def begin_stream(
        self,
        method: Method,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        put: Put,
        done: Done,
        encode: Callable[[Any], Any],
    ) -> tuple[RunningCall, "StreamWindow"]:
        """Call a streaming rpc, whose outputs go to `put`. Return it, and the window to `free` for each chunk read.

        Values are passed on as `encode` returns them; its exceptions go to the code that streams.
        """
        actor = await self._node.actor(self._key)
        window = StreamWindow(None if method.is_generator else actor.limits.write_buffer, put, encode)
        turn = actor.turns.call(method, (list(args), dict(kwargs)), done, sink=window.sink, reader=window)
        return turn, window

    async def call_part(self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = find_part(self._kind, part)
        if method in found.existing and not await self._node.is_stored(self._key):
            return found.existing[method]
        reads = method in found.reading
        creates, prepare = method not in found.existing, found.find_preparation(method, args)
        actor = await self._node.actor(self._key, is_used=not reads, creates=creates, prepare=prepare)
        with actor.usage.keep_awake(is_used=not reads):
            result = await getattr(found.of(actor), method)(*args, **kwargs)
            # A write is already durable; a later failed change does not affect its result.
            return await wait_for_durable(result, actor.state.after) if reads else result

    async def stream_part(
        self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[bytes]:
        found = find_part(self._kind, part)
        actor = await self._node.actor(self._key, is_used=False)
        with actor.usage.keep_awake(is_used=False):
            async with aclosing(getattr(found.of(actor), method)(*args, **kwargs)) as chunks:
                async for chunk in chunks:
                    yield await wait_for_durable(chunk, actor.state.after)


class StreamWindow:
    """The unread chunks of a stream. A generator waits for its reader; a Stream may be up to `room` bytes ahead."""

    def __init__(self, room: int | None, put: Put, encode: Callable[[Any], Any]) -> None:
        self._put = put
        self._encode = encode
        # The sizes of chunks that were passed on but not read.
        self._unread: deque[int] = deque()
        # The number of waiting chunks, including the ones that wait for the store.
        self._ahead = 0
        self._freed = asyncio.Event()
        # The maximum bytes of JSON that may wait, None for no limit, and the waiting bytes.
        self._room = room
        self._waiting = 0
        self._is_full = False

    @property
    def is_backed_up(self) -> bool:
        """Whether a generator must wait."""
        return self._ahead >= _AHEAD

    async def drain(self) -> None:
        """Wait until there is room for a chunk."""
        while self.is_backed_up:
            self._freed.clear()
            await self._freed.wait()

    def sink(self, what: Sent, value: object) -> Callable[[], None]:
        """Return a function that passes an output on. Raises CallFailed from the first output without room on."""
        size = 0
        if self._room is not None and what == "chunk":
            size = len(encode_json(value))
            self._is_full = self._is_full or (self._waiting > 0 and self._waiting + size > self._room)
        if self._is_full:
            raise CallFailed("the reader of the stream is too slow")
        passed = self._encode(value) if what == "chunk" else value
        self._waiting += size
        self._ahead += what == "chunk"
        return partial(self._pass_on, what, passed, size)

    def free(self) -> None:
        """Make room, as the next chunk was read."""
        self._waiting -= self._unread.popleft()
        self._ahead -= 1
        self._freed.set()

    def _pass_on(self, what: Sent, value: Any, size: int) -> None:
        if what == "chunk":
            self._unread.append(size)
        self._put(what, value)


def find_part(kind: Kind, name: str) -> Part[Any]:
    """Return a part of a class. Raises AttributeError."""
    if (part := find_parts(kind.cls).get(name)) is None:
        raise AttributeError(f"{kind.cls.__name__} has no part {name!r}")
    return part
