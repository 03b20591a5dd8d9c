"""Runs the rows: the same load on each server in turn, round after round."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.loads import Job
from benchmarks.results import Result, wait_for_quiet
from benchmarks.rows import NATIVE, Row
from benchmarks.servers import ROOT, Server

__all__ = ["PLAIT", "Effort", "Outcome", "calm", "contest", "run", "turns"]

PLAIT = "plait"
LOAD_TIMEOUT = 120.0
QUIET_LIMIT = 20.0

T = TypeVar("T")
R = TypeVar("R", bound=Result)


class Effort(msgspec.Struct, frozen=True):
    """How much is measured."""

    rounds: int = 3
    # Length of one run.
    seconds: float = 2.0
    # How often a run is repeated that other processes have disturbed.
    tries: int = 3

    @property
    def is_quick(self) -> bool:
        """Whether this is only a trial, whose numbers do not matter."""
        return self.tries == 1


class Outcome(msgspec.Struct):
    """Every round of one row, and what went wrong, by server."""

    row: Row
    results: dict[str, list[Result]]
    failures: dict[str, str]

    def rate(self, name: str) -> float | None:
        """The median rate."""
        results = self.results.get(name)
        return statistics.median(result.rate for result in results) if results else None

    def cost(self, name: str) -> float | None:
        """The median of the processor microseconds per operation."""
        results = self.results.get(name)
        return statistics.median(result.cost for result in results) if results else None

    def ratios(self, name: str) -> list[float]:
        """plait over another, a ratio for each round in which both finished."""
        return [ours.rate / theirs.rate for ours, theirs in self._pairs(name)]

    def cost_ratios(self, name: str) -> list[float]:
        """The same of their processor time, for each round in which the other used any."""
        return [ours.cost / theirs.cost for ours, theirs in self._pairs(name) if theirs.cost]

    def _pairs(self, name: str) -> Iterator[tuple[Result, Result]]:
        return zip(self.results.get(PLAIT, []), self.results.get(name, []), strict=False)

    def most(self, name: str, holds: Callable[[Result], bool]) -> bool:
        """Whether something holds in most rounds."""
        results = self.results.get(name, [])
        return sum(map(holds, results)) * 2 > len(results)


def contest(
    row: Row,
    servers: Mapping[str, Server],
    folder: Path,
    effort: Effort,
    tell: Callable[[str], None],
) -> Outcome:
    """One row."""
    names = [PLAIT, *(against.peer for against in row.against)]
    present = [name for name in names if name in servers or name.startswith("sqlite")]
    outcome = Outcome(row, {}, {})
    for turn, name in turns(present, effort.rounds):
        if name in outcome.failures:
            continue
        result = calm(partial(measure, row, name, servers.get(name), folder, seconds=effort.seconds), turn, effort)
        if isinstance(result, str):
            outcome.failures[name] = result
            tell(f"{row.name}: {name} failed: {result}")
        else:
            outcome.results.setdefault(name, []).append(result)
            tell(f"{row.name} round {turn + 1}: {name} {result.rate:,.0f} {row.unit}/s")
    return outcome


def turns(names: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """The turns of every round; in each round, another one begins."""
    for turn in range(rounds):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            yield turn, name


def calm(measure: Callable[[str], R | str], turn: int, effort: Effort) -> R | str:
    """A result that other processes have not disturbed, or the last one of a few tries."""
    result: R | str = ""
    for again in range(effort.tries):
        if again:
            wait_for_quiet(QUIET_LIMIT)
        result = measure(f"{turn}-{again}-")
        if isinstance(result, str) or not result.is_disturbed:
            break
    return result


def measure(row: Row, name: str, server: Server | None, folder: Path, run_name: str, *, seconds: float) -> Result | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    if server is None:
        limit = name.removeprefix("sqlite-")
        return run(Result, "benchmarks.bare_sqlite", str(folder), limit, str(seconds))
    protocol = "native" if name == NATIVE else "cloudflare"
    run_name = f"{row.name}-{protocol}-{run_name}"
    base = Job(row.load, port=server.port, pid=server.pid, name=run_name, seconds=seconds, protocol=protocol)
    job = msgspec.structs.replace(base, **row.settings)
    result = run(Result, "benchmarks.generator", msgspec.json.encode(job).decode())
    server.settle()
    return result


def run(kind: type[T], module: str, *arguments: str) -> T | str:
    """Run a module that prints a result of some kind; a text is the reason why there is none."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LOAD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {LOAD_TIMEOUT:g} s"
    if done.returncode:
        return done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return msgspec.json.decode(done.stdout, type=kind)
