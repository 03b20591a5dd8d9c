"""What a gateway costs: the same loads on one process, and through a process that does not own the thread.

`python -m benchmarks.relay` prints processor time and ratios, and exits with 1 if any breaks the aims.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psutil

from benchmarks.clients import Client, Clients
from benchmarks.documents import call
from benchmarks.loads import Job, Load
from benchmarks.native import NATIVE_LOADS
from benchmarks.protocols import PROTOCOLS
from benchmarks.pushes import push
from benchmarks.results import Result, cpu_seconds, resident
from benchmarks.servers import ROOT, Recipe, plait, serve
from benchmarks.wire import text
from plait.cluster.owners import Worker, Workers
from plait.store.protocol import ThreadKey

__all__ = ["main"]

# The most that a gateway and the owner together may cost, of what one process does; and the owner's part of it.
PUSH_AIM, DELIVERY_AIM, OWNER_AIM = 1.25, 1.5, 0.75
# Milliseconds that an answer may take longer, and how much more memory an idle socket may need.
LATENCY_AIM, MEMORY_AIM = 0.4, 2.0
CALLS, IDLE = 2_000, 4_000
LATER = 2.0


class Setup(msgspec.Struct, frozen=True):
    """A server of one process, or of a gateway and the owner of all threads that are used."""

    port: int
    processes: list[psutil.Process]

    @contextmanager
    def clients(self, protocol: str) -> Iterator[Clients]:
        """Clients of the server, or of the gateway."""
        clients = Clients(self.port, protocol=PROTOCOLS[protocol])
        try:
            yield clients
        finally:
            clients.close_all()


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of processor time an operation: of both processes, and of the owner."""

    total: float
    owner: float


@contextmanager
def start(folder: Path, *, is_relayed: bool) -> Iterator[Setup]:
    """Run the server; its store has the same files in both cases."""
    with ExitStack() as stack:
        if not is_relayed:
            server = stack.enter_context(serve("plait", folder / "one"))
            yield Setup(server.port, [psutil.Process(server.pid)])
            return
        servers = []
        # The gateway's own store is not used.
        for number, store in enumerate((f"sqlite:///{folder}/two.db?files=2", "memory://")):
            worker = Worker(number, 2, str(folder))
            recipe = plait(ROOT, Path(sys.executable))
            environment = {
                **recipe.environment,
                **{
                    name: value.replace("{", "{{").replace("}", "}}") for name, value in worker.to_environment().items()
                },
                "BENCH_STORE": store,
            }
            recipe = Recipe(recipe.command, environment, recipe.cwd)
            servers.append(stack.enter_context(serve(f"worker {number}", folder / str(number), recipe)))
        owner, gateway = servers
        yield Setup(gateway.port, [psutil.Process(owner.pid), psutil.Process(gateway.pid)])


def name_threads() -> Iterator[str]:
    """Names of threads that worker 0 of 2 owns."""
    owners = Workers(0, 2, 2)
    for number in itertools.count():
        if owners.find(ThreadKey("bench-agent", name := f"relay-{number}")) == 0:
            yield name


NAMES = name_threads()


def push_relayed(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """Push to threads of worker 0."""
    return push(clients, job, server, NAMES)


def measure(setup: Setup, load: Load, **settings: float) -> Cost:
    """Run a load of the native protocol."""
    job = msgspec.convert({"load": "", "port": setup.port, "pid": 0, "name": next(NAMES), **settings}, Job)
    with setup.clients("native") as clients:
        before = [cpu_seconds([process]) for process in setup.processes]
        result = load(clients, job, setup.processes)
        spent = [cpu_seconds([process]) - start for process, start in zip(setup.processes, before, strict=True)]
    total = result.server_cpu / result.count * 1e6
    return Cost(total, total * spent[0] / sum(spent))


def time_calls(setup: Setup) -> float:
    """Return the median milliseconds of a call that changes the state."""
    spent = []
    with setup.clients("cloudflare") as clients:
        (client,) = clients.join([f"/agents/bench-agent/{next(NAMES)}"])
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
        paths = [f"/agents/bench-agent/{next(NAMES)}" for _ in range(max(1, count // 100))]
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
    options = parser.parse_args()
    seconds, is_met = options.seconds, True

    def show(title: str, value: float, aim: float, unit: str, detail: str) -> None:
        nonlocal is_met
        is_met = is_met and value <= aim
        print(f"{title:34} {value:6.2f}{unit} (aim {aim:g}{unit})   {detail}", flush=True)

    with tempfile.TemporaryDirectory(prefix="relay-") as name, ExitStack() as stack:
        folder = Path(name)
        one = stack.enter_context(start(folder, is_relayed=False))
        two = stack.enter_context(start(folder, is_relayed=True))
        local_size, size = (weigh(each, IDLE) for each in (one, two))
        loads = (
            ("push, 32 threads", PUSH_AIM, push_relayed, {"sockets": 32, "window": 8}),
            ("push, a writer and a reader", PUSH_AIM, NATIVE_LOADS["burst"], {}),
            (
                "delivery, 300 sockets",
                DELIVERY_AIM,
                NATIVE_LOADS["fan-out"],
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
