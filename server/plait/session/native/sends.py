"""Queues the messages that a client of the native protocol sends to a part, and answers them. No I/O."""

from functools import partial
from typing import Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.transport import Frame
from plait.errors import Forbidden, InvalidArguments, PlaitError, Readonly, StoreError, TooLarge, TooMany
from plait.instruments.protocol import NO_INSTRUMENTS, tell_limit
from plait.parts.attachments import find_attached
from plait.session.native.follower import Follower
from plait.session.native.live_messages import find_messages
from plait_schemas.codec import encode_json, nests_deeper
from plait_schemas.frames import encode
from plait_schemas.messages import Send, Sent, Unsent

__all__ = ["Sends"]

# Maximum characters of a key.
_LONGEST_KEY: Final = 256
# Seconds after which a client resends a message that could not be stored.
_PAUSE: Final = 1.0


class Sends:
    """The messages that were sent on one socket.

    Messages are numbered, so that they stay in order if one is refused for a while: later messages are refused, too,
    until the client has resent it.
    """

    __slots__ = ("_actor", "_connection", "_follower", "_next")

    def __init__(self, actor: Actor, connection: Connection, follower: Follower) -> None:
        self._actor = actor
        self._connection = connection
        # Sends each answer after the earlier changes.
        self._follower = follower
        self._next = 1

    def receive(self, frame: Send) -> None:
        """Queue a message, once, and answer when it is durable."""
        actor, connection = self._actor, self._connection
        if frame.ref > self._next:
            self._follower.send_later(Unsent(frame.ref, "gap", f"message {self._next} must come first"))
            return
        connection.begin_message("send", actor.instruments, actor.key)
        trace = connection.trace
        try:
            id = self._queue(frame)
        except PlaitError as error:
            if isinstance(error, TooMany):
                self.limit(frame, error.retry_after or _PAUSE, error)
            else:
                self._refuse(frame, error)
            actor.instruments.message_ended(trace, error.code)
            return
        self._next = max(self._next, frame.ref + 1)
        actor.state.after(partial(self._answer, frame, id, trace))

    def refuse(self, frame: Send, error: PlaitError) -> None:
        """Refuse a message for good, in its turn."""
        if frame.ref > self._next:
            self._follower.send_later(Unsent(frame.ref, "gap", f"message {self._next} must come first"))
        else:
            self._refuse(frame, error)

    def limit(self, frame: Send, wait: float, error: TooMany) -> None:
        """Refuse a message; the client resends it after `wait` seconds."""
        tell_limit(self._actor.instruments, error)
        self._follower.send_later(Unsent(frame.ref, error.code, str(error), retry_after=wait))

    # Inside

    def _queue(self, frame: Send) -> str:
        """Queue a message, and return its id. Raises the error of a message that may not be sent."""
        connection = self._connection
        found = find_messages(self._actor, frame.part)
        principal = connection.principal
        # A lost answer is repeated, even if the client may no longer send messages.
        if (known := found.find_sent(connection, frame.key)) is not None:
            return known
        if not connection.rights.may_send:
            raise Forbidden("Forbidden")
        if connection.readonly:
            raise Readonly("Connection is readonly")
        # A message with an attached file also uploads this file.
        if not connection.rights.may_upload and find_attached(frame.attachments):
            raise Forbidden("attaching a file of the thread needs the action 'upload'")
        if not 1 <= len(frame.key) <= _LONGEST_KEY:
            raise InvalidArguments(f"a key has 1 to {_LONGEST_KEY} characters, this one has {len(frame.key)}")
        depth = self._actor.limits.depth
        if frame.attachments and _nests_deeper(frame.attachments, depth):
            raise TooLarge(f"JSON is nested more than {depth} deep", limit="depth")
        metadata = {"connection": connection.id, "key": frame.key}
        if principal is not None:
            metadata["user"] = principal.id
        try:
            queued = found.queue(
                frame.content, key=frame.key, sender=connection, metadata=metadata, attachments=frame.attachments
            )
        except (ValueError, TypeError) as error:
            raise InvalidArguments(str(error)) from error
        return queued.value.id

    def _answer(self, frame: Send, id: str, trace: object, error: PlaitError | None) -> None:
        if error is None:
            self._follower.send(Frame(encode(Sent(frame.ref, id))))
        elif isinstance(error, StoreError):  # The client also resends the later messages, in order.
            self._next = min(self._next, frame.ref)
            self._follower.send(Frame(encode(Unsent(frame.ref, error.code, str(error), retry_after=_PAUSE))))
        else:
            self._follower.send(Frame(encode(Unsent(frame.ref, error.code, str(error), error.path))))
        if self._actor.instruments is not NO_INSTRUMENTS:
            self._actor.instruments.message_ended(trace, "ok" if error is None else error.code)

    def _refuse(self, frame: Send, error: PlaitError) -> None:
        tell_limit(self._actor.instruments, error)
        self._next = max(self._next, frame.ref + 1)
        self._follower.send_later(Unsent(frame.ref, error.code, str(error), error.path))


def _nests_deeper(value: object, limit: int) -> bool:
    try:
        return nests_deeper(encode_json(value), limit)
    except RecursionError:
        return True
