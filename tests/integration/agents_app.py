"""Agents that tests run over HTTP: they wait where a test says, and report their actions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from plait import Context, MemoryStore, Plait, Thread, ThreadValues, Values

__all__ = ["Chat", "Gate", "Message", "Room", "make_app", "values_of"]

SECRET: Final = "agentuity"


class Message(msgspec.Struct):
    """The message to an agent."""

    text: str
    more: dict[str, Any] = {}


class Room(Thread[dict[str, Any]]):
    """Has a state and values."""

    initial_state = {"n": 0}  # noqa: RUF012
    values = Values()


class Gate:
    """Makes the runs of one app wait, and tells which have begun and ended."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self._began: asyncio.Queue[Any] = asyncio.Queue()
        self.ran: list[Any] = []

    async def enter(self, what: Any) -> None:
        """Say that a run has begun, and wait until the gate is open."""
        self._began.put_nowait(what)
        await self.is_open.wait()

    async def wait(self) -> Any:
        """Return the first report of the next run."""
        async with asyncio.timeout(60):
            return await self._began.get()


class Chat:
    """An app with agents, and the gate at which some of them wait."""

    room = Room

    def __init__(self, app: Plait) -> None:
        self.app = app
        self.gate = Gate()

    async def threads(self) -> list[str]:
        """Return the names of the stored threads."""
        return [row.key.name async for row in self.app.threads()]


def values_of(thread: Thread[Any]) -> ThreadValues:
    """Return the values of a room."""
    assert isinstance(thread, Room)
    return thread.values


def make_app(**settings: Any) -> Chat:
    """Return an app with agents in memory."""
    settings.setdefault("store", MemoryStore())
    settings.setdefault("secret", SECRET)
    chat = Chat(Plait(Room, **settings))
    _add_agents(chat.app, chat.gate)
    _add_streams(chat.app, chat.gate)
    return chat


def _add_agents(app: Plait, gate: Gate) -> None:
    @app.agent("count", thread=Room)
    async def count(ctx: Context) -> int:
        n: int = await values_of(ctx.thread).get("n", 0) + 1
        await values_of(ctx.thread).set("n", n)
        return n

    @app.agent("say", thread=Room)
    async def say(ctx: Context, input: Message) -> list[str]:
        await values_of(ctx.thread).push("said", input.text)
        said: list[str] = await values_of(ctx.thread).get("said")
        return said

    @app.agent("greet", thread=Room)
    async def greet(ctx: Context, input: str = "there") -> str:
        return f"hi {input}"

    @app.agent("describe", thread=Room)
    async def describe(ctx: Context) -> dict[str, Any]:
        principal = None if ctx.connection is None else ctx.connection.principal
        return {"thread": ctx.thread.name, "session": ctx.session.id, "user": principal and principal.id}

    @app.agent("fail", thread=Room)
    async def fail(ctx: Context) -> None:
        await values_of(ctx.thread).set("n", 100)
        raise ValueError("that went wrong")

    @app.agent("stuck", thread=Room, timeout=0.01)
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    @app.agent("hurry", thread=Room, max_waiting=1, wait_timeout=0.001)
    async def hurry(ctx: Context) -> None:
        pass

    @app.agent("impatient", thread=Room, multitask="reject")
    async def impatient(ctx: Context, input: str) -> None:
        pass

    @app.agent("short-queue", thread=Room, max_waiting=1)
    @app.agent("wait", thread=Room, wait_timeout=1000)
    async def wait(ctx: Context, input: str) -> str:
        await gate.enter(input)
        await ctx.checkpoint()
        await values_of(ctx.thread).push("waited", input)
        gate.ran.append(input)
        return input


def _add_streams(app: Plait, gate: Gate) -> None:
    @app.agent("tell", thread=Room)
    async def tell(ctx: Context, input: int) -> AsyncIterator[str]:
        for n in range(input):
            yield f"é{n} "
        if input == 0:
            raise ValueError("nothing to tell")
        if input > 5:
            raise ValueError("too much to tell")

    @app.agent("number", thread=Room)
    async def number(ctx: Context, input: int) -> AsyncIterator[int]:
        for n in range(input):
            await values_of(ctx.thread).set("number", n)
            yield n
        if input > 5:
            raise ValueError("too many")

    @app.agent("drip", thread=Room, max_waiting=0)
    async def drip(ctx: Context) -> AsyncIterator[int]:
        try:
            for n in range(1_000_000):
                await values_of(ctx.thread).set("drip", n)
                yield n
                if n == 2:
                    await gate.enter("drip")
        finally:
            gate.ran.append("drip")

    @app.agent("spell", thread=Room)
    async def spell(ctx: Context) -> AsyncIterator[str]:
        yield "a "
        await gate.enter("spell")
        await ctx.checkpoint()
        yield "b "

    @app.agent("pour", thread=Room, wait_timeout=1000)
    async def pour(ctx: Context) -> AsyncIterator[str]:
        for n in range(3000):
            gate.ran.append(n)
            yield "x" * 10_000
