"""Runs reads, which are generators of spans, on an engine."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from plait.errors import StoreError
from plait.store.outcomes import describe
from plait.store.rows.engine import ReadPlan, Row, Span
from plait.store.rows.layout import read_head, span_of_head
from plait.store.thread_rows import ThreadKey

__all__ = ["await_reads", "run_reads"]

T = TypeVar("T")


def run_reads(plan: ReadPlan[T], read: Callable[[Sequence[Span]], list[list[Row]]]) -> T:
    """Return the result of reads with the rows that `read` returns. An error of `read` is a StoreError in them."""
    reads = plan.begin()
    try:
        spans = next(reads)
        while True:
            try:
                rows = _read_resolved(read, spans)
            except StoreError as error:
                spans = reads.throw(error)
            except Exception as error:  # The reads of several threads go on with the next one.
                failure = StoreError(describe(error))
                failure.__cause__ = error
                spans = reads.throw(failure)
            else:
                spans = reads.send(rows)
    except StopIteration as end:
        found: T = end.value
        return found


async def await_reads(plan: ReadPlan[T], read: Callable[[Sequence[Span]], Awaitable[list[list[Row]]]]) -> T:
    """Do what `run_reads` does with a `read` that waits. Only a StoreError of it is raised in `reads`."""
    reads = plan.begin()
    try:
        spans = next(reads)
        while True:
            try:
                rows = await read(spans)
            except StoreError as error:
                spans = reads.throw(error)
            else:
                spans = reads.send(rows)
    except StopIteration as end:
        found: T = end.value
        return found


def _read_resolved(read: Callable[[Sequence[Span]], list[list[Row]]], spans: Sequence[Span]) -> list[list[Row]]:
    """Return the rows of spans, after those with which the spaces of their threads are found."""
    keys = {span.space: None for span in spans if isinstance(span.space, ThreadKey)}
    if not keys:
        return read(spans)
    places = {span_of_head(key): key for key in keys}
    heads = dict(zip(places, read([*places]), strict=True))
    spaces = {key: head.space for place, key in places.items() if (head := read_head(heads[place]))}
    rows, left = list[list[Row]](), list[tuple[int, Span]]()
    for at, span in enumerate(spans):
        rows.append([])  # A thread that is not stored has no rows.
        if isinstance(span.space, int):
            if (head_rows := heads.get(span)) is None:
                left.append((at, span))
            else:
                rows[at] = head_rows
        elif (space := spaces.get(span.space)) is not None:
            left.append((at, span._replace(space=space)))
    if left:
        for (at, _), found in zip(left, read([span for _, span in left]), strict=True):
            rows[at] = found
    return rows
