"""How long a client takes to join again after many changes, compared with a client that has no state yet."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contest import Effort, turns
from benchmarks.native_socket import NativeSocket
from benchmarks.servers import serve

__all__ = ["CHANGES", "FULL_JOIN", "ResumeOutcome", "resume"]

CHANGES = 1000
SIZES = (30_000, 300_000)
# Threads of each way in a round; each is joined once when awake and once when asleep.
THREADS = 10
RESUME, FULL_JOIN = "with its old state", "without a state"


class Sample(msgspec.Struct, frozen=True):
    """One join: milliseconds until the last byte and until the state is up to date, and what was sent."""

    arrived: float
    shown: float
    bytes: int
    is_whole: bool


class ResumeOutcome(msgspec.Struct):
    """One way to join, and the median sample of every round."""

    size: int
    is_awake: bool
    way: str
    rounds: list[Sample]


class Left(msgspec.Struct):
    """What a client had when it left a thread."""

    path: str
    way: str
    place: tuple[str, int]
    document: dict[str, Any]

    def back(self, port: int) -> Sample:
        """Join again."""
        is_resuming = self.way == RESUME
        have, document = (self.place, self.document) if is_resuming else (None, None)
        client = NativeSocket(port, self.path, have, document)
        client.close()
        assert client.place == (self.place[0], self.place[1] + CHANGES), f"{client.place} after {self.place}"
        votes = sum(card["votes"] >= CHANGES for card in client.document["cards"].values())
        assert votes == min(CHANGES, len(client.document["cards"])), "the state is not up to date"
        return Sample(client.arrived * 1000, client.shown * 1000, client.bytes, client.is_whole)


def resume(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[ResumeOutcome]:
    """Both sizes, awake and asleep."""
    outcomes: dict[tuple[int, bool, str], ResumeOutcome] = {}
    threads = 3 if effort.is_quick else THREADS
    for size in SIZES:
        for turn in range(effort.rounds):
            place = folder / f"resume-{size}-{turn}"
            with serve("plait", place) as server:
                left = [leave(server.port, f"{size}-{n}", way) for n, way in turns((RESUME, FULL_JOIN), threads)]
                awake = back(left, server.port)
            # After a restart all threads sleep; the first two joins, which are not counted, warm the server up.
            with serve("plait", place) as server:
                for way in (RESUME, FULL_JOIN):
                    leave(server.port, f"{size}-warm", way)
                asleep = back(left, server.port)
            for is_awake, samples in ((True, awake), (False, asleep)):
                for way, sample in samples.items():
                    key = (size, is_awake, way)
                    outcomes.setdefault(key, ResumeOutcome(*key, [])).rounds.append(sample)
                    which = f"{size:,} bytes, {'awake' if is_awake else 'asleep'}, {way}"
                    tell(f"resume round {turn + 1}: {which}: {sample.bytes:,} bytes, {sample.shown:.1f} ms")
    return list(outcomes.values())


def leave(port: int, name: str, way: str) -> Left:
    """Join a separate thread, leave it, and change it with another client."""
    path = f"/threads/board/{name}-{way.replace(' ', '-')}"
    client = NativeSocket(port, path)
    client.close()
    worker = NativeSocket(port, path)
    worker.call("work", CHANGES)
    worker.close()
    return Left(path, way, client.place, client.document)


def back(left: list[Left], port: int) -> dict[str, Sample]:
    """Join again with each client in turn; returns the median sample of each way."""
    samples = [(each.way, each.back(port)) for each in left]
    found: dict[str, Sample] = {}
    for way in (RESUME, FULL_JOIN):
        own = [sample for name, sample in samples if name == way]
        found[way] = Sample(
            statistics.median(sample.arrived for sample in own),
            statistics.median(sample.shown for sample in own),
            round(statistics.median(sample.bytes for sample in own)),
            own[0].is_whole,
        )
    return found
