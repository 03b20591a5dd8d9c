"""Clients that follow queries of a large table while it is written: `python -m benchmarks.queries JOB` prints one run.

Beside them, clients that ask each second, and clients that have the same rows in the state.
"""

import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from benchmarks.clients import Client, Clients, LoadError
from benchmarks.contest import Effort, calm, run, turns
from benchmarks.protocols import NATIVE, native_call
from benchmarks.results import Clock, Result, tree
from benchmarks.servers import Server, serve
from benchmarks.shops import ALL, CUSTOMERS, EACH, ORDERS
from benchmarks.wire import FrameReader, text

__all__ = ["RATES", "READERS", "WAYS", "QueryOutcome", "QueryResult", "QueryWay", "queries"]

READERS = 300
# Writes a second.
RATES = (20, 200)
# The length of a run, as a multiple of that of other runs; and seconds before it in which all is done already.
LONGER = 3
WARM_UP = 1.0
# Seconds in which a reader may still be told of the last writes.
PATIENCE = 1.2
# Orders that one call inserts.
AT_ONCE = 5_000

ACK = re.compile(rb'"type":"result","ref":(\d+)')
PAID = re.compile(rb'"(?:value|paid)":(\d+)}')


class QueryWay(msgspec.Struct, frozen=True):
    """How the readers are told, the thread, and the method that writes."""

    name: str
    label: str
    thread: str = "orders"
    write: str = "pay"


class QueryJob(msgspec.Struct, frozen=True):
    """What one run has to do."""

    way: QueryWay
    port: int
    pid: int
    rate: int
    seconds: float


class QueryResult(Result, frozen=True):
    """The p50 and p99 of milliseconds: of a write, and from its ack to each reader that is told of it, if any is."""

    write: tuple[float, float] = (0.0, 0.0)
    told: tuple[float, float] = (0.0, 0.0)


class QueryOutcome(msgspec.Struct):
    """Every round at one rate, by way; and what went wrong."""

    rate: int
    results: dict[str, list[QueryResult]] = {}
    failures: dict[str, str] = {}

    def ratios(self, name: str) -> list[float]:
        """The server's processor time of a write, divided by that of the writes alone, of each round."""
        alone = self.results.get(ALONE, [])
        return [ours.cost / other.cost for ours, other in zip(self.results.get(name, []), alone, strict=False)]


ALONE = "alone"
WAYS = (
    QueryWay(ALONE, "writes alone"),
    QueryWay("query", "queries"),
    QueryWay("poll", "an rpc each second"),
    QueryWay("state", "the rows in the state", thread="state", write="pay_in_state"),
)


def queries(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[QueryOutcome]:
    """Both rates, each way in turn."""
    outcomes: list[QueryOutcome] = []
    with serve("plait", folder / "queries") as server:
        fill(server.port)
        for rate in RATES:
            outcome = QueryOutcome(rate)
            outcomes.append(outcome)
            for turn, way in turns(WAYS, effort.rounds):
                if way.name in outcome.failures:
                    continue
                seconds = effort.seconds * (1 if effort.is_quick else LONGER)
                result = calm(partial(measure, way, server, rate, seconds), turn, effort)
                if isinstance(result, str):
                    outcome.failures[way.name] = result
                    tell(f"{rate} writes/s: {way.label} failed: {result}")
                    continue
                outcome.results.setdefault(way.name, []).append(result)
                told = f", p50 to a reader {result.told[0]:.0f} ms" if result.told[0] else ""
                tell(f"{rate} writes/s round {turn + 1}: {way.label}: {result.cost / 1000:.2f} ms a write{told}")
    return outcomes


def fill(port: int) -> None:
    """Insert the orders, once for all runs."""
    clients = Clients(port, protocol=NATIVE)
    try:
        orders, state = clients.join([find_path(name) for name in ("orders", "state")])
        calls = [native_call("fill", [at + 1, at + AT_ONCE]) for at in range(0, ORDERS, AT_ONCE)]
        for client, frames in ((orders, calls), (state, [native_call("fill_state", [])])):
            for frame in frames:
                before = client.texts
                clients.send(client, frame)
                clients.run(lambda client=client, before=before: client.texts > before)  # type: ignore[misc]
        clients.settle()
    finally:
        clients.close_all()


def measure(way: QueryWay, server: Server, rate: int, seconds: float, _: str) -> QueryResult | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    job = QueryJob(way, server.port, server.pid, rate, seconds)
    result = run(QueryResult, "benchmarks.queries", msgspec.json.encode(job).decode())
    server.settle()
    return result


def find_path(thread: str) -> str:
    """The socket URL of a thread."""
    return f"/threads/shop/{thread}"


class Seen(FrameReader):
    """Also notes when numbers have come, each once."""

    __slots__ = ("_pattern", "times")

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        super().__init__()
        self._pattern = pattern
        self.times: dict[int, float] = {}

    def feed(self, data: bytes | bytearray, size: int) -> None:
        """Find the numbers; one that is cut in two by the end of the data is missed."""
        now = time.perf_counter()
        for number in self._pattern.findall(data, 0, size):
            self.times.setdefault(int(number), now)
        super().feed(data, size)


class Shopping:
    """The sockets of one run: one writes, and many read."""

    def __init__(self, clients: Clients, job: QueryJob) -> None:
        self._clients = clients
        self._job = job
        self._writer, *self._readers = clients.join([find_path(job.way.thread)] * (READERS + 1))
        self._answers = watch(self._writer, ACK)
        self._seen = [watch(each, PAID) for each in self._readers]
        if job.way.name == "query":
            for number in range(READERS):
                self._ask(number, "open_orders", have="")
            clients.run(lambda: all(each.texts for each in self._seen))
            clients.settle()
        self._pick = random.Random(1)
        # When each number was written, and the last one. No order was paid with it in an earlier run.
        self._sent: dict[int, float] = {}
        self._last = round(time.monotonic() * 1000)
        self._polls = 0

    def run(self, server: list[psutil.Process], seconds: float) -> QueryResult:
        """Write and poll at steady rates, until all writes are answered; then see which readers are still told."""
        self._sent, self._polls = {}, 0
        before = sum(each.bytes for each in self._readers)
        clock = Clock(server)
        while clock.seconds < seconds:
            while len(self._sent) < clock.seconds * self._job.rate:
                self._write()
            self._poll(clock.seconds)
        self._clients.run(lambda: self._answers.times.keys() >= self._sent.keys())
        result = clock.result(len(self._sent))
        received = sum(each.bytes for each in self._readers) - before
        while clock.seconds < seconds + PATIENCE:
            self._poll(clock.seconds)
        acked = self._answers.times
        writes = [(acked[number] - sent) * 1000 for number, sent in self._sent.items()]
        told = [
            max(at - acked[number], 0) * 1000
            for each in self._seen
            for number, at in each.times.items()
            if number in self._sent
        ]
        times = {"write": find_percentiles(writes), "told": find_percentiles(told)}
        return QueryResult(**msgspec.structs.asdict(result) | {"bytes": received, **times})

    def _poll(self, now: float) -> None:
        while self._job.way.name == "poll" and self._polls < now * READERS:
            self._ask(self._polls % READERS, "list_orders")
            self._polls += 1
        self._clients.poll(0.002, None)

    def _write(self) -> None:
        self._last += 1
        order = self._pick.randrange(CUSTOMERS) + ALL * self._pick.randrange(1, EACH)
        self._sent[self._last] = time.perf_counter()
        self._send(self._writer, self._last, self._job.way.write, [order, self._last])

    def _ask(self, number: int, method: str, **options: str) -> None:
        self._send(self._readers[number], 1, method, [f"c{number % CUSTOMERS}"], **options)

    def _send(self, client: Client, ref: int, method: str, args: Sequence[object], **options: str) -> None:
        frame = {"type": "call", "ref": ref, "method": method, "args": args, **options}
        self._clients.send(client, text(msgspec.json.encode(frame)))


def watch(client: Client, pattern: re.Pattern[bytes]) -> Seen:
    """Find numbers in what a client receives."""
    client.reader = seen = Seen(pattern)
    return seen


def find_percentiles(times: Sequence[float]) -> tuple[float, float]:
    """The p50 and the p99; 0 without times."""
    found = statistics.quantiles(times, n=100) if times else [0.0] * 99
    return found[49], found[98]


def load(job: QueryJob) -> QueryResult:
    """One run, after a short one that warms up."""
    clients = Clients(job.port, protocol=NATIVE)
    server = tree(job.pid)
    try:
        shopping = Shopping(clients, job)
        shopping.run(server, WARM_UP)
        result = shopping.run(server, job.seconds)
        if job.way.name != ALONE and not result.told[0]:
            raise LoadError("no reader was told of a write")
        return result
    finally:
        clients.close_all()


def main() -> None:
    """Run the job named on the command line."""
    print(msgspec.json.encode(load(msgspec.json.decode(sys.argv[1], type=QueryJob))).decode())


if __name__ == "__main__":
    main()
