"""Handles, by which server code calls a thread, whether it is awake or asleep."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

from plait.actor.actor import Actor
from plait.actor.kind import Kind
from plait.actor.outcome import make_resolver, wait_for_durable
from plait.actor.rpc import Method, Sent
from plait.actor.thread import Thread
from plait.agents.agent import AgentMethod
from plait.errors import CallFailed
from plait.limits import Limits
from plait.parts.part import Part
from plait.store.protocol import ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["Handle", "read_stream", "visit"]

T = TypeVar("T")

# The number of unread chunks at which a generator waits for its reader.
_AHEAD: Final = 16


class Node(Protocol):
    """Wakes threads for handles."""

    limits: Limits

    def kind(self, name: str) -> Kind:
        """Return a kind by its name."""
        ...

    async def actor(self, key: ThreadKey, *, is_used: bool = True) -> Actor:
        """Return the actor of a thread, waking it if needed; one that is only read is not used."""
        ...

    async def stored_actor(self, key: ThreadKey) -> Actor:
        """Return the actor of a stored thread, waking it if needed."""
        ...

    async def is_stored(self, key: ThreadKey) -> bool:
        """Whether a thread is stored."""
        ...

    async def destroy(self, key: ThreadKey) -> None:
        """Destroy a thread."""
        ...


class Handle:
    """Calls the rpcs of one thread as if they were its own methods; a streaming rpc returns an async iterator.

    Its parts are there, too: `await handle.values.get("topic")` reads what a class with `values = Values()` keeps. The
    thread is woken when needed. A call returns when the changes that it made are durable. It raises what the rpc
    raises, and what waking the thread can raise.
    """

    def __init__(self, node: Node, kind: Kind, key: ThreadKey) -> None:
        self._node = node
        self._kind = kind
        self._key = key

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._key.name

    async def state(self) -> Any:
        """Return the thread's state when it is durable, as a copy if it could be changed in place."""
        actor = await self._node.actor(self._key, is_used=False)
        return await wait_for_durable(actor.state.current.copy(), actor.state.after)

    async def set_state(self, value: Any) -> int:
        """Set the state to `value`, or to the result of a function for the current state; return the version."""
        actor = await self._node.actor(self._key)
        return await actor.thread.set_state(value)

    async def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> int:
        """Change a part of the string at a JSON pointer, as `Thread.splice` does; return the version."""
        actor = await self._node.actor(self._key)
        return await actor.thread.splice(pointer, at, remove, insert)

    async def append(self, pointer: str, text: str) -> int:
        """Add to the end of the string at a JSON pointer, as `Thread.append` does; return the version."""
        actor = await self._node.actor(self._key)
        return await actor.thread.append(pointer, text)

    async def terminate(self) -> None:
        """Stop the thread from taking new work, as `Thread.terminate` does. Raises NotFound if it does not exist."""
        actor = await self._node.stored_actor(self._key)
        with actor.keep_awake():
            await actor.thread.terminate()

    async def destroy(self) -> None:
        """Destroy the thread, as `Plait.destroy` does."""
        await self._node.destroy(self._key)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call an rpc by its name for clients. The chunks of a streaming rpc are returned as a list.

        `run:` and the name of an agent runs that agent, with its input as the only argument, as `Plait.run` does.
        """
        found = self._kind.method(method)
        if isinstance(found, AgentMethod):
            args, kwargs = (found.convert(args, kwargs),), {}
        if found.is_stream:
            return [chunk async for chunk in self._stream(found, args, kwargs)]
        return await self._call(found, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        method = self._kind.attributes.get(name)
        if method is None:
            if isinstance(part := inspect.getattr_static(self._kind.cls, name, None), Part):
                return _PartHandle(self._node, self._key, part)
            raise AttributeError(f"{self._kind.cls.__name__} has no rpc {name!r}")
        run = self._stream if method.is_stream else self._call
        return lambda *args, **kwargs: run(method, args, kwargs)

    def __repr__(self) -> str:
        return f"<Handle {self._key}>"

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        actor = await self._node.actor(self._key)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        turn = actor.turns.call(method, (list(args), kwargs), make_resolver(future))
        try:
            return await future
        except asyncio.CancelledError:
            if isinstance(method, AgentMethod):
                turn.abandon()  # A run that waits leaves the queue.
            else:
                turn.skip()
            raise

    async def _stream(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        actor = await self._node.actor(self._key)
        async for chunk in read_stream(actor, method, list(args), kwargs):
            yield chunk


class _PartHandle:
    """Calls the methods of a part of a thread, such as its values, and waits until their writes are durable."""

    def __init__(self, node: Node, key: ThreadKey, part: Part[Any]) -> None:
        self._node = node
        self._key = key
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            reads = name in self._part.reading
            actor = await self._node.actor(self._key, is_used=not reads)
            with actor.keep_awake(is_used=not reads):
                result = await getattr(self._part.of(actor), name)(*args, **kwargs)
                # What was written is durable already: a later change that fails is none of it.
                return await wait_for_durable(result, actor.state.after) if reads else result

        return call

    def __repr__(self) -> str:
        return f"<{self._part.name} of {self._key}>"


async def visit(handle: Handle, name: str, work: Callable[[Thread[Any]], Awaitable[T]]) -> T:
    """Run server code in a thread, concurrently with its turns, waking the thread if needed. Clients cannot call it.

    Returns its result when its changes are durable. `name` is for logs and traces. If the caller is cancelled, so is
    the work.
    """
    actor = await handle._node.actor(handle._key)
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    turn = actor.turns.visit(name, partial(work, actor.thread), make_resolver(future))
    try:
        return await future
    except asyncio.CancelledError:
        turn.cancel()
        raise


async def read_stream(actor: Actor, method: Method, args: list[Any], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
    """Call a streaming rpc of an awake thread, and yield its chunks."""
    reader = _Reader(None if method.is_generator else actor.limits.write_buffer)
    turn = actor.turns.call(method, (args, kwargs), reader.done, sink=reader.sink, drain=reader.drain)
    try:
        async for chunk in reader:
            yield chunk
    finally:
        turn.abandon()


class _Reader:
    """Iterates over the chunks of a stream. A generator waits for the reader; a Stream may send ahead up to `room`."""

    def __init__(self, room: int | None) -> None:
        self._queue: asyncio.Queue[tuple[Sent, Any, int]] = asyncio.Queue()
        self._ahead = asyncio.Semaphore(_AHEAD)
        # The maximum bytes of JSON that may wait, None for no limit, and the bytes that are waiting.
        self._room = room
        self._waiting = 0
        self._is_full = False
        # Awaited before a chunk is sent.
        self.drain = self._ahead.acquire

    def sink(self, what: Sent, value: object) -> Callable[[], None]:
        """Queue an output of the stream. Raises CallFailed if there is no room, and for all later outputs."""
        size = 0
        if self._room is not None and what == "chunk":
            size = len(encode_json(value))
            self._is_full = self._is_full or (self._waiting > 0 and self._waiting + size > self._room)
        if self._is_full:
            raise CallFailed("the reader is too slow for what is sent to it")
        self._waiting += size
        return partial(self._queue.put_nowait, (what, value, size))

    def done(self, _: object, error: BaseException | None) -> None:
        """Queue the error of the turn, if it failed."""
        if error is not None:
            self._queue.put_nowait(("error", error, 0))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        what, value, size = await self._queue.get()
        if what == "error":
            raise value if isinstance(value, BaseException) else CallFailed(value)
        if what == "end":
            raise StopAsyncIteration
        self._waiting -= size
        self._ahead.release()
        return value
