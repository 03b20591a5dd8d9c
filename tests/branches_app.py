"""Conversations whose agents answer each question with its number of the attempt: a plain agent, and a durable one."""

import asyncio
from typing import Any

from plait import Context, Messages, Plait, Tasks, Thread, rpc

__all__ = ["app"]


class Chat(Thread[dict[str, Any]]):
    """A conversation with an agent that streams."""

    messages = Messages(agent="plain", live=True)

    @rpc
    async def ask(self, text: str, key: str) -> str:
        return (await self.messages.queue(text, key=key)).id

    @rpc
    async def look(self) -> dict[str, Any]:
        """Return the shown line, with the ids of the siblings of each message, and whether the agent has work."""
        status = self.messages.status  # Before the messages: work that ends in between is shown.
        page = await self.messages.list(100_000)
        forks = await self.messages.forks(page.messages)
        return {
            "line": [[each.id, each.role, each.content, each.status] for each in page.messages],
            "total": page.total,
            "forks": {id: [[each.id, each.role] for each in found] for id, found in forks.items()},
            "status": status,
        }

    @rpc
    async def find(self, ids: list[str]) -> list[str]:
        """Return those of some messages that are there."""
        return [id for id in ids if await self.messages.get(id) is not None]


class Desk(Chat):
    """A conversation with an agent that survives kills."""

    tasks = Tasks()
    messages = Messages(agent="durable", live=True)


app = Plait(Chat, Desk, secret="s" * 32, limits=None)


@app.agent("plain", thread=Chat)
async def plain(ctx: Context[Chat]) -> None:
    messages = ctx.thread.messages
    while taken := await messages.take(limit=1):
        async with messages.stream() as answer:
            for word in f"re {taken[0].content}".split(" "):
                answer.append(f"{word} ")
                await asyncio.sleep(0.01)
                await ctx.checkpoint()
        await ctx.flush()


@app.agent("durable", thread=Desk, durable=True)
async def durable(ctx: Context[Desk]) -> None:
    messages = ctx.thread.messages

    async def take() -> str | None:
        taken = await messages.take(limit=1)
        return taken[0].content if taken else None

    async def answer() -> None:
        await asyncio.sleep(0.01)
        await messages.inject("assistant", f"re {content} ")

    while (content := await ctx.step.do("take", take)) is not None:
        await ctx.step.do("answer", answer)
        ctx.step.checkpoint(None)
