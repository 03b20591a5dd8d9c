"""What workers cost: the same pushes on one process, and on `plait serve --workers` with 2 and with 4.

`python -m benchmarks.workers` prints the pushes of a second of processor time, of the parent and all workers together,
and exits with 1 if any breaks the aims. A kernel divides the clients among the workers, so most pushes are relayed.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from benchmarks.clients import Clients
from benchmarks.loads import Job
from benchmarks.protocols import PROTOCOLS
from benchmarks.pushes import push
from benchmarks.results import cpu_seconds, tree
from benchmarks.servers import ROOT, Recipe, Server, plait, serve

__all__ = ["main"]

# The least number of pushes a second of processor time, of what one process does.
AIMS = {2: 0.85, 4: 0.8}
SOCKETS, WINDOW = 256, 8


class Cost(msgspec.Struct, frozen=True):
    """The pushes of a second of processor time, and the parts of it that the processes used, the greatest first."""

    rate: float
    parts: list[float]


@contextmanager
def start(folder: Path, count: int) -> Iterator[Server]:
    """Run as many workers as asked for, each with a file of the store."""
    recipe = plait(ROOT, Path(sys.executable))
    recipe = Recipe((*recipe.command, "--workers", str(count)), recipe.environment, recipe.cwd)
    with serve(f"workers-{count}", folder / str(count), recipe) as server:
        yield server


def measure(server: Server, name: str, seconds: float) -> Cost:
    """Push for some seconds, with clients on all workers."""
    job = Job("push", server.port, server.pid, name, seconds=seconds, sockets=SOCKETS, window=WINDOW)
    clients = Clients(server.port, protocol=PROTOCOLS["native"])
    try:
        clients.rush([f"/agents/bench-agent/{name}"])  # All workers are there.
        processes = tree(server.pid)
        before = [cpu_seconds([each]) for each in processes]
        result = push(clients, job, processes, (f"{name}-{number}" for number in range(SOCKETS)))
        spent = [cpu_seconds([each]) - start for each, start in zip(processes, before, strict=True)]
    finally:
        clients.close_all()
    return Cost(result.count / result.server_cpu, sorted((each / sum(spent) for each in spent), reverse=True))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    is_met = True
    with tempfile.TemporaryDirectory(prefix="workers-") as name, ExitStack() as stack:
        servers = {count: stack.enter_context(start(Path(name), count)) for count in (1, *AIMS)}
        found: dict[int, list[Cost]] = {count: [] for count in servers}
        for number in range(options.rounds):
            for count, server in servers.items():
                found[count].append(measure(server, f"round-{number}", options.seconds))
        best = {count: max(costs, key=_rate) for count, costs in found.items()}
        for count, aim in AIMS.items():
            ratio = best[count].rate / best[1].rate
            is_met = is_met and ratio >= aim
            parts = " + ".join(f"{part:.0%}" for part in best[count].parts if part >= 0.01)
            print(
                f"{count} workers: {ratio:.2f} of one process (aim at least {aim:g})   "
                f"{best[count].rate:,.0f} and {best[1].rate:,.0f} pushes a processor second; {parts}",
                flush=True,
            )
    return 0 if is_met else 1


def _rate(cost: Cost) -> float:
    return cost.rate


if __name__ == "__main__":
    sys.exit(main())
