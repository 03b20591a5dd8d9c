"""`python -m benchmarks.beside CHECKOUT`: processor time per operation, compared with another checkout in one run.

The other checkout has its own `.venv`, in which it is installed, as `make` leaves it. Both servers get the same load
from this checkout's generator, in turn.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.boards import write
from benchmarks.contest import run, turns
from benchmarks.loads import Job
from benchmarks.results import Result
from benchmarks.servers import ROOT, Server, plait, serve
from benchmarks.table import layout

__all__ = ["LOADS"]

Settings = dict[str, int | float | str]

LOADS: dict[str, tuple[str, Settings]] = {
    "rpc": ("rpc", {"window": 256}),
    # With more in flight, states are held until older ones have their pongs.
    "persist": ("rpc", {"method": "add", "window": 48}),
    "persist, one at a time": ("rpc", {"method": "add", "window": 1}),
    "burst 30 B": ("burst", {"size": 30, "count": 2000}),
    "burst 30 B, plait.v1": ("burst", {"size": 30, "count": 2000, "protocol": "native"}),
    "burst 10 kB": ("burst", {"size": 10_000, "count": 500}),
    "burst 100 kB": ("burst", {"size": 100_000, "count": 150}),
    "fan-out": ("fan-out", {"sockets": 100, "window": 16, "pause": 0.001}),
    "fan-out, plait.v1": ("fan-out", {"sockets": 100, "window": 16, "pause": 0.001, "protocol": "native"}),
    "new threads": ("threads", {"window": 32}),
    "joins": ("join", {"sockets": 300, "count": 4}),
    "stream, yielded": ("stream", {"count": 2000, "method": "generate"}),
    "delta, 30 kB": (
        "touch",
        {"sockets": 100, "size": 30_000, "count": 6, "length": 50, "protocol": "native", "kind": "board"}
        | {"method": "edit_cards"},
    ),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds a load (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default 2)")
    parser.add_argument("--metrics", action="store_true", help="count metrics in this checkout's server")
    parser.add_argument("--only", action="append", choices=list(LOADS), help="repeatable")
    return parser.parse_args()


def measure(name: str, server: Server, run_name: str, seconds: float) -> float:
    """The server's processor microseconds per operation, in one run."""
    load, settings = LOADS[name]
    base = Job(load, port=server.port, pid=server.pid, name=run_name, seconds=seconds)
    job = msgspec.structs.replace(base, **settings)
    result = run(Result, "benchmarks.generator", msgspec.json.encode(job).decode())
    if isinstance(result, str):
        raise SystemExit(f"{name}, {server.name}: {result}")
    server.settle()
    return result.cost


def compare(name: str, servers: Sequence[Server], rounds: int, seconds: float) -> tuple[str, ...]:
    """One load on both servers; the cells of its row."""
    size = LOADS[name][1].get("size", 0)
    found: dict[str, list[float]] = {server.name: [] for server in servers}
    for turn, server in turns(servers, rounds):
        # The name begins with the size of the board, which the thread reads there.
        found[server.name].append(measure(name, server, f"{size}-{name}-{turn}".replace(" ", "-"), seconds))
        print(f"{name} round {turn + 1}: {server.name} {found[server.name][-1]:.1f} µs", file=sys.stderr, flush=True)
    other, ours = (statistics.median(found[server.name]) for server in servers)
    ratios = sorted(b / a for a, b in zip(*found.values(), strict=True))
    spread = f"{ratios[0]:.3f}-{ratios[-1]:.3f}"
    return (
        name,
        f"{other:.1f}",
        f"{ours:.1f}",
        f"{ours / other:.3f}",
        f"{min(found[servers[1].name]) / min(found[servers[0].name]):.3f}",
        spread,
    )


def main() -> None:
    """Run the loads and print the table."""
    options = arguments()
    checkout = options.checkout.resolve()
    ours = plait(ROOT, Path(sys.executable))
    if options.metrics:
        ours = msgspec.structs.replace(ours, environment={**ours.environment, "PLAIT_METRICS": "true"})
    recipes = {"other": plait(checkout, checkout / ".venv/bin/python"), "ours": ours}
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as place, ExitStack() as stack:
        servers = []
        for name, recipe in recipes.items():
            folder = Path(place) / name
            folder.mkdir()
            write(folder)
            servers.append(stack.enter_context(serve(name, folder, recipe)))
        names = options.only or list(LOADS)
        rows = [compare(name, servers, options.rounds, options.seconds) for name in names]
    head = ("processor time per operation, µs", "other", "ours", "of medians", "of minima", "spread")
    print(layout([head, *rows], right={1, 2, 3, 4}))


if __name__ == "__main__":
    main()
