"""Files on servers that are killed: a file and the state change together, and nothing without a path is left."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.integration.socket_client import http
from tests.postgres import new_schema
from tests.running import Process
from tests.schedules import SEED, TIMES, in_soak, schedules

ROUNDS = schedules() if TIMES > 1 else 3
THREADS = 4
CHUNK = 256 * 1024
APP = """
import asyncio

from plait import Files, Plait, Thread, rpc
from plait.store.thread_rows import RecordRange


class Box(Thread[dict]):
    initial_state = {"number": 0, "size": 0}
    files = Files()

    @rpc
    async def save(self, number: int, size: int) -> int:
        upload = await self.files.receive(body(number, size))
        with self.transaction():
            self.set_state({"number": number, "size": size})
            put = self.files.put("dir/a.bin", upload)
        await put
        return number

    @rpc
    async def look(self) -> list:
        number, size = self.state["number"], self.state["size"]
        content = await self.files.read("dir/a.bin")
        return [number, number == 0 or content == body(number, size)]

    @rpc(concurrent=True)
    async def find_left(self) -> list:
        keys, after = [], ""
        while page := await self._actor.records.list(RecordRange("files", after=after, limit=20)):
            keys += [record.key for record in page if not record.key.startswith("f/")]
            after = page[-1].key
        wanted = {file.etag: file.chunks for file in await self.files.find("**")}
        return [key for key in keys if int(key.rpartition("/")[2], 16) >= wanted.get(key.split("/")[1], 0)]


def body(number: int, size: int) -> bytes:
    return (b"%08d" % number) * (size // 8)


app = Plait(Box, limits=None)
"""


class Client:
    """Replaces the files of one thread until the server is gone."""

    def __init__(self, number: int) -> None:
        self.url = f"/threads/box/{number}"
        self._chance = random.Random(number)
        self.answered = self.uploaded = self.sent = 0
        self.first = asyncio.Event()

    async def play(self, address: str) -> None:
        async with http(address) as client:
            while True:
                size = self._chance.choice((8, 80_000, CHUNK, 3 * CHUNK + 8, 4_000_000))
                self.sent = self.answered + 1
                upload = self._upload(client, size)
                call = client.post(f"{self.url}/rpc/save", json={"args": [self.sent, size]})
                for answer in await asyncio.gather(upload, call):
                    if answer.status_code == 500 and answer.json()["error"]["code"] == "indeterminate":
                        return  # Of the two workers, the one that owns the thread is killed first.
                    assert answer.status_code in (200, 201), answer.text
                self.answered = self.sent
                self.first.set()

    async def _upload(self, client: httpx.AsyncClient, size: int) -> httpx.Response:
        answer = await client.put(f"{self.url}/files/b.bin", content=self._pieces(self.sent, size))
        if answer.is_success:
            self.uploaded = self.sent
        return answer

    async def _pieces(self, number: int, size: int) -> AsyncIterator[bytes]:
        for _ in range(-(-size // 65536)):
            yield (b"%08d" % number) * 8192

    async def check(self, address: str) -> None:
        """Check the stored files; the last one sent may have been stored unanswered."""
        async with http(address) as client:
            answer = await client.post(f"{self.url}/rpc/look", json={})
            assert answer.status_code == 200, answer.text
            number, is_whole = answer.json()["result"]
            assert self.answered <= number <= max(self.sent, self.answered)
            assert is_whole, f"the file is not that of the state {number}"
            if self.uploaded:
                content = (await client.get(f"{self.url}/files/b.bin")).content
                found = content[:8]
                assert content == found * (len(content) // 8)
                assert self.uploaded <= int(found) <= self.sent
                self.uploaded = int(found)
            async with asyncio.timeout(30):
                while (left := await client.post(f"{self.url}/rpc/find_left", json={})).json()["result"]:
                    assert left.status_code == 200, left.text
                    await asyncio.sleep(0.02)
            self.answered = number


def kill(server: Process) -> None:
    """Kill a server with all of its workers at once."""
    server.signal(signal.SIGSTOP)  # It starts none of them again.
    workers = psutil.Process(server.pid).children(recursive=True)
    for worker in workers:
        worker.kill()
    server.end(signal.SIGKILL)
    psutil.wait_procs(workers, timeout=30)


@pytest.mark.soak
@pytest.mark.timeout(120 * TIMES)
@pytest.mark.parametrize("engine", ["sqlite", *in_soak(["postgresql"])])
async def test_two_killed_workers_leave_whole_files_with_their_state_and_nothing_else(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = "sqlite:///boxes.db" if engine == "sqlite" else new_schema(request.getfixturevalue("postgres").url)
    (tmp_path / "boxes_app.py").write_text(APP)
    clients, chance = [Client(number) for number in range(THREADS)], random.Random(SEED)
    options, environment = ["--workers", "2"] * (engine == "sqlite"), {"PLAIT_STORE": url}
    for last in [False] * ROUNDS + [True]:
        with Process("boxes_app:app", cwd=tmp_path, environment=environment, options=options) as server:
            await asyncio.gather(*(client.check(server.address) for client in clients))
            if last:
                break
            tasks = [asyncio.create_task(client.play(server.address)) for client in clients]
            for client in clients:
                client.first.clear()
            await asyncio.wait(
                [asyncio.create_task(client.first.wait()) for client in clients], return_when="FIRST_COMPLETED"
            )
            await asyncio.sleep(chance.random() * 0.2)  # The moment at which it is killed.
            kill(server)
            for task in tasks:
                with suppress(httpx.HTTPError):
                    await task
    assert sum(client.answered for client in clients) >= ROUNDS
