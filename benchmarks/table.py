"""Lays the outcomes out as plain text."""

from collections.abc import Container, Iterable, Sequence

from benchmarks.contest import PLAIT, Outcome
from benchmarks.memory import Finding
from benchmarks.rows import Against

__all__ = ["layout", "median", "memory", "ratio", "speed"]

HEADER = ("load", "plait", "", "beside", "", "plait ÷", "rounds", "aim", "", "CPU µs", "beside", "CPU ÷")
LEGEND = (
    "plait speaks the Cloudflare protocol; beside it, where it says plait.v1, the same server with its own.",
    "Each ratio is the median of the rounds' own ratios; beside it the lowest and the highest.",
    "CPU µs: the processor time of the server for one operation, plait's and beside it the other's, and their ratio.",
    "* the load generator used more processor time than the server: the server could do more than the number says.",
    "! other processes used more than a tenth of a core: run it again when the machine is quiet.",
)


def speed(outcomes: Iterable[Outcome]) -> str:
    """The table of rates and ratios."""
    lines: list[Sequence[str]] = [HEADER]
    for outcome in outcomes:
        for number, against in enumerate(outcome.row.against):
            lines.append(line(outcome, against, is_first=number == 0))
    return "\n".join((layout(lines, right={1, 4, 5, 9, 10, 11}), "", *LEGEND))


def line(outcome: Outcome, against: Against, *, is_first: bool) -> Sequence[str]:
    """The line that compares plait with one other."""
    row = outcome.row
    title = row.title if is_first else ""
    ours = rate(outcome, PLAIT) if is_first else ""
    unit = f"{row.unit}/s" if is_first else ""
    ratios = sorted(outcome.ratios(against.peer))
    costs = (cost(outcome, PLAIT) if is_first else "", cost(outcome, against.peer), cost_ratio(outcome, against.peer))
    aim = "" if against.aim is None else f"≥ {against.aim:g}"
    if not ratios:
        return (title, ours, unit, against.label, rate(outcome, against.peer), "-", "", aim, "", *costs)
    middle = median(ratios)
    spread = f"{ratio(ratios[0])}-{ratio(ratios[-1])}"
    verdict = "" if against.aim is None else "met" if middle >= against.aim else "SHORT"
    return (title, ours, unit, against.label, rate(outcome, against.peer), ratio(middle), spread, aim, verdict, *costs)


def cost(outcome: Outcome, name: str) -> str:
    """The median of the processor time per operation."""
    value = outcome.cost(name)
    return "-" if value is None else f"{value:,.1f}"


def cost_ratio(outcome: Outcome, name: str) -> str:
    """The median of the rounds' ratios of processor time."""
    ratios = sorted(outcome.cost_ratios(name))
    return ratio(median(ratios)) if ratios else "-"


def median(ordered: Sequence[float]) -> float:
    """The median of sorted values."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def ratio(value: float) -> str:
    """Two significant digits, more before the point."""
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def rate(outcome: Outcome, name: str) -> str:
    """A median rate, marked if the generator limits it."""
    value = outcome.rate(name)
    if value is None:
        return "failed" if name in outcome.failures else "-"
    busier = "*" if outcome.most(name, lambda result: result.is_generator_busier) else ""
    disturbed = "!" if outcome.most(name, lambda result: result.is_disturbed) else ""
    return f"{value:,.0f}" + (busier + disturbed).ljust(2)


def memory(findings: Iterable[Finding]) -> str:
    """The table of single numbers."""
    lines: list[Sequence[str]] = [("server", "memory and waking", "value", "unit", "aim", "")]
    for finding in findings:
        value = f"{finding.value:,.0f}" if finding.value >= 100 else f"{finding.value:.2f}"
        aim = "" if finding.aim is None else f"≤ {finding.aim:,.0f}"
        verdict = "" if finding.aim is None else "met" if finding.value <= finding.aim else "SHORT"
        lines.append((finding.server, finding.title, value, finding.unit, aim, verdict))
    return layout(lines, right={2})


def layout(lines: Sequence[Sequence[str]], *, right: Container[int]) -> str:
    """Columns as wide as their widest cell; those in `right` hold numbers."""
    widths = [max(len(cells[n]) for cells in lines) for n in range(len(lines[0]))]

    def row(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    head, *body = map(row, lines)
    return "\n".join((head, "─" * max(map(len, (head, *body))), *body))
