"""What an app is told of its threads, sessions and agents."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, get_args

from plait.actor.outcome import maybe_await
from plait.errors import escape_traceback
from plait.spelling import find_nearest

__all__ = ["Event", "Events", "Listener", "call_listeners"]

log = logging.getLogger("plait.agents")
log.addFilter(escape_traceback)

Event = Literal[
    "thread.created",
    "thread.destroyed",
    "session.started",
    "session.completed",
    "agent.started",
    "agent.completed",
    "agent.errored",
]
"""What may be listened to.

A listener of `thread.…` is given the thread, of `session.…` the Session, of `agent.…` the Context; `agent.errored` is
given the exception, too.
"""

Listener = Callable[..., Awaitable[object] | object]

_EVENTS: Final = get_args(Event)


async def call_listeners(event: str, listeners: list[Listener], *args: Any) -> None:
    """Call listeners in order, one after the other; what they raise is logged."""
    for listener in tuple(listeners):
        try:
            await maybe_await(listener(*args))
        except Exception as error:
            log.error("a listener of %s raised %s", event, type(error).__name__, exc_info=error)


class Events:
    """The listeners of an app."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def add(self, event: str, listener: Listener) -> None:
        """Add a listener, which is called after those that were added before. Raises ValueError and TypeError."""
        if event not in _EVENTS:
            near = find_nearest(event, _EVENTS)
            hint = f"; did you mean {near!r}?" if near else f"; there are: {', '.join(_EVENTS)}"
            raise ValueError(f"there is no event {event!r}{hint}")
        if not callable(listener):
            raise TypeError(f"a listener must be a function, not {listener!r}")
        self._listeners.setdefault(event, []).append(listener)

    def has(self, event: Event) -> bool:
        """Whether anybody listens to an event."""
        return event in self._listeners

    async def emit(self, event: Event, *args: Any) -> None:
        """Call the listeners of an event, in order; what they raise is logged."""
        if (listeners := self._listeners.get(event)) is not None:
            await call_listeners(event, listeners, *args)
