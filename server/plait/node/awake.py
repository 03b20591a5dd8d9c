"""Reports of the threads that are awake, for operators."""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Final

import msgspec

from plait.actor.actor import Actor

__all__ = ["MOST_AWAKE", "AwakeReport", "AwakeThread", "find_busiest", "report_awake"]

MOST_AWAKE: Final = 1_000
"""The most threads of a report."""

# Threads that are looked at before other tasks may run.
_AT_ONCE: Final = 5_000


class AwakeThread(msgspec.Struct, frozen=True):
    """An awake thread: its sockets, and its work."""

    thread: str
    sockets: int
    # The turn that runs one at a time, and the seconds since it began.
    turn: str | None = None
    seconds: float = 0.0
    # The turns that wait for it.
    queue: int = 0


class AwakeReport(msgspec.Struct, frozen=True):
    """The awake threads of one process, or of all: also the answer to `GET /operator/awake`."""

    threads: int
    sockets: int
    # The longest queues first, then the longest turns, then the most sockets.
    busiest: list[AwakeThread]
    # The workers or nodes that did not answer in time.
    silent: int = 0


async def report_awake(actors: Sequence[Actor], most: int) -> AwakeReport:
    """Return a report with at most so many threads."""
    busiest: list[AwakeThread] = []
    sockets = 0
    for start in range(0, len(actors), _AT_ONCE):
        found = [_describe(actor) for actor in actors[start : start + _AT_ONCE]]
        sockets += sum(each.sockets for each in found)
        busiest = find_busiest([*busiest, *found], most)
        await asyncio.sleep(0)
    return AwakeReport(len(actors), sockets, busiest)


def find_busiest(threads: Iterable[AwakeThread], most: int) -> list[AwakeThread]:
    """Return at most so many threads, the busiest first."""
    return nlargest(most, threads, key=lambda each: (each.queue, each.seconds, each.sockets))


def _describe(actor: Actor) -> AwakeThread:
    mailbox, thread = actor.turns.mailbox, str(actor.key)
    if (turn := mailbox.running) is None:
        return AwakeThread(thread, len(actor.sockets))
    seconds = round(actor.loop.time() - mailbox.started, 3)
    return AwakeThread(thread, len(actor.sockets), turn.name, seconds, mailbox.length)
