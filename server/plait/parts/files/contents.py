"""The contents of a thread's files: receives, reads and removes them, a record a chunk."""

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.timer import Timed
from plait.errors import NotFound, TooLarge
from plait.parts.files.file import CHUNK, Content, File, Upload, cut_content
from plait.state.commit import Commit
from plait.state.thread_records import Change, Table, Values
from plait.store.thread_rows import Record, RecordRange

__all__ = ["MARK", "Contents"]

MARK: Final = "u/"
"""The prefix of the keys of the marks of contents that no path has: those that are received, or to be removed."""

# The chunks that may be on their way to the store, and those that one write removes.
_AHEAD: Final = 4
_AT_ONCE: Final = 4
# Seconds after a failure to remove contents.
_PAUSE: Final = 5.0

_decode_mark: Final = msgspec.json.Decoder(int).decode

_DUE: Final = 2
"""The due time of a thread with a mark: at once."""


class Contents(Timed):
    """The chunks of one thread's files, `c/<content>/<number>`.

    What no path has is marked, and removed as soon as nothing in this process uses it. While there is a mark, the
    thread is due, so what a crash has left is removed even if the thread is not used again.
    """

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        # The marked contents, with the number of their chunks; 0 if that is not known.
        self._marks = Values[str, int]()
        self._table = Table(part, MARK.__add__, _decode_mark, self._marks.set)
        # The contents that were received, or are being received, and have no path yet, with their bytes so far.
        self._uploads = Values[str, int]()
        # The number of readers of each content that is read.
        self._readers: dict[str, int] = {}
        self._is_sweeping = False

    def load(self, records: Sequence[Record]) -> None:
        """Load the marks when the thread wakes."""
        for record in records:
            self._marks[record.key.removeprefix(MARK)] = self._table.read(record, self._actor.key)

    # Called by the timer of the thread

    @property
    def due(self) -> int:
        """When the thread must be awake: at once, while there is something to remove."""
        return _DUE if self._marks else 0

    @property
    def wakes_at(self) -> int:
        """When a content can be removed; 0 for never, as while all of them are used."""
        if self._is_sweeping or all(map(self._uploads.__contains__, self._marks)):
            return 0
        return _DUE if any(map(self._is_removable, self._marks)) else 0

    def on_due(self, now: int) -> None:
        """Begin to remove what can be removed."""
        self._is_sweeping = True
        self._actor.begin("remove files", self._sweep, self._end_sweep, is_used=False)

    # Receiving

    async def receive(self, source: Content, limit: int) -> Upload:
        """Store content, marked until it is put. Raises TooLarge above `limit` bytes, and StoreError."""
        content, chunk = secrets.token_hex(8), min(CHUNK, self._actor.limits.record)
        self._uploads[content] = 0
        try:
            with self._actor.usage.keep_awake():
                head = await self._store(content, chunk, source, limit)
        except BaseException:
            self.release(content)
            raise
        upload = Upload(content, self._uploads[content], chunk, head)
        finalizer = weakref.finalize(upload, _release_soon, self._actor.loop, self.release, content)
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
            self._actor.arm()

    # Changing paths

    def change(self, put: Sequence[Upload], removed: Sequence[File]) -> Iterator[Change]:
        """Yield the changes that give contents to paths, and mark those of removed files."""
        for upload in put:
            # Its undo refers to the upload until the write is durable: without that, the content is removed then.
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
                self._actor.arm()

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
        before = self._uploads.set(upload.content, size)
        if size is not None:
            self._actor.arm()
        return before

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
        self._marks[content] = count  # Of those that are left, if the write fails.
        await self._actor.records.put([self._table.change(content, None)])

    def _end_sweep(self, _: object, error: BaseException | None) -> None:
        self._is_sweeping = False
        if error is None:
            self._actor.arm()
        elif not self._actor.is_ending:
            self._actor.loop.call_later(_PAUSE, self._actor.arm)

    async def _count(self, content: str) -> int:
        """Return the number of chunks of a content that was not received as a whole."""
        last = RecordRange(self._part, f"c/{content}/", reverse=True, limit=1)
        return max(
            [int(each.key.rpartition("/")[2], 16) + 1 for each in await self._actor.records.list(last)], default=0
        )


def _chunk_key(content: str, number: int) -> str:
    return f"c/{content}/{number:06x}"


def _release_soon(loop: asyncio.AbstractEventLoop, release: Callable[[str], None], content: str) -> None:
    """Release the content of an upload that nothing refers to; any OS thread may find that out."""
    with suppress(RuntimeError):  # The loop may be closed.
        loop.call_soon_threadsafe(release, content)
