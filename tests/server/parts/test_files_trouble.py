"""Files when the store refuses writes, content is replaced while it is used, and calls are cancelled."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
import regex
from PIL import Image
from tests.server.parts.files_lab import CHUNK, PATIENCE, FilesLab, make_store, open_lab, until

from plait import Limits, StoreError, ThreadKey
from plait.parts.files.images import make_thumbnail
from plait.store.protocol import Write


@pytest.fixture
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FilesLab]:
    async with open_lab(make_store(request, "memory", tmp_path), limits=Limits(files=3 * CHUNK)) as lab:
        yield lab


@pytest.mark.parametrize("puts", ["write", "put"])
async def test_an_upload_whose_write_fails_later_is_removed(puts: str, lab: FilesLab) -> None:
    files, submit = (await lab.thread()).files, lab.store.submit
    refused = list["asyncio.Future[int]"]()

    def refuse_paths(write: Write) -> "asyncio.Future[int]":
        if not any(record.key.startswith("f/") for record in write.records):
            return submit(write)
        refused.append(asyncio.get_running_loop().create_future())
        return refused[-1]

    async def write() -> None:
        if puts == "write":
            await files.write("b", bytes(CHUNK))
        else:
            await files.put("b", await files.receive(bytes(CHUNK)))

    for _ in range(4):  # All of them together are more than a thread may have.
        lab.store.submit = refuse_paths  # type: ignore[method-assign]
        writing = asyncio.create_task(write())

        async def is_submitted() -> bool:
            return len(refused) == 1

        await until(is_submitted)
        refused.pop().set_exception(StoreError("the disk is full"))
        with pytest.raises(StoreError):
            await writing
        lab.store.submit = submit  # type: ignore[method-assign]
        del writing
        gc.collect()  # Errors and their frames refer to each other.
        await until(lab.is_clean)
    assert await files.read("b") is None


async def test_grep_reads_what_a_path_has_when_its_turn_comes(lab: FilesLab) -> None:
    files, record = (await lab.thread()).files, lab.store.record
    for name in ("a", "b", "c"):
        await files.write(name, "old\n")
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(key: ThreadKey, part: str, name: str) -> bytes | None:
        reached.set()
        await gate.wait()
        return await record(key, part, name)

    lab.store.record = wait  # type: ignore[method-assign]
    searching = asyncio.create_task(files.grep("o"))
    await reached.wait()
    await files.write("b", "new, also o\n")
    await files.unlink("c")

    async def are_removed() -> bool:
        return len(await lab.contents()) == 2

    await until(are_removed)
    gate.set()
    assert [(each.path, each.text) for each in await searching] == [("a", "old"), ("b", "new, also o")]


async def test_one_thumbnail_is_made_at_a_time_even_after_cancelled_calls(
    lab: FilesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (await lab.thread()).files
    image = BytesIO()
    Image.new("RGB", (64, 32)).save(image, "PNG")
    await files.write("a.png", image.getvalue())
    begun, gate, making = threading.Semaphore(0), threading.Event(), list[int]()

    def make(data: bytes, size: int) -> bytes | None:
        making.append(size)
        begun.release()
        gate.wait(PATIENCE)
        return make_thumbnail(data, size)

    monkeypatch.setattr("plait.parts.files.thread_files.make_thumbnail", make)
    first = asyncio.create_task(files.thumbnail("a.png", 10))
    await asyncio.to_thread(begun.acquire)
    second = asyncio.create_task(files.thumbnail("a.png", 20))
    third = asyncio.create_task(files.thumbnail("a.png", 30))
    for task in (first, second):
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    await files.read("a.png")  # The third one could have begun.
    assert making == [10]
    await files.write("a.png", "no image")  # The third call keeps the image that it has found.
    gate.set()
    assert await third is not None
    assert making == [10, 30]


async def test_a_pattern_that_is_too_large_is_invalid(lab: FilesLab, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (await lab.thread()).files
    await files.write("a", "x" * 1000)
    for is_regex in (False, True):
        assert len(await files.grep("x" * 1000, regex=is_regex)) == 1
        with pytest.raises(ValueError, match="at most 1,000 characters, not 1,001"):
            await files.grep("x" * 1001, regex=is_regex)
    with pytest.raises(ValueError, match="is invalid: it is too large"):
        await files.grep("(" * 450 + ")" * 450, regex=True)

    def fail(_: str) -> None:
        raise MemoryError

    monkeypatch.setattr("regex.compile", fail)
    with pytest.raises(ValueError, match="is invalid: it is too large"):
        await files.grep("((x{100}){100}){100}", regex=True)


async def test_a_regular_expression_is_compiled_beside_the_loop(lab: FilesLab, monkeypatch: pytest.MonkeyPatch) -> None:
    files, compilers = (await lab.thread()).files, list[int]()

    def compile_noting(pattern: str) -> object:
        compilers.append(threading.get_ident())
        return compile_regex(pattern)

    compile_regex = regex.compile
    monkeypatch.setattr("regex.compile", compile_noting)
    assert await files.grep("x+", regex=True) == []
    assert len(compilers) == 1
    assert compilers[0] != threading.get_ident()


async def test_a_thread_with_small_records_keeps_many_long_paths(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store, paths = make_store(request, "sqlite", tmp_path), {"é" * 500 + f"{number:03}" for number in range(70)}
    async with open_lab(store, limits=Limits(record=32 * 1024)) as lab:
        files = (await lab.thread()).files
        for path in paths:
            await files.write(path, "old")
        for path in paths:
            await files.write(path, "new", metadata={"a": "x" * 1000})
    async with open_lab(store, limits=Limits(record=32 * 1024)) as lab:
        files = (await lab.thread()).files
        assert {file.path for file in await files.find("**")} == paths
        assert await files.read(min(paths)) == b"new"
        await until(lab.is_clean)


@pytest.mark.parametrize("pattern", ["needle", "n"])
async def test_grep_finds_a_text_in_a_long_line_once_wherever_it_is(pattern: str, lab: FilesLab) -> None:
    files = (await lab.thread()).files
    for at in (0, 65_533, 65_536, CHUNK - 3, CHUNK - 1, CHUNK, CHUNK + 70_000):
        await files.write("a.txt", "x" * at + pattern + "x" * (2 * CHUNK - at) + "\nend")
        assert [each.line for each in await files.grep(pattern, "*.txt") if each.text != "end"] == [1], at


async def test_replaced_content_is_kept_until_the_write_that_replaces_it_is_durable(lab: FilesLab) -> None:
    files, submit = (await lab.thread()).files, lab.store.submit
    await files.write("a", b"old")
    upload, refused = await files.receive(b"new"), list["asyncio.Future[int]"]()
    later = list[Write]()

    def refuse_paths(write: Write) -> "asyncio.Future[int]":
        if not any(record.key.startswith("f/") for record in write.records):
            later.append(write)
            return submit(write)
        refused.append(asyncio.get_running_loop().create_future())
        return refused[-1]

    lab.store.submit = refuse_paths  # type: ignore[method-assign]
    put = files.put("a", upload)
    contents = files._store.contents

    async def is_sweeping() -> bool:
        return contents._is_sweeping or bool(later)

    await until(is_sweeping)
    for _ in range(20):
        await asyncio.sleep(0)
    assert later == []
    refused[0].set_exception(StoreError("the disk is full"))
    with pytest.raises(StoreError):
        await put
    assert await files.read("a") == b"old"
