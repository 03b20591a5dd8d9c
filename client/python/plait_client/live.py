"""Keeps a session alive, and passes its events to the tasks that wait for them."""

import asyncio
import logging
from typing import Any, Final
from weakref import WeakSet

from plait_client.carrier import Carrier
from plait_client.conversations import Delivered, PartChanged, PartEvent, Undelivered
from plait_client.errors import ClientError, Closed, Refused, Unanswered, close_message
from plait_client.events import Acked, CallLost, Changed, Dropped, Joined, Nacked, SessionEvent
from plait_client.fold import Pending
from plait_client.listeners import Changes, Listeners
from plait_client.outcomes import Calls, Deliveries, Outcomes, refusal
from plait_client.queries import Queries
from plait_client.sent_messages import SentMessage
from plait_client.session import Session
from plait_client.target import Target, no_token
from plait_schemas import messages
from plait_schemas.codec import decode_json

__all__ = ["Live"]

logger = logging.getLogger(__name__)

_CLOSED: Final = 1000
_FAILED: Final = 1011
_CLOSING: Final = 5.0
"""The seconds in which a closing client may still send, and get answers."""


class Live:
    """Owns the task that carries the session's frames, until `close`."""

    def __init__(self, session: Session, target: Target) -> None:
        self.session: Final = session
        self.outcomes: Final = Outcomes()
        self.deliveries: Final = Deliveries()
        self.listeners: Final = Listeners()
        self.followers: Final[WeakSet[Changes[Any]]] = WeakSet()
        self.carrier: Final = Carrier(session, target, tell=self._tell, receive=self._receive_binary)
        self.calls: Final = Calls(session, self.carrier.wake, self.ending)
        self.queries: Final = Queries(session, self.carrier.wake)
        # Set, and replaced by a new event, whenever anything may have changed.
        self._news = asyncio.Event()
        # The error that ended the session, if it was not a close code.
        self._failure: Exception | None = None
        self._complaint = ""
        self._renewing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name="plait client")

    def check_open(self) -> None:
        """Raise the error that has ended the session, if it has ended."""
        ending = self.ending()
        if ending is not None:
            raise ending

    def ending(self) -> Exception | None:
        """Return the error that has ended the session; None while it goes on."""
        code = self.session.stopped
        if code is None:
            return None
        return self._failure or Closed(code, close_message(code, "" if self.is_closed else self.trouble))

    @property
    def trouble(self) -> str:
        """The trouble since the last join, as a text for people."""
        return self._complaint or self.carrier.trouble

    @property
    def is_closed(self) -> bool:
        """Whether the client itself was closed."""
        return self.session.stopped == _CLOSED

    def tell_soon(self) -> None:
        """Send the session's frames and report its events soon, but not within this call."""
        asyncio.get_running_loop().call_soon(self._tell)

    def refused(self, error: Refused) -> None:
        """Report a change that was refused here, but not within this call."""
        asyncio.get_running_loop().call_soon(self.listeners.call, "refusal", error)

    async def next_news(self) -> None:
        """Wait until anything may have changed. Raises the error that has ended the session."""
        self.check_open()
        await self._news.wait()

    async def until_joined(self) -> None:
        """Wait until the thread is joined. Raises the error that has ended the session."""
        while self.session.status != "online":
            await self.next_news()

    async def close(self) -> None:
        """Send the waiting frames, wait for the answers while there is a connection, and end."""
        try:
            if not self.carrier.finish():
                self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CLOSING)
        finally:
            tasks = [task for task in (self._task, self._renewing) if task is not None]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:
                self._end(_CLOSED)

    def abandon(self) -> None:
        """Close the session in a place where no task can wait for that."""
        if self._task.done():
            self._end(_CLOSED)
        elif self._closing is None:
            self._closing = asyncio.create_task(self.close(), name="plait client closing")

    # Events

    async def _run(self) -> None:
        try:
            await self.carrier.run()
        except asyncio.CancelledError:
            if not self.carrier.is_finishing:
                self._fail(ClientError("the task that carries the connection was cancelled"))
            raise
        except Exception as error:
            # The error is from the function that fetches the token, or a ClientError about a feature that the server
            # lacks.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._end(_FAILED)

    def _end(self, code: int) -> None:
        if self.session.stopped is None:
            self.session.stop(code)
        self._tell()

    def _tell(self) -> None:
        for event in self.session.take_events():
            self._hand_over(event)
        ending = self.ending()
        if ending is not None:
            self._give_up(ending)
            for follower in self.followers:
                follower.wake()
        self.carrier.wake()
        self.listeners.call("news", self.session)
        # Waiting tasks check whether their condition is fulfilled.
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _give_up(self, ending: Exception) -> None:
        """Refuse the pushes and messages that will get no answer, and end the queries."""
        self.queries.end(ending)
        waiting: list[Pending | SentMessage] = [*self.outcomes.waiting, *self.deliveries.waiting]
        for each in waiting:
            if self.is_closed:
                reason = f": {self.trouble}" if self.trouble else ""
                message = f"the client was closed before the server had answered{reason}"
                self._refuse(each, Unanswered("unanswerable", message))
            elif isinstance(each, SentMessage):
                self.deliveries.refuse(each, ending)
            else:
                self.outcomes.refuse(each, ending)

    def _refuse(self, what: Pending | SentMessage, error: Refused | Unanswered) -> None:
        if isinstance(what, SentMessage):
            self.deliveries.refuse(what, error)
        else:
            self.outcomes.refuse(what, error)
        self.listeners.call("refusal", error)

    def _hand_over(self, event: SessionEvent) -> None:
        match event:
            case Joined():
                self._complaint = ""
                self.queries.join()
            case Changed():
                for follower in self.followers:
                    follower.put(event)
            case Acked(push, version):
                self.outcomes.accept(push, version)
            case Nacked(push, answer):
                self._refuse(push, refusal(answer))
            case PartChanged() | Delivered() | Undelivered():
                self._hand_over_part(event)
            case messages.Error(ref=None, message=message):
                self._complaint = message
            case messages.Result() | messages.Error() | CallLost() | Dropped():
                self.calls.put(event)
                self.queries.put(event)
            case messages.Event(name=name, data=data, from_=sender):
                self.listeners.call(("event", name), (decode_json(data), sender))
            case messages.Message(data=data):
                self.listeners.call("message", decode_json(data))
            case messages.PresenceDiff():
                self.listeners.call("presence", self.session.presence)
            case messages.AuthExpiring():
                self._renew()

    def _hand_over_part(self, event: PartEvent) -> None:
        match event:
            case PartChanged(part):
                self.listeners.call(("part", part), self.session.conversations.show(part))
            case Delivered(message, id):
                self.deliveries.accept(message, id)
            case Undelivered(message, answer):
                self._refuse(message, Refused(answer.code, answer.message, answer.path))

    def _receive_binary(self, data: bytes) -> None:
        self.listeners.call("message", data)

    def _renew(self) -> None:
        is_busy = self._renewing is not None and not self._renewing.done()
        if self.carrier.target.has_fresh_tokens and not is_busy:
            self._renewing = asyncio.create_task(self._show_fresh_token(), name="plait client token")

    async def _show_fresh_token(self) -> None:
        try:
            token = await self.carrier.fetch_token()
        except Exception as error:
            self._complaint = no_token(error)
            logger.exception("no fresh token could be fetched")
        else:
            self._complaint = ""
            if token is not None:
                self.session.auth(token)
        self.tell_soon()
