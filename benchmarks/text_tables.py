"""Lays out what texts cost."""

from collections.abc import Iterable, Sequence

from benchmarks.rejoin import EDITS, RejoinOutcome
from benchmarks.sync_tables import at_most, spread
from benchmarks.table import layout, median, ratio
from benchmarks.texts import PLAIN, TEXT_WAYS, TextOutcome, TextWay

__all__ = ["rejoin_table", "text_table"]

HEADER = (
    *("a text", "written to", "edits/s", "bytes", "aim", "", "µs", "rounds", "÷ number", "aim", ""),
    *("÷ Yjs", "rounds", "aim", "", "MiB", "aim", ""),
)
TEXT_LEGEND = (
    "A text of 100 kB. µs: processor time of the server's processes per delivery to a reader, or, without readers, per",
    "edit: the edit, its commit to SQLite (synchronous=FULL; LevelDB does not sync, and no client waits for",
    "it) and the writes to the sockets. bytes: received by a reader, per delivery. ÷ number: divided by the time of a",
    "change of a number in a state of 100 B. ÷ Yjs: divided by that of Yjs in memory. Both are medians of the rounds.",
    "MiB: the growth of the server, without garbage.",
)
REJOIN_LEGEND = (
    f"{EDITS:,} edits were made in a text of 100 kB since the client left. ms: from connect() to the last byte, and",
    "until the text is there: for plait in a client in Python, for Yjs by its own code in Node. server: its processor",
    "time.",
)


def text_table(outcomes: Iterable[TextOutcome]) -> str:
    """Rates, bytes, processor time and memory."""
    lines: list[Sequence[str]] = [HEADER]
    for outcome in outcomes:
        ways = [way for way in TEXT_WAYS if way.name in outcome.results or way.name in outcome.failures]
        lines += [text_line(outcome, way, is_first=number == 0) for number, way in enumerate(ways)]
    return "\n".join((layout(lines, right={2, 3, 6, 8, 11, 15}), "", *TEXT_LEGEND))


def text_line(outcome: TextOutcome, way: TextWay, *, is_first: bool) -> Sequence[str]:
    """One way of one case."""
    case, title = outcome.case, outcome.case.title if is_first else ""
    if way.name not in outcome.results:
        return (title, way.label, "failed", *[""] * 15)
    cpu = sorted(outcome.cpu(way.name))
    is_ours = way.protocol == "native" and way.name != PLAIN
    size = outcome.bytes(way.name) if case.readers else None
    plain, yjs = (sorted(outcome.ratios(way.name, other)) if is_ours else [] for other in (PLAIN, "yjs"))
    grown = [each / 2**20 for each in outcome.grown.get(way.name, ())]
    least = [each / 2**20 for each in outcome.grown.get("yjs", ())]
    return (
        title,
        way.label,
        f"{outcome.rate(way.name):,.0f}",
        "" if size is None else f"{size:,.0f}",
        *at_most(size or 0, case.bytes_aim if is_ours else None),
        f"{median(cpu):.1f}",
        f"{cpu[0]:.1f}-{cpu[-1]:.1f}",
        *ratios(plain, case.plain_aim)[::2],
        *at_most(median(plain) if plain else 0, case.plain_aim if plain else None)[1:],
        *ratios(yjs, 1),
        *at_most(median(yjs) if yjs else 0, 1 if yjs else None)[1:],
        f"{median(grown):.1f}" if grown else "",
        *at_most(median(grown) if grown else 0, median(least) if grown and least and is_ours else None),
    )


def ratios(ordered: Sequence[float], aim: float | None) -> tuple[str, str, str]:
    """The median, the lowest and the highest, and the aim."""
    return (ratio(median(ordered)), spread(ordered), f"≤ {aim:g}") if ordered and aim else ("", "", "")


def rejoin_table(outcomes: Iterable[RejoinOutcome]) -> str:
    """Time and bytes of a client that comes back."""
    lines: list[Sequence[str]] = [("back after", "to", "bytes", "ms", "rounds", "ms, text", "rounds", "server ms")]
    for outcome in outcomes:
        arrived, shown = (sorted(getattr(each, name) for each in outcome.rounds) for name in ("arrived", "shown"))
        lines.append(
            (
                f"{EDITS:,}, {outcome.kind}",
                outcome.label,
                f"{median(sorted(each.bytes for each in outcome.rounds)):,.0f}",
                f"{median(arrived):.1f}",
                spread(arrived),
                f"{median(shown):.1f}",
                spread(shown),
                f"{median(sorted(each.server for each in outcome.rounds)):.1f}",
            )
        )
    return "\n".join((layout(lines, right={2, 3, 5, 7}), "", *REJOIN_LEGEND))
