"""Lays out what runs of agents cost."""

from collections.abc import Iterable, Sequence

from benchmarks.agents_runs import BARE, RUN_LABELS, RunOutcome
from benchmarks.contest import PLAIT
from benchmarks.sync_tables import at_most, spread
from benchmarks.table import layout, median, ratio

__all__ = ["run_table"]

HEADER = (
    *("runs of an agent", "on", "runs/s", "p50 ms", "p99 ms", "µs", "rounds", "plait ÷", "rounds", "aim", ""),
    "lost",
)
LEGEND = (
    "POST /run/{agent} with a signed id of a thread, from 32 connections, each with one request at a time.",
    "µs: processor time of the server's processes by run; plait ÷ is plait's time by that of the other, the median of",
    "the rounds. A run of plait that writes is answered when it is in SQLite (synchronous=FULL); Agentuity answers",
    "before it saves. Its server is its published package under bun without its cloud, with its threads in SQLite.",
    "lost: runs in one thread that are missing in its number at the end; plait runs one at a time in a thread.",
)


def run_table(outcomes: Iterable[RunOutcome]) -> str:
    """Rates, times and processor time."""
    lines: list[Sequence[str]] = [HEADER]
    for outcome in outcomes:
        names = [name for name in RUN_LABELS if name in outcome.results or name in outcome.failures]
        lines += [line(outcome, name, is_first=number == 0) for number, name in enumerate(names)]
    return "\n".join((layout(lines, right={2, 3, 4, 5, 7, 11}), "", *LEGEND))


def line(outcome: RunOutcome, name: str, *, is_first: bool) -> Sequence[str]:
    """One server of one case."""
    title = outcome.case.title if is_first else ""
    results = outcome.results.get(name)
    if not results:
        return (title, RUN_LABELS[name], "failed", *[""] * 9)
    cpu, ratios = sorted(outcome.cpu(name)), sorted(outcome.ratios(name)) if name != PLAIT else []
    middle = median(ratios) if ratios else 0.0
    lost = [each.lost for each in results if each.lost is not None] if name != BARE else []
    return (
        title,
        RUN_LABELS[name],
        f"{outcome.rate(name):,.0f}",
        f"{median(sorted(each.p50 for each in results)):.2f}",
        f"{median(sorted(each.p99 for each in results)):.2f}",
        f"{median(cpu):.0f}",
        f"{cpu[0]:.0f}-{cpu[-1]:.0f}",
        ratio(middle) if ratios else "",
        spread(ratios) if ratios else "",
        *at_most(middle, outcome.aim if ratios and name == BARE else None),
        f"{sum(lost):,}" if lost else "",
    )
