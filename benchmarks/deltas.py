"""What one change of a board costs for each socket that receives it: bytes, and processor time of the server."""

import statistics
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.boards import document, touch_cards, write
from benchmarks.contest import Effort, calm, run, turns
from benchmarks.loads import Job
from benchmarks.peer import COLYSEUS
from benchmarks.results import Result
from benchmarks.servers import Server, ServerError, serve

__all__ = ["CASES", "FULL", "SOCKETS", "WAYS", "Case", "DeltaOutcome", "Way", "deltas"]

SOCKETS = 100
CHECK_TIMEOUT = 60.0


class Way(msgspec.Struct, frozen=True):
    """How a change is made and sent, with its settings for the generator's job."""

    name: str
    label: str
    server: str
    settings: dict[str, str]


class Case(msgspec.Struct, frozen=True):
    """A size of state and a change: `count` cards get a text of `length` characters, or, for 0, another number."""

    title: str
    size: int
    count: int
    length: int
    # The most bytes per delivery, and the least processor time of a full-state frame, as a multiple of `edit()`'s.
    bytes_aim: int | None = None
    cpu_aim: float | None = None


class DeltaOutcome(msgspec.Struct):
    """Every round of one case, and what went wrong, by way."""

    case: Case
    results: dict[str, list[Result]]
    failures: dict[str, str]

    def bytes(self, way: str) -> float | None:
        """The median of bytes a delivery."""
        results = self.results.get(way)
        return statistics.median(result.bytes / result.count for result in results) if results else None

    def cpu(self, way: str) -> list[float]:
        """The server's processor microseconds a delivery, of each round."""
        return [result.server_cpu / result.count * 1e6 for result in self.results.get(way, [])]

    def full_ratios(self, way: str) -> list[float]:
        """The processor time of a full-state frame divided by this way's, for each round that both finished."""
        return [full / own for full, own in zip(self.cpu(FULL), self.cpu(way), strict=False) if own]


FULL = "full"
WAYS = (
    Way("edit", "plait.v1, edit()", "plait", {"protocol": "native", "kind": "board", "method": "edit_cards"}),
    Way("set", "plait.v1, set_state, dicts", "plait", {"protocol": "native", "kind": "board", "method": "set_cards"}),
    Way(
        "frozen",
        "plait.v1, set_state, frozen Structs",
        "plait",
        {"protocol": "native", "kind": "frozen-board", "method": "set_cards"},
    ),
    Way(
        FULL, "full-state frames, edit()", "plait", {"protocol": "cloudflare", "kind": "board", "method": "edit_cards"}
    ),
    Way("colyseus", "Colyseus, in memory", "colyseus", {"protocol": "colyseus", "method": "touch"}),
    Way("bare", "bare frames, in no protocol", "socket", {"protocol": "bare"}),
)
CASES = (
    Case("1 kB, 1 %", 1_000, 1, 10),
    Case("30 kB, 1 %", 30_000, 6, 50),
    Case("300 kB, 1 %", 300_000, 60, 50),
    Case("300 kB, one number", 300_000, 1, 0, bytes_aim=1_000, cpu_aim=50),
)


def deltas(folder: Path, without: list[str], effort: Effort, tell: Callable[[str], None]) -> list[DeltaOutcome]:
    """Every case, each way in turn."""
    ways = [way for way in WAYS if way.server not in without]
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in {way.server: None for way in ways}:
            place = folder / f"{name}-deltas"
            place.mkdir()
            write(place)
            servers[name] = stack.enter_context(serve(name, place))
        if "colyseus" in servers:
            check(servers["colyseus"])
        return [contest(case, ways, servers, effort, tell) for case in CASES]


def contest(
    case: Case, ways: list[Way], servers: Mapping[str, Server], effort: Effort, tell: Callable[[str], None]
) -> DeltaOutcome:
    """One case."""
    outcome = DeltaOutcome(case, {}, {})
    for turn, way in turns(ways, effort.rounds):
        if way.name in outcome.failures:
            continue
        result = calm(partial(measure, case, way, servers[way.server], effort.seconds), turn, effort)
        if isinstance(result, str):
            outcome.failures[way.name] = result
            tell(f"{case.title}: {way.label} failed: {result}")
        else:
            outcome.results.setdefault(way.name, []).append(result)
            each = f"{result.bytes / result.count:,.0f} bytes, {result.server_cpu / result.count * 1e6:.1f} µs"
            tell(f"{case.title} round {turn + 1}: {way.label}: {each} a delivery")
    return outcome


def measure(case: Case, way: Way, server: Server, seconds: float, run_name: str) -> Result | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    # The size comes first: the thread reads it there.
    name = f"{case.size}-{case.count}-{way.name}-{run_name}"
    base = Job("touch", port=server.port, pid=server.pid, name=name, seconds=seconds, sockets=SOCKETS)
    sized = msgspec.structs.replace(base, size=case.size, count=case.count, length=case.length)
    job = msgspec.structs.replace(sized, **way.settings)
    result = run(Result, "benchmarks.generator", msgspec.json.encode(job).decode())
    server.settle()
    return result


def check(server: Server) -> None:
    """Raise ServerError unless the published client of Colyseus sees the same board and the same change as plait's."""
    size = CASES[0].size
    command = ["node", str(COLYSEUS / "check.mjs"), str(server.port), str(size)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=CHECK_TIMEOUT, check=True)
    except subprocess.SubprocessError as error:
        raise ServerError(f"the client of Colyseus failed: {error}") from error
    seen = msgspec.json.decode(done.stdout)
    before = document(size)
    if seen != [before, touch_cards(before, 7, 2, 20)]:
        raise ServerError(f"the board of Colyseus is not the one of plait: {done.stdout[:500]!r}")
