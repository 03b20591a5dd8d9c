"""ConversationMemory: an agent that remembers the latest messages, and forgets them on request."""

from msgspec import convert

from plait import Context, Plait, Thread, Values

from .model import Message, generate

MOST = 20


class Conversation(Thread[None]):
    """One conversation; it is forgotten after an hour without a request, as in the original."""

    values = Values()
    expires_after = 3600


app = Plait(Conversation)


@app.agent("conversation-memory", thread=Conversation)
async def conversation_memory(ctx: Context[Conversation], message: str) -> str:
    values = ctx.thread.values
    if message == "reset":
        await ctx.thread.destroy()
        return "Conversation reset."

    messages = convert(await values.get("messages", []), list[Message])
    turn = await values.get("turn_count", 0) + 1
    messages.append(Message("user", message))
    answer = generate(messages)

    # Keep only the latest messages, so that the conversation does not grow.
    for said in (messages[-1], Message("assistant", answer)):
        await values.push("messages", said, MOST)
    await values.set("turn_count", turn)
    ctx.logger.info("turn %s of %s", turn, ctx.thread.name)
    return answer
