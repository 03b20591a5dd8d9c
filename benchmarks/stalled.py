"""One reader that stops reading among many that do not: `python -m benchmarks.stalled JOB` prints one run's result."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.clients import Client, Clients, LoadError
from benchmarks.contest import Effort, run, turns
from benchmarks.protocols import PROTOCOLS
from benchmarks.results import resident, tree
from benchmarks.servers import Server, serve

__all__ = ["CASES", "READERS", "StallCase", "StallOutcome", "stalled"]

READERS = 299
# The size of the kernel's receive buffer of the stalled socket.
BUFFER = 4096
# Bytes that are sent to the stalled socket before anything is measured, which fill the kernel's buffers of both sides.
FILL = 5_000_000
# Changes a second; and the length of these runs, as a multiple of that of other runs.
RATE = 20
LONGER = 4


class StallCase(msgspec.Struct, frozen=True):
    """A protocol and a change of a board, with the bytes of its frame."""

    title: str
    protocol: str
    size: int
    count: int
    length: int
    frame: int


class StallJob(msgspec.Struct, frozen=True):
    """What one run has to do."""

    case: StallCase
    port: int
    pid: int
    name: str
    is_stalled: bool
    seconds: float


class Latencies(msgspec.Struct, frozen=True):
    """Milliseconds from a call to the change at each reader that reads, and the growth of the server."""

    p50: float
    p99: float
    # Bytes of resident memory since all had joined.
    grown: int
    # Changes made, and the messages for them that the stalled socket got when it read again.
    changes: int
    caught_up_by: int


class StallOutcome(msgspec.Struct):
    """Every round of one case, without a stalled reader and with one; and what went wrong."""

    case: StallCase
    without: list[Latencies] = []
    within: list[Latencies] = []
    failures: list[str] = []

    def ratios(self) -> list[float]:
        """How the p99 changed, of each round."""
        return [after.p99 / before.p99 for before, after in zip(self.without, self.within, strict=False)]

    def growths(self) -> list[float]:
        """By how many bytes more the server grew, in each round."""
        return [float(after.grown - before.grown) for before, after in zip(self.without, self.within, strict=False)]


CASES = (
    StallCase("plait.v1, 6.7 kB changes", "native", 300_000, 60, 50, 6_700),
    StallCase("full-state frames of 30 kB", "cloudflare", 30_000, 1, 0, 31_000),
)


def stalled(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[StallOutcome]:
    """Run every case, with and without a stalled socket in turn, after a run that warms the server up."""
    outcomes: list[StallOutcome] = []
    with serve("plait", folder / "stalled") as server:
        for case in CASES:
            outcome = StallOutcome(case)
            measure(case, server, "warm", is_stalled=True, seconds=effort.seconds)
            for turn, is_stalled in turns((False, True), effort.rounds):
                if outcome.failures:
                    continue
                seconds = effort.seconds * (1 if effort.is_quick else LONGER)
                result = measure(case, server, str(turn), is_stalled=is_stalled, seconds=seconds)
                if isinstance(result, str):
                    outcome.failures.append(result)
                    tell(f"{case.title} failed: {result}")
                    continue
                (outcome.within if is_stalled else outcome.without).append(result)
                which = "one stalled" if is_stalled else "none stalled"
                numbers = f"p50 {result.p50:.1f} ms, p99 {result.p99:.1f} ms, grown {result.grown / 2**20:.2f} MiB"
                tell(f"{case.title} round {turn + 1}: {which}: {numbers}")
            outcomes.append(outcome)
    return outcomes


def measure(case: StallCase, server: Server, turn: str, *, is_stalled: bool, seconds: float) -> Latencies | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    name = f"{case.size}-{case.protocol}-{turn}-{'stalled' if is_stalled else 'calm'}"
    job = StallJob(case, server.port, server.pid, name, is_stalled, seconds)
    result = run(Latencies, "benchmarks.stalled", msgspec.json.encode(job).decode())
    server.settle()
    return result


class Room:
    """The sockets of one run: one makes the changes, many read them, and one may be stalled."""

    def __init__(self, clients: Clients, job: StallJob) -> None:
        self.clients = clients
        self.case = job.case
        self.protocol = PROTOCOLS[job.case.protocol]
        path = f"/threads/board/{job.name}"
        self.caller, *self.readers = everyone = clients.join([path] * (READERS + 1))
        self.stalled: Client | None = None
        if job.is_stalled:
            self.stalled = clients.open(path, buffer=BUFFER)
            everyone.append(self.stalled)
        clients.run(lambda: all(each.texts >= self.protocol.greetings for each in everyone))
        if self.stalled is not None:
            clients.ignore(self.stalled)
        # No card has this many votes at first, so each call changes the board.
        self.numbers = itertools.count(1000)
        self.changes = 0

    def change(self, touched: Callable[[Client], None] | None = None) -> None:
        """Make a change and wait until all readers have it."""
        due = self.clients.texts + READERS + self.protocol.answers
        args = [next(self.numbers), self.case.count, self.case.length]
        self.clients.send(self.caller, self.protocol.call("edit_cards", args))
        self.clients.run(lambda: self.clients.texts >= due, touched=touched)
        self.changes += 1

    def latencies(self, seconds: float) -> list[float]:
        """Make changes at a steady rate; returns the milliseconds that each took to reach each reader."""
        spent: list[float] = []
        count = {reader: reader.texts for reader in self.readers}

        def touched(client: Client) -> None:
            if count.get(client, client.texts) < client.texts:
                count[client] = client.texts
                spent.append((time.perf_counter() - sent) * 1000)

        start = time.perf_counter()
        for number in range(round(seconds * RATE)):
            time.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            sent = time.perf_counter()
            self.change(touched)
        return spent

    def catch_up(self) -> int:
        """Make the stalled socket read again; returns how many messages it gets for all the changes."""
        if self.stalled is None:
            return 0
        self.clients.heed(self.stalled)
        self.clients.settle(1.0)
        messages = self.stalled.texts - self.protocol.greetings
        if not 0 < messages < self.changes:
            raise LoadError(f"the stalled socket did not lag: {messages} messages for {self.changes} changes")
        return messages


def load(job: StallJob) -> Latencies:
    """One run."""
    clients = Clients(job.port, protocol=PROTOCOLS[job.case.protocol])
    server = tree(job.pid)
    try:
        room = Room(clients, job)
        for _ in range(20):
            room.change()
        before = resident(server)
        for _ in range(FILL // job.case.frame):
            room.change()
        spent = statistics.quantiles(room.latencies(job.seconds), n=100)
        grown = resident(server) - before
        return Latencies(spent[49], spent[98], grown, room.changes, room.catch_up())
    finally:
        clients.close_all()


def main() -> None:
    """Run the job named on the command line."""
    print(msgspec.json.encode(load(msgspec.json.decode(sys.argv[1], type=StallJob))).decode())


if __name__ == "__main__":
    main()
