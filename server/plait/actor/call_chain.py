"""Chains of turns that call each other, and the reasons for which a turn may not begin in one."""

from typing import Final

from plait.actor.turn import Turn
from plait.errors import CallFailed, PlaitError

__all__ = ["find_refusal"]

# Maximum number of turns that wait for each other in one chain of calls.
_MOST_CALLS: Final = 64


def find_refusal(turn: Turn) -> PlaitError | None:
    """Return the error with which a called turn may not begin; None if it may.

    A turn may not begin if a turn of its thread that waits for it was cut short, or if too many turns wait for it.
    """
    count = running = 0
    # The nearest turn that nothing waits for, as its caller has ended.
    oldest: Turn | None = None
    for each in turn.chain():
        if each.loss is not None and each.actor is turn.actor:
            return each.loss
        count += 1
        running += each is turn or each.is_running
        if oldest is None and each.parent is not None and not each.parent.is_running:
            oldest = each
    if count <= _MOST_CALLS:
        return None
    if running <= _MOST_CALLS and oldest is not None:
        oldest.forget_callers()  # An endless chain of such turns would keep all of them in memory.
        return None
    return CallFailed(
        f"{turn.name} of {turn.actor.key} is called in a chain of more than {_MOST_CALLS} calls that wait for each "
        "other: does a method call itself, directly or through other threads?"
    )
