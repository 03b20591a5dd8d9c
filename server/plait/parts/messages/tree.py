"""The branches of a conversation: cuts in its line of positions. No I/O.

A cut says that the messages from the position `start` on follow the one at `after`, and not those in between. The
newest cut is the active branch, so nothing else is stored: a message belongs to the branch in which its position was
assigned.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["END", "WHOLE", "Cut", "Span", "find_end", "find_path", "find_shared", "is_within", "list_branches"]


class Cut(NamedTuple):
    """The beginning of a branch. No message has the position `start` itself."""

    start: int
    after: int
    # The position of the message that people see before the branch; 0 for none.
    parent: int


class Span(NamedTuple):
    """The positions above `low`, and up to `high`."""

    low: int
    high: int


END: Final = 1 << 62
"""A position after all messages."""

WHOLE: Final[Sequence[Span]] = (Span(0, END),)
"""The path of a conversation without branches."""


def find_path(cuts: Sequence[Cut], end: int = END) -> Sequence[Span]:
    """Return the spans from the first message to the position `end`, in order."""
    spans: list[Span] = []
    for cut in reversed(cuts):
        if cut.start <= end:
            spans.append(Span(cut.start, end))
            end = cut.after
    spans.append(Span(0, end))
    return [each for each in reversed(spans) if each.low < each.high]


def is_within(path: Sequence[Span], position: int) -> bool:
    """Whether a message is on a path."""
    return any(low < position <= high for low, high in reversed(path))


def find_shared(one: Sequence[Span], other: Sequence[Span]) -> int:
    """Return the position up to which two paths are the same."""
    shared = 0
    for mine, others in zip(one, other, strict=False):
        if mine.low != others.low:
            break
        shared = min(mine.high, others.high)
        if mine.high != others.high:
            break
    return shared


def find_end(cuts: Sequence[Cut], position: int) -> int:
    """Return the last position of the newest branch with a message."""
    ends = (span.high for _, span in list_branches(cuts))
    return next(high for high in ends if is_within(find_path(cuts, high), position))


def list_branches(cuts: Sequence[Cut]) -> Sequence[tuple[Cut | None, Span]]:
    """Return the cut at which each branch begins and the span of its own positions, the newest first.

    The first line of the conversation begins at no cut.
    """
    starts = [0, *(each.start for each in cuts)]
    spans = map(Span, starts, [*(each.start - 1 for each in cuts), END])
    return [*zip((None, *cuts), spans, strict=True)][::-1]
