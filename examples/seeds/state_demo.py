"""StateDemo: what lives as long as a request, as a conversation, and as a user.

Call it by `POST /run/state-demo`: the header `x-thread-id` of an answer, sent back, continues the conversation.
"""

import time
from typing import Any

from msgspec import Struct

from plait import Context, Plait, Session, Thread, Values


class Conversation(Thread[None]):
    """Has values only, and nothing that is shown to anybody."""

    values = Values()


app = Plait(Conversation)


class Input(Struct):
    message: str


class Output(Struct):
    response: str
    request_time: float
    message_count: int
    total_requests: int


@app.agent("state-demo", thread=Conversation)
async def state_demo(ctx: Context[Conversation], input: Input) -> Output:
    # The request: gone when it ends, and shared with the agents that this one calls.
    ctx.state["start"] = time.perf_counter()

    # The conversation: durable, and committed with this run.
    await ctx.thread.values.push("messages", input.message)

    # The user: durable, and the same in all conversations.
    total = 0
    if ctx.user is not None:
        total = await ctx.user.update("total_requests", lambda total: total + 1, 0)

    # The request as the listeners of its end see it.
    ctx.session.state["kind"] = "chat"
    ctx.session.add_listener("completed", log_session)

    count = len(await ctx.thread.values.get("messages"))
    return Output(f"Received: {input.message}", time.perf_counter() - ctx.state["start"], count, total)


async def log_session(session: Session) -> None:
    """Count the requests of each kind; it runs after the answer, and what it writes is stored, too."""
    thread: Any = session.thread
    values = thread.values
    kind = session.state["kind"]
    await values.set(f"completed {kind}", await values.get(f"completed {kind}", 0) + 1)
