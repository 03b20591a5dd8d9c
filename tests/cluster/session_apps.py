"""An app whose nodes come and go: sessions of an agent, runs that take long, due effects, and threads that expire."""

import asyncio
import os
from pathlib import Path
from typing import Any

from starlette.requests import Request

from plait import Context, Plait, Principal, Schedule, Thread, Values, effect, rpc

__all__ = ["app"]


class Conversation(Thread[dict[str, Any]]):
    """A session of a user."""

    initial_state = {}  # noqa: RUF012
    values = Values()


class Tally(Thread[dict[str, Any]]):
    """Counts the effects that it has scheduled."""

    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.1
    values = Values()
    schedule = Schedule()

    @rpc
    async def count_after(self, seconds: float) -> None:
        """Count in some seconds."""
        await self.schedule.after(seconds, "count")

    @effect(attempts=100, base=0.1)
    async def count(self) -> None:
        """Take a while, so that a kill may hit it, and count."""
        await asyncio.sleep(0.5)
        await self.values.push("by", os.getpid())

    @rpc
    async def counted(self) -> list[int]:
        """Return the process that has done each effect."""
        return await self.values.get("by", [])


class Brief(Thread[dict[str, Any]]):
    """Expires soon after its last use."""

    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.1
    expires_after = 2.0


async def authenticate(request: Request) -> Principal:
    """Return the user whom the client says it is."""
    return Principal(request.headers.get("x-user", "bob"))


app = Plait(Conversation, Tally, Brief, secret="test", authenticate=authenticate)
# Usually, the threads that are due are looked for twice a minute.
app._node._alarms._interval = 0.2


@app.agent("assistant", thread=Conversation)
async def assistant(ctx: Context[Conversation], input: str) -> dict[str, Any]:
    """Return the messages of the session, and the process that answers."""
    await ctx.thread.values.push("context", input)
    return {"context": await ctx.thread.values.get("context", []), "process": os.getpid()}


@app.agent("work", thread=Conversation)
async def work(ctx: Context[Conversation]) -> str:
    """Work until the file `go` is there."""
    await ctx.thread.values.set("began", 1)
    await ctx.flush()
    while not Path("go").exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.05)
    await ctx.thread.values.set("ended", 1)
    return "done"


@app.agent("hang", thread=Conversation)
async def hang(ctx: Context[Conversation]) -> None:
    """Work without end."""
    await ctx.thread.values.set("began", 1)
    await ctx.flush()
    await ctx.thread.values.set("kept", 1)
    await asyncio.Event().wait()


@app.agent("look", thread=Conversation)
async def look(ctx: Context[Conversation]) -> list[Any]:
    """Return the values, and whether the run before this one was cut off."""
    return [dict(await ctx.thread.values.items()), ctx.shutdown_interrupted]
