"""One attempt at a step: it calls the function, and stores the result with the function's writes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, cast

import msgspec

from plait.actor.outcome import limit_time
from plait.actor.thread import ThreadActor
from plait.author_code import call, call_now
from plait.parts.encoding import encode_named
from plait.parts.stage import Stage, do_nothing
from plait.parts.tasks.rows import JournalEntry
from plait.parts.written import Result, Written
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["StepStage", "attempt_step"]


class Attempted(Protocol):
    """The steps of a run."""

    @property
    def has_row(self) -> bool:
        """Whether the run has not ended."""
        ...

    def put(self, name: str, entry: JournalEntry) -> Commit:
        """Store a step."""
        ...


# The results of the methods that write at once; in a transaction, they need not be awaited.
_WRITES: Final = (Commit, Written, Result)


class StepStage(Stage):
    """The stage of the function of a step, whose task may begin its last commit with `Step.transaction`."""

    def __init__(self, actor: ThreadActor) -> None:
        super().__init__(actor, do_nothing)
        self.task = asyncio.current_task()


class _IsAwaitable(Exception):
    """Undoes the transaction of a function that turns out to be asynchronous."""


async def attempt_step(
    actor: ThreadActor, steps: Attempted, name: str, function: Callable[[], object], *, timeout: float | None
) -> JournalEntry:
    """Call the function of a step, and return the step when it is stored. Raises the error of the function."""
    if inspect.iscoroutinefunction(function):
        return await _attempt_staged(actor, steps, name, cast(Awaitable[object], function()), timeout=timeout)
    made: object = None
    entry: JournalEntry | None = None
    with suppress(_IsAwaitable), Transaction(actor.state, actor.key) as transaction:
        made = call_now(function)
        if inspect.isawaitable(made) and not isinstance(made, _WRITES):
            if not transaction.is_empty:
                if inspect.iscoroutine(made):
                    made.close()
                raise TypeError(f"the function of the step {name!r} writes, and returns an awaitable: use async def")
            raise _IsAwaitable
        entry = _finish(name, made)
        if steps.has_row:  # The function may have cancelled its run.
            steps.put(name, entry)
    if entry is None:
        return await _attempt_staged(actor, steps, name, cast(Awaitable[object], made), timeout=timeout)
    assert transaction.commit is not None
    await transaction.commit
    return entry


async def _attempt_staged(
    actor: ThreadActor, steps: Attempted, name: str, work: Awaitable[object], *, timeout: float | None
) -> JournalEntry:
    stage = StepStage(actor)
    with stage.use():
        async with limit_time(timeout):
            entry = _finish(name, await call(lambda: work))
        has_cancelled = stage.is_open and not steps.has_row  # The run was cancelled in the block of its transaction.
        await stage.commit(is_last=True, end=do_nothing if has_cancelled else partial(steps.put, name, entry))
    return entry


def _finish(name: str, value: object) -> JournalEntry:
    """Return a step that is done with a value, or with the value of a write."""
    if isinstance(value, _WRITES):
        value = value.value if isinstance(value, Result) else None
    return JournalEntry("do", is_done=True, value=msgspec.Raw(encode_named(name, value)))
