"""Writes the messages of one thread, in order, from one state to the next."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from plait.actor.actor import Actor
from plait.actor.logs import log_error
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import PlaitError
from plait.parts.messages.changes import Changes
from plait.parts.messages.frames import Frame
from plait.parts.messages.history import History
from plait.parts.messages.message import Message, Role, make_id
from plait.parts.messages.message_hooks import MessageHooks, check_message
from plait.parts.messages.state import LostStream, Numbers, QueueAttempts, State, StreamPlace
from plait.parts.messages.tool_calls import note_client_calls
from plait.parts.stage import find_stage
from plait.state.commit import Commit
from plait.store.thread_rows import Record

__all__ = ["MessageWriter"]

T = TypeVar("T")


class MessageWriter:
    """Holds the state of a thread's messages, and makes all changes of it.

    `agent` takes the queued messages, None if no agent is called for them; with `is_live`, clients get frames.
    """

    def __init__(self, actor: Actor, part: str, *, agent: str | None, is_live: bool, hooks: MessageHooks) -> None:
        self.actor = actor
        self.part = part
        self.agent = agent
        self.is_live = is_live
        self.hooks = hooks
        self.state = State()
        self.numbers = Numbers(self.state.head)
        # The positions in the queue of messages that a run has taken, until it commits or raises.
        self.taken: set[int] = set()
        # Of the running attempt: the last position in the queue that it has taken, and whether it has streamed.
        self.taken_until = 0
        self.has_streamed = False
        # The messages that are being written, by position: streams.
        self.streams: dict[int, Any] = {}
        # The streaming messages that have no writer, by position, until the next write stores them as failed.
        self.lost: dict[int, LostStream] = {}
        # The number of writes that were rolled back.
        self.losses = 0
        # Changes whenever an existing message of the history or the queue changes.
        self.edits = 0
        # Changes whenever the history changes elsewhere than at its end, and more than a stream ends.
        self.rewrites = 0
        self.history = History(actor.records, part, self.streams.__contains__)
        # Called with the frames for clients, in order, when they are durable.
        self.viewers: list[Callable[[list[Frame]], None]] = []

    def load(self, state: State) -> None:
        """Begin with a stored state."""
        self.state = state
        self.numbers = Numbers(state.head)

    def make(
        self, role: Role, content: str | None, *, id: str | None = None, is_new: bool = True, **fields: Any
    ) -> Message:
        """Return a new message at the next position. Raises ValueError and TypeError, and what its hook raises."""
        position = self.numbers.next_position()
        made = Message(
            id=id or make_id(position),
            role=role,
            content=content,
            position=position,
            created_at=self.numbers.next_time(read_wall_clock()),
            **fields,
        )
        made = check_message(made)
        return self.check(made) if is_new else made

    def check(self, message: Message) -> Message:
        """Return a message that is made, or whose text is complete, as its hook wants it. Raises what that raises."""
        made = self.hooks.create(self.actor.thread, message, self.actor.limits.record)
        stage = find_stage(self.actor) if made.tool_calls else None
        return made if stage is None else note_client_calls(made, stage.client_tools)

    def write(self, work: Callable[[Changes], T], *, undo: Callable[[], None] | None = None) -> tuple[T, Commit]:
        """Store the changes that `work` makes, and return its result.

        If the write is rolled back, the earlier state is restored, and `undo` is called. Raises what `work` and
        `Pipeline.store` raise; then nothing is changed.
        """
        self.actor.state.check_open()
        before, edits = self.state, self.edits
        changes = self.make_changes(is_live=self.is_live)
        lost = [each for each in before.head.streams if each.position not in self.streams]
        changes.lose_streams(lost, self.lost)
        result = work(changes)
        if self.agent is not None:
            changes.attempts = changes.attempts.follow(changes.oldest, read_due_clock())

        def take_back() -> None:
            self.state = before
            self.losses += 1
            self.edits += 1
            self.rewrites += 1
            if undo is not None:
                undo()

        # Set the state before the write, which also stores when the thread is due.
        self.state, records = changes.finish()
        self.edits += changes.is_edit
        self.rewrites += changes.is_rewrite
        try:
            commit = self.write_records(records, changes.frames, take_back)
        except BaseException:
            self.state, self.edits = before, edits
            raise
        if lost:
            commit.then(lambda error: None if error else self._forget_lost(lost))
        if self.hooks.is_after and (changes.created or changes.updated):
            commit.then(partial(self._call_after, changes))
        return result, commit

    def succeed(self, changes: Changes) -> None:
        """End an attempt well, without what earlier ones left."""
        if not self.has_streamed:
            changes.remove_left()
        changes.attempts = changes.attempts.succeed(changes.oldest, read_due_clock())

    def make_changes(self, *, is_live: bool) -> Changes:
        """Return changes of the state, which nothing has stored; with `is_live`, clients get frames of them."""
        return Changes(self.part, self.state, self.numbers, limit=self.actor.limits.record, is_live=is_live)

    def clear_queue(self) -> list[Record]:
        """Forget what is queued, and return the records that store this."""
        changes = self.make_changes(is_live=self.is_live)
        for message in self.state.queue:
            changes.cancel(message)
            changes.forget(message.id)
        changes.attempts = QueueAttempts()
        self.state, records = changes.finish()
        return records

    def write_records(self, records: Sequence[Record], frames: list[Frame], undo: Callable[[], None]) -> Commit:
        """Store records, and pass the frames that tell of them to the viewers when they are durable."""
        tell = partial(self._hand_on, frames) if frames and self.viewers else None
        return self.actor.records.write(records, undo=undo, tell=tell)

    def forget(self, taken: Iterable[int], streams: Iterable[Any]) -> None:
        """Record that a run has released messages that it took, and that streams have ended."""
        self.taken.difference_update(taken)
        for stream in streams:
            self.streams.pop(stream.position, None)

    # Inside

    def _call_after(self, changes: Changes, error: PlaitError | None) -> None:
        """Call the hooks for what is durable, each in a turn of its own."""
        if error is None:
            for name, work in self.hooks.find_after(self.actor.thread, changes.created, changes.updated):
                self.actor.begin(name, work, self._log)

    def _log(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            log_error(error, self.actor.key, None)

    def _forget_lost(self, lost: Iterable[StreamPlace]) -> None:
        for place in lost:
            self.lost.pop(place.position, None)

    def _hand_on(self, frames: list[Frame]) -> None:
        for viewer in tuple(self.viewers):
            viewer(frames)
