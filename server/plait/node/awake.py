"""Reports of the threads that are awake: for operators, and the people in them for listings."""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.sockets import Sockets

__all__ = ["MOST_AWAKE", "AwakeReport", "AwakeThread", "count_people", "find_busiest", "report_awake"]

MOST_AWAKE: Final = 1_000
"""Maximum threads of a report."""

# Threads that are looked at before other tasks may run.
_AT_ONCE: Final = 5_000


class AwakeThread(msgspec.Struct, frozen=True):
    """An awake thread: its sockets, and its work."""

    thread: str
    sockets: int
    # The running turn of the mailbox, and the seconds since its beginning.
    turn: str | None = None
    seconds: float = 0.0
    # The number of turns that wait for the running one.
    queue: int = 0


class AwakeReport(msgspec.Struct, frozen=True):
    """The awake threads of one process or of all processes, and the answer to `GET /operator/awake`."""

    threads: int
    sockets: int
    # The longest queues first, then the longest turns, then the most sockets.
    busiest: list[AwakeThread]
    # The number of workers or nodes that did not answer in time.
    silent: int = 0


async def report_awake(actors: Sequence[Actor], most: int) -> AwakeReport:
    """Return a report with at most `most` threads."""
    busiest: list[AwakeThread] = []
    sockets = 0
    for start in range(0, len(actors), _AT_ONCE):
        found = [_describe(actor) for actor in actors[start : start + _AT_ONCE]]
        sockets += sum(each.sockets for each in found)
        busiest = find_busiest([*busiest, *found], most)
        await asyncio.sleep(0)
    return AwakeReport(len(actors), sockets, busiest)


async def count_people(actors: Sequence[Actor], kind: str) -> dict[str, int]:
    """Return the number of people in each thread of a kind, by name, without threads that no one has open."""
    found: dict[str, int] = {}
    seen = 0
    for actor in actors:
        if actor.key.kind == kind and actor.sockets:
            found[actor.key.name] = _count_people(actor.sockets)
            seen += len(actor.sockets)
        seen += 1
        if seen >= _AT_ONCE:
            seen = 0
            await asyncio.sleep(0)
    return found


def _count_people(sockets: Sockets) -> int:
    """Count the connections of a thread; all connections of one principal count as one."""
    return len({each if each.principal is None else each.principal.id for each in sockets})


def find_busiest(threads: Iterable[AwakeThread], most: int) -> list[AwakeThread]:
    """Return at most `most` threads, the busiest first."""
    return nlargest(most, threads, key=lambda each: (each.queue, each.seconds, each.sockets))


def _describe(actor: Actor) -> AwakeThread:
    mailbox, thread = actor.turns.mailbox, str(actor.key)
    if (turn := mailbox.running) is None:
        return AwakeThread(thread, len(actor.sockets))
    seconds = round(actor.loop.time() - mailbox.started, 3)
    return AwakeThread(thread, len(actor.sockets), turn.name, seconds, mailbox.length)
