"""A thread for the tests of the JavaScript client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from plait import Connection, Context, Limits, Plait, Reject, Source, Thread, rpc


class Note(Thread[dict]):
    """A state of any shape whose `n` is never negative."""

    initial_state = {"n": 0, "items": [], "fields": {}, "text": ""}  # noqa: RUF012

    def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
        if next_state.get("n", 0) < 0:
            raise Reject("n cannot be negative", path="/n")

    @rpc
    async def add_item(self, item: str) -> int:
        self.set_state(lambda state: {**state, "items": [*state["items"], item]})
        return len(self.state["items"])

    @rpc
    async def count_to(self, end: int) -> AsyncIterator[int]:
        for number in range(1, end + 1):
            yield number

    @rpc
    async def cheer(self, name: str) -> None:
        self.emit("cheer", {"for": name})

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.broadcast(data)


class Table(Thread[dict]):
    """A thread that a lobby shows."""

    listed = True
    initial_state = {"title": "new"}  # noqa: RUF012

    def card(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"title": state["title"]}


app = Plait(Note, Table, limits=Limits(messages_per_second=float("inf")), secret="of the test")


@app.agent("write", thread=Note)
async def write(ctx: Context, words: int) -> str:
    for number in range(words):
        ctx.thread.update("/text", f"{number}")
        await ctx.checkpoint()
    return "done"


@app.agent("count", thread=Note)
async def count(ctx: Context, upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number
        await asyncio.sleep(0)
