"""A session: one request to an agent, with the agents that it calls."""

import secrets
from typing import Any, Literal

from plait.actor.events import Listener, call_listeners
from plait.actor.thread import Thread

__all__ = ["Session", "make_session_id"]


def make_session_id() -> str:
    """Return a new id: `sess_` and 32 hexadecimal digits."""
    return f"sess_{secrets.token_hex(16)}"


class Session:
    """What belongs to one request. Nothing of it is stored.

    `state` is for the agents of the request and the listeners of `completed`; `metadata` describes the request, for
    those who watch sessions.
    """

    def __init__(self, id: str, thread: Thread[Any]) -> None:
        self.id = id
        self.thread = thread
        self.state: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self._listeners: list[Listener] = []

    def add_listener(self, event: Literal["completed"], listener: Listener) -> None:
        """Call `listener` with this session after the answer, in order; what it writes to values is stored."""
        if event != "completed":
            raise ValueError(f"a session has the event 'completed', not {event!r}")
        self._listeners.append(listener)

    async def complete(self) -> None:
        """Call the listeners, in order."""
        await call_listeners("completed", self._listeners, self)

    def __repr__(self) -> str:
        return f"<Session {self.id}>"
