"""What a gateway costs: the same loads on one process, and through a process that does not own the thread.

`python -m benchmarks.relay` prints processor time and ratios, and exits with 1 if any breaks the aims. The processes
are two workers, or with `--tcp` two nodes of a cluster, whose PostgreSQL is not counted.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import msgspec
from tests.postgres import private_folder

from benchmarks.clients import Client, Clients
from benchmarks.documents import call
from benchmarks.loads import Job
from benchmarks.native import NATIVE_LOADS
from benchmarks.relay_setups import Setup, start_cluster, start_workers
from benchmarks.results import Result, cpu_seconds, resident
from benchmarks.wire import text

__all__ = ["main"]

# The most that a gateway and the owner together may cost, of what one process does; and the owner's part of it.
PUSH_AIM, DELIVERY_AIM, OWNER_AIM = 1.25, 1.5, 0.75
# Milliseconds that an answer may take longer, and how much more memory an idle socket may need.
LATENCY_AIM, MEMORY_AIM = 0.4, 2.0
CALLS, IDLE = 2_000, 4_000
LATER = 2.0


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of processor time an operation: of both processes, and of the owner."""

    total: float
    owner: float


def native(name: str) -> Callable[[Setup, Clients, Job], Result]:
    """Return a load of one thread."""
    load = NATIVE_LOADS[name]
    return lambda setup, clients, job: load(clients, job, setup.processes)


def measure(setup: Setup, load: Callable[[Setup, Clients, Job], Result], **settings: float) -> Cost:
    """Run a load of the native protocol."""
    job = msgspec.convert({"load": "", "port": setup.port, "pid": 0, "name": next(setup.names), **settings}, Job)
    with setup.clients("native") as clients:
        before = [cpu_seconds([process]) for process in setup.processes]
        result = load(setup, clients, job)
        spent = [cpu_seconds([process]) - start for process, start in zip(setup.processes, before, strict=True)]
    total = result.server_cpu / result.count * 1e6
    return Cost(total, total * spent[0] / sum(spent))


def time_calls(setup: Setup) -> float:
    """Return the median milliseconds of a call that changes the state."""
    spent = []
    with setup.clients("cloudflare") as clients:
        (client,) = clients.join([f"/agents/bench-agent/{next(setup.names)}"])
        clients.wait = 0.0
        for number in range(CALLS):
            due, begun = client.texts + 2, time.perf_counter()
            clients.send(client, text(call(number, "add", 1)))
            clients.run(_reaches(client, due))
            spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1e3


def _reaches(client: Client, due: int) -> Callable[[], bool]:
    return lambda: client.texts >= due


def weigh(setup: Setup, count: int) -> float:
    """Return the bytes of resident memory of an idle socket, in all processes."""
    with setup.clients("native") as clients:
        paths = [f"/agents/bench-agent/{next(setup.names)}" for _ in range(max(1, count // 100))]
        clients.rush(paths)
        before = rest(setup, clients)
        for _ in range(100):
            clients.rush(paths)
        return (rest(setup, clients) - before) / len(paths) / 100


def rest(setup: Setup, clients: Clients) -> int:
    """Serve the sockets for a moment, then return the resident memory."""
    deadline = time.perf_counter() + LATER
    while time.perf_counter() < deadline:
        clients.poll(0.1, None)
    return resident(setup.processes)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--tcp", action="store_true", help="two nodes of a cluster, on PostgreSQL")
    options = parser.parse_args()
    seconds, is_met = options.seconds, True

    def show(title: str, value: float, aim: float, unit: str, detail: str) -> None:
        nonlocal is_met
        is_met = is_met and value <= aim
        print(f"{title:34} {value:6.2f}{unit} (aim {aim:g}{unit})   {detail}", flush=True)

    start = start_cluster if options.tcp else start_workers
    with private_folder() as folder, start(folder) as (one, two):
        local_size, size = (weigh(each, IDLE) for each in (one, two))
        loads = (
            ("push, 32 threads", PUSH_AIM, Setup.push, {"sockets": 32, "window": 8}),
            ("push, a writer and a reader", PUSH_AIM, native("burst"), {}),
            (
                "delivery, 300 sockets",
                DELIVERY_AIM,
                native("fan-out"),
                {"sockets": 300, "window": 16, "pause": 0.001},
            ),
        )
        for title, aim, load, settings in loads:
            rounds = [
                [measure(each, load, seconds=seconds, **settings) for each in (one, two)] for _ in range(options.rounds)
            ]
            local, relayed = min(each[0].total for each in rounds), min((each[1] for each in rounds), key=_total)
            detail = f"{local:.1f} µs, {relayed.owner:.1f} + {relayed.total - relayed.owner:.1f} µs"
            show(title, relayed.total / local, aim, "", detail)
            if aim is DELIVERY_AIM:
                show("delivery, the owner's part", relayed.owner / local, OWNER_AIM, "", detail)
        local_calls, calls = (min(time_calls(each) for _ in range(options.rounds)) for each in (one, two))
        show("call that changes the state, p50", calls - local_calls, LATENCY_AIM, " ms", f"{local_calls:.2f} ms")
        show("idle socket, memory", size / local_size, MEMORY_AIM, "", f"{local_size:,.0f} and {size:,.0f} bytes")
    return 0 if is_met else 1


def _total(cost: Cost) -> float:
    return cost.total


if __name__ == "__main__":
    sys.exit(main())
