"""One write to the messages of a thread: its records, and the frames for clients. No I/O."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from plait.parts.messages.frames import DeleteFrame, EndFrame, Frame, InsertFrame, ResetFrame, TakeFrame, UpdateFrame
from plait.parts.messages.message import KEPT, Message, Outline, Status, StreamPlace, history_key
from plait.parts.messages.message_records import MessageRecords
from plait.parts.messages.overview import Overview
from plait.parts.messages.state import HEAD, TREE, LostStream, MessagesHead, Numbers, QueueAttempts, State, merge_queues
from plait.parts.messages.tree import WHOLE, Cut, find_path, is_within
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["MOST_TOLD", "Changes"]

MOST_TOLD: Final = 1000
"""The maximum number of hidden and shown messages that clients are told one by one."""


class Changes:
    """Makes a new state from a state, which is not changed; `finish` returns it.

    `limit` is the maximum bytes of a record. If `is_live`, clients get frames, but never for silent messages.
    """

    def __init__(self, part: str, state: State, numbers: Numbers, *, limit: int, is_live: bool, has_card: bool) -> None:
        head = state.head
        self._part = part
        self._state = state
        self._numbers = numbers
        self._is_live = is_live
        self._revision = head.revision
        self.records = MessageRecords(
            state.queue, last=head.last, lines=head.lines, queued_bytes=head.queued_bytes, limit=limit
        )
        # The streaming messages, and those among them that have no writer.
        self.streams: Sequence[StreamPlace] = head.streams
        self.lost: Sequence[StreamPlace] = ()
        self.keys = state.keys
        self.attempts = head.attempts
        self.agent = head.agent
        self.is_stopped = head.is_stopped
        # The branches, and the path of the active one: other messages are hidden, without frames and not counted.
        self.cuts = state.cuts
        self.path = state.path
        # The question that the next attempt answers again.
        self.again = state.asked_again
        self._has_card = has_card
        # The ids of the messages that were added with a key.
        self._sent: set[str] = set()
        # The written messages of the history, by id, and the ids of the removed ones.
        self.written: dict[str, Message] = {}
        self.removed: set[str] = set()
        # The messages that were made, with their whole text, and the messages that were changed.
        self.created: list[Message] = []
        self.updated: list[Message] = []
        # The last message after a removal, by the id of the removed one; and the last one when others are shown.
        self._lasts: dict[str, Message | None] = {}
        self._last_shown: Message | UnsetType | None = UNSET
        # The frames for clients, in order.
        self.frames: list[Frame] = []
        # Whether the history has changed elsewhere than at its end, and whether more has changed than a stream's end.
        self.is_edit = self.is_rewrite = False

    @property
    def oldest(self) -> int:
        """The position of the first message in the queue, 0 if there is none."""
        return self.records.queue[0].position if self.records.queue else 0

    @property
    def queue(self) -> Sequence[Message]:
        """The queued messages, in order."""
        return self.records.queue

    @property
    def asked_again(self) -> Message | None:
        """The question of the history that the next attempt answers again."""
        return self.again if self.attempts.again else None

    @property
    def rows(self) -> dict[int, Message]:
        """The written messages of the history, by position."""
        return {each.position: each for each in self.written.values()}

    def follow(self, state: State) -> bool:
        """Take over the queue of a later state; return False if others have changed messages that are changed here."""
        if state.path is not self._state.path:
            return False  # Other messages are hidden now.
        if state.queue is self._state.queue:
            return True
        queue = merge_queues(self._state.queue, state.queue, self.records.queue)
        known = {each.id for each in self._state.queue}
        if queue is None or any(each.id in self._sent and each.id not in known for each in state.queue):
            return False  # Or the message was also sent elsewhere, with the same key.
        self.records.queue, self._state, self.keys = queue, state, state.keys
        return True

    # The history

    def add(self, message: Message) -> Message:
        """Add a message at its position, and return the stored message."""
        message = self._join(message, InsertFrame)
        if message.status == "streaming":
            self.note_stream(message)
        else:
            self.created.append(message)
        return message

    def note_stream(self, message: Message) -> None:
        """Record that a message of the history is streaming."""
        self.streams = (*self.streams, StreamPlace.of(message))

    def change(self, after: Message) -> Message:
        """Replace a message of the history, and return the stored message."""
        self.is_edit = self.is_rewrite = True
        self.updated.append(after)
        self.records.write(after)
        self.written[after.id] = after
        if self.again is not None and after.id == self.again.id:
            self.again = after
        if self._tells(after):
            self._log(after.position)
            self.frames.append(UpdateFrame(self._revision, after))
        return after

    def end_stream(self, message: Message, pieces: Iterable[str], *, is_whole: bool) -> Message:
        """Write a streaming message with its final status, in place of the records with pieces of it.

        With `is_whole`, clients get the whole message, because it has more than their text.
        """
        self.records.write(message)
        self.written[message.id] = message
        self.records.update(dict.fromkeys(pieces))
        if message.status == "completed":
            self.created.append(message)
            self.attempts = self.attempts.without(message.position)
        for place in [each for each in self.streams if each.position == message.position]:
            self._end(place, message.status, message if is_whole else None)
        return message

    def remove(self, message: Message | StreamPlace, last: Message | None = None) -> None:
        """Remove a message of the history, or a failed stream; `last` is the last message then, if this one was it."""
        self.is_edit = self.is_rewrite = True
        self.records.remove(message)
        self.written.pop(message.id, None)
        self.removed.add(message.id)
        self.attempts = self.attempts.without(message.position)
        if isinstance(message, Message):
            self._lasts[message.id] = last
        self._count(message, message.status if isinstance(message, Message) else "failed", -1)
        self._tell_removed(message)

    def lose_streams(self, written: Container[int], lost: Mapping[int, LostStream]) -> None:
        """Store streaming messages that have no writer as failed; those at the positions in `written` have one."""
        self.lost = [each for each in self.streams if each.position not in written]
        for place in self.lost:
            failed: Message | None = None
            if (found := lost.get(place.position)) is not None:
                failed = replace(found.message, status="failed", taken=())
                data = encode_json(failed)
                if len(data) <= self.records.limit:  # Otherwise the limit was higher then, and the pieces stay.
                    self.records.update({history_key(place.position): data, **dict.fromkeys(found.pieces)})
            self._end(place, "failed", failed if found is not None and found.is_cut else None)

    def leave(self, message: Message, *, place: int, is_first: bool) -> None:
        """Note that the running attempt streams a message; the first one replaces the streams of the attempt before."""
        if self.attempts.process:
            if is_first:
                self.remove_left()
            left = (*self.attempts.left, StreamPlace.of(message))
            self.attempts = replace(self.attempts, left=left, place=place)

    def remove_left(self) -> None:
        """Remove the streams that the last attempt which streamed has left."""
        left, self.attempts = self.attempts.left, replace(self.attempts, left=(), place=0)
        for place in left:
            if place not in self.streams:
                self.remove(place)

    # Branches

    def cut(
        self,
        after: int,
        before: Message | None,
        last: Message | None,
        *,
        hidden: Sequence[Outline | Message],
        shown: Sequence[Outline | Message],
    ) -> None:
        """Begin a branch after a position, with the last messages before it that people see, and are told of.

        Clients are told of each message that is hidden then, and of each Message that is shown again; if these are more
        than MOST_TOLD, they read the newest ones again.
        """
        self.is_edit = self.is_rewrite = True
        is_reset = len(hidden) + len(shown) > MOST_TOLD
        for each in hidden:
            self._count(each, self._find_status(each), -1)
            if not is_reset:
                self._tell_removed(each)
        if self.cuts and self.cuts[-1].start == self._numbers.position:
            self.cuts = self.cuts[:-1]  # No message has a position after it.
        self.cuts = (*self.cuts, Cut(self._numbers.next_position(), after, 0 if before is None else before.position))
        self.path = find_path(self.cuts)
        self._last_shown = last
        for each in shown:
            self._count(each, self._find_status(each), 1)
            if not is_reset and isinstance(each, Message) and self._tells(each):
                self._log(each.position)
                self.frames.append(InsertFrame(self._revision, each))
        if is_reset and self._is_live:
            self._revision += KEPT + 1  # No client can read the revisions in between.
            self.frames.append(ResetFrame(self._revision))

    def ask_again(self, question: Message, now: int) -> None:
        """Have the next attempt, which is due at once, answer a question of the history again; this ends a stop."""
        self.again, self.is_stopped = question, False
        self.attempts = QueueAttempts(due=now, until=self.attempts.until, again=question.position)

    def take_again(self) -> None:
        """Follow an attempt that has taken the question that it answers again."""
        self.again, self.attempts = None, self.attempts.take_again()

    # The queue

    def queue_message(self, message: Message) -> Message:
        """Add a message to the queue at its position, and return the stored message; one of a user ends a stop.

        Messages of children do not.
        """
        self.is_stopped = self.is_stopped and (message.role != "user" or message.subagent_id is not None)
        message = self._put_pending(message, InsertFrame)
        self.created.append(message)
        self._count(message, message.status, 1)
        return message

    def change_pending(self, after: Message) -> Message:
        """Replace a message of the queue, and return the stored message."""
        after = self._put_pending(after, UpdateFrame)
        self.updated.append(after)
        return after

    def cancel(self, message: Message) -> None:
        """Remove a message from the queue."""
        self._drop_pending(message)
        self._tell_removed(message)

    def take(self, moves: Iterable[tuple[Message, int]]) -> list[Message]:
        """Move messages from the queue to positions of the history, and return them."""
        moves, revision = list(moves), self._revision + 1
        taken: list[tuple[str, int]] = []
        found: list[Message] = []
        self._drop_pending(*(before for before, _ in moves))
        for before, given in moves:
            # A run that was stopped may have taken it on a branch that is hidden now: no message is lost there.
            is_hidden = self.path is not WHOLE and not is_within(self.path, given)
            position = self._numbers.next_position() if is_hidden else given
            is_last = position > self.records.last
            message = replace(before, position=position, status="completed", revision=0)
            if self._tells(message):
                self._revision = revision
                taken.append((message.id, position))
                if is_last:
                    message = replace(message, revision=revision)
                else:
                    self.records.log(self._revision, position)
            self._put(message)
            found.append(message)
        if taken:
            self.frames.append(TakeFrame(revision, taken))
        return found

    def give_up(self, before: Message) -> Message:
        """Move a message from the queue to the history as failed, before the streams of the last attempt; return it."""
        self._drop_pending(before)
        position = (self.attempts.place if self.attempts.left else 0) or self._numbers.next_position()
        return self._join(replace(before, position=position, status="failed", revision=0), UpdateFrame)

    def has_sent(self, id: str) -> bool:
        """Whether a message was sent with a key that gives it an id."""
        return id in self._sent or self.keys.has(id)

    def remember(self, id: str) -> None:
        """Remember the id of a message that was sent with a key."""
        self._sent.add(id)
        self.keys, records = self.keys.add(id)
        self.records.update(records)

    def forget(self, id: str) -> None:
        """Forget that a message was sent with a key, if it was."""
        self.keys, records = self.keys.remove(id)
        self.records.update(records)

    # The end

    def make_overview(self) -> Overview:
        """Return the last message, and the number of told ones, after these changes."""
        head = self._state.head
        created, written = (list(filter(self._is_shown, each)) for each in (self.created, self.written.values()))
        return Overview(head.told, head.newest, created, written, lasts=self._lasts, shown=self._last_shown)

    def finish(self) -> tuple[State, list[Record]]:
        """Return the new state, and the records to store."""
        overview = self.make_overview() if self._has_card else None
        head = MessagesHead(
            position=self._numbers.position,
            at=self._numbers.at,
            last=self.records.last,
            revision=self._revision,
            lines=self.records.lines,
            counts=self.records.add_counts(self._state.head.counts),
            queued_bytes=max(self.records.queued_bytes, 0) if self.records.queue else 0,
            streams=self.streams,
            attempts=self.attempts,
            agent=self.agent,
            is_stopped=self.is_stopped,
            told=(overview or self._state.head).told,
            newest=(overview or self._state.head).newest,
        )
        self.records.update({HEAD: encode_json(head)})
        if self.cuts is not self._state.cuts:
            self.records.update({TREE: encode_json(self.cuts)})
        state = State(head, self.records.queue, self.keys, self.cuts, self.path, self.asked_again)
        records = self.records.finish(self._part)
        return state, records if overview is None else [*records, *overview.make_marks(self._part)]

    # Inside

    def _join(self, message: Message, make_frame: type[InsertFrame | UpdateFrame]) -> Message:
        """Put a message into the history, at its end or before, and return it as it is stored."""
        is_last = message.position > self.records.last
        if self._tells(message):
            self._revision += 1
            message = replace(message, revision=self._revision if is_last else 0)
            self.frames.append(make_frame(self._revision, message))
            if not is_last:
                self.records.log(self._revision, message.position)
        self._put(message)
        return message

    def _tells(self, message: Message | StreamPlace | Outline) -> bool:
        return self._is_live and not message.silent and (self.path is WHOLE or self._is_shown(message))

    def _is_shown(self, message: Message | StreamPlace | Outline) -> bool:
        """Whether a message is queued, or on the active branch."""
        is_pending = isinstance(message, Message) and message.status == "pending"
        return is_pending or is_within(self.path, message.position)

    def _find_status(self, message: Message | Outline) -> Status:
        """Return the status with which a message counts: a streaming one without a writer is failed."""
        is_lost = message.status == "streaming" and all(each.position != message.position for each in self.streams)
        return "failed" if is_lost else message.status

    def _end(self, place: StreamPlace, status: Status, whole: Message | None = None) -> None:
        self.is_edit = True
        self.streams = tuple(each for each in self.streams if each is not place)
        self._count(place, "streaming", -1)
        self._count(place, status, 1)
        if self._tells(place):
            self._log(place.position)
            end = EndFrame(self._revision, place.id, "failed" if status == "failed" else "completed")
            self.frames.append(end if whole is None else UpdateFrame(self._revision, whole))

    def _log(self, what: int | str) -> None:
        """Begin a revision, and log the position that it has written or the id that it has removed."""
        self._revision += 1
        self.records.log(self._revision, what)

    def _tell_removed(self, message: Message | StreamPlace | Outline) -> None:
        if self._tells(message):
            self._log(message.id)
            self.frames.append(DeleteFrame(self._revision, message.id))

    def _put(self, message: Message) -> None:
        self.is_rewrite |= self.records.add(message)  # The message was staged before the last one was stored.
        self.written[message.id] = message
        self._count(message, message.status, 1)

    def _put_pending(self, message: Message, make_frame: type[InsertFrame | UpdateFrame]) -> Message:
        if self._tells(message):
            self._revision += 1
            message = replace(message, revision=self._revision)
            self.frames.append(make_frame(self._revision, message))
        self.records.put_pending(message)
        return message

    def _drop_pending(self, *messages: Message) -> None:
        self.is_edit = True
        self.records.drop_pending(*messages)
        for message in messages:
            self._count(message, message.status, -1)

    def _count(self, message: Message | StreamPlace | Outline, status: Status, number: int) -> None:
        if self.path is WHOLE or self._is_shown(message):
            self.records.count(message, status, number)
