"""A thread for each user: its id is made from the app's own user id, instead of a signed id."""

import hashlib
from secrets import token_hex

from starlette.requests import Request

from plait import Context, Plait, Thread, Values


class Conversation(Thread[None]):
    """One conversation."""

    values = Values()


def find_thread_id(request: Request) -> str:
    """Return the same id for all requests of a user, and a new id for each request without a user.

    The header stands for a verified user, such as `request.state.principal` after `authenticate`.
    """
    user = request.headers.get("x-user-id")
    return f"thrd_{hashlib.sha256(user.encode()).hexdigest()[:27] if user else token_hex(16)}"


app = Plait(Conversation, thread_ids=find_thread_id)


@app.agent("count", thread=Conversation)
async def count(ctx: Context[Conversation]) -> int:
    """Count the requests of a conversation."""
    requests: int = await ctx.thread.values.get("requests", 0) + 1
    await ctx.thread.values.set("requests", requests)
    return requests
