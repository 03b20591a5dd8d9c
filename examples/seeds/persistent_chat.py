"""PersistentChat: load once from `kv`, cache in the thread, stream the answer, and save after the answer.

In plait, the values of a thread are durable anyway. In `kv`, the conversation also outlives its thread: it stays for a
day after the thread was destroyed or has expired.
"""

from collections.abc import AsyncIterator

from msgspec import convert

from plait import Context, Plait, Thread, Values

from .model import Message, stream

MOST = 20
DAY = 86_400


class Chat(Thread[None]):
    """One conversation."""

    values = Values()


app = Plait(Chat)


@app.agent("persistent-chat", thread=Chat)
async def persistent_chat(ctx: Context[Chat], message: str) -> AsyncIterator[str]:
    key = f"chat {ctx.thread.name}"
    values = ctx.thread.values

    if not await values.has("messages"):
        saved = await ctx.kv.get("conversations", key)
        await values.set("messages", saved.data if saved.exists else [])
    messages = convert(await values.get("messages"), list[Message])
    messages.append(Message("user", message))

    answer = ""
    async for word in stream(messages):
        answer += word
        yield word

    async def save() -> None:
        recent = [*messages, Message("assistant", answer)][-MOST:]
        await values.set("messages", recent)
        await ctx.kv.set("conversations", key, recent, ttl=DAY)

    ctx.wait_until(save)
