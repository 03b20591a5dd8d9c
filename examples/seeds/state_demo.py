"""StateDemo: state of a request, of a conversation, and of a user.

Call the agent by `POST /run/state-demo`. To continue the conversation, send the header `x-thread-id` of the answer
again.
"""

import time
from typing import Any

from msgspec import Struct

from plait import Context, Plait, Session, Thread, Values


class Conversation(Thread[None]):
    """Has values only, and no state that clients could see."""

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
    # State of the request: dropped at its end, and shared with the agents that this one calls.
    ctx.state["start"] = time.perf_counter()

    # State of the conversation: durable, and committed with this run.
    await ctx.thread.values.push("messages", input.message)

    # State of the user: durable, and the same in all conversations.
    total = 0
    if ctx.user is not None:
        total = await ctx.user.update("total_requests", lambda total: total + 1, 0)

    # State of the request, for the listeners that run at its end.
    ctx.session.state["kind"] = "chat"
    ctx.session.add_listener("completed", log_session)

    count = len(await ctx.thread.values.get("messages"))
    return Output(f"Received: {input.message}", time.perf_counter() - ctx.state["start"], count, total)


async def log_session(session: Session) -> None:
    """Count the requests of each kind; this runs after the answer, and its writes are stored, too."""
    thread: Any = session.thread
    values = thread.values
    kind = session.state["kind"]
    await values.set(f"completed {kind}", await values.get(f"completed {kind}", 0) + 1)
