"""The events of an app's threads, sessions and agents, and their listeners."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, get_args

from plait.author_code import call
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
"""The names of the events.

A listener of `thread.…` gets the thread, of `session.…` the Session, of `agent.…` the Context; `agent.errored` also
gets the exception.
"""

Listener = Callable[..., Awaitable[object] | object]

_EVENTS: Final = get_args(Event)


async def call_listeners(event: str, listeners: list[Listener], *args: Any) -> None:
    """Call listeners one after the other, in order; log their exceptions."""
    for listener in tuple(listeners):
        try:
            await call(listener, *args)
        except Exception as error:
            log.error("a listener of %s raised %s", event, type(error).__name__, exc_info=error)


class Events:
    """The listeners of an app."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def add(self, event: str, listener: Listener) -> None:
        """Add a listener, which is called after the earlier ones. Raises ValueError and TypeError."""
        if event not in _EVENTS:
            near = find_nearest(event, _EVENTS)
            hint = f"; did you mean {near!r}?" if near else f"; there are: {', '.join(_EVENTS)}"
            raise ValueError(f"there is no event {event!r}{hint}")
        if not callable(listener):
            raise TypeError(f"a listener must be a function, not {listener!r}")
        self._listeners.setdefault(event, []).append(listener)

    def has(self, event: Event) -> bool:
        """Whether an event has listeners."""
        return event in self._listeners

    async def emit(self, event: Event, *args: Any) -> None:
        """Call the listeners of an event, in order; log their exceptions."""
        if (listeners := self._listeners.get(event)) is not None:
            await call_listeners(event, listeners, *args)
