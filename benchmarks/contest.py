"""Runs the rows: the same load on each server in turn, round after round."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.loads import Job
from benchmarks.results import Result, wait_for_quiet
from benchmarks.rows import Row
from benchmarks.servers import ROOT, Server

__all__ = ["Outcome", "contest"]

PLAIT = "plait"
LOAD_TIMEOUT = 120.0
TRIES = 3
QUIET_LIMIT = 20.0


class Outcome(msgspec.Struct):
    """Every round of one row, by what was measured; and what went wrong, by the same."""

    row: Row
    results: dict[str, list[Result]]
    failures: dict[str, str]

    def rate(self, name: str) -> float | None:
        """The median rate."""
        results = self.results.get(name)
        return statistics.median(result.rate for result in results) if results else None

    def ratios(self, name: str) -> list[float]:
        """plait over another, a ratio for each round in which both finished."""
        pairs = zip(self.results.get(PLAIT, []), self.results.get(name, []), strict=False)
        return [ours.rate / theirs.rate for ours, theirs in pairs]

    def most(self, name: str, holds: Callable[[Result], bool]) -> bool:
        """Whether something holds in most rounds."""
        results = self.results.get(name, [])
        return sum(map(holds, results)) * 2 > len(results)


def contest(
    row: Row,
    servers: Mapping[str, Server],
    folder: Path,
    *,
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
) -> Outcome:
    """One row; a different one begins in each round."""
    names = [PLAIT, *(against.peer for against in row.against)]
    present = [name for name in names if name in servers or name.startswith("sqlite")]
    outcome = Outcome(row, {}, {})
    for turn in range(rounds):
        shift = turn % len(present)
        for name in present[shift:] + present[:shift]:
            if name in outcome.failures:
                continue
            result = calm(partial(measure, row, name, servers.get(name), folder, seconds=seconds), turn)
            if isinstance(result, str):
                outcome.failures[name] = result
                tell(f"{row.name}: {name} failed: {result}")
            else:
                outcome.results.setdefault(name, []).append(result)
                tell(f"{row.name} round {turn + 1}: {name} {result.rate:,.0f} {row.unit}/s")
    return outcome


def calm(measure: Callable[[str], Result | str], turn: int) -> Result | str:
    """A result that nothing else on the machine disturbed, or the last one of a few tries."""
    result: Result | str = ""
    for again in range(TRIES):
        result = measure(f"{turn}-{again}-")
        if isinstance(result, str) or not result.is_disturbed:
            break
        wait_for_quiet(QUIET_LIMIT)
    return result


def measure(row: Row, name: str, server: Server | None, folder: Path, run_name: str, *, seconds: float) -> Result | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    if server is None:
        limit = name.removeprefix("sqlite-")
        return run("benchmarks.bare_sqlite", str(folder), limit, str(seconds))
    base = Job(row.load, port=server.port, pid=server.pid, name=f"{row.name}-{run_name}", seconds=seconds)
    job = msgspec.structs.replace(base, **row.settings)
    result = run("benchmarks.generator", msgspec.json.encode(job).decode())
    server.settle()
    return result


def run(module: str, *arguments: str) -> Result | str:
    """Run a module that prints a result."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LOAD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {LOAD_TIMEOUT:g} s"
    if done.returncode:
        return done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return msgspec.json.decode(done.stdout, type=Result)
