"""Writes the messages of one thread, in order, from one state to the next."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from plait.actor.actor import Actor
from plait.actor.logs import log_error
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import PlaitError
from plait.parts.messages.changes import Changes
from plait.parts.messages.frames import Frame
from plait.parts.messages.history import History
from plait.parts.messages.message import Message, Role, StreamPlace, make_id, note_client_calls
from plait.parts.messages.message_hooks import NO_HOOKS, MessageHooks, check_message
from plait.parts.messages.overview import make_mark
from plait.parts.messages.run_stage import RunningAttempt, RunStage
from plait.parts.messages.state import LostStream, Numbers, QueueAttempts, State
from plait.parts.messages.tree import WHOLE, is_within
from plait.parts.stage import find_stage
from plait.state.commit import Commit
from plait.store.thread_rows import Record

__all__ = ["MessageWriter"]


class MessageWriter:
    """Holds the state of a thread's messages, and makes all changes to it.

    `agent` takes the queued messages, None if no agent is called for them; with `is_live`, clients get frames.
    """

    def __init__(self, actor: Actor, part: str, *, agent: str | None, is_live: bool, hooks: MessageHooks) -> None:
        self.actor = actor
        self.part = part
        self.agent = agent
        self.is_live = is_live
        self.hooks = hooks
        self.has_card = "card" in actor.kind.overrides
        # How many messages users have read, as far as that was written since the thread woke.
        self.read: dict[str, int] = {}
        self.state = State()
        self.numbers = Numbers(self.state.head)
        # The last attempt at the queue.
        self.attempt = RunningAttempt()
        # The drafts of runs.
        self.drafts = WeakSet[Any]()
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
        self.history = History(actor.records, part, self.streams)
        # Called with the frames for clients, in order, when they are durable.
        self.viewers: list[Callable[[list[Frame]], None]] = []
        # Called when a write is durable, also one without frames; and the time of the last write since the thread woke.
        self.watchers: list[Callable[[], None]] = []
        self.written_at = 0

    @property
    def taken(self) -> Collection[int]:
        """The positions in the queue of messages that runs have taken, until they commit or raise."""
        return {position for draft in self.drafts for position in draft.taken}

    def load(self, state: State) -> None:
        """Begin with a stored state."""
        self.state = state
        self.numbers = Numbers(state.head)

    def make(
        self, role: Role, content: str | None, *, id: str | None = None, is_new: bool = True, **fields: Any
    ) -> Message:
        """Return a new message at the next position. Raises ValueError and TypeError, and the error of its hook."""
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
        """Return a new message, or one whose text is complete, as its hook wants it. Raises the hook's error."""
        made = message
        if self.hooks is not NO_HOOKS:
            made = self.hooks.create(self.actor.thread, message, self.actor.limits.record)
        stage = find_stage(self.actor) if made.tool_calls else None
        return note_client_calls(made, stage.client_tools) if isinstance(stage, RunStage) else made

    def tells(self, message: Message) -> bool:
        """Whether clients see a message of the history."""
        path = self.state.path
        return self.is_live and not message.silent and (path is WHOLE or is_within(path, message.position))

    def find_staged(self) -> Changes | None:
        """Return the changes of the calling run; None if there are none."""
        stage = find_stage(self.actor)
        draft: Any = None if stage is None else stage.drafts.get(self)
        return None if draft is None else draft.changes

    def edit(self) -> Changes:
        """Return changes of the state, which `store` stores at once. Raises the errors of `Pipeline.check_open`."""
        self.actor.state.check_open()
        changes = self.make_changes(is_live=self.is_live)
        if changes.streams:
            changes.lose_streams(self.streams, self.lost)
        return changes

    def store(self, changes: Changes, *, undo: Callable[[], None] | None = None) -> Commit:
        """Store changes of the current state.

        If the write is rolled back, the earlier state is restored, and `undo` is called. Raises the errors of
        `Pipeline.store`; then nothing is changed.
        """
        before, edits = self.state, self.edits
        if self.agent is not None:
            changes.attempts = changes.attempts.follow(changes.oldest, read_due_clock())

        def take_back() -> None:
            self.state = before
            self.losses += 1
            self.edits += 1
            self.rewrites += 1
            if undo is not None:
                undo()

        self.written_at = read_wall_clock()
        # Set the state before the write, because the write also stores when the thread is due.
        self.state, records = changes.finish()
        self.edits += changes.is_edit
        self.rewrites += changes.is_rewrite
        try:
            commit = self.write_records(records, changes.frames, take_back)
        except BaseException:
            self.state, self.edits = before, edits
            raise
        if self.watchers:
            commit.then(lambda error: None if error else self.tell_watchers())
        if changes.lost:
            commit.then(lambda error: None if error else self._forget_lost(changes.lost))
        if self.hooks is not NO_HOOKS and (changes.created or changes.updated):
            commit.then(partial(self._call_after, changes))
        return commit

    def mark_read(self, user: str) -> Commit | None:
        """Store that a user has read all messages that were told; None if that is known."""
        told, before = self.state.head.told, self.read.get(user, 0)
        self.actor.state.check_open()
        if told == before:
            return None
        self.read[user] = told
        return self.actor.records.write([make_mark(self.part, user, told)], undo=self.read.clear)

    def succeed(self) -> bool:
        """End the attempt well if it has taken the oldest message, without the streams that earlier ones left."""

        if has_taken := self.state.head.attempts.has_taken(self.state.oldest):
            changes = self.edit()
            if not self.attempt.has_streamed:
                changes.remove_left()
            changes.attempts = changes.attempts.succeed(changes.oldest, read_due_clock())
            self.store(changes)
        return has_taken

    def tell_watchers(self) -> None:
        """Call the watchers."""
        for watcher in tuple(self.watchers):
            watcher()

    def make_changes(self, *, is_live: bool) -> Changes:
        """Return an edit of the state, which is not stored; with `is_live`, clients get frames of its changes."""
        limit, has_card = self.actor.limits.record, self.has_card
        return Changes(self.part, self.state, self.numbers, limit=limit, is_live=is_live, has_card=has_card)

    def clear_queue(self) -> list[Record]:
        """Forget the queue, and return the records that store this."""
        changes = self.make_changes(is_live=self.is_live)
        for message in self.state.queue:
            changes.cancel(message)
            changes.forget(message.id)
        changes.attempts = QueueAttempts()
        self.state, records = changes.finish()
        return records

    def write_records(self, records: Sequence[Record], frames: list[Frame], undo: Callable[[], None]) -> Commit:
        """Store records, and pass the frames that tell of them to the viewers when they are durable."""
        commit = self.actor.records.write(records, undo=undo)
        if frames and self.viewers:
            self.actor.state.after(partial(self._hand_on, frames))
        return commit

    # Inside

    def _call_after(self, changes: Changes, error: PlaitError | None) -> None:
        """Call the hooks for durable changes, each in a turn of its own."""
        if error is None:
            for name, work in self.hooks.find_after(self.actor.thread, changes.created, changes.updated):
                self.actor.begin(name, work, self._log)

    def _log(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            log_error(error, self.actor.key, None)

    def _forget_lost(self, lost: Iterable[StreamPlace]) -> None:
        for place in lost:
            self.lost.pop(place.position, None)

    def _hand_on(self, frames: list[Frame], error: PlaitError | None) -> None:
        for viewer in tuple(self.viewers) if error is None else ():
            viewer(frames)
