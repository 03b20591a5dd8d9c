"""The cost of edits in one text by several writers, compared with Yjs and its own server."""

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.contest import Effort, calm, run, turns
from benchmarks.plain_http import HttpClient
from benchmarks.results import Result, resident, tree
from benchmarks.servers import Server, serve
from benchmarks.text_loads import TextJob

__all__ = ["LENGTH", "PLAIN", "TEXT_CASES", "TEXT_WAYS", "TextCase", "TextOutcome", "TextWay", "texts"]

LENGTH = 100_000
# About a hundred bytes of state.
SHORT = 70
PLAIN = "number"
# The length of a run for which the numbers of edits are chosen.
USUAL = 2.0


class TextWay(msgspec.Struct, frozen=True):
    """A server, and how edits are sent to it."""

    name: str
    label: str
    server: str
    protocol: str
    # A load to send instead of the edits of the case.
    edits: str = ""
    length: int = LENGTH


class TextCase(msgspec.Struct, frozen=True):
    """A load; `count` edits are measured in each round."""

    title: str
    edits: str
    writers: int
    readers: int
    count: int
    # The unanswered edits of each writer.
    window: int
    ways: tuple[str, ...]
    bytes_aim: int | None = None
    # The most processor time, as a multiple of that of a change of a number in a small state.
    plain_aim: float | None = None
    # Whether memory is measured, for which each run has a separate server.
    is_alone: bool = False

    @property
    def deliveries(self) -> int:
        """Messages to readers for each edit; 1 without readers."""
        return self.readers or 1


class TextOutcome(msgspec.Struct):
    """Every round of one case, and what went wrong, by way."""

    case: TextCase
    results: dict[str, list[Result]]
    # Bytes by which the server's memory has grown.
    grown: dict[str, list[int]]
    failures: dict[str, str]

    def bytes(self, way: str) -> float:
        """The median of bytes a delivery."""
        return statistics.median(each.bytes / each.count for each in self.results[way]) / self.case.deliveries

    def rate(self, way: str) -> float:
        """The median of edits a second."""
        return statistics.median(each.rate for each in self.results[way])

    def cpu(self, way: str) -> list[float]:
        """The server's processor microseconds per delivery, or, without readers, per edit, of each round."""
        return [each.server_cpu / each.count / self.case.deliveries * 1e6 for each in self.results.get(way, [])]

    def ratios(self, way: str, other: str) -> list[float]:
        """The processor time of one way divided by that of another, for each round that both finished."""
        return [a / b for a, b in zip(self.cpu(way), self.cpu(other), strict=False) if b]


SPLICE, STREAM, YJS, STORED = "splice", "stream", "yjs", "yjs-stored"
TEXT_WAYS = (
    TextWay(SPLICE, "plait.v1, a client's splices", "plait", "native"),
    TextWay(STREAM, "plait.v1, self.append", "plait", "native", STREAM),
    TextWay(PLAIN, "plait.v1, a number in 100 B", "plait", "native", PLAIN, SHORT),
    TextWay(YJS, "Yjs, in memory", "yjs", "yjs"),
    TextWay(STORED, "Yjs, in LevelDB", "yjs-stored", "yjs"),
)
ALL, WRITTEN = tuple(way.name for way in TEXT_WAYS), (SPLICE, YJS, STORED)
TEXT_CASES = (
    TextCase("20 B appended, 1 reader", "append", 1, 1, 6_000, 16, ALL, 120, 1.5),
    TextCase("20 B appended, 100 readers", "append", 1, 100, 1_000, 16, ALL, 120, 1.5),
    TextCase("5 writers type", "type", 5, 0, 4_000, 4, WRITTEN),
    TextCase("5 writers type, 50 readers", "type", 5, 50, 1_000, 4, WRITTEN),
    TextCase("100,000 edits of one writer", "type", 1, 0, 100_000, 64, WRITTEN, is_alone=True),
)


def texts(folder: Path, without: list[str], effort: Effort, tell: Callable[[str], None]) -> list[TextOutcome]:
    """Every case, each way in turn."""
    ways = [way for way in TEXT_WAYS if not ("yjs" in without and way.protocol == "yjs")]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serve(name, folder / f"{name}-texts")) for name in servers_of(ways)}
        together = [contest(case, ways, servers, effort, tell) for case in TEXT_CASES if not case.is_alone]
    return together + [contest(case, ways, folder, effort, tell) for case in TEXT_CASES if case.is_alone]


def servers_of(ways: list[TextWay]) -> list[str]:
    """The names of the servers, each once."""
    return list(dict.fromkeys(way.server for way in ways))


def contest(
    case: TextCase,
    ways: list[TextWay],
    servers: Mapping[str, Server] | Path,
    effort: Effort,
    tell: Callable[[str], None],
) -> TextOutcome:
    """One case, on servers that are there, or on one for each run, with its data in a folder.

    A server that all rounds share has got warm in a run before them, which is not counted.
    """
    outcome = TextOutcome(case, {}, {}, {})
    own = [way for way in ways if way.name in case.ways]
    if not effort.is_quick and not isinstance(servers, Path):
        for way in own:
            measure(case, way, servers[way.server], effort.seconds, "warm-")
    for turn, way in turns(own, 1 if case.is_alone else effort.rounds):
        if way.name in outcome.failures:
            continue
        if isinstance(servers, Path):
            with serve(way.server, servers / f"{way.server}-{turn}-alone") as server:
                result, grown = measure_alone(case, way, server, effort)
            outcome.grown.setdefault(way.name, []).append(grown)
        else:
            result = calm(partial(measure, case, way, servers[way.server], effort.seconds), turn, effort)
        if isinstance(result, str):
            outcome.failures[way.name] = result
            tell(f"{case.title}: {way.label} failed: {result}")
        else:
            outcome.results.setdefault(way.name, []).append(result)
            each = outcome.cpu(way.name)[-1]
            tell(f"{case.title} round {turn + 1}: {way.label}: {result.rate:,.0f}/s, {each:.1f} µs")
    return outcome


def measure(case: TextCase, way: TextWay, server: Server, seconds: float, run_name: str) -> Result | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    count = case.count if case.is_alone else round(case.count * seconds / USUAL)
    job = make_job(case, way, server, count, run_name)
    result = run(Result, "benchmarks.text_loads", msgspec.json.encode(job).decode())
    server.settle()
    return result


def measure_alone(case: TextCase, way: TextWay, server: Server, effort: Effort) -> tuple[Result | str, int]:
    """One run of all edits, and the growth of the server's memory since a few edits of another text."""
    count = case.count // 10 if effort.is_quick else case.count
    small = msgspec.structs.replace(case, count=1_000)
    measure(small, way, server, effort.seconds, "warm-")
    before = rest(way, server)
    result = measure(msgspec.structs.replace(case, count=count), way, server, effort.seconds, "")
    return result, rest(way, server) - before


def rest(way: TextWay, server: Server) -> int:
    """The server's resident memory, without garbage."""
    if way.protocol == "yjs":
        client = HttpClient(server.port)
        client.get("/")
        client.close()
    server.settle()
    return resident(tree(server.pid))


def make_job(case: TextCase, way: TextWay, server: Server, count: int, run_name: str) -> TextJob:
    """The settings of the load."""
    edits = way.edits or case.edits
    warm = count // 10
    return TextJob(
        port=server.port,
        pid=server.pid,
        name=f"{way.length}-{case.title}-{way.name}-{run_name}".replace(" ", "-").replace(",", ""),
        protocol=way.protocol,
        edits=edits,
        length=way.length,
        writers=case.writers,
        readers=case.readers,
        count=count,
        warm=warm,
        window=count + warm if edits == STREAM else case.window,
    )
