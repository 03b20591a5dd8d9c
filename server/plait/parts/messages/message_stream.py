"""A message that is shown and durable while it is being written."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import replace

from plait.author_code import Interrupted, find_error
from plait.errors import PlaitError
from plait.parts.encoding import check_type
from plait.parts.messages.call_inputs import CallInputs
from plait.parts.messages.frames import ChunkFrame, Frame, InputFrame
from plait.parts.messages.message import (
    INTERRUPTED,
    Message,
    Status,
    check_size,
    encode_message,
    history_key,
    make_own,
    make_thoughts_id,
    measure_message,
    merge_metadata,
    piece_key,
)
from plait.parts.messages.message_hooks import check_message
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.messages_draft import MessagesDraft
from plait.parts.messages.state import LostStream
from plait.state.commit import Commit
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["MessageStream"]

# Seconds between two writes, so that their cost does not grow with the number of pieces.
_INTERVAL: Final = 0.04
# The maximum number of records with pieces of a text; then the message is stored with its whole text.
_MOST_PIECES: Final = 1000


class MessageStream:
    """A message that is written in pieces: `async with messages.stream() as m: m.append("Hello")`.

    Text is stored and shown at most 40 ms after it was added, or when the store has written the text before it. When
    the block ends, the message is complete; in a run, it joins the history with the run. When the block or the run
    raises, or the block ends after the run, the message is failed, with its text. An interrupt completes it: its run
    stores what it has written so far.
    """

    def __init__(self, writer: MessageWriter, message: Message, draft: MessagesDraft | None) -> None:
        self._writer = writer
        self._message = message
        # The draft of its run, if it is written in one.
        self._draft = draft
        self._pieces: list[str] = []
        self._text = ""
        # The records with pieces of the text have the numbers from the first one up to the next one.
        self._first = self._next = 0
        # The bytes of the whole record, and the number of characters that clients have.
        self._size = len(encode_json(message)) + 16
        self._told = 0
        self._length = 0
        self._commit: Commit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wrote_at = 0.0
        self._is_open = False
        # The error for further text, if none can be added.
        self._error: PlaitError | None = None
        # The message with the data of `finish`, or of a hook, which clients do not have.
        self._whole: Message | None = None
        # The characters that are kept of a text whose block raises; None for all.
        self.most_failed: int | None = None
        # The message with the thoughts of the model, once it has told some.
        self._thoughts: MessageStream | None = None
        # The calls of tools that the model is writing.
        self._inputs = CallInputs()

    @property
    def id(self) -> str:
        """The id of the message."""
        return self._message.id

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]] | None:
        """The calls of tools so far, which clients were told."""
        return self._inputs.calls

    @property
    def text(self) -> str:
        """The text so far."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    def append(self, text: str) -> None:
        """Add text. Raises TooLarge above `Limits.record`, and StoreError when an earlier piece could not be stored."""
        self._check_open()
        check_type("text", text, str)
        size = self._size + len(encode_json(text)) - 2
        check_size(size, self._writer.actor.limits.record)
        self._size = size
        self._length += len(text)
        self._pieces.append(text)
        self._wake()

    def add_input(self, call: str, name: str, text: str) -> None:
        """Show text of the arguments of a call of the tool `name` while a model writes it, to clients that look.

        It is not stored: `finish` gives the message its calls, with the same ids. Raises what `append` raises.
        """
        self._check_open()
        if self._writer.tells(self._message):
            self._inputs.add(call, name, text)
            check_size(self._size + self._inputs.size, self._writer.actor.limits.record)
            self._wake()

    def think(self, text: str) -> None:
        """Show what the model thinks, in a message that is nested in this one; it ends with this one, and like it.

        Raises what `append` raises.
        """
        self._check_open()
        if self._thoughts is None:
            thoughts = MessageStream(self._writer, self._make_thoughts(), self._draft)
            thoughts.most_failed = self.most_failed
            thoughts._begin()
            self._thoughts = thoughts
        self._thoughts.append(text)

    def finish(
        self, *, tool_calls: Sequence[Mapping[str, Any]] | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Give the message its calls of tools, and more metadata, which are stored with its end; no text can follow.

        A message that fails gets neither. Raises ValueError and TypeError for invalid values, and what `append` raises.
        """
        self._check_open()
        known = self._message
        added = check_message(replace(known, tool_calls=tool_calls, metadata={} if metadata is None else metadata))
        whole = replace(added, metadata=merge_metadata(known.metadata, added.metadata))
        check_size(self._size + measure_message(whole) - measure_message(known), self._writer.actor.limits.record)
        self._whole = whole

    async def __aenter__(self) -> Self:
        if self._commit is not None:
            raise RuntimeError("this stream has been entered before")
        self._begin()
        return self

    def _begin(self) -> None:
        writer, message, draft = self._writer, self._message, self._draft

        def undo() -> None:
            writer.streams.pop(message.position, None)

        writer.streams[message.position] = self
        try:
            changes = writer.edit()
            if draft is not None:
                draft.begin(changes, message)
            message = changes.add(message)
            self._commit = writer.store(changes, undo=undo)
        except BaseException:
            undo()
            raise
        self._message = message
        self._commit.then(self._continue)
        self._is_open = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._stop()
        if self._thoughts is not None:
            try:
                await self._thoughts.__aexit__(kind, error, trace)
            except BaseException as failure:
                self.fail(failure)
                raise
        is_over = self._draft is not None and self._draft.is_over
        is_kept = error is None or self._is_interrupt(error)
        if not is_kept or self._error is not None or is_over:
            self.fail(error)
            if error is None and self._error is not None:
                raise self._error
            return
        if error is not None:
            known = self._whole or self._message
            self._whole = replace(known, metadata=merge_metadata(known.metadata, make_own({INTERRUPTED: True})))
        writer, message = self._writer, self._finish()
        self._write()
        if self._draft is not None:
            self._draft.end(message, self._list_pieces(), is_whole=self._whole is not None)
            return
        changes = writer.edit()
        changes.end_stream(message, self._list_pieces(), is_whole=self._whole is not None)
        commit = writer.store(changes)
        writer.streams.pop(message.position, None)
        await commit

    def fail(self, error: BaseException | None = None) -> None:
        """End the message as failed, with its text; after an error, with the part of the text that is kept."""
        self._stop()
        writer = self._writer
        position = self._message.position
        if position not in writer.streams:
            return
        with suppress(PlaitError):  # Readers see the message as failed in any case, because it has no writer.
            message = self._finished("streaming")
            is_cut = isinstance(error, Exception) and self.most_failed is not None and self._length > self.most_failed
            try:
                if is_cut:
                    message = replace(message, content=f"{self.text[: self.most_failed]}…")
                else:
                    self._write()
            finally:
                writer.lost[position] = LostStream(message, self._list_pieces(), is_cut)
                writer.streams.pop(position, None)
            writer.store(writer.edit())

    # Inside

    def _is_interrupt(self, error: BaseException) -> bool:
        """Whether the run of the message was interrupted, and stores what it has written so far."""
        return self._draft is not None and isinstance(find_error(error, "the run", Interrupted), Interrupted)

    def _make_thoughts(self) -> Message:
        """Return the message for the thoughts, without a text. Raises the error of its hook."""
        message = self._message
        return self._writer.make(
            "assistant",
            "",
            id=make_thoughts_id(message.id),
            name="reasoning",
            parent_id=message.id,
            depth=message.depth + 1,
            silent=message.silent,
            status="streaming",
            taken=message.taken,
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("a message can only be written in the block of its stream: `async with … as m:`")
        if self._whole is not None:
            raise RuntimeError("nothing can be added to a message after `finish`")
        if self._error is not None:
            raise self._error

    def _finish(self) -> Message:
        """Return the message with its whole text. Raises the error of its hook; then the message is failed."""
        message = self._finished("completed", self._whole)
        try:
            made = self._writer.check(message)
        except BaseException as error:
            self.fail(error)
            raise
        if made is not message:
            self._whole = made
        return made

    def _finished(self, status: Status, whole: Message | None = None) -> Message:
        return replace(whole or self._message, content=self.text, status=status, taken=())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        """Write what was added, unless a write of this stream is planned or has not ended."""
        if self._timer is None and (self._commit is None or self._commit.is_done):
            self._plan()

    def _plan(self) -> None:
        """Write the added text, now or when enough time has passed since the last write."""
        loop = self._writer.actor.loop
        wait = self._wrote_at + _INTERVAL - loop.time()
        if wait <= 0:
            self._write_safely()
        else:
            # An empty context: the timer belongs to no run.
            self._timer = loop.call_later(wait, self._write_safely, context=Context())

    def _write_safely(self) -> None:
        self._timer = None
        try:
            self._write()
            self._tell_inputs()
        except PlaitError as error:
            self._error = error

    def _tell_inputs(self) -> None:
        """Show the arguments that were added since the last time, when all before them is durable."""
        if inputs := self._inputs.take():
            writer, self._wrote_at = self._writer, self._writer.actor.loop.time()
            frames: list[Frame] = [InputFrame(writer.state.head.revision, self.id, each) for each in inputs]
            commit = self._commit = writer.write_records([], frames, lambda: None)
            commit.then(self._continue)

    def _write(self) -> None:
        """Store and show the text that was added since the last write."""
        start, text, message = self._told, self.text, self._message
        if start == len(text):
            return
        writer, first = self._writer, self._first

        def undo() -> None:
            self._told, self._first = min(self._told, start), min(self._first, first)

        frames: list[Frame] = []
        if writer.tells(message):
            revision = writer.state.head.revision
            frames = [ChunkFrame(revision, message.id, message.position, start, text[start:])]
        records = [Record(writer.part, piece_key(message.position, self._next), encode_json(text[start:]))]
        if self._next - first >= _MOST_PIECES:
            whole = encode_message(replace(message, content=text), writer.actor.limits.record)
            records = [Record(writer.part, key, None) for key in self._list_pieces()]
            records.append(Record(writer.part, history_key(message.position), whole))
            self._first = self._next + 1
        self._next += 1
        self._told, self._wrote_at = len(text), writer.actor.loop.time()
        try:
            commit = self._commit = writer.write_records(records, frames, undo)
        except BaseException:
            undo()
            raise
        commit.then(self._continue)

    def _list_pieces(self) -> list[str]:
        """Return the keys of the records with pieces of the text."""
        return [piece_key(self._message.position, number) for number in range(self._first, self._next)]

    def _continue(self, error: PlaitError | None) -> None:
        if error is not None:
            self._error = error
        elif self._is_open and self._timer is None and (self._told < self._length or self._inputs.has_new):
            self._plan()
