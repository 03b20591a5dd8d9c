"""`python -m benchmarks`: run everything and print the tables."""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.agents_runs import agent_runs
from benchmarks.agents_table import run_table
from benchmarks.check import check
from benchmarks.clients import LoadError
from benchmarks.contest import Effort, Outcome, contest
from benchmarks.deltas import deltas
from benchmarks.differences import differences
from benchmarks.execution import execution
from benchmarks.files import files
from benchmarks.memory import Finding, idle_sockets, threads
from benchmarks.messages import messages
from benchmarks.neighbours import neighbours
from benchmarks.peer import AGENTUITY, COLYSEUS, YJS, PeerError, install, prepare
from benchmarks.queries import queries
from benchmarks.records import records
from benchmarks.rejoin import rejoin
from benchmarks.resume import resume
from benchmarks.rows import NATIVE, ROWS
from benchmarks.schedules import schedules
from benchmarks.servers import Server, ServerError, serve
from benchmarks.sizes import client_sizes, size_table
from benchmarks.sql import sql
from benchmarks.stalled import stalled
from benchmarks.sync_tables import (
    delta_table,
    neighbour_table,
    query_table,
    record_table,
    resume_table,
    stall_table,
    timing_table,
)
from benchmarks.table import memory, speed
from benchmarks.tasks import tasks
from benchmarks.text_tables import rejoin_table, text_table
from benchmarks.texts import texts
from benchmarks.values import values

MEMORY = "memory"
PEERS = ("plait", "cloudflare", "socket")
# What keeping clients in sync, running agents and loading the client costs, each with a table of its own.
SYNC = (
    "deltas",
    "diff",
    "resume",
    "stall",
    "neighbours",
    "queries",
    "records",
    "messages",
    "schedules",
    "execution",
    "texts",
    "rejoin",
    "runs",
    "size",
)
# How some of these are measured and laid out.
ALIKE: dict[str, tuple[Callable[..., Any], Callable[[Any], str]]] = {
    "diff": (differences, timing_table),
    "resume": (resume, resume_table),
    "stall": (stalled, stall_table),
    "neighbours": (neighbours, neighbour_table),
    "queries": (queries, query_table),
}
# Server, kind, idle sockets, awake threads. Cloudflare's threads keep three files open each, so they are fewer.
MEASURED = (
    ("plait", "note", 10_000, 10_000),
    ("cloudflare", "bench-agent", 3_000, 1_000),
    ("socket", "", 10_000, 0),
)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    names = [*(row.name for row in ROWS), MEMORY, *SYNC]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds a row (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default 2)")
    parser.add_argument("--quick", action="store_true", help="one short round, for trying things out")
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=f"of {names}; repeatable")
    parser.add_argument("--without", action="append", default=[], choices=[*PEERS, "colyseus", "yjs", "agentuity"])
    parser.add_argument("--folder", type=Path, help="where the servers keep their data (default a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write every round's result to this file")
    return parser.parse_args()


def make_effort(options: argparse.Namespace) -> Effort:
    """Return how long to measure."""
    return Effort(1, 0.7, 1) if options.quick else Effort(options.rounds, options.seconds)


def tell(message: str) -> None:
    """Print progress to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def measure_speeds(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Measure the selected rows."""
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in PEERS:
            if rows and name not in options.without:
                servers[name] = stack.enter_context(serve(name, folder / name))
                if name != "socket":
                    check(servers[name])
        if "plait" in servers:
            servers[NATIVE] = servers["plait"]
        return [contest(row, servers, folder, effort=make_effort(options), tell=tell) for row in rows]


def measure_memory(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Measure memory and waking of each selected server."""
    part = 10 if options.quick else 1
    findings: list[Finding] = []
    for name, kind, sockets, awake in MEASURED:
        if name in options.without or (options.only and MEMORY not in options.only):
            continue
        tell(f"memory: {name}")
        is_ours = name == "plait"
        try:
            findings.append(idle_sockets(name, folder, sockets // part, aim=12_000 if is_ours else None))
            if awake:
                findings += threads(name, kind, folder, awake // part, aim=6_000 if is_ours else None)
        except (LoadError, OSError, AssertionError) as error:
            tell(f"memory: {name} failed: {error!r}")
    return findings


def measure_syncing(options: argparse.Namespace, folder: Path) -> dict[str, tuple[object, str]]:
    """Measure what it costs to keep clients in sync and to run agents; return outcomes and a table by name."""
    pace = make_effort(options)
    measured: dict[str, tuple[object, str]] = {}
    wanted = [name for name in SYNC if "plait" not in options.without and name in (options.only or SYNC)]
    if "deltas" in wanted:
        told = deltas(folder, options.without, pace, tell)
        measured["deltas"] = told, delta_table(told)
    for name, (measure_alike, lay_out) in ALIKE.items():
        if name in wanted:
            found = measure_alike(folder, pace, tell)
            measured[name] = found, lay_out(found)
    if "records" in wanted:
        readings = [*records(folder, pace, tell), *values(folder, pace, tell), *sql(folder, pace, tell)]
        readings += files(folder, pace, tell)
        measured["records"] = readings, record_table(readings)
    for name, measure, title in (
        ("messages", messages, "messages, SQLite, processor time"),
        ("schedules", lambda *given: [*schedules(*given), *tasks(*given)], "schedules and tasks, SQLite"),
        ("execution", execution, "agents that execute, SQLite"),
    ):
        if name in wanted:
            readings = measure(folder, pace, tell)
            measured[name] = readings, record_table(readings, title=title, unit="")
    if "texts" in wanted:
        costs = texts(folder, options.without, pace, tell)
        measured["texts"] = costs, text_table(costs)
    if "rejoin" in wanted:
        returns = rejoin(folder, options.without, pace, tell)
        measured["rejoin"] = returns, rejoin_table(returns)
    if "runs" in wanted:
        outcomes = agent_runs(folder, options.without, pace, tell)
        measured["runs"] = outcomes, run_table(outcomes)
    if "size" in wanted:
        sizes = client_sizes()
        measured["size"] = sizes, size_table(sizes)
    return measured


def install_peers(options: argparse.Namespace, folder: Path) -> None:
    """Install the servers to compare with. Raises PeerError."""
    only = set(options.only or ())
    if "cloudflare" not in options.without and not (only and only <= set(SYNC)):
        prepare(folder / "peer.log")
    if "colyseus" not in options.without and (not only or "deltas" in only):
        install(COLYSEUS, folder / "peer.log")
    if "yjs" not in options.without and (not only or only & {"texts", "rejoin"}):
        install(YJS, folder / "peer.log")
    if "agentuity" not in options.without and (not only or "runs" in only):
        install(AGENTUITY, folder / "peer.log")


def main() -> int:
    """Run the benchmark and return the exit code."""
    options = parse_arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="plait-bench-") as place:
        folder = Path(place)
        try:
            install_peers(options, folder)
            outcomes = measure_speeds(options, folder)
            findings = measure_memory(options, folder)
            sync = measure_syncing(options, folder)
        except (PeerError, ServerError) as error:
            print(error, file=sys.stderr)
            return 1
    tables = [speed(outcomes)] if outcomes else []
    tables += [memory(findings)] if findings else []
    print("\n\n".join((*tables, *(table for _, table in sync.values()))))
    if options.json:
        everything = {"speed": outcomes, "memory": findings, **{name: found for name, (found, _) in sync.items()}}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(everything)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
