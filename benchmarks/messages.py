"""The processor time of a message, added or answered by an agent, and of reading a long history."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import Effort
from benchmarks.records import Reading
from plait import Context, Messages, Plait, Thread, ThreadMessages
from plait.parts.messages.frames import Frame, TakeFrame

__all__ = ["messages"]

THREADS = 64
# Messages of a thread in a round, and of the long history.
EACH = 200
COUNT = 10_000
# Microseconds a message, and milliseconds of the long history.
ADD_AIM = 60.0
READ_AIM = 60.0


class Chat(Thread[dict[str, Any]]):
    """A conversation that clients see."""

    idle_timeout = None
    messages = Messages(agent="bot", live=True)


def messages(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Add messages to 64 threads in each round, have others answered, and page through a long history."""
    return asyncio.run(_measure(folder, effort, tell))


async def _measure(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    app = Plait(Chat, store=f"sqlite:///{folder / 'messages.db'}", limits=None, secret="bench")

    @app.agent("bot", thread=Chat)
    async def bot(ctx: Context[Chat]) -> None:
        for message in await ctx.thread.messages.take():
            ctx.thread.messages.inject("assistant", f"re {message.content}")

    added = Reading(f"a message, {THREADS} threads, µs", [], ADD_AIM)
    answered = Reading(f"a message and its answer, {THREADS} threads, µs", [])
    read = Reading(f"{COUNT:,} messages in pages of 100, ms", [], READ_AIM)
    async with app:
        threads = [(await app._node.actor(app.thread(Chat, f"{n}")._key)).thread for n in range(THREADS)]
        parts = [thread.messages for thread in threads if isinstance(thread, Chat)]
        long = app.thread(Chat, "long").part(Chat.messages)
        for _ in range(COUNT // EACH):
            await asyncio.gather(*(long.inject("user", "a message of some length " * 4) for _ in range(EACH)))
        for _ in range(3 * effort.rounds):
            start = time.process_time()
            await asyncio.gather(*(_add(part.inject, "user") for part in parts))
            added.rounds.append((time.process_time() - start) / (THREADS * EACH) * 1e6)
            start = time.process_time()
            await asyncio.gather(*(_ask(part) for part in parts))
            answered.rounds.append((time.process_time() - start) / (THREADS * EACH // 10) * 1e6)
            start = time.process_time()
            assert await _page(long) == COUNT
            read.rounds.append((time.process_time() - start) * 1000)
            for each in (added, answered, read):
                tell(f"{each.title}: {each.rounds[-1]:.1f}")
    return [added, answered, read]


async def _add(inject: Callable[[Any, str], Awaitable[object]], role: str) -> None:
    for number in range(EACH):
        await inject(role, f"message {number}")


async def _ask(part: ThreadMessages) -> None:
    answered = asyncio.Event()

    def tell(frames: Sequence[Frame]) -> None:
        if any(isinstance(frame, TakeFrame) for frame in frames):
            answered.set()

    stop = part.feed.watch(tell)
    for number in range(EACH // 10):
        answered.clear()
        await part.queue(f"message {number}")
        await answered.wait()
    stop()


async def _page(handle: Any) -> int:
    count, before = 0, None
    while found := (await handle.list(limit=100, before=before)).messages:
        count, before = count + len(found), found[0].position
    return count
