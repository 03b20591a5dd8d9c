"""What a run of an agent costs, compared with the same handler without state and with the Agentuity runtime."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.agents_load import RunJob, RunResult
from benchmarks.contest import PLAIT, Effort, calm, run, turns
from benchmarks.servers import Server, serve

__all__ = ["BARE", "RUN_LABELS", "RunCase", "RunOutcome", "agent_runs"]

BARE, AGENTUITY = "starlette", "agentuity"
# The names of the servers, and their labels in the table.
RUN_LABELS = {PLAIT: "plait", BARE: "Starlette, no state", AGENTUITY: "Agentuity, local"}
SERVERS = {PLAIT: "plait-agents", BARE: "starlette", AGENTUITY: "agentuity"}
CONNECTIONS = 32
# The most processor time, as a multiple of that of the handler without state.
AIM = 2.5


class RunCase(msgspec.Struct, frozen=True):
    """An agent, and the number of threads in which it runs."""

    title: str
    agent: str
    threads: int


class RunOutcome(msgspec.Struct):
    """Every round of one case, and what went wrong, by server."""

    case: RunCase
    results: dict[str, list[RunResult]]
    failures: dict[str, str]
    aim: float = AIM

    def rate(self, name: str) -> float:
        """The median of runs a second."""
        return statistics.median(each.rate for each in self.results[name])

    def cpu(self, name: str) -> list[float]:
        """The server's processor microseconds a run, of each round."""
        return [each.server_cpu / each.count * 1e6 for each in self.results.get(name, [])]

    def ratios(self, other: str) -> list[float]:
        """plait's processor time divided by that of another, for each round that both finished."""
        return [a / b for a, b in zip(self.cpu(PLAIT), self.cpu(other), strict=False) if b]


AGENTS = {"none": "no values", "put": "writes a value", "add": "reads and writes a value"}
CASES = [
    RunCase(f"{title}, {threads:,} thread{'s' * (threads > 1)}", agent, threads)
    for agent, title in AGENTS.items()
    for threads in (1, 1000)
]


def agent_runs(folder: Path, without: list[str], effort: Effort, tell: Callable[[str], None]) -> list[RunOutcome]:
    """Every case, each server in turn."""
    names = [name for name in SERVERS if name not in without]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serve(SERVERS[name], folder / f"{name}-runs")) for name in names}
        return [contest(case, servers, effort, tell) for case in CASES]


def contest(case: RunCase, servers: dict[str, Server], effort: Effort, tell: Callable[[str], None]) -> RunOutcome:
    """One case."""
    outcome = RunOutcome(case, {}, {})
    for turn, name in turns([*servers], effort.rounds):
        if name in outcome.failures:
            continue
        result = calm(partial(measure, case, servers[name], effort.seconds), turn, effort)
        if isinstance(result, str):
            outcome.failures[name] = result
            tell(f"{case.title}: {name} failed: {result}")
        else:
            outcome.results.setdefault(name, []).append(result)
            each = outcome.cpu(name)[-1]
            tell(f"{case.title} round {turn + 1}: {RUN_LABELS[name]}: {result.rate:,.0f}/s, {each:.0f} µs")
    return outcome


def measure(case: RunCase, server: Server, seconds: float, _: str) -> RunResult | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    job = RunJob(server.port, server.pid, case.agent, case.threads, CONNECTIONS, seconds)
    result = run(RunResult, "benchmarks.agents_load", msgspec.json.encode(job).decode())
    server.settle()
    return result
