"""The contents of a thread's files: receives, reads and removes them, a record a chunk."""

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from plait.actor.actor import Actor
from plait.errors import NotFound, TooLarge
from plait.parts.files.file import CHUNK, Content, File, Upload, cut_content
from plait.state.commit import Commit
from plait.state.thread_records import Change, Table, Values
from plait.state.timer import Timed
from plait.store.thread_rows import Record, RecordRange

__all__ = ["MARK", "Contents"]

MARK: Final = "u/"
"""The prefix of the keys of the marks of contents without a path: those that are being received or removed."""

# The chunks that may be on their way to the store, and the chunks that one write removes.
_AHEAD: Final = 4
_AT_ONCE: Final = 4
# Seconds after a failure to remove contents.
_PAUSE: Final = 5.0


_DUE: Final = 2
"""The due time of a thread with a mark: at once."""


class Contents(Timed):
    """The chunks of one thread's files, `c/<content>/<number>`.

    Content without a path is marked, and removed as soon as nothing in this process uses it. While there is a mark, the
    thread is due, so content that a crash has left is removed even if the thread is not used again.
    """

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        # The marked contents, with the number of their chunks; 0 if the number is not known.
        self._marks = Values[str, int]()
        self._table = Table(part, MARK, int, self._marks.set)
        # The contents that are received, or being received, and have no path yet, with their bytes so far.
        self._uploads = Values[str, int]()
        # The number of readers of each content that is read.
        self._readers: dict[str, int] = {}
        self._is_sweeping = False

    def load(self, records: Sequence[Record]) -> None:
        """Load the marks when the thread wakes. Raises CorruptThread."""
        self._marks.update(self._table.load(records, self._actor.key))

    # Called by the timer of the thread

    @property
    def times(self) -> tuple[int, int]:
        """The thread must be awake while there is content to remove; contents that are used wait."""
        if not self._marks:
            return 0, 0
        can_remove = not self._is_sweeping and any(map(self._is_removable, self._marks))
        return _DUE, _DUE if can_remove else 0

    def on_due(self, now: int) -> None:
        """Begin to remove the content that can be removed."""
        self._is_sweeping = True
        self._actor.begin("remove files", self._sweep, self._end_sweep, is_used=False)

    # Receiving

    async def receive(self, source: Content, limit: int) -> Upload:
        """Store content, which is marked until it is put. Raises TooLarge above `limit` bytes, and StoreError."""
        content, chunk = secrets.token_hex(8), min(CHUNK, self._actor.limits.record)
        self._uploads[content] = 0
        try:
            with self._actor.usage.keep_awake():
                head = await self._store(content, chunk, source, limit)
        except BaseException:
            self.release(content)
            raise
        upload = Upload(content, self._uploads[content], chunk, head)
        finalizer = weakref.finalize(upload, self._release_soon, content)
        finalizer.atexit = False
        return upload

    async def _store(self, content: str, chunk: int, source: Content, limit: int) -> bytes:
        """Store the chunks of a content, after its mark; return its first bytes."""
        waiting, number, head = list[Commit](), 0, b""
        async for data in cut_content(source, chunk):
            size = self._uploads[content] = self._uploads[content] + len(data)
            if size > limit:
                raise TooLarge(f"a file may have at most {limit:,} bytes", limit="file")
            if (total := sum(self._uploads.values())) > self._actor.limits.files:
                raise TooLarge(f"{total:,} bytes are being received by {self._actor.key}", limit="files")
            record = Record(self._part, _chunk_key(content, number), data)
            mark = [] if number else [self._table.change(content, 0)]
            waiting.append(self._actor.records.put([*mark, record]))
            head, number = head or data, number + 1
            if len(waiting) > _AHEAD:
                await waiting.pop(0)
        for commit in waiting:
            await commit
        return head

    def check_unused(self, upload: Upload) -> None:
        """Raise ValueError unless an upload belongs to this thread and has no path."""
        if upload.content not in self._uploads:
            raise ValueError("this upload was put before, or belongs to another thread: receive it again")

    def release(self, content: str) -> None:
        """Allow that a received content is removed."""
        if self._uploads.pop(content, None) is not None:
            self._actor.timer.arm(self)

    # Changing paths

    def change(self, put: Sequence[Upload], removed: Sequence[File]) -> Iterator[Change]:
        """Yield the changes that give contents to paths, and mark the contents of removed files."""
        for upload in put:
            # Its undo holds the upload until the write is durable; otherwise, the content would be removed before.
            yield Change(self._set_upload, upload, None)
            if upload.content in self._marks:
                yield self._table.change(upload.content, None)
        for file in removed:
            if file.size:
                yield self._table.change(file.etag, file.chunks)

    # Reading

    @contextmanager
    def keep(self, content: str) -> Iterator[None]:
        """Keep a content, and the thread awake, during the block, even if its path is removed."""
        self._readers[content] = self._readers.get(content, 0) + 1
        try:
            with self._actor.usage.keep_awake(is_used=False):
                yield
        finally:
            self._readers[content] -= 1
            if not self._readers[content]:
                del self._readers[content]
                self._actor.timer.arm(self)

    async def read(self, file: File, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file from `start` to `end`, which are within it. Raises StoreError and NotFound."""
        chunk = file.chunk
        with self.keep(file.etag):
            for number in range(start // chunk, -(-end // chunk)):
                await asyncio.sleep(0)  # Other tasks run between the chunks, also if the store does not wait.
                data = await self._actor.records.read(self._part, _chunk_key(file.etag, number))
                if data is None:
                    raise NotFound(f"the content of {file.path} is not there")
                begin = number * chunk
                whole = start <= begin and end >= begin + len(data)
                yield data if whole else data[max(0, start - begin) : end - begin]

    # Inside

    def _set_upload(self, upload: Upload, size: int | None) -> int | None:
        return self._uploads.set(upload.content, size)

    def _is_removable(self, content: str) -> bool:
        return content in self._marks and content not in self._uploads and content not in self._readers

    async def _sweep(self) -> None:
        while removable := [*filter(self._is_removable, self._marks)]:
            # A write that has removed a path may fail, which takes the mark back.
            await self._actor.state.wait_until_stored()
            for content in removable:
                if self._is_removable(content):
                    await self._remove(content)

    async def _remove(self, content: str) -> None:
        count = self._marks[content] or await self._count(content)
        for end in range(count, 0, -_AT_ONCE):
            numbers = range(max(0, end - _AT_ONCE), end)
            await self._actor.records.write(
                [Record(self._part, _chunk_key(content, number), None) for number in numbers]
            )
        self._marks[content] = count  # The chunks that are left, if the write fails.
        await self._actor.records.put([self._table.change(content, None)])

    def _end_sweep(self, _: object, error: BaseException | None) -> None:
        if error is None:
            self._rest()
        elif not self._actor.is_ending:
            self._actor.loop.call_later(_PAUSE, self._rest)

    def _release_soon(self, content: str) -> None:
        """Release the content of an upload that nothing refers to; any OS thread may find that out."""
        with suppress(RuntimeError):  # The loop may be closed.
            self._actor.loop.call_soon_threadsafe(self.release, content)

    def _rest(self) -> None:
        self._is_sweeping = False
        self._actor.timer.arm(self)

    async def _count(self, content: str) -> int:
        """Return the number of chunks of a content that was not received completely."""
        last = RecordRange(self._part, f"c/{content}/", reverse=True, limit=1)
        return max(
            [int(each.key.rpartition("/")[2], 16) + 1 for each in await self._actor.records.list(last)], default=0
        )


def _chunk_key(content: str, number: int) -> str:
    return f"c/{content}/{number:06x}"
