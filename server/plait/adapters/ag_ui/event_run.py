"""One run that a client of AG-UI has started, as the events that its viewers get."""

import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from ag_ui.core import (
    BaseEvent,
    EventType,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
)

from plait.actor.thread import Thread
from plait.adapters.ag_ui.event_feed import EventFeed, FeedRun, RunEvent
from plait.adapters.ag_ui.event_frames import EncodedEvent, Opened, encode, encode_custom
from plait.adapters.ag_ui.shown_messages import MessagesSnapshot
from plait.agents.run import Interruption
from plait.errors import CallFailed, PlaitError, StoreError, admit_change
from plait_schemas.codec import decode_json
from plait_schemas.encoding import encode_given

__all__ = ["EventRun", "MessagesOpener"]

# The events that only plait sends.
_RESERVED: Final = frozenset(
    {
        EventType.RUN_STARTED,
        EventType.RUN_FINISHED,
        EventType.RUN_ERROR,
        EventType.STATE_SNAPSHOT,
        EventType.STATE_DELTA,
    }
)


MessagesOpener = Callable[[Thread[Any]], Awaitable[MessagesSnapshot]]
"""Returns a thread's messages in a run, with those that the run's client adds."""


class EventRun(FeedRun):
    """Turns what an agent yields and emits, and its outcome, into events."""

    def __init__(
        self, feed: EventFeed, given: RunAgentInput, claim: object = None, opener: MessagesOpener | None = None
    ) -> None:
        super().__init__(given.run_id, claim)
        self._feed = feed
        self._thread_id = given.thread_id
        # The client's answers to the interrupts of earlier runs.
        self.resume = given.resume or ()
        # Called when the run begins, and its result: the messages of the thread.
        self._opener = opener
        self.messages: MessagesSnapshot | None = None
        # The client's ids of the messages that it adds, and whether they were queued, as another run was under way.
        self.added: Collection[str] = ()
        self.is_queued = False
        # The interrupts that the client has to answer.
        self.asked: list[Interrupt] = []
        # The frame of the error with which the run was refused; only the viewer that has requested the run gets it.
        self.refusal: bytes | None = None
        # Whether the client needs the state, because its own was refused.
        self.shows_state = False
        # Whether a change of the state that came with the request is stored.
        self.has_pushed = False
        self._has_started = False
        self._is_over = False
        self._is_cancelled = False
        # The open items, which must end before the run, in order; and the text that is being streamed.
        self._open: dict[Opened, None] = {}
        self._text: Opened | None = None

    async def start(self, thread: Thread[Any]) -> None:
        """Begin the feed's run, before the agent begins. Raises what the opener raises."""
        if self._opener is not None:
            self.messages = await self._opener(thread)
            self.size = len(self.messages.frame)
        self._has_started = True
        self._feed.actor.state.after(lambda _: self._feed.begin(self, self.first_frame()))

    @property
    def is_answered(self) -> bool:
        """Whether the run before this one has taken and answered the client's messages."""
        return self.is_queued and self.messages is not None and self.messages.is_answered

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or was refused."""
        return self._is_over

    def first_frame(self) -> bytes:
        """Return the frame of RUN_STARTED."""
        return encode(RunStartedEvent(thread_id=self._thread_id, run_id=self.id, protocol_version="1.0"))

    def refuse(self, error: PlaitError) -> None:
        """Send the current state, and end the run before it has begun."""
        self.shows_state = True
        self._fail_with(error)

    def emit(self, *events: BaseEvent) -> None:
        """Encode events at once, and send them when all changes made so far are durable.

        Raises ValueError for an event that cannot be sent.
        """
        encoded = [_encode(event) for event in events]
        self._feed.actor.state.after(lambda error: None if error else self._put_all(encoded))

    def show(self, *events: BaseEvent) -> None:
        """Send events of durable changes."""
        for event in events:
            self._put_event(event)

    def take(self, what: str, value: Any) -> Callable[[], None]:
        """Return the function that sends a chunk, as the sink of a stream. Raises TypeError or ValueError."""
        match what, value:
            case "chunk", str():
                value.encode()
                return partial(self._put_text, value)
            case "chunk", Interruption():
                return self._cancel
            case "chunk", BaseEvent():
                return partial(self._put_all, [_encode(value)])
            case "chunk", _:
                return partial(self._put, encode_custom("chunk", value))
            case "error", _:
                return partial(self._fail_with, StoreError(value))
            case _:
                return lambda: None

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the run with its outcome."""
        if error is not None:
            self._fail_with(error)
            return
        if not self._has_started:  # The run was interrupted before it began.
            self._has_started = True
            self._feed.begin(self, self.first_frame())
        outcome: RunFinishedCancelledOutcome | RunFinishedInterruptOutcome | None = None
        if self._is_cancelled or isinstance(result, Interruption):
            outcome, result = RunFinishedCancelledOutcome(), None
        elif self.asked:
            outcome = RunFinishedInterruptOutcome(interrupts=self.asked)
        try:
            plain = decode_json(encode_given(result))
            ended = RunFinishedEvent(thread_id=self._thread_id, run_id=self.id, result=plain, outcome=outcome)
            finished = encode(ended)
        except (TypeError, ValueError) as failure:
            self._fail_with(CallFailed(f"the result is not JSON: {failure}"))
            return
        if isinstance(plain, str) and plain:
            self._put_text(plain)
        for opened in reversed(tuple(self._open)):
            self._put_event(opened.end())
        self._end(finished)

    # Inside

    def _cancel(self) -> None:
        self._is_cancelled = True

    def _put_text(self, text: str) -> None:
        """Append to the text that is being streamed, or begin a text."""
        if not text:
            return
        if self._text is None:
            start = EncodedEvent.make(
                TextMessageStartEvent(message_id=f"msg_{secrets.token_hex(16)}", role="assistant")
            )
            self._put_encoded(start)
            self._text = start.opens
        assert self._text is not None
        self._put_event(TextMessageContentEvent(message_id=self._text.id, delta=text))

    def _put_all(self, events: Iterable[EncodedEvent]) -> None:
        for event in events:
            if self._text is not None and event.type in (EventType.TEXT_MESSAGE_START, EventType.TOOL_CALL_START):
                # Text that is yielded after this event is another message.
                self._put_event(self._text.end())
            self._put_encoded(event)

    def _put_event(self, event: BaseEvent) -> None:
        self._put_encoded(EncodedEvent.make(event))

    def _put_encoded(self, event: EncodedEvent) -> None:
        if event.opens is not None:
            self._open[event.opens] = None
        elif event.of is not None and event.is_end:
            self._open.pop(event.of, None)
            if event.of == self._text:
                self._text = None
        self._put(event.frame, opens=event.opens, of=event.of)

    def _put(self, frame: bytes, *, opens: Opened | None = None, of: Opened | None = None) -> None:
        if not self._is_over:
            self._feed.put(RunEvent(self, frame, opens=opens, of=of))

    def _fail_with(self, failure: BaseException) -> None:
        error = self._feed.actor.explain(failure)
        if self.has_pushed:
            error = admit_change(error, "the request")
        self._end(encode(RunErrorEvent(message=str(error), code=error.code)))

    def _end(self, frame: bytes) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._has_started:
            self._feed.put(RunEvent(self, frame, is_last=True))
        else:
            self.refusal = frame
            self._feed.forget(self)
            self._feed.wake()


def _encode(event: BaseEvent) -> EncodedEvent:
    if event.type in _RESERVED:
        raise ValueError(f"{event.type.value} cannot be emitted: plait sends it, from the run and its thread's state")
    return EncodedEvent.make(event)
