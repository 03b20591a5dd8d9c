"""The writes of a run to the messages of its thread, until they are committed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from plait.parts.messages.changes import Changes
from plait.parts.messages.message import Message, merge_metadata
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.run_stage import RunningAttempt, RunStage
from plait.parts.stage import Stage
from plait.parts.written import Draft

__all__ = ["MessagesDraft", "edit_message"]

T = TypeVar("T")

Bases = Mapping[str, Message | None]


class _Op(NamedTuple):
    """One operation of a run."""

    # Carries it out, with the messages of the history that were read.
    apply: Callable[[Changes, Bases], object]
    # The message that must be read again before it is stored, if any.
    id: str | None = None


class MessagesDraft(Draft):
    """The operations of one run on messages: tried at once, and carried out when they are stored."""

    def __init__(self, writer: MessageWriter, stage: Stage) -> None:
        self._writer = writer
        self._stage = stage
        writer.drafts.add(self)
        self._ops: list[_Op] = []
        # The messages of the history that the run has edited or removed, as the run has read them.
        self._seen: dict[str, Message | None] = {}
        # The same messages when they were read to be stored, and the value of `MessageWriter.edits` at that time.
        self._bases: Bases = {}
        self._read_at = -1
        # The operations, carried out on a copy of the messages, and the value of `MessageWriter.losses` at that time;
        # None if they must be tried again.
        self._trial: Changes | None = None
        self._tried_at = -1
        # The messages that the run has taken from the queue, with their new positions, by their old ones.
        self.taken: dict[int, Message] = {}
        # The positions of the messages that were written in pieces.
        self._streams: list[int] = []
        # Whether the run has raised, or its writes could not be stored.
        self._is_dropped = False

    @property
    def changes(self) -> Changes:
        """The messages as the run sees them. Raises the error of an operation that fails after others' changes."""
        writer, trial = self._writer, self._trial
        if trial is None or self._tried_at != writer.losses or not trial.follow(writer.state):
            trial = writer.make_changes(is_live=False)
            for op in self._ops:
                op.apply(trial, self._seen)
            self._trial, self._tried_at = trial, writer.losses
        return trial

    @property
    def is_over(self) -> bool:
        """Whether the run stores nothing more."""
        return self._is_dropped or self._stage.is_closed

    # Called by the run

    def add(self, message: Message) -> None:
        """Add a message to the history. Raises TooLarge and TypeError."""
        self.changes.add(message)  # A message that cannot be added raises here, and changes nothing.
        self._ops.append(_Op(lambda changes, _: changes.add(message)))

    def queue(self, message: Message, *, is_keyed: bool) -> None:
        """Add a message to the queue; only once, if it was sent with a key. Raises TooLarge and TypeError."""

        def queue(changes: Changes, _: Bases) -> None:
            if is_keyed and changes.has_sent(message.id):
                return  # The message was also sent outside of the run.
            changes.queue_message(message)
            if is_keyed:
                changes.remember(message.id)

        queue(self.changes, {})
        self._ops.append(_Op(queue))

    def take(self, limit: int | None) -> list[Message]:
        """Take the first queued messages that are not taken, and return them with their new positions.

        If an earlier attempt that took a message and later ones has failed, an attempt takes only that message. The
        question that is answered again comes first, and alone.
        """
        writer, attempt, taken = self._writer, self._attempt, self._writer.taken
        if (again := self.changes.asked_again) is not None:
            self._note_senders([again])
            self._do(lambda changes, _: changes.take_again())
            return [again]
        untaken = [each for each in self.changes.queue if each.position not in taken][:limit]
        if attempt is not None and untaken:
            if (attempt.taken_until or untaken[0].position) <= writer.state.head.attempts.until:
                untaken = untaken[: 0 if attempt.taken_until else 1]
            attempt.taken_until = untaken[-1].position if untaken else attempt.taken_until
        if not untaken:
            return []
        self._note_senders(untaken)
        places = {each.position: writer.numbers.next_position() for each in untaken}
        found = self._do(
            lambda changes, _: changes.take(
                [(each, places[each.position]) for each in changes.queue if each.position in places]
            )
        )
        self.taken.update(zip(places, found, strict=True))
        return found

    def find_taken(self) -> list[str]:
        """Return the ids of the taken messages, in order, for a message that is shown before the commit."""
        return [each.id for each in self.taken.values() if each.id in self.changes.written]

    def begin(self, changes: Changes, message: Message) -> None:
        """Note a message that is shown before the commit, in the write that adds it."""
        if self._trial is not None:
            self._trial.note_stream(message)
        if (attempt := self._attempt) is not None:
            place = min((each.position for each in self.taken.values()), default=0)
            changes.leave(message, place=place, is_first=not attempt.has_streamed)
            attempt.has_streamed = True

    def end(self, message: Message, pieces: Sequence[str], *, is_whole: bool) -> None:
        """Add a message that was written in pieces to the history, as `Changes.end_stream` does."""
        self._do(lambda changes, _: changes.end_stream(message, pieces, is_whole=is_whole))
        self._streams.append(message.position)

    def edit(self, before: Message, edit: Callable[[Message], Message]) -> Message:
        """Change a message, and return it. Raises TooLarge and TypeError."""

        def change(changes: Changes, bases: Bases) -> None:
            message, is_pending = _find(before.id, changes, bases)
            if message is not None:
                (changes.change_pending if is_pending else changes.change)(edit(message))

        self._do(change, before)
        return edit(before)

    def remove(self, message: Message, last: Message | None = None) -> None:
        """Remove a message, as `Changes.remove` does."""
        id = message.id

        def remove(changes: Changes, bases: Bases) -> None:
            found, is_pending = _find(id, changes, bases)
            if found is not None and is_pending:
                changes.cancel(found)
            elif found is not None:
                changes.remove(found, last)

        self._do(remove, message)

    def set(self, name: Literal["agent", "is_stopped"], value: Any) -> None:
        """Set an attribute of the changes."""
        self._do(lambda changes, _: setattr(changes, name, value))

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are operations to store."""
        return bool(self._ops)

    @property
    def is_ready(self) -> bool:
        """Whether the current versions of the changed messages are known."""
        return self._read_at == self._writer.edits or all(op.id is None for op in self._ops)

    async def prepare(self) -> None:
        """Read the changed messages. Raises StoreError."""
        read_at = self._writer.edits
        needed = [op.id for op in self._ops if op.id is not None]
        self._bases = {id: await self._writer.history.find(id) for id in needed}
        self._read_at = read_at

    def write(self) -> None:
        """Carry out the operations on the stored messages; if the write is rolled back, they are staged again."""
        if not self.is_ready:
            raise RuntimeError("a stored message was changed before the block: use `async with step.transaction():`")
        writer, ops, seen, bases = self._writer, self._ops, self._seen, self._bases
        taken, positions, streams = self.taken, self._streams, dict[int, Any]()

        def undo() -> None:
            if self._is_dropped:
                return
            self._ops, self._seen, self._trial = [*ops, *self._ops], seen | self._seen, None
            self.taken, self._streams = taken | self.taken, [*positions, *self._streams]
            writer.streams.update(streams)

        changes = writer.edit()
        for op in ops:
            op.apply(changes, bases)
        if self._attempt is not None:
            changes.attempts = changes.attempts.progress_to(changes.oldest)
        writer.store(changes, undo=undo)
        self._clear()
        streams.update({each: writer.streams.pop(each) for each in positions if each in writer.streams})

    def drop(self) -> None:
        """Forget the operations; a message that was shown while it was written becomes failed."""
        self._is_dropped, streams = True, self._writer.streams
        failed = [streams[position] for position in self._streams if position in streams]
        self._clear()
        for stream in failed:
            stream.fail()

    # Inside

    def _note_senders(self, untaken: Iterable[Message]) -> None:
        """Note who has sent the messages that the run takes."""
        if isinstance(self._stage, RunStage):
            drafts = self._stage.drafts.values()
            has_taken = any(isinstance(each, MessagesDraft) and each.taken for each in drafts)
            before = self._stage.senders if has_taken else ()  # Otherwise, the messages taken before are stored.
            self._stage.senders = {*before, *(each.sender for each in untaken)}

    @property
    def _attempt(self) -> RunningAttempt | None:
        """The attempt at this queue that the run is; None for other runs."""
        attempt = self._stage.attempt if isinstance(self._stage, RunStage) else None
        return attempt if attempt is self._writer.attempt else None

    def _do(self, apply: Callable[[Changes, Bases], T], target: Message | None = None) -> T:
        """Try an operation, and keep it; `target` is the message that it changes."""
        trial = self.changes
        if target is not None and target.status != "pending" and target.id not in trial.written:
            self._seen.setdefault(target.id, target)
        if target is not None:
            self._read_at = -1  # It has not been read to be stored.
        self._trial = None  # The trial is made again if the operation raises.
        result = apply(trial, self._seen)
        self._trial = trial
        self._ops.append(_Op(apply, None if target is None else target.id))
        return result

    def _clear(self) -> None:
        self._ops, self._seen, self.taken, self._streams, self._trial = [], {}, {}, [], None


def edit_message(message: Message, content: str | None, metadata: Mapping[str, Any]) -> Message:
    """Return a message with new content, if it is given, and with more metadata."""
    if content is not None:
        message = replace(message, content=content)
    return replace(message, metadata=merge_metadata(message.metadata, metadata)) if metadata else message


def _find(id: str, changes: Changes, bases: Bases) -> tuple[Message | None, bool]:
    """Return a message after some changes, and whether it is pending."""
    if (written := changes.written.get(id)) is not None:
        return written, False
    pending = next((each for each in changes.queue if each.id == id), None)
    return (bases.get(id), False) if pending is None else (pending, True)
