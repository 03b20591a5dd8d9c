"""Files of a thread in the Python client: uploads, downloads, and what the server refuses."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.running import running

from plait import Files, Limits, Plait, Principal, Thread, ThreadKey
from plait_client import Disconnected, Refused, connect, connect_sync

DATA = bytes(range(256)) * 2000


class Room(Thread[Any]):
    files = Files()


def authenticate(request: Any) -> Principal | None:
    return Principal("ada") if request.headers.get("authorization") == "Bearer secret" else None


def authorize(principal: Any, thread: ThreadKey, action: str) -> bool:
    return thread.name != "closed" or action != "upload"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    limits = Limits(file=600_000)
    app = Plait(Room, store="memory://", authenticate=authenticate, authorize=authorize, limits=limits)
    async with running(app) as address:
        yield f"ws://{address}/threads/room"


@pytest.mark.parametrize("source", ["bytes", "file"])
async def test_a_file_is_uploaded_read_and_removed(source: str, address: str, tmp_path: Path) -> None:
    sent = list[int]()
    async with connect(f"{address}/one%20two", token="secret") as room:
        (tmp_path / "data").write_bytes(DATA)
        data: Any = DATA if source == "bytes" else (tmp_path / "data").open("rb")
        found = await room.files.upload("d/ü?.bin", data, mime="text/x-own", on_progress=sent.append)
        assert (found.path, found.name, found.size, found.mime) == ("d/ü?.bin", "ü?.bin", len(DATA), "text/x-own")
        assert sent[-1] == len(DATA)
        assert len(sent) > 5
        assert await room.files.read("d/ü?.bin") == DATA
        assert (await room.files.upload("a.txt", "grüße")).mime == "text/plain"
        assert await room.files.read("a.txt") == "grüße".encode()
        assert await room.files.remove("a.txt") is True
        assert await room.files.remove("a.txt") is False
        assert await room.files.read("a.txt") is None
        if source == "file":
            data.close()


async def test_urls_are_those_of_the_server(address: str) -> None:
    async with connect(f"{address}/one%20two", token="secret") as room:
        assert room.files.url("/a//b c.txt") == f"{address.replace('ws', 'http', 1)}/one%20two/files/a/b%20c.txt"
        with pytest.raises(ValueError, match="has the part"):
            room.files.url("a/../b")


async def test_what_the_server_refuses_is_an_error_with_its_code(address: str) -> None:
    async with connect(f"{address}/closed", token="secret") as room:
        with pytest.raises(Refused, match="you may not upload") as caught:
            await room.files.upload("a", b"1")
        assert caught.value.code == "forbidden"
    async with connect(f"{address}/one", token="secret") as room:
        with pytest.raises((Refused, Disconnected)):  # The server may have closed the connection before it is read.
            await room.files.upload("a", DATA * 2)
        assert await room.files.read("a") is None


async def test_a_cancelled_upload_leaves_no_file(address: str) -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
            return super().read(size)

    async with connect(f"{address}/one", token="secret") as room:
        task = asyncio.create_task(room.files.upload("a", Slow(DATA)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await room.files.upload("b", b"1")
        assert await room.files.read("a") is None


async def test_files_without_asyncio(address: str) -> None:
    def work() -> None:
        with connect_sync(f"{address}/one", token="secret") as room:
            assert room.files.upload("a.txt", "abc").size == 3
            assert room.files.read("a.txt") == b"abc"
            assert room.files.url("a.txt").endswith("/threads/room/one/files/a.txt")
            assert room.files.remove("a.txt") is True

    await asyncio.to_thread(work)
