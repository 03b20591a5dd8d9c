"""`python -m benchmarks`: run everything and print the tables."""

import argparse
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.check import check
from benchmarks.clients import LoadError
from benchmarks.contest import Outcome, contest
from benchmarks.memory import Finding, idle_sockets, threads
from benchmarks.peer import PeerError, prepare
from benchmarks.rows import ROWS
from benchmarks.servers import SERVERS, Server, ServerError, serve
from benchmarks.table import memory, speed

MEMORY = "memory"
# Server, kind, idle sockets, awake threads. Cloudflare's threads keep three files open each, so they are fewer.
MEASURED = (
    ("plait", "note", 10_000, 10_000),
    ("cloudflare", "bench-agent", 3_000, 1_000),
    ("socket", "", 10_000, 0),
)


def arguments() -> argparse.Namespace:
    """The command line."""
    names = [*(row.name for row in ROWS), MEMORY]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds a row (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default 2)")
    parser.add_argument("--quick", action="store_true", help="one short round, for trying things out")
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=f"of {names}; repeatable")
    parser.add_argument("--without", action="append", default=[], choices=["plait", "cloudflare", "socket"])
    parser.add_argument("--folder", type=Path, help="where the servers keep their data (default a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write every round's result to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.7
    return options


def tell(message: str) -> None:
    """Progress, beside the tables and not in them."""
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def speeds(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Every row that was asked for."""
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in SERVERS:
            if rows and name not in options.without:
                servers[name] = stack.enter_context(serve(name, folder / name))
                if name != "socket":
                    check(servers[name])
        return [
            contest(row, servers, folder, rounds=options.rounds, seconds=options.seconds, tell=tell) for row in rows
        ]


def memories(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Memory and waking, of each server that is there."""
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


def main() -> int:
    """Run the benchmark; the number is the process's exit code."""
    options = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="plait-bench-") as place:
        folder = Path(place)
        try:
            if "cloudflare" not in options.without:
                prepare(folder / "peer.log")
            outcomes = speeds(options, folder)
            findings = memories(options, folder)
        except (PeerError, ServerError) as error:
            print(error, file=sys.stderr)
            return 1
    if outcomes:
        print(speed(outcomes))
    if findings:
        print("", memory(findings), sep="\n")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"speed": outcomes, "memory": findings})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
