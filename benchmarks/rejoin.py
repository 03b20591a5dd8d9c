"""How long a client takes to return to a text after many edits, compared with a client of Yjs."""

import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.contest import Effort, run
from benchmarks.edits import encode_updates, passage
from benchmarks.native_socket import NativeSocket
from benchmarks.peer import YJS
from benchmarks.results import Result, cpu_seconds, tree
from benchmarks.servers import Server, serve
from benchmarks.text_loads import TextJob
from benchmarks.yjs_socket import YjsSocket

__all__ = ["EDITS", "RejoinOutcome", "rejoin"]

EDITS = 10_000
LENGTH = 100_000
# Joins in a round.
JOINS = 10
APPLY_TIMEOUT = 60
KINDS = {"append": "20 B appended", "type": "letters typed"}


class Rejoin(msgspec.Struct, frozen=True):
    """Milliseconds until the last byte and until the text is up to date; milliseconds of the server; and bytes."""

    arrived: float
    shown: float
    server: float
    bytes: int


class RejoinOutcome(msgspec.Struct):
    """One kind of edits, and the median join of every round."""

    kind: str
    label: str
    rounds: list[Rejoin]


class Applied(msgspec.Struct):
    """The text after Yjs has applied an update in Node, and the milliseconds that it took."""

    ms: float
    text: str


def rejoin(folder: Path, without: list[str], effort: Effort, tell: Callable[[str], None]) -> list[RejoinOutcome]:
    """Both kinds of edits, each server in turn. Both must come to the same text."""
    outcomes: list[RejoinOutcome] = []
    for kind, title in KINDS.items():
        ours = RejoinOutcome(title, "plait.v1", [])
        theirs = RejoinOutcome(title, "Yjs, in memory", [])
        for turn in range(effort.rounds):
            with serve("plait", folder / f"plait-rejoin-{kind}-{turn}") as server:
                join, text = back(server, kind)
            ours.rounds.append(join)
            if "yjs" not in without:
                with serve("yjs", folder / f"yjs-rejoin-{kind}-{turn}") as server:
                    join, other = back_to_yjs(server, kind)
                assert other == text, "the texts differ"
                theirs.rounds.append(join)
        for outcome in (each for each in (ours, theirs) if each.rounds):
            outcomes.append(outcome)
            tell(f"rejoin, {title}: {outcome.label}: {outcome.rounds[-1]}")
    return outcomes


def make_job(server: Server, kind: str, protocol: str) -> TextJob:
    """All edits of one writer."""
    name = f"{LENGTH}-rejoin"
    return TextJob(server.port, server.pid, name, protocol, kind, LENGTH, 1, 0, EDITS, 0, 64)


def make_edits(job: TextJob) -> None:
    """Make the edits, in a separate process. Raises AssertionError."""
    result = run(Result, "benchmarks.text_loads", msgspec.json.encode(job).decode())
    assert not isinstance(result, str), result


def back(server: Server, kind: str) -> tuple[Rejoin, str]:
    """Leave a thread, change it, and join it again; returns the join and the text."""
    job = make_job(server, kind, "native")
    left = NativeSocket(server.port, job.path)
    left.close()
    make_edits(job)
    server.settle()
    before = cpu_seconds(tree(server.pid))
    clients: list[NativeSocket] = []
    for _ in range(JOINS):
        clients.append(client := NativeSocket(server.port, job.path, left.place, left.document))
        client.close()
        assert client.place == (left.place[0], left.place[1] + EDITS), f"{client.place} after {left.place}"
    spent = (cpu_seconds(tree(server.pid)) - before) / JOINS
    arrived = statistics.median(client.arrived for client in clients) * 1000
    shown = statistics.median(client.shown for client in clients) * 1000
    return Rejoin(arrived, shown, spent * 1000, clients[0].bytes), clients[0].document["note"]


def back_to_yjs(server: Server, kind: str) -> tuple[Rejoin, str]:
    """Ask for the changes in a room since the text was made; returns the join and the text."""
    job = make_job(server, kind, "yjs")
    make_edits(job)
    server.settle()
    before = cpu_seconds(tree(server.pid))
    found = [ask(server.port, job.path) for _ in range(JOINS)]
    spent = (cpu_seconds(tree(server.pid)) - before) / JOINS
    base = encode_updates(passage(LENGTH), [])[0]
    told = b"".join(len(part).to_bytes(4) + part for part in (base, found[0][2]))
    command = ["node", str(YJS / "apply.mjs")]
    done = subprocess.run(command, input=told, capture_output=True, timeout=APPLY_TIMEOUT, check=True)
    applied = msgspec.json.decode(done.stdout, type=Applied)
    arrived = statistics.median(age for age, _, _ in found) * 1000
    return Rejoin(arrived, arrived + applied.ms, spent * 1000, found[0][1]), applied.text


def ask(port: int, path: str) -> tuple[float, int, bytes]:
    """Join a room with the initial text; returns the seconds and the bytes until it is up to date, and the update."""
    client = YjsSocket(port, path)
    missed = client.ask(LENGTH)
    age = client.age
    client.close()
    return age, client.bytes, missed
