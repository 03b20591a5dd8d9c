"""Counters and histograms by labels: plain numbers that only the event loop changes, and any OS thread may read."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

__all__ = ["AT_ONCE", "Counter", "Histogram", "Made", "Series", "add_fine", "make_histogram"]

K = TypeVar("K")
V = TypeVar("V")

AT_ONCE: Final = 1000
"""The number of values of a histogram that are counted at once."""


class _Counted(NamedTuple):
    """Values of a histogram, counted by bucket, and values that wait to be counted."""

    # The number of values up to each bound, the number of all values, and their sum.
    below: tuple[int, ...]
    number: int
    sum: float
    waiting: list[float]


class Series:
    """The values of one histogram. They are counted by bucket in batches, which costs the least.

    Another OS thread may read a series: values that belong together are replaced together, and reading changes nothing.
    """

    __slots__ = ("_bounds", "_counted", "failed", "labels", "sent", "waiting")

    def __init__(self, labels: tuple[str, ...], bounds: Sequence[float]) -> None:
        self.labels = labels
        self._bounds = bounds
        # Values to count later, by `flush`; the code that appends values calls it now and then.
        self.waiting: list[float] = []
        # The values so far, with the same list.
        self._counted = _Counted((0,) * len(bounds), 0, 0.0, self.waiting)
        # The values with an outcome other than `ok`, if there are any.
        self.failed: Series | None = None
        # The number of connections to which changes were sent.
        self.sent = 0

    @property
    def fine(self) -> int:
        """The number of values with the outcome `ok`."""
        counted = self._counted
        return counted.number + len(counted.waiting)

    @property
    def count(self) -> int:
        """The number of all values."""
        return self.fine + (0 if self.failed is None else self.failed.fine)

    def add(self, value: float) -> None:
        """Add a value with the outcome `ok`."""
        self.waiting.append(value)
        if len(self.waiting) >= AT_ONCE:
            self.flush()

    def add_failed(self, value: float) -> None:
        """Add a value with an outcome other than `ok`."""
        if self.failed is None:
            self.failed = Series(self.labels, self._bounds)
        self.failed.add(value)

    def sum_up(self) -> tuple[list[tuple[str, float]], float]:
        """Return the buckets, each with the number of values up to its bound, and the sum of the values."""
        parts = [each.read() for each in (self, self.failed) if each is not None]
        below = [sum(counts) for counts in zip(*(each.below for each in parts), strict=True)]
        buckets = [(str(bound), float(count)) for bound, count in zip(self._bounds, below, strict=True)]
        buckets.append(("+Inf", float(sum(each.number for each in parts))))
        return buckets, sum(each.sum for each in parts)

    def read(self) -> _Counted:
        """Count all values so far, including the waiting ones."""
        below, number, total, waiting = self._counted
        values = sorted(waiting)
        counts = [known + bisect_right(values, bound) for known, bound in zip(below, self._bounds, strict=True)]
        return _Counted(tuple(counts), number + len(values), total + sum(values), [])

    def flush(self) -> None:
        """Count the waiting values."""
        self._counted = self.read()
        self.waiting = self._counted.waiting


class Made(dict[K, V]):
    """Makes the values of missing keys."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


Histogram = Made[tuple[str, ...], Series]
"""The series of a histogram, by their labels."""

Counter = defaultdict[tuple[str, ...], int]
"""Numbers, by their labels."""


def add_fine(others: Counter, histogram: Histogram) -> Counter:
    """Return counts by outcome: `others`, and the values of a histogram as `ok`."""
    counts = Counter(int, others.copy())
    for labels, series in histogram.copy().items():
        counts[*labels, "ok"] = series.fine
    return counts


def make_histogram(bounds: Sequence[float]) -> Histogram:
    """Return a histogram without values, whose buckets have these upper bounds."""
    return Histogram(lambda labels: Series(labels, bounds))
