"""Tells the instruments of the attempts at steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from plait.actor.actor import Actor
from plait.actor.turns import find_trace
from plait.instruments.protocol import NO_INSTRUMENTS, find_outcome

__all__ = ["telling_step"]


@contextmanager
def telling_step(actor: Actor, task: str, step: str) -> Iterator[None]:
    """Tell of the block, which attempts a step and stores its end."""
    instruments = actor.instruments
    if instruments is NO_INSTRUMENTS:
        yield
        return
    began, outcome = perf_counter(), "ok"
    trace = instruments.step_began(*actor.key, task, step, find_trace(instruments, "server"))
    try:
        yield
    except BaseException as error:
        outcome = find_outcome(error)
        raise
    finally:
        instruments.step_ended(trace, perf_counter() - began, outcome)
