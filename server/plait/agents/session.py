"""A session: one request to an agent, with the agents that it calls."""

import secrets
from typing import Any, Literal

from plait.actor.events import Listener, call_listeners
from plait.actor.thread import Thread

__all__ = ["Session"]


class Session:
    """The data of one request. It is never stored.

    `state` is for the agents of the request and the listeners of `completed`; `metadata` describes the request, for
    listeners of the app.
    """

    def __init__(self, id: str | None, thread: Thread[Any]) -> None:
        self._id = id
        self.thread = thread
        self.state: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self._listeners: list[Listener] = []

    @property
    def id(self) -> str:
        """The id from the caller, or else `sess_` and 32 hexadecimal digits."""
        if self._id is None:
            self._id = f"sess_{secrets.token_hex(16)}"
        return self._id

    def add_listener(self, event: Literal["completed"], listener: Listener) -> None:
        """Call `listener` with this session after the answer, in order; its writes to values are stored."""
        if event != "completed":
            raise ValueError(f"a session has the event 'completed', not {event!r}")
        self._listeners.append(listener)

    @property
    def has_listeners(self) -> bool:
        """Whether this session has listeners."""
        return bool(self._listeners)

    async def complete(self) -> None:
        """Call the listeners, in order."""
        await call_listeners("completed", self._listeners, self)

    def __repr__(self) -> str:
        return f"<Session {self.id}>"
