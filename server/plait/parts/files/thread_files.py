"""`files = Files()`: files that a thread keeps besides its state."""

import asyncio
import mimetypes
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from plait.actor.actor import Actor
from plait.actor.begun import Begun
from plait.actor.thread import Thread, ThreadActor
from plait.clock import read_wall_clock
from plait.errors import NotFound, TooLarge
from plait.parts.encoding import check_type, encode_named, read_back
from plait.parts.files.contents import MARK
from plait.parts.files.file import (
    CHUNK,
    Content,
    File,
    FileInfo,
    FileMatch,
    FileStats,
    RemovedFile,
    Upload,
    cut_content,
)
from plait.parts.files.files_draft import FilesDraft
from plait.parts.files.images import MOST_IMAGE_BYTES, make_thumbnail, measure_image
from plait.parts.files.index import INDEX, FileEdit
from plait.parts.files.paths import clean_path
from plait.parts.files.search import Searcher, find_matches, make_matcher
from plait.parts.files.store import FileStore
from plait.parts.part import ALL, Part, check_writable, find_role
from plait.parts.remote import RemotePart
from plait.parts.stage import begin_staged, find_draft, find_stage, use_draft
from plait.parts.written import STAGED, Result, Written
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Files", "ThreadFiles", "check_mime", "find_files"]

T = TypeVar("T")

# In the class, `list` and `find` are methods.
_Files = list[File]

# The maximum bytes of the metadata of a file, and of its MIME type.
_MOST_METADATA: Final = 4 * 1024
_MOST_MIME: Final = 255
_MIME: Final = re.compile("[ -~]+")
# The seconds that the paths of one `find`, or the lines of one `grep`, may take together.
_PATIENCE: Final = 2.0

_guess_mime: Final = mimetypes.guess_type


class Files(Part["ThreadFiles"]):
    """Declares files: `files = Files()` in a Thread class gives each thread a `ThreadFiles`."""

    role: ClassVar = "files"
    is_only: ClassVar = True
    events: ClassVar = {"file_created": FileInfo, "file_updated": FileInfo, "file_deleted": RemovedFile}
    reading: ClassVar = frozenset({"stat", "listdir", "find", "stats", "read", "stream", "grep", "thumbnail"})
    streaming: ClassVar = frozenset({"stream"})
    inner: ClassVar = frozenset({"receive", "put"})

    def __init__(self) -> None:
        super().__init__()
        # Makes one thumbnail at a time in each event loop, as a large image takes 160 MB of memory.
        self._drawing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def bind(self, actor: ThreadActor) -> "ThreadFiles":
        assert isinstance(actor, Actor)
        return ThreadFiles(actor, self.name, self._drawing.setdefault(actor.loop, asyncio.Lock()))

    def bind_remote(self, remote: RemotePart) -> "RemoteFiles":
        return RemoteFiles(remote)

    def ranges(self) -> list[RecordRange]:
        return [RecordRange(self.name, key, limit=ALL) for key in (INDEX, MARK)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor).load(*records)

    def unlink_files(self, actor: ThreadActor, paths: Collection[str]) -> None:
        self.of(actor).unlink_all(paths)


def find_files(cls: type[Thread[Any]]) -> Files | None:
    """Return the files that a class declares; None if there are none."""
    found = find_role(cls, Files.role)
    assert found is None or isinstance(found, Files)
    return found


class ThreadFiles:
    """The files of one thread, by paths such as `docs/a.txt`; slashes at the ends of a path do not matter.

    Content is received first; then one write, perhaps of a transaction or a run, gives a path to it. A reader of a path
    gets either content, whole. In a run of an agent, changes of paths are staged, and stored with the run. The methods
    raise ValueError for an invalid path; the methods that write raise what `set_state` raises for a thread that must
    not be changed.
    """

    def __init__(self, actor: Actor, part: str, drawing: asyncio.Lock) -> None:
        self._actor = actor
        self._store = FileStore(actor, part)
        self._drawing = drawing
        actor.timer.add(self._store.contents, part)

    def load(self, index: Sequence[Record], marks: Sequence[Record]) -> None:
        """Load the stored records of a waking thread. Raises CorruptThread."""
        self._store.load(index, marks)

    # Writing

    async def receive(self, source: Content) -> Upload:
        """Store content, for `put`: a text, bytes, or an async iterable of bytes, which may be large.

        Content that is not put is removed when nothing refers to the upload. Raises TooLarge and StoreError.
        """
        check_writable(self._actor)
        if self._actor.state.find_own_transaction() is not None:
            raise RuntimeError("content cannot be received in a transaction: receive it before the block")
        return await self._store.contents.receive(source, self._actor.limits.file)

    def put(
        self,
        path: str,
        upload: Upload,
        *,
        mime: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> Result[File]:
        """Give received content a path, in place of its earlier content.

        By default, the MIME type follows the path's extension, and the size of an image is read from its first bytes.
        If the write is rolled back, the upload can be put again. Raises ValueError if the path is a directory or one of
        its parents is a file, TypeError and TooLarge.
        """
        check_type("upload", upload, Upload)
        path, now = clean_path(path), read_wall_clock()
        found = measure_image(upload.head) if width is None and height is None else (width, height)
        file = File(
            path=path,
            size=upload.size,
            mime=check_mime(mime or _guess_mime(path)[0] or "application/octet-stream"),
            created_at=now,
            updated_at=now,
            width=found and _check_side("width", found[0]),
            height=found and _check_side("height", found[1]),
            metadata={} if metadata is None else _check_metadata(metadata),
            etag=upload.content,
            chunk=upload.chunk,
        )
        file = read_back(file, File)
        contents = self._store.contents

        def put(edit: FileEdit) -> File:
            contents.check_unused(upload)
            return edit.put(file, upload)

        return self._change(put)

    def write(
        self, path: str, data: Content, /, *, mime: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Begun[File]:
        """Receive content and put it; this begins when it is called. Raises what `receive` and `put` raise."""
        clean_path(path)
        check_writable(self._actor)
        return begin_staged(self._actor, self._write(path, data, mime, metadata))

    async def _write(self, path: str, data: Content, mime: str | None, metadata: Mapping[str, Any] | None) -> File:
        return await self.put(path, await self.receive(data), mime=mime, metadata=metadata)

    def unlink(self, path: str) -> Result[bool]:
        """Remove a file; return whether there was one. Raises ValueError for a directory."""
        path = clean_path(path)
        return self._change(lambda edit: edit.unlink(path))

    def mkdir(self, path: str) -> Result[File]:
        """Make a directory, which stays when it is empty. Raises ValueError if there is a file, and TooLarge."""
        path, now = clean_path(path), read_wall_clock()
        return self._change(lambda edit: edit.mkdir(path, now))

    def rmdir(self, path: str) -> Result[bool]:
        """Remove an empty directory; return whether it was made. Raises ValueError for a file or a full directory."""
        path = clean_path(path)
        return self._change(lambda edit: edit.rmdir(path))

    def move(self, source: str, target: str) -> Result[File]:
        """Give a file or a directory with its content another path; a file replaces a file there.

        Raises NotFound, ValueError if the new path is a directory, and TooLarge for one with more than 1,000 paths.
        """
        source, target = clean_path(source), clean_path(target)
        return self._change(lambda edit: edit.move(source, target))

    def unlink_all(self, paths: Collection[str]) -> None:
        """Remove those of some paths that are files."""
        self._change(lambda edit: [edit.unlink(path) for path in paths if not edit.is_directory(path)])

    # Reading

    async def stat(self, path: str) -> File | None:
        """Return a file or directory; None if there is none."""
        path = clean_path(path)
        return (await self._view()).get(path)

    async def listdir(self, path: str = "/") -> _Files:
        """Return the files and directories immediately in a directory: directories first, then by name."""
        path = clean_path(path)
        return (await self._view()).list(path)

    async def find(self, pattern: str) -> _Files:
        """Return the files whose paths match a glob, by path: `docs/*.md`, or `**/*.png` at any depth.

        Raises ValueError for a pattern that cannot be a path, or takes too long.
        """
        files = [*(await self._view()).files()]
        return await asyncio.to_thread(find_matches, files, pattern, timeout=_PATIENCE)

    async def stats(self) -> FileStats:
        """Return how many files and directories there are, and the bytes of the files."""
        files = [*(await self._view()).files()]
        directories = sum([file.is_directory for file in files])
        return FileStats(len(files) - directories, directories, sum([file.size for file in files]))

    async def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none. Raises StoreError."""
        if (file := await self._find(path)) is None:
            return None
        async with aclosing(self._store.contents.read(file, 0, file.size)) as content:
            return b"".join([data async for data in content])

    async def stream(self, path: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """Iterate over the content of a file, from `start` to before `end`, in pieces of at most 256 KiB.

        The content stays if the path is changed. Raises NotFound, ValueError outside of the file, and StoreError.
        """
        if (file := await self._find(path)) is None:
            raise NotFound(f"there is no file {path}")
        end = file.size if end is None else min(end, file.size)
        if not 0 <= start <= end:
            raise ValueError(f"{path} has {file.size} bytes, not the bytes from {start} to {end}")
        async with aclosing(self._store.contents.read(file, start, end)) as content:
            async for data in content:
                yield data

    async def grep(self, pattern: str, path: str = "**", *, regex: bool = False, limit: int = 1000) -> list[FileMatch]:
        """Return the first `limit` lines that contain a text, in the text files whose paths match a glob.

        With `regex`, the pattern is a regular expression, for which the extra `plait[files]` is needed. Raises
        ValueError for a pattern that is invalid, has more than 1,000 characters or takes too long.
        """
        check_type("pattern", pattern, str)
        matches = await asyncio.to_thread(make_matcher, pattern, is_regex=regex, timeout=_PATIENCE)
        found, overlap = list[FileMatch](), 0 if regex else max(len(pattern) - 1, 0)
        for each in await self.find(path):
            # Other code may have changed the path since.
            if len(found) < limit and (file := await self._find(each.path)) is not None:
                async with aclosing(self._store.contents.read(file, 0, file.size)) as content:
                    searcher = Searcher(file.path, matches, limit - len(found), overlap=overlap)
                    found += await searcher.search(content)
        return found

    async def thumbnail(self, path: str, size: int = 256) -> bytes | None:
        """Return an image in the same proportions, of at most `size` pixels a side, as PNG or JPEG.

        None if the file is no PNG, JPEG, GIF or WebP image. The extra `plait[files]` is needed. Raises TooLarge for an
        image of more than 40 megapixels or 40 MiB.
        """
        check_type("size", size, int)
        if not 1 <= size <= 2048:
            raise ValueError(f"size must be from 1 to 2048, not {size}")
        file = await self._find(path)
        if file is None or (file.width is None and not file.mime.startswith("image/")):
            return None
        if file.size > MOST_IMAGE_BYTES:
            raise TooLarge(f"{path} has {file.size:,} bytes; an image may have {MOST_IMAGE_BYTES:,}")
        with self._store.contents.keep(file.etag):
            await self._drawing.acquire()
            try:
                async with aclosing(self._store.contents.read(file, 0, file.size)) as content:
                    data = b"".join([piece async for piece in content])
                making = self._actor.loop.run_in_executor(None, make_thumbnail, data, size)
            except BaseException:
                self._drawing.release()
                raise
        # An OS thread cannot be cancelled: the next image waits until this one is made, even if the call is cancelled.
        making.add_done_callback(lambda _: self._drawing.release())
        return await asyncio.shield(making)

    # For HTTP

    def find_now(self, path: str) -> File | None:
        """Return the file or directory of a path of `clean_path`, which may not be durable yet."""
        self._actor.state.end_abandoned()
        return self._store.index.get(path)

    def keep(self, file: File) -> AbstractContextManager[None]:
        """Keep the content of a file during a block, even if its path gets another content."""
        return self._store.contents.keep(file.etag)

    def read_part(self, file: File, start: int, end: int) -> AsyncGenerator[bytes]:
        """Iterate over the content of a file, which is kept."""
        return self._store.contents.read(file, start, end)

    # Inside

    async def _view(self) -> FileEdit:
        """Return the files as the calling code sees them."""
        await self._actor.state.wait_for_shown()
        if self._actor.state.find_own_transaction() is None:
            draft = find_draft(self._actor, self, FilesDraft)
            if draft is not None:
                return draft.edit
        return self._store.edit()

    async def _find(self, path: str) -> File | None:
        """Return a file; None also for a directory."""
        file = await self.stat(path)
        return None if file is None or file.is_directory else file

    def _change(self, op: Callable[[FileEdit], T]) -> Result[T]:
        check_writable(self._actor)
        transaction = self._actor.state.find_own_transaction()
        if transaction is None and find_stage(self._actor) is not None:
            draft = use_draft(self._actor, self, FilesDraft, lambda _: FilesDraft(self._actor, self._store))
            assert draft is not None
            return Result(draft.do(op), STAGED)
        result, commit = self._store.write(op)
        return Result(result, Written(commit, transaction))


def check_mime(mime: str) -> str:
    """Return a MIME type. Raises TypeError and ValueError for an invalid one."""
    check_type("mime", mime, str)
    if len(mime) > _MOST_MIME or not _MIME.fullmatch(mime):
        raise ValueError(f"mime must be a MIME type of at most {_MOST_MIME} characters, not {mime!r}")
    return mime


def _check_side(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return value


def _check_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    check_type("metadata", metadata, dict)
    data = encode_named("metadata", metadata)
    if len(data) > _MOST_METADATA:
        raise TooLarge(f"the metadata has {len(data):,} bytes; a file may have {_MOST_METADATA:,}", limit="record")
    return metadata


class RemoteFiles:
    """Reads and writes files of another process, whose content travels in pieces."""

    def __init__(self, remote: RemotePart) -> None:
        self._remote = remote

    async def read(self, path: str) -> bytes | None:
        try:
            async with aclosing(self._remote.stream("stream", path)) as pieces:
                return b"".join([piece async for piece in pieces])
        except NotFound:
            return None

    async def write(self, path: str, data: Content, /, **options: Any) -> Any:
        return await self._remote.upload(cut_content(data, CHUNK), "write", path, **options)
