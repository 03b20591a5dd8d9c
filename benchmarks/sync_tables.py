"""Lays out the tables of what keeping clients in sync costs."""

from collections.abc import Iterable, Sequence

from benchmarks.boards import SIZES
from benchmarks.deltas import FULL, SOCKETS, WAYS, DeltaOutcome
from benchmarks.differences import Timing
from benchmarks.neighbours import HELD_AIM, WAIT_AIM, NeighbourOutcome
from benchmarks.queries import READERS as QUERY_READERS
from benchmarks.queries import WAYS as QUERY_WAYS
from benchmarks.queries import QueryOutcome
from benchmarks.records import SIZE, Reading
from benchmarks.resume import CHANGES, ResumeOutcome
from benchmarks.shops import CUSTOMERS, EACH, ORDERS
from benchmarks.stalled import READERS, StallOutcome
from benchmarks.table import layout, median, ratio

__all__ = [
    "at_most",
    "delta_table",
    "neighbour_table",
    "query_table",
    "record_table",
    "resume_table",
    "spread",
    "stall_table",
    "timing_table",
]

P99_AIM = 1.3
GROWTH_AIM = 2.0
# Of queries: the processor time of a write, as a multiple of that without readers; and ms from the ack to the readers.
QUERY_COST_AIM = 2.0
TOLD_AIM = 100.0

DELTA_LEGEND = (
    f"One of {SOCKETS} sockets calls a method that changes the board, again as soon as all of them have the change.",
    "bytes: received by a socket, per delivery. µs: processor time of the server's processes, per delivery: the call,",
    "the change, its commit to SQLite (synchronous=FULL; Colyseus stores nothing) and the writes to the sockets.",
    "full ÷: the time of a full-state frame of the same change, divided by this one; median of the rounds' ratios.",
    "bare: a server that only relays a frame of the size of edit()'s, which shows the cost of the writes alone.",
)
TIMING_LEGEND = (
    "Microseconds of processor time, median of the rounds, of a change to one card's text; one thread, in process.",
    "edit() and set_state: from the call until the change waits for its commit, without the commit and the sockets.",
)
RESUME_LEGEND = (
    f"{CHANGES:,} changes of one number each were made since the client left. ms: from connect() to the last byte of",
    "`joined`, and until a Python client has decoded and applied it. Asleep: the thread is woken from its log on disk",
    "by this very join, in a server that has been restarted. The server sends the state where the changes are longer.",
)
STALL_LEGEND = (
    f"ms from a call to its change at each of {READERS} readers, 20 changes a second. The stalled one has joined, and",
    "reads nothing more; the kernel's buffers for it were full before anything was measured. growth: of the server's",
    "resident memory since all had joined. more: the growth with the stalled one, less the growth without it.",
)

NEIGHBOUR_LEGEND = (
    "ms that a client waits for an rpc that returns its argument, and for one that makes a durable change, 40 calls a",
    "second, while clients of other threads send states of up to 1 MB, or as much in operations or messages, 50 at a",
    "time on each socket. longest step: the longest time in which the event loop did not check its timers; held: the",
    "most processor time of such a step.",
)

QUERY_LEGEND = (
    f"{QUERY_READERS} clients read {CUSTOMERS} lists of {EACH} orders, each client one list. Another one writes to one",
    f"of these in a table of {ORDERS:,}. ms: the server's processor time of a write. alone ÷: divided by that beside",
    "clients that ask for nothing; median of the rounds' ratios. ack: ms until the writer has the answer. told: ms",
    "from the ack until a reader has the change. bytes: received by all readers, a write.",
    "! other processes used more than a tenth of a core: run it again when the machine is quiet.",
)


def delta_table(outcomes: Iterable[DeltaOutcome]) -> str:
    """Bytes and processor time of a delivery."""
    lines: list[Sequence[str]] = [
        ("a change of", "told by", "bytes", "aim", "", "µs", "rounds", "full ÷", "rounds", "aim", "")
    ]
    for outcome in outcomes:
        ways = [way for way in WAYS if way.name in outcome.results or way.name in outcome.failures]
        for number, way in enumerate(ways):
            title = outcome.case.title if number == 0 else ""
            size, cpu = outcome.bytes(way.name), sorted(outcome.cpu(way.name))
            if size is None or not cpu:
                lines.append((title, way.label, "failed", *[""] * 8))
                continue
            is_ours = way.name == "edit"
            bytes_aim = outcome.case.bytes_aim if is_ours or way.name in ("set", "frozen") else None
            cpu_aim = outcome.case.cpu_aim if is_ours else None
            ratios = [] if way.name == FULL else sorted(outcome.full_ratios(way.name))
            lines.append(
                (
                    title,
                    way.label,
                    f"{size:,.0f}",
                    *at_most(size, bytes_aim),
                    f"{median(cpu):.1f}",
                    f"{cpu[0]:.1f}-{cpu[-1]:.1f}",
                    ratio(median(ratios)) if ratios else "",
                    spread(ratios),
                    *at_least(median(ratios) if ratios else None, cpu_aim),
                )
            )
    return "\n".join((layout(lines, right={2, 5, 7}), "", *DELTA_LEGEND))


def timing_table(timings: Sequence[Timing]) -> str:
    """Time in process."""
    lines: list[Sequence[str]] = [("in process, µs", *(f"{size // 1000} kB" for size in SIZES), "rounds", "aim", "")]
    by_title = {timing.title: timing for timing in timings}
    largest = SIZES[-1]
    for timing in timings:
        rounds = sorted(timing.by_size[largest])
        aim = None if timing.below is None else by_title[timing.below].median(largest)
        cells = (f"{timing.median(size):,.1f}" for size in SIZES)
        spread = f"{rounds[0]:,.0f}-{rounds[-1]:,.0f}"
        lines.append((timing.title, *cells, spread, *at_most(timing.median(largest), aim)))
    return "\n".join((layout(lines, right={1, 2, 3}), "", *TIMING_LEGEND))


def record_table(
    readings: Iterable[Reading], *, title: str = f"records of {SIZE} bytes and values, SQLite", unit: str = "ms"
) -> str:
    """The time to read records, and how long others wait while many are deleted; or other readings."""
    lines: list[Sequence[str]] = [(title, unit, "rounds", "aim", "")]
    for reading in readings:
        rounds = sorted(reading.rounds)
        spread = f"{rounds[0]:,.2f}-{rounds[-1]:,.2f}"
        lines.append((reading.title, f"{reading.median:,.2f}", spread, *at_most(reading.median, reading.aim)))
    return layout(lines, right={1})


def resume_table(outcomes: Iterable[ResumeOutcome]) -> str:
    """Time and bytes of a join."""
    lines: list[Sequence[str]] = [
        ("a join", "thread", "comes", "bytes", "sent", "ms", "rounds", "ms applied", "rounds")
    ]
    for outcome in outcomes:
        arrived = sorted(sample.arrived for sample in outcome.rounds)
        shown = sorted(sample.shown for sample in outcome.rounds)
        lines.append(
            (
                f"{outcome.size // 1000} kB",
                "awake" if outcome.is_awake else "asleep",
                outcome.way,
                f"{median(sorted(sample.bytes for sample in outcome.rounds)):,.0f}",
                "state" if outcome.rounds[0].is_whole else "changes",
                f"{median(arrived):.1f}",
                spread(arrived),
                f"{median(shown):.1f}",
                spread(shown),
            )
        )
    return "\n".join((layout(lines, right={3, 5, 7}), "", *RESUME_LEGEND))


def stall_table(outcomes: Iterable[StallOutcome]) -> str:
    """The effect of one stalled reader on the others and on the server."""
    lines: list[Sequence[str]] = [("one stalled reader", "", "without", "with", "ratio or more", "rounds", "aim", "")]
    for outcome in outcomes:
        title = outcome.case.title
        if outcome.failures or not outcome.within:
            lines.append((title, "failed", *[""] * 6))
            continue
        before, after = outcome.without, outcome.within
        for name in ("p50", "p99"):
            times = [median(sorted(getattr(each, name) for each in some)) for some in (before, after)]
            ratios = sorted(getattr(b, name) / getattr(a, name) for a, b in zip(before, after, strict=True))
            aims = at_most(median(ratios), P99_AIM if name == "p99" else None)
            cells = (f"{times[0]:.1f}", f"{times[1]:.1f}", f"{median(ratios):.2f}", spread(ratios))
            lines.append((title, f"{name}, ms", *cells, *aims))
            title = ""
        grown = [median(sorted(each.grown / 2**20 for each in some)) for some in (before, after)]
        more = sorted(growth / 2**20 for growth in outcome.growths())
        cells = (f"{grown[0]:.2f}", f"{grown[1]:.2f}", f"{median(more):.2f}", f"{more[0]:.2f} to {more[-1]:.2f}")
        lines.append(("", "growth, MiB", *cells, *at_most(median(more), GROWTH_AIM)))
        made, got = sum(each.changes for each in after), sum(each.caught_up_by for each in after)
        lines.append(("", "changes it missed", "", f"{made - got + len(after):,}", "", "", "", ""))
    return "\n".join((layout(lines, right={2, 3, 4}), "", *STALL_LEGEND))


def neighbour_table(outcomes: Iterable[NeighbourOutcome]) -> str:
    """How long the clients of one thread wait while others are attacked."""
    lines: list[Sequence[str]] = [
        (
            "a client beside",
            "echo p50",
            "p99",
            "max",
            "aim",
            "",
            "change p50",
            "p99",
            "max",
            "aim",
            "",
            "longest step",
            "held",
            "aim",
            "",
        )
    ]
    for outcome in outcomes:
        waits = outcome.waits
        if waits is None:
            lines.append((outcome.title, "failed", *[""] * 13))
            continue
        echoes, changes = (
            [f"{some[round((len(some) - 1) * part)]:.1f}" for part in (0.5, 0.99, 1)]
            for some in (waits.echoes, waits.changes)
        )
        aims = [at_most(each[-1], WAIT_AIM) for each in (waits.echoes, waits.changes)]
        steps = f"{waits.step:.1f}", f"{waits.held:.1f}", *at_most(waits.held, HELD_AIM)
        lines.append((outcome.title, *echoes, *aims[0], *changes, *aims[1], *steps))
    return "\n".join((layout(lines, right={1, 2, 3, 6, 7, 8, 11, 12}), "", *NEIGHBOUR_LEGEND))


def query_table(outcomes: Iterable[QueryOutcome]) -> str:
    """What it costs to tell readers of a table of each write, and how long it takes."""
    lines: list[Sequence[str]] = [
        (
            *("writes/s", "readers", "ms", "alone ÷", "rounds", "aim", ""),
            *("ack p50", "p99", "told p50", "aim", "", "p99", "bytes"),
        )
    ]
    for outcome in outcomes:
        for way in QUERY_WAYS:
            if not (results := outcome.results.get(way.name)):
                lines.append((f"{outcome.rate}", way.label, "failed", *[""] * 11))
                continue
            ratios, is_ours = sorted(outcome.ratios(way.name)), way.name == "query"
            acks, told = find_medians([each.write for each in results]), find_medians([each.told for each in results])
            disturbed = "!" if sum(each.is_disturbed for each in results) * 2 > len(results) else ""
            lines.append(
                (
                    f"{outcome.rate}",
                    way.label,
                    f"{median(sorted(each.cost / 1000 for each in results)):.2f}{disturbed}",
                    f"{median(ratios):.2f}" if ratios else "",
                    f"{ratios[0]:.2f}-{ratios[-1]:.2f}" if ratios else "",
                    *at_most(median(ratios), QUERY_COST_AIM if is_ours else None),
                    *(f"{each:.1f}" for each in acks),
                    f"{told[0]:.1f}" if told[0] else "",
                    *at_most(told[0], TOLD_AIM if is_ours else None),
                    f"{told[1]:.1f}" if told[1] else "",
                    f"{median(sorted(each.bytes / each.count for each in results)):,.0f}",
                )
            )
    return "\n".join((layout(lines, right={2, 3, 7, 8, 9, 12, 13}), "", *QUERY_LEGEND))


def find_medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of the first and of the second numbers."""
    first, second = (median(sorted(each)) for each in zip(*pairs, strict=True))
    return first, second


def at_most(value: float, aim: float | None) -> tuple[str, str]:
    """An upper bound, and whether it is met."""
    return ("", "") if aim is None else (f"≤ {aim:,.4g}", "met" if value <= aim else "SHORT")


def at_least(value: float | None, aim: float | None) -> tuple[str, str]:
    """A lower bound, and whether it is met."""
    return ("", "") if aim is None or value is None else (f"≥ {aim:g}", "met" if value >= aim else "SHORT")


def spread(ordered: Sequence[float]) -> str:
    """The lowest and the highest."""
    return f"{ratio(ordered[0])}-{ratio(ordered[-1])}" if ordered else ""
