"""Handles, with which server code calls a thread: awake or asleep, here or at another node."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from plait.actor.connection import Connection, SentClient
from plait.actor.kind import Kind
from plait.actor.per_actor import PerActor
from plait.actor.rpc import Method, Stream
from plait.actor.turn import begin_write
from plait.spelling import find_nearest
from plait.state.change_log import Change
from plait.store.thread_rows import ThreadKey

__all__ = ["Handle", "HasState", "Identity", "ThreadCalls"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Bound = TypeVar("Bound")


class HasState(Protocol[S_co]):
    """A Thread, as far as handles know its class."""

    @property
    def state(self) -> S_co: ...


T_co = TypeVar("T_co", bound=HasState[Any], covariant=True)


class Identity(msgspec.Struct, frozen=True):
    """The user for whom a thread was created, and the times of its creation and termination, in microseconds."""

    user_id: str | None
    created_at: int | None
    terminated_at: int | None


class ThreadCalls(Protocol):
    """The methods of handles, for threads of any node; `Handle` describes them."""

    async def state(self) -> Any: ...

    async def set_state(self, value: Any) -> int: ...

    async def call_thread(self, method: str, *args: Any, **kwargs: Any) -> Any: ...

    async def call(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...

    def stream(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any]: ...

    async def call_part(self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...

    def stream_part(
        self, part: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[bytes]: ...


class Handle(Generic[T_co]):
    """Calls the rpcs of one thread: `await room.call(GameRoom.add_player, "Ada")`, which type checkers understand.

    The thread is woken when needed. A call returns when its changes are durable. It raises the exceptions of the rpc
    and of waking the thread. Arguments and results cross as JSON, even within one process.

    Rpcs and parts are also attributes, which type checkers do not see: `await room.add_player("Ada")`.
    """

    def __init__(self, find: Callable[[Kind, ThreadKey], ThreadCalls], kind: Kind, key: ThreadKey) -> None:
        # Returns the ThreadCalls of a thread: here, or at the node that owns it.
        self._find = find
        self._kind = kind
        self._key = key

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._key.name

    # The state

    async def state(self: "Handle[HasState[S]]") -> S:
        """Return the thread's state once it is durable, as a copy if it could be changed in place."""
        state: S = await self._calls.state()
        return state

    async def set_state(self: "Handle[HasState[S]]", value: S | Callable[[S], S]) -> int:
        """Set the state to `value`, or to the result of a function for the current state; return the version.

        For a thread of another process, the function may be called several times. Raises Conflict if the state changes
        after each of these calls, for 8 seconds.
        """
        return await self._calls.set_state(value)

    async def update(self, pointer: str, value: object) -> int:
        """Set the value at a JSON pointer, as `Thread.update` does; return the version."""
        version: int = await self._calls.call_thread("update", pointer, value)
        return version

    async def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> int:
        """Change a part of the string at a JSON pointer, as `Thread.splice` does; return the version."""
        version: int = await self._calls.call_thread("splice", pointer, at, remove, insert)
        return version

    async def append(self, pointer: str, text: str) -> int:
        """Add to the end of the string at a JSON pointer, as `Thread.append` does; return the version."""
        version: int = await self._calls.call_thread("append", pointer, text)
        return version

    async def history(self, since: int | None = None, *, limit: int | None = None) -> list[Change]:
        """Return the durable changes after a version, as `Thread.history` does."""
        changes: list[Change] = await self._calls.call_thread("history", since, limit=limit)
        return changes

    async def undo(self, source: Connection | str) -> int | None:
        """Undo the last change of a source, as `Thread.undo` does, with the same errors; return the version."""
        sent = source if isinstance(source, str) else SentClient(source.id, source.user, source.principal)
        version: int | None = await self._calls.call_thread("undo", sent)
        return version

    # The thread

    async def user_id(self) -> str | None:
        """Return the id of the user for whom the thread was created, as `Thread.user_id`."""
        return (await self._read_identity()).user_id

    async def created_at(self) -> int | None:
        """Return the time of the thread's creation, in microseconds since the epoch; None without one."""
        return (await self._read_identity()).created_at

    async def terminated_at(self) -> int | None:
        """Return the time of the thread's termination, in microseconds since the epoch; None without one."""
        return (await self._read_identity()).terminated_at

    async def terminate(self) -> None:
        """Stop the thread from taking new work, as `Thread.terminate` does. Raises NotFound if it does not exist."""
        await self._calls.call_thread("terminate")

    async def destroy(self) -> None:
        """Destroy the thread, as `Plait.destroy` does."""
        await self._calls.call_thread("destroy")

    # Calls

    @overload
    async def call(self, rpc: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def call(
        self, rpc: Callable[Concatenate[T_co, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    @overload
    async def call(
        self, rpc: Callable[Concatenate[T_co, Stream, P], Awaitable[None] | None], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Any]: ...
    @overload
    async def call(
        self, rpc: Callable[Concatenate[T_co, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def call(self, rpc: Callable[Concatenate[T_co, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, rpc: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call an rpc and return its result: `call(GameRoom.add_player, "Ada")`, or by its name for clients.

        The result of an rpc that streams is the list of its chunks. `run:` and the name of an agent run that agent,
        with its input as the only argument, as `Plait.run` does.
        """
        method = self._find_method(rpc)
        given = method.convert(args, kwargs)
        if method.is_stream:
            return [chunk async for chunk in self._calls.stream(method, *given)]
        return await self._calls.call(method, *given)

    @overload
    def stream(self, rpc: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]: ...
    @overload
    def stream(
        self, rpc: Callable[Concatenate[T_co, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R]: ...
    @overload
    def stream(
        self, rpc: Callable[Concatenate[T_co, Stream, P], Awaitable[None] | None], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[Any]: ...
    def stream(self, rpc: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Iterate over the chunks of an rpc that streams; leaving the loop ends it. Raises TypeError for other rpcs."""
        method = self._find_method(rpc)
        if not method.is_stream:
            raise TypeError(f"{method.name} of {self._kind.cls.__name__} does not stream: use `call`")
        return self._calls.stream(method, *method.convert(args, kwargs))

    def part(self, part: PerActor[Bound]) -> Bound:
        """Return a part of the thread: `await room.part(GameRoom.values).get("topic")`.

        Methods that write begin when they are called; awaiting them waits until the write is durable.
        """
        if not isinstance(part, PerActor):
            raise TypeError(f"a part is given as its class declares it, as in part(GameRoom.values), not as {part!r}")
        found: Bound | None = self._find_part(part.name)
        if found is None:
            raise AttributeError(f"{self._kind.cls.__name__} has no part {part.name!r}")
        return found

    if not TYPE_CHECKING:  # With it, a type checker would accept any attribute, even a misspelt one.

        def __getattr__(self, name: str) -> Any:
            method = self._kind.attributes.get(name)
            if method is not None:
                run = self._calls.stream if method.is_stream else self._calls.call
                return lambda *args, **kwargs: run(method, args, kwargs)
            if (part := self._find_part(name)) is not None:
                return part
            raise AttributeError(self._explain_missing(name))

    def __repr__(self) -> str:
        return f"<Handle {self._key}>"

    # Inside

    @property
    def _calls(self) -> ThreadCalls:
        return self._find(self._kind, self._key)

    async def _read_identity(self) -> Identity:
        identity: Identity = await self._calls.call_thread("identity")
        return identity

    def _find_method(self, rpc: str | Callable[..., Any]) -> Method:
        return self._kind.method(rpc, by_client=False) if isinstance(rpc, str) else self._kind.find_rpc(rpc)

    def _find_part(self, name: str) -> Any:
        part = inspect.getattr_static(self._kind.cls, name, None)
        return _PartHandle(self, part, name) if isinstance(part, PerActor) else None

    def _explain_missing(self, name: str) -> str:
        cls = self._kind.cls
        if not name.startswith("_") and hasattr(cls, name):
            return f"{cls.__name__}.{name} can only be used inside of the thread: `call` an rpc that uses it"
        own = (each for each in dir(cls) if isinstance(inspect.getattr_static(cls, each), PerActor))
        near = find_nearest(name, [*self._kind.attributes, *own, *(each for each in dir(Handle) if each[0] != "_")])
        return f"{cls.__name__} has no rpc {name!r}" + (f"; did you mean {near}?" if near else "")


class _PartHandle:
    """Calls the methods of one part of a thread, such as its values, and waits until their writes are durable."""

    def __init__(self, handle: Handle[Any], part: Any, name: str) -> None:
        self._handle = handle
        self._part = part
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any] | AsyncGenerator[bytes]]:
        if method in self._part.inner:
            raise AttributeError(f"{self._name}.{method} can only be used inside of the thread")

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any] | AsyncGenerator[bytes]:
            if method in self._part.streaming:
                return self._handle._calls.stream_part(self._name, method, args, kwargs)
            work = self._handle._calls.call_part(self._name, method, args, kwargs)
            return work if method in self._part.reading else begin_write(work)

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return begin_write(self._handle._calls.call_part(self._name, "__call__", args, kwargs))

    def __repr__(self) -> str:
        return f"<{self._name} of {self._handle._key}>"
