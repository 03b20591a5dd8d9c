"""The queue of a thread: adds messages to it, and calls the agent for them."""

from typing import Final

from plait.actor.connection import Connection
from plait.actor.turn import find_client_turn, find_user
from plait.errors import TooMany
from plait.parts.messages.caller import AgentCaller
from plait.parts.messages.changes import Changes
from plait.parts.messages.message import Message, measure_message
from plait.parts.messages.message_writer import MessageWriter
from plait.state.commit import Commit

__all__ = ["MOST_QUEUED", "Queue", "find_sender"]

MOST_QUEUED: Final = 1000
"""The maximum number of queued messages of a thread."""

# The maximum bytes of all queued messages, as a multiple of the maximum bytes of a record.
_MOST_RECORDS: Final = 8


class Queue:
    """Adds messages to the queue of one thread; without a `caller`, no agent is called for them."""

    def __init__(self, writer: MessageWriter, caller: AgentCaller | None) -> None:
        self._writer = writer
        self._caller = caller

    def check_room(self, message: Message, staged: Changes | None = None) -> None:
        """Raise TooMany if a message may not be added to the queue and what a run has `staged` for it.

        What the run has taken counts until that is stored, as it is queued again if that fails.
        """
        state, most = self._writer.state, _MOST_RECORDS * self._writer.actor.limits.record
        added = {} if staged is None else staged.added
        size = state.head.queued_bytes + sum(added.values()) + measure_message(message)
        if len(state.queue) + len(added) >= MOST_QUEUED or size > most:
            many = f"{MOST_QUEUED:,} messages, or {most:,} bytes of them, may be queued in a thread; try again later"
            raise TooMany(many, retry_after=1.0)

    def add(self, message: Message, *, is_keyed: bool) -> tuple[Message, Commit]:
        """Queue a message, and call the agent for it if it is not busy; return the stored message. Raises TooMany."""
        self.check_room(message)
        caller, has_begun = self._caller, False

        def work(changes: Changes) -> Message:
            nonlocal has_begun
            if is_keyed:
                changes.remember(message.id)
            stored = changes.queue_message(message)
            has_begun = caller is not None and caller.begin_with(changes)
            return stored

        stored, commit = self._writer.write(work)
        if caller is not None and has_begun:
            caller.follow(commit)
        return stored, commit


def find_sender(connection: Connection | None = None) -> tuple[str, str | None]:
    """Return who sends by a connection, or else by the calling code: a name for keys, and the id of the principal."""
    if connection is None:
        if (turn := find_client_turn()) is None:
            return "server", find_user()
        if (connection := turn.connection) is None:
            return f"party {turn.party!r}", None
    user = None if connection.principal is None else connection.principal.id
    return f"connection {connection.id}" if user is None else f"principal {user}", user
