"""Handles, by which server code calls a thread, whether it is awake or asleep, here or at another node."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from plait.actor.kind import Kind
from plait.agents.agent import AgentMethod
from plait.node.local_thread import ThreadCalls
from plait.parts.part import Part
from plait.store.protocol import ThreadKey

__all__ = ["Handle"]


class Handle:
    """Calls the rpcs of one thread as if they were its own methods; a streaming rpc returns an async iterator.

    Its parts are there, too: `await handle.values.get("topic")` reads what a class with `values = Values()` keeps. The
    thread is woken when needed. A call returns when the changes that it made are durable. It raises what the rpc
    raises, and what waking the thread can raise.
    """

    def __init__(self, find: Callable[[Kind, ThreadKey], ThreadCalls], kind: Kind, key: ThreadKey) -> None:
        # Returns the calls of a thread: here, or at the node that owns it.
        self._find = find
        self._kind = kind
        self._key = key

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._key.name

    async def state(self) -> Any:
        """Return the thread's state when it is durable, as a copy if it could be changed in place."""
        return await self._calls.state()

    async def set_state(self, value: Any) -> int:
        """Set the state to `value`, or to the result of a function for the current state; return the version.

        For a thread of another process, the function may be called several times. Raises Conflict if the state was
        changed again each time that the function had been called, for 8 seconds.
        """
        return await self._calls.set_state(value)

    async def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> int:
        """Change a part of the string at a JSON pointer, as `Thread.splice` does; return the version."""
        version: int = await self._calls.call_thread("splice", pointer, at, remove, insert)
        return version

    async def append(self, pointer: str, text: str) -> int:
        """Add to the end of the string at a JSON pointer, as `Thread.append` does; return the version."""
        version: int = await self._calls.call_thread("append", pointer, text)
        return version

    async def terminate(self) -> None:
        """Stop the thread from taking new work, as `Thread.terminate` does. Raises NotFound if it does not exist."""
        await self._calls.call_thread("terminate")

    async def destroy(self) -> None:
        """Destroy the thread, as `Plait.destroy` does."""
        await self._calls.call_thread("destroy")

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call an rpc by its name. The chunks of a streaming rpc are returned as a list.

        `run:` and the name of an agent runs that agent, with its input as the only argument, as `Plait.run` does.
        """
        found = self._kind.method(method, by_client=False)
        if isinstance(found, AgentMethod):
            args, kwargs = (found.convert(args, kwargs),), {}
        if found.is_stream:
            return [chunk async for chunk in self._calls.stream(found, args, kwargs)]
        return await self._calls.call(found, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        method = self._kind.attributes.get(name)
        if method is None:
            if isinstance(inspect.getattr_static(self._kind.cls, name, None), Part):
                return _PartHandle(self, name)
            raise AttributeError(f"{self._kind.cls.__name__} has no rpc {name!r}")
        run: Callable[..., Any] = self._calls.stream if method.is_stream else self._calls.call
        return lambda *args, **kwargs: run(method, args, kwargs)

    def __repr__(self) -> str:
        return f"<Handle {self._key}>"

    @property
    def _calls(self) -> ThreadCalls:
        return self._find(self._kind, self._key)


class _PartHandle:
    """Calls the methods of a part of a thread, such as its values, and waits until their writes are durable."""

    def __init__(self, handle: Handle, part: str) -> None:
        self._handle = handle
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._handle._calls.call_part(self._part, name, args, kwargs)

        return call

    def __repr__(self) -> str:
        return f"<{self._part} of {self._handle._key}>"
