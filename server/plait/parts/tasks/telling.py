"""Tells the instruments of the attempts at steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from plait.actor.turns import find_trace
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, find_outcome
from plait.store.protocol import ThreadKey

__all__ = ["telling_step"]


@contextmanager
def telling_step(instruments: Instruments, key: ThreadKey, task: str, step: str) -> Iterator[None]:
    """Tell of the block, which attempts a step and stores its end."""
    if instruments is NO_INSTRUMENTS:
        yield
        return
    began, outcome = perf_counter(), "ok"
    trace = instruments.step_began(*key, task, step, find_trace(instruments, "server"))
    try:
        yield
    except BaseException as error:
        outcome = find_outcome(error)
        raise
    finally:
        instruments.step_ended(trace, perf_counter() - began, outcome)
