"""Files of threads: what is written is read, whole, and what no path has is removed."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from contextvars import Context as EmptyContext
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image
from tests.cases import each_case
from tests.schedules import in_soak
from tests.server.parts.files_lab import CHUNK, FilesLab, Room, count_calls, make_store, open_lab, until

from plait import Context, Files, Limits, NotFound, RolledBack, StoreError, Thread, ThreadKey, TooLarge
from plait.actor.client_types import make_types_files
from plait.parts.files.images import measure_image
from plait.parts.messages.message import Role
from plait.store.protocol import Write


@pytest.fixture(params=["sqlite", *in_soak(["memory"], ["postgresql"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FilesLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


@pytest.fixture
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FilesLab]:
    """A lab with low limits."""
    limits = Limits(file=1000, files=2500)
    async with open_lab(make_store(request, "sqlite", tmp_path), limits=limits) as lab:
        yield lab


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def body(number: int, size: int) -> bytes:
    return (b"%08d" % number) * (size // 8)


# Writing and reading


@each_case("size", [0, 8, CHUNK, CHUNK + 8, 3 * CHUNK, 5 * CHUNK + 16])
async def test_what_is_written_is_read_whole_and_in_parts(lab: FilesLab, size: int) -> None:
    files, data = (await lab.thread()).files, body(1, size)
    path = f"{size}.bin"
    assert (await files.write(path, pieces(data, 10_000))).size == size
    assert await files.read(path) == data
    assert b"".join([each async for each in files.stream(path)]) == data
    for start, end in (
        (0, None),
        (size // 3, size // 2),
        (min(CHUNK, size), None),
        (size, size),
        (size // 2, 2 * size),
    ):
        assert b"".join([each async for each in files.stream(path, start, end)]) == data[start:end]
    assert await lab.is_clean()


async def test_text_is_utf_8_and_other_content_is_refused(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a.txt", "grüße\n")
    assert await files.read("a.txt") == "grüße\n".encode()
    for wrong in (7, ["a"], None):
        with pytest.raises(TypeError, match="content of a file"):
            await files.write("a.txt", wrong)  # type: ignore[arg-type]
    assert await files.read("a.txt") == "grüße\n".encode()


async def test_files_are_the_same_after_the_thread_has_slept(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for kind in ("sqlite", "postgresql"):
        store = make_store(request, kind, tmp_path)
        async with open_lab(store) as lab:
            files = (await lab.thread()).files
            for number in range(200):
                await files.write(f"dir{number % 3}/{number}.txt", f"{number}", metadata={"n": number})
            for number in range(0, 200, 7):
                await files.unlink(f"dir{number % 3}/{number}.txt")
            await files.mkdir("empty/inner")
            found = await files.find("**"), await files.listdir(), await files.stats()
            index = [key for key in await lab.keys() if key.startswith("f/")]
            assert len(index) == 4, "64 paths a record"
        async with open_lab(store) as lab:
            files = (await lab.thread()).files
            assert (await files.find("**"), await files.listdir(), await files.stats()) == found
            assert await files.read("dir2/5.txt") == b"5"
            assert await lab.is_clean()


async def test_stat_tells_of_a_file_a_directory_and_nothing(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    written = await files.write("docs/a.txt", "abc", metadata={"by": "ada"})
    found = await files.stat("/docs//a.txt/")
    assert found is not None
    assert found == written
    assert (found.path, found.name, found.size, found.mime) == ("docs/a.txt", "a.txt", 3, "text/plain")
    assert (found.metadata, found.is_directory, found.width) == ({"by": "ada"}, False, None)
    directory = await files.stat("docs")
    assert directory is not None
    assert (directory.is_directory, directory.mime, directory.name) == (True, "inode/directory", "docs")
    assert await files.stat("none") is None
    assert await files.read("none") is None
    assert await files.read("docs") is None
    with pytest.raises(NotFound):
        await anext(files.stream("none"))


async def test_the_sizes_of_images_are_known(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
    found = await files.write("a.png", png)
    assert (found.mime, found.width, found.height) == ("image/png", 640, 480)
    found = await files.put("b.svg", await files.receive("<svg/>"), width=10, height=20)
    assert (found.mime, found.width, found.height) == ("image/svg+xml", 10, 20)
    for width in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="width must be"):
            files.put("b.svg", await files.receive("<svg/>"), width=width, height=1)  # type: ignore[arg-type]


async def test_a_path_has_one_spelling_and_cannot_leave_the_thread(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a//b/c.txt/", "1")
    for path in ("/a/b/c.txt", "a/b/c.txt", "./a/./b/c.txt"):
        assert await files.read(path) == b"1"
    for wrong in ("../x", "a/../b", "a/..", "..", "a\0b", "a\\b", "a\nb", "\ud800", "x" * 1025, "ü" * 513, "a/" * 33):
        for call in (
            lambda wrong=wrong: files.write(wrong, ""),
            lambda wrong=wrong: files.stat(wrong),
            lambda wrong=wrong: files.unlink(wrong),
            lambda wrong=wrong: files.mkdir(wrong),
            lambda wrong=wrong: files.move("a/b/c.txt", wrong),
            lambda wrong=wrong: files.read(wrong),
            lambda wrong=wrong: files.listdir(wrong),
        ):
            with pytest.raises(ValueError, match="path"):
                await call()
    with pytest.raises(ValueError, match="/ is a directory"):
        await files.write("/", "")
    with pytest.raises(ValueError, match="at most 32 parts, not 33"):
        await files.move("a", "a2/" * 31)
    assert [file.path for file in await files.find("**")] == ["a/b/c.txt"]


async def test_two_threads_see_nothing_of_each_other(lab: FilesLab) -> None:
    first, second = await lab.thread("one"), await lab.thread("two")
    await first.files.write("a.txt", "1")
    assert await second.files.stat("a.txt") is None
    upload = await first.files.receive("2")
    with pytest.raises(ValueError, match="belongs to another thread"):
        second.files.put("a.txt", upload)


# Directories


async def test_a_listing_has_the_immediate_children_directories_first(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    for path in ("b.txt", "a.txt", "z/1.txt", "c/d/2.txt", "c/e.txt", "cd.txt"):
        await files.write(path, path)
    await files.mkdir("m")
    assert [each.path for each in await files.listdir()] == ["c", "m", "z", "a.txt", "b.txt", "cd.txt"]
    assert [each.path for each in await files.listdir("/c/")] == ["c/d", "c/e.txt"]
    assert await files.listdir("none") == await files.listdir("a.txt") == await files.listdir("m") == []
    stats = await files.stats()
    assert (stats.files, stats.directories, stats.size) == (6, 1, 39)


async def test_only_an_empty_directory_is_removed(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.mkdir("a/b")
    await files.write("a/b/c.txt", "1")
    for path in ("a", "a/b", "/"):
        with pytest.raises(ValueError, match="is not empty"):
            await files.rmdir(path)
    with pytest.raises(ValueError, match="is a file: use unlink"):
        await files.rmdir("a/b/c.txt")
    with pytest.raises(ValueError, match="is a directory: use rmdir"):
        await files.unlink("a")
    assert await files.unlink("a/b/c.txt") is True
    assert await files.unlink("a/b/c.txt") is False
    assert await files.rmdir("a/b") is True
    assert await files.rmdir("a/b") is False
    assert await files.stat("a") is None


async def test_a_path_is_a_file_or_a_directory(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a", "1")
    for call in (lambda: files.write("a/b", "2"), lambda: files.mkdir("a/b/c"), lambda: files.mkdir("a")):
        with pytest.raises(ValueError, match="a is a file"):
            await call()
    await files.write("d/e", "3")
    for call in (lambda: files.write("d", "4"), lambda: files.move("a", "d")):
        with pytest.raises(ValueError, match="d is a directory"):
            await call()
    await files.mkdir("d")
    assert [file.path for file in await files.find("**")] == ["a", "d/e"]


async def test_a_file_and_a_directory_are_moved(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a.txt", "a")
    await files.write("b.txt", "b")
    for name in ("1", "2/3"):
        await files.write(f"d/{name}", name)
    assert (await files.move("a.txt", "b.txt")).path == "b.txt"
    await files.move("d", "e/f")
    assert [file.path for file in await files.find("**")] == ["b.txt", "e/f/1", "e/f/2/3"]
    assert await files.read("b.txt") == b"a"
    assert await files.read("e/f/2/3") == b"2/3"
    with pytest.raises(ValueError, match="cannot be moved"):
        await files.move("e", "e/g")
    with pytest.raises(NotFound):
        await files.move("none", "x")
    await until(lab.is_clean)


@each_case(
    ("pattern", "paths"),
    [
        ("/docs/*.md", {"docs/a.md"}),
        ("**/*.png", {"x.png", "docs/b.png", "docs/deep/c.png"}),
        ("docs/**", {"docs/a.md", "docs/b.png", "docs/deep/c.png"}),
        ("docs/**/*.png", {"docs/b.png", "docs/deep/c.png"}),
        ("*", {"x.png"}),
        ("docs/?.[m]d", {"docs/a.md"}),
        ("none", set()),
    ],
)
async def test_a_glob_finds_the_files_whose_paths_match(pattern: str, paths: set[str], lab: FilesLab) -> None:
    files = (await lab.thread()).files
    for path in ("x.png", "docs/a.md", "docs/b.png", "docs/deep/c.png"):
        await files.write(path, path)
    assert {file.path for file in await files.find(pattern)} == paths


# Replacing


async def test_a_reader_gets_the_old_content_or_the_new_one(lab: FilesLab) -> None:
    files, old, new = (await lab.thread()).files, body(1, 4 * CHUNK), body(2, 3 * CHUNK)
    await files.write("a.bin", old)
    async with aclosing(files.stream("a.bin")) as stream:
        read = await anext(stream)
        await files.write("a.bin", new)
        assert await files.read("a.bin") == new
        assert len(await lab.contents()) == 2, "the reader keeps its content"
        async for data in stream:
            read += data
    assert read == old
    await until(lab.is_clean)
    assert len(await lab.contents()) == 1


async def test_a_stream_that_is_left_reads_no_further(lab: FilesLab) -> None:
    files, reads = (await lab.thread()).files, list[str]()
    await files.write("a.bin", body(1, 8 * CHUNK))
    record = lab.store.record

    async def count(key: ThreadKey, part: str, name: str) -> bytes | None:
        reads.append(name)
        return await record(key, part, name)

    lab.store.record = count  # type: ignore[method-assign]
    async with aclosing(files.stream("a.bin")) as stream:
        await anext(stream)
    lab.store.record = record  # type: ignore[method-assign]
    assert len(reads) == 1
    await files.unlink("a.bin")
    await until(lab.is_clean)


async def test_replaced_and_removed_content_and_unused_uploads_are_removed(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    upload: Any = await files.receive(body(1, 2 * CHUNK))
    assert len(await lab.contents()) == 1
    gc.collect()
    assert not await lab.is_clean(), "the upload can still be put"
    del upload
    await until(lab.is_clean)
    await files.write("a.bin", body(2, 9 * CHUNK))
    await files.write("a.bin", "")
    await until(lab.is_clean)
    assert await lab.contents() == {}


async def test_content_that_ends_with_an_error_is_removed(lab: FilesLab) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield body(1, 2 * CHUNK)
        raise LookupError

    files = (await lab.thread()).files
    with pytest.raises(LookupError):
        await files.write("a.bin", broken())
    await until(lab.is_clean)
    assert await lab.contents() == {}


# Transactions


async def test_a_file_is_put_with_the_state_or_not_at_all_and_can_be_put_again(lab: FilesLab) -> None:
    thread = await lab.thread()
    await thread.files.write("a.bin", "old")
    upload, put = await thread.files.receive(body(1, 2 * CHUNK)), None
    with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
        thread.set_state({"n": 1})
        put = thread.files.put("a.bin", upload)
        assert put.value.size == 2 * CHUNK
        assert (await thread.files.stat("a.bin")) == put.value
        raise ZeroDivisionError
    assert put is not None
    with pytest.raises(RolledBack):
        await put
    assert (thread.state, await thread.files.read("a.bin")) == ({"n": 0}, b"old")
    with thread.transaction():
        thread.set_state({"n": 2})
        put = thread.files.put("a.bin", upload)
        with pytest.raises(ValueError, match="was put before"):
            thread.files.put("b.bin", upload)
    await put
    assert (thread.state, await thread.files.read("a.bin")) == ({"n": 2}, body(1, 2 * CHUNK))
    with pytest.raises(ValueError, match="was put before"):
        thread.files.put("b.bin", upload)
    with thread.transaction(), pytest.raises(RuntimeError, match="before the block"):
        await thread.files.write("c", "1")
    await until(lab.is_clean)


async def test_an_inner_block_that_raises_takes_back_its_files_only(lab: FilesLab) -> None:
    thread = await lab.thread()
    files = thread.files
    for number in range(70):
        await files.write(f"{number}", "old")
    first, second = await files.receive("first"), await files.receive("second")
    with thread.transaction():
        files.put("a", first)
        with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
            files.put("b", second)
            files.unlink("3")
            files.move("4", "5")
            raise ZeroDivisionError
        files.unlink("a")
        files.unlink("6")
    await thread.values.set("x", 1)
    assert {file.path for file in await files.find("**")} == {str(n) for n in range(70)} - {"6"}
    assert await files.read("5") == b"old"
    del first, second
    await until(lab.is_clean)


async def test_a_write_that_the_store_refuses_takes_everything_back(lab: FilesLab) -> None:
    thread = await lab.thread()
    for number in range(65):
        await thread.files.write(f"{number}", "old")
    upload, submit = await thread.files.receive(body(1, CHUNK)), lab.store.submit

    def refuse(write: Write) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("the disk is full"))
        return future

    lab.store.submit = refuse  # type: ignore[method-assign]
    with thread.transaction():
        thread.set_state({"n": 1})
        put = thread.files.put("3", upload)
        thread.files.unlink("64")
    with pytest.raises(StoreError):
        await put
    lab.store.submit = submit  # type: ignore[method-assign]
    files = (await lab.thread()).files
    assert (await files.read("3"), await files.read("64")) == (b"old", b"old")
    assert await files.put("3", upload) == await files.stat("3")
    assert await files.read("3") == body(1, CHUNK)
    await until(lab.is_clean)


# Runs


async def test_a_run_stages_its_changes_and_sees_them(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("old.txt", "old")
    await files.write("gone.txt", "gone")

    async def work(ctx: Context[Room]) -> None:
        own = ctx.thread.files
        await own.write("new.txt", "new")
        await own.write("old.txt", "newer")
        await own.unlink("gone.txt")
        assert await own.read("new.txt") == b"new"
        assert [file.path for file in await own.listdir()] == ["new.txt", "old.txt"]
        outside.append(sorted(file.path for file in files._store.edit().files()))
        with ctx.thread.transaction():
            own.mkdir("at-once")

    outside = list[list[str]]()
    await lab.run(work)
    assert outside == [["gone.txt", "old.txt"]]
    assert [file.path for file in await files.listdir()] == ["at-once", "new.txt", "old.txt"]
    assert await files.read("old.txt") == b"newer"
    await until(lab.is_clean)


async def test_a_run_beside_another_writer_does_the_same_work_for_each_change(lab: FilesLab) -> None:
    files = (await lab.thread()).files

    async def work(ctx: Context[Room]) -> None:
        def write(count: int) -> None:
            for number in range(count):
                ctx.thread.files.mkdir(f"own/{count}-{number}")
                EmptyContext().run(files.mkdir, f"other/{count}-{number}")

        calls = [count_calls(partial(write, count)) for count in (50, 100)]
        assert calls[1] < 2.5 * calls[0]
        assert (await ctx.thread.files.stats()).directories == 300

    await lab.run(work)
    assert (await files.stats()).directories == 300


async def test_a_run_that_raises_leaves_no_file(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("old.txt", "old")

    async def work(ctx: Context[Room]) -> None:
        await ctx.thread.files.write("new.txt", body(1, CHUNK))
        await ctx.thread.files.unlink("old.txt")
        raise LookupError

    with pytest.raises(LookupError):
        await lab.run(work)
    assert [file.path for file in await files.listdir()] == ["old.txt"]
    await until(lab.is_clean)


async def test_a_run_and_others_change_different_files(lab: FilesLab) -> None:
    files = (await lab.thread()).files

    async def work(ctx: Context[Room]) -> None:
        await ctx.thread.files.write("run.txt", "run")
        ctx.thread.files.mkdir("dir")
        await lab.app.thread(Room, "one").call(Room.save, "other.txt", "other")
        assert {file.path for file in await ctx.thread.files.find("**")} == {"run.txt", "other.txt"}

    await lab.run(work)
    assert {file.path for file in await files.find("**")} == {"run.txt", "other.txt"}


# Attachments


async def attach(room: Room, *names: str, role: Role = "user", **options: Any) -> str:
    """Add a message with attachments, in one write with their files."""
    uploads = [await room.files.receive(name) for name in names]
    with room.transaction():
        for name, upload in zip(names, uploads, strict=True):
            room.files.put(f"attachments/{name}", upload)
        attachments = [{"path": f"/attachments/{name}"} for name in names]
        message = room.messages.inject(role, "look", attachments=attachments, **options)
    return (await message).id


async def test_a_deleted_message_takes_its_attachments_along_in_one_write(lab: FilesLab) -> None:
    room = await lab.thread()
    first, second = await attach(room, "a.txt", "b.txt"), await attach(room, "c.txt")
    await room.files.write("docs/mine.txt", "mine")
    paths: list[Any] = ["../x", "attachments", "attachments/none", "docs/mine.txt", 7]
    odd = await room.messages.inject("user", "odd", attachments=[{"path": path} for path in paths])
    writes, submit = list[set[str]](), lab.store.submit

    def watch(write: Write) -> "asyncio.Future[int]":
        writes.append({record.part for record in write.records if not record.key.startswith("c/")})
        return submit(write)

    lab.store.submit = watch  # type: ignore[method-assign]
    assert await room.messages.delete(first) is True
    lab.store.submit = submit  # type: ignore[method-assign]
    assert writes[0] == {"messages", "files"}
    assert [file.path for file in await room.files.find("**")] == ["attachments/c.txt", "docs/mine.txt"]
    assert await room.messages.delete(odd.id) is True
    assert [file.path for file in await room.files.find("**")] == ["attachments/c.txt", "docs/mine.txt"]
    assert await room.messages.delete(second) is True
    assert await room.messages.delete(second) is False
    assert [file.path for file in await room.files.find("**")] == ["docs/mine.txt"]
    await until(lab.is_clean)


async def test_a_run_removes_attachments_with_its_message_or_keeps_both(lab: FilesLab) -> None:
    room = await lab.thread()
    message = await attach(room, "a.txt")

    async def fail(ctx: Context[Room]) -> None:
        await ctx.thread.messages.delete(message)
        assert await ctx.thread.files.stat("attachments/a.txt") is None
        raise LookupError

    async def delete(ctx: Context[Room]) -> None:
        await ctx.thread.messages.delete(message)

    with pytest.raises(LookupError):
        await lab.run(fail)
    assert await room.files.read("attachments/a.txt") == b"a.txt"
    assert await room.messages.get(message) is not None
    await lab.run(delete)
    assert await room.files.stat("attachments/a.txt") is None
    assert await room.messages.get(message) is None


async def test_the_results_of_tools_and_cancelled_messages_lose_their_attachments(lab: FilesLab) -> None:
    room = await lab.thread()
    call = {"id": "call", "type": "function", "function": {"name": "draw", "arguments": "{}"}}
    asking = await room.messages.inject("assistant", tool_calls=[call])
    await attach(room, "drawn.txt", role="tool", tool_call_id="call")
    await room.messages.delete(asking.id)
    await room.files.write("attachments/queued.txt", "1")
    queued = await room.messages.queue("look", attachments=[{"path": "attachments/queued.txt"}])
    assert [file.path for file in await room.files.find("**")] == ["attachments/queued.txt"]
    await room.messages.delete(queued.id)
    assert await room.files.find("**") == []


# Limits


async def test_files_above_the_limits_are_refused_and_nothing_is_left(small: FilesLab) -> None:
    files = (await small.thread()).files
    for name in "ab":
        await files.write(name, body(1, 1000))
    with pytest.raises(TooLarge, match="a file may have at most 1,000 bytes") as caught:
        await files.write("c", body(1, 1008))
    assert caught.value.limit == "file"
    with pytest.raises(TooLarge, match="a thread may have 2,500") as caught:
        await files.write("c", body(1, 1000))
    assert caught.value.limit == "files"
    del caught  # It refers to the upload.

    async def is_clean() -> bool:
        gc.collect()  # The error and its frames refer to each other.
        return await small.is_clean()

    await until(is_clean)
    await files.write("a", body(2, 1000))
    await files.write("c", body(1, 496))
    kept = [await files.receive(body(1, 1000)) for _ in range(2)]
    with pytest.raises(TooLarge, match="are being received"):
        await files.receive(body(1, 1000))
    assert len(kept) == 2
    del kept
    await until(small.is_clean)
    assert (await files.stats()).size == 2496


async def test_a_thread_has_so_many_paths(small: FilesLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.parts.files.index.MOST_PATHS", 3)
    files = (await small.thread()).files
    await files.mkdir("d")
    for name in "ab":
        await files.write(name, name)
    for call in (lambda: files.write("c", "c"), lambda: files.mkdir("e")):
        with pytest.raises(TooLarge, match="3 files and directories"):
            await call()
    await files.write("a", "again")


async def test_metadata_and_mime_types_are_checked(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    for metadata, error in (
        ({"a": object()}, TypeError),
        ({"a": float("nan")}, ValueError),
        ({"a": "x" * 5000}, TooLarge),
    ):
        with pytest.raises(error):
            await files.write("a", "", metadata=metadata)
    for mime in ("text/html\r\nset-cookie: a", "ü", "x" * 300):
        with pytest.raises(ValueError, match="MIME"):
            await files.write("a", "", mime=mime)
    assert await files.stat("a") is None


async def test_a_file_that_cannot_be_stored_leaves_the_former_one(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = make_store(request, "sqlite", tmp_path)
    async with open_lab(store) as lab:
        files = (await lab.thread()).files
        await files.write("a", "former")
        with pytest.raises(ValueError, match="width"):
            files.put("a", await files.receive("later"), width=10**5000)
        assert await files.read("a") == b"former"
        await files.write("b", "other")
    async with open_lab(store) as lab:
        assert await (await lab.thread()).files.read("a") == b"former"


def test_a_class_has_one_files() -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Two(Thread[None]):
            first = Files()
            second = Files()

    assert "may have one Files" in str(caught.value.__cause__ or caught.value)


async def test_a_read_only_part_is_read_from_a_handle_and_others_write(lab: FilesLab) -> None:
    handle: Any = lab.app.thread(Room, "one")
    assert (await handle.files.write("a.bin", body(1, 2 * CHUNK))).size == 2 * CHUNK
    assert await handle.files.read("a.bin") == body(1, 2 * CHUNK)
    assert b"".join([data async for data in handle.files.stream("a.bin", 8)]) == body(1, 2 * CHUNK)[8:]


async def test_a_path_that_is_put_back_is_in_the_record_that_it_was_in(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = make_store(request, "sqlite", tmp_path)
    async with open_lab(store) as lab:
        thread = await lab.thread()
        for number in range(100):
            await thread.files.mkdir(f"{number}")
        await thread.files.rmdir("0")  # There is room in both records.
        with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
            thread.files.rmdir("99")
            raise ZeroDivisionError
        await thread.files.rmdir("99")
    async with open_lab(store) as lab:
        assert await (await lab.thread()).files.stat("99") is None


# Searching


async def test_grep_finds_lines_of_text_files_only(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a.txt", "one\ntwo\r\nthree two\n" + "x" * 2000 + "two")
    await files.write("b/c.md", "TWO two")
    await files.write("image.png", b"\x89PNG two \xff\xfe")
    await files.write("nul.txt", b"two\0two")
    long = "line two\n" * (CHUNK // 9 + 1000)  # A line and a character are in two pieces.
    await files.write("long.txt", "ü" + long)
    found = await files.grep("two", "*.txt", limit=4)
    assert [(each.path, each.line, each.text[:9]) for each in found] == [
        ("a.txt", 2, "two"),
        ("a.txt", 3, "three two"),
        ("a.txt", 4, "x" * 9),
        ("long.txt", 1, "üline two"),
    ]
    assert len(found[2].text) == 1000
    assert len(await files.grep("line two", "long.txt", limit=10**6)) == long.count("\n")
    assert {each.path for each in await files.grep("two")} == {"a.txt", "b/c.md", "long.txt"}
    assert await files.grep("absent") == []
    assert [each.line for each in await files.grep(r"^t\w+o$", "a.txt", regex=True)] == [2]


async def test_a_bad_pattern_is_an_error_and_a_slow_one_is_stopped(
    lab: FilesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (await lab.thread()).files
    await files.write("a.txt", "a" * 100 + "b\n")
    with pytest.raises(ValueError, match=r"the pattern '\(' is invalid"):
        await files.grep("(", regex=True)
    monkeypatch.setattr("plait.parts.files.thread_files._PATIENCE", 0.05)
    with pytest.raises(ValueError, match=r"takes more than 0.05 s"):
        await files.grep(r"(a|aa|b?a)+$(?<=c)", regex=True)
    await files.write("a.txt", "a\n" * 100_000)
    with pytest.raises(ValueError, match=r"takes more than"):
        await files.grep(r"(?:a|b)*c|(?:a|b)*d|(?:.|a)*e", regex=True)


# Images


def draw(width: int, height: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    data = BytesIO()
    Image.new(mode, (width, height), "red" if mode == "RGB" else 0).save(data, kind)
    return data.getvalue()


@each_case("kind", ["PNG", "JPEG", "GIF", "WEBP"])
async def test_a_thumbnail_has_the_proportions_of_its_image(kind: str, lab: FilesLab) -> None:
    files = (await lab.thread()).files
    file = await files.write(f"a.{kind.lower()}", draw(640, 320, kind))
    assert (file.width, file.height) == (640, 320)
    for size, expected in ((256, (256, 128)), (32, (32, 16)), (2000, (640, 320))):
        made = await files.thumbnail(file.path, size)
        assert made is not None
        with Image.open(BytesIO(made)) as image:
            assert image.size == expected
            assert image.format == ("JPEG" if kind == "JPEG" else "PNG")
    for size in (0, 4000):
        with pytest.raises(ValueError, match="size must be"):
            await files.thumbnail(file.path, size)


async def test_there_is_no_thumbnail_of_what_is_no_image(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("a.txt", "text")
    await files.write("b.png", draw(64, 64)[:40])
    await files.write("c.jpg", b"\xff\xd8" + b"\xff\xc0\0\x11\x08\0\x10\0\x10" + bytes(50))
    for path in ("a.txt", "b.png", "c.jpg", "none"):
        assert await files.thumbnail(path) is None


@each_case("size", [100_000, 400_000])
async def test_a_photo_with_much_metadata_has_a_thumbnail(size: int, lab: FilesLab) -> None:
    photo, segment = draw(64, 32, "JPEG"), b"\xff\xfe\xff\xff" + b"x" * 65_533
    data = photo[:2] + segment * (size // len(segment)) + photo[2:]
    files = (await lab.thread()).files
    found = await files.write("a.jpg", data)
    assert (found.width, found.height) == ((64, 32) if size < CHUNK else (None, None))
    assert await files.thumbnail("a.jpg") is not None


async def test_the_size_of_an_image_that_is_cut_off_or_has_none_is_not_known(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        data = draw(64, 32, kind)
        for end in range(min(len(data), 700)):
            found = measure_image(data[:end])
            assert found in (None, (64, 32)), (kind, end)
    without = b"\xff\xd8\xff\xc0\0\x11\x08\0\0\0\x10" + bytes(50)
    for data in (b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\0", without):
        assert (await files.write("a.jpg", data)).width is None
        assert await files.thumbnail("a.jpg") is None


async def test_a_bomb_is_refused_before_it_is_decoded(lab: FilesLab) -> None:
    files = (await lab.thread()).files
    await files.write("bomb.png", draw(8000, 6000, mode="1"))
    with pytest.raises(TooLarge, match="8000 by 6000"):
        await files.thumbnail("bomb.png")


# What is not always installed


async def test_what_needs_an_extra_says_which(lab: FilesLab, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (await lab.thread()).files
    await files.write("a.png", draw(64, 64))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(ImportError, match=r"Pillow: pip install 'plait\[files\]'"):
        await files.thumbnail("a.png")
    with pytest.raises(ImportError, match=r"regex: pip install 'plait\[files\]'"):
        await files.grep("a", regex=True)
    assert await files.grep("a") == []


def test_clients_know_the_types_of_the_events_of_files() -> None:
    class Shelf(Thread[None]):
        events: ClassVar = {"full": int}
        files = Files()

    found = make_types_files([Shelf._kind])["plait-types.ts"]
    events = found.partition("export interface ShelfEvents {")[2].partition("}")[0]
    for name, type_ in {"file_created": "FileInfo", "file_deleted": "RemovedFile", "full": "number"}.items():
        assert f"{name}: {type_};" in events
    assert "width: number | null;" in found


# Forks and exports


async def test_a_fork_and_an_export_have_the_files_and_nothing_that_is_unfinished(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_lab(make_store(request, "sqlite", tmp_path)) as lab:
        room = await lab.thread()
        await room.files.write("a/b.bin", body(1, 2 * CHUNK + 8), metadata={"n": 1})
        await room.files.write("text.txt", "line\nand line\n")
        upload = await room.files.receive(body(2, CHUNK))
        await lab.app.fork_thread(Room, "one", "fork")
        exported = b"".join([line async for line in lab.app.export_thread("room", "one")])
        await lab.app.import_thread(exported, name="copy")
        await room.files.put("late.bin", upload)
        await room.files.unlink("text.txt")
        for name in ("fork", "copy"):
            files = (await lab.thread(name)).files
            assert [file.path for file in await files.find("**")] == ["a/b.bin", "text.txt"]
            assert await files.read("a/b.bin") == body(1, 2 * CHUNK + 8)
            assert await files.read("text.txt") == b"line\nand line\n"
            await until(partial(lab.is_clean, name))
        assert await room.files.read("late.bin") == body(2, CHUNK)
