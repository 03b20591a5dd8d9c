"""The end of a thread as clients of a real server are told of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import TIMEOUT, connected, http
from tests.running import running

from plait import Plait, Principal, Thread, ThreadKey, rpc
from plait_client import Closed, connect

pytestmark = pytest.mark.relayed(in_soak=True)


class Board(Thread[Any]):
    """A board with a call that can hold up its turns."""

    initial_state: Any = 0
    # Each test has its own.
    is_held: asyncio.Event
    is_waiting: asyncio.Event

    @rpc
    async def wait(self) -> None:
        self.is_waiting.set()
        await self.is_held.wait()

    @rpc
    async def end(self) -> int:
        await self.destroy()
        return int(self.state)


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    return action not in thread.name


@pytest.fixture
async def app(tmp_path: Path) -> Plait:
    Board.is_held, Board.is_waiting = asyncio.Event(), asyncio.Event()
    return Plait(Board, store=f"sqlite:///{tmp_path}/plait.db", authorize=authorize)


@pytest.fixture
async def address(app: Plait) -> AsyncIterator[str]:
    async with running(app) as address:
        yield address


@pytest.fixture
async def web(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with http(address) as web:
        yield web


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_delete_destroys_a_thread_and_there_is_none_to_delete_then(web: httpx.AsyncClient) -> None:
    first = await web.put("/threads/board/one", json=5)
    answer = await web.delete("/threads/board/one")
    assert (answer.status_code, answer.content) == (204, b"")
    assert error_of(await web.delete("/threads/board/one")) == (404, "not_found")
    assert error_of(await web.delete("/threads/nothing/one")) == (404, "not_found")
    again = await web.put("/threads/board/one", json=5)
    assert again.json()["version"] == 1
    assert again.json()["epoch"] != first.json()["epoch"]


async def test_delete_is_refused_to_who_may_not_and_to_pages_of_others(web: httpx.AsyncClient) -> None:
    for name in ("destroy", "missing destroy"):
        if name == "destroy":
            await web.put(f"/threads/board/{name}", json=5)
        assert error_of(await web.delete(f"/threads/board/{name}")) == (403, "forbidden")
    assert (await web.get("/threads/board/destroy")).json() == 5
    await web.put("/threads/board/one", json=5)
    answer = await web.delete("/threads/board/one", headers={"Origin": "https://foe.example"})
    assert error_of(answer) == (403, "forbidden")
    assert (await web.get("/threads/board/one")).json() == 5


class Open(Board):
    clients_may_destroy = True


async def allow(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    return True


async def test_without_authorize_clients_end_only_threads_of_classes_that_let_them() -> None:
    async with running(Plait(Board, Open, store="memory://")) as address, http(address) as web:
        for kind, status in (("board", 403), ("open", 204)):
            path = f"/threads/{kind}/one"
            await web.put(path, json=5)
            assert (await web.delete(path)).status_code == status
            assert (await web.get(path)).status_code == (200 if status == 403 else 404)
    # `authorize` alone decides.
    for authorize, status in ((allow, 204), (lambda principal, thread, action: action != "destroy", 403)):
        async with running(Plait(Board, Open, store="memory://", authorize=authorize)) as address, http(address) as web:
            for kind in ("board", "open"):
                await web.put(f"/threads/{kind}/one", json=5)
                assert (await web.delete(f"/threads/{kind}/one")).status_code == status


async def test_clients_of_both_protocols_are_told_that_the_thread_was_destroyed(
    address: str, web: httpx.AsyncClient
) -> None:
    url = f"ws://{address}/threads/board/one"
    async with connect(url) as room, connected(address, "/threads/board/one") as client:
        await room.set(5)
        assert (await web.delete("/threads/board/one")).status_code == 204
        await client.until_closed()
        assert client.socket.close_code == 4410
        with pytest.raises(Closed, match="the thread was destroyed: board/one was destroyed") as told:
            await asyncio.wait_for(room.set(6), TIMEOUT)
        assert told.value.code == 4410
    # Nothing of the client's brings it back.
    assert error_of(await web.delete("/threads/board/one")) == (404, "not_found")


async def test_a_request_that_waits_is_told_that_the_thread_was_destroyed(app: Plait, web: httpx.AsyncClient) -> None:
    await web.put("/threads/board/one", json=5)
    async with asyncio.timeout(TIMEOUT):
        first = asyncio.create_task(web.post("/threads/board/one/rpc/wait"))
        await Board.is_waiting.wait()
        ending = asyncio.create_task(app.destroy(Board, "one"))
        await asyncio.sleep(0)
        queue = app._node.actors[0].turns.mailbox
        second = asyncio.create_task(web.post("/threads/board/one/rpc/wait"))
        while queue.length < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        Board.is_held.set()
        await ending
        assert (await first).status_code == 200
        assert error_of(await second) == (410, "destroyed")


async def test_a_thread_that_ends_itself_answers_the_request(web: httpx.AsyncClient) -> None:
    await web.put("/threads/board/one", json=5)
    assert (await web.post("/threads/board/one/rpc/end")).json() == {"result": 5}
    assert error_of(await web.delete("/threads/board/one")) == (404, "not_found")


class Doc(Thread[Any]):
    initial_state: Any = 0

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: state + 1)
        return int(self.state)


class Guard:
    """Allows no new threads, and delays the answer for the last action that it is asked about."""

    def __init__(self, action: str, nth: int) -> None:
        self.last = (action, nth)
        self.asked: list[str] = []
        self.is_asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def authorize(self, principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        self.asked.append(action)
        if action == self.last[0] and self.asked.count(action) == self.last[1]:
            self.is_asked.set()
            await self.answers.wait()
        return action != "create"


@pytest.mark.parametrize(
    ("what", "action", "nth"),
    [("put", "write", 2), ("rpc", "write", 1), ("native", "call", 1), ("cloudflare", "call", 1)],
)
async def test_who_may_not_create_cannot_begin_again_what_is_destroyed_as_the_server_decides(
    tmp_path: Path, what: str, action: str, nth: int
) -> None:
    guard = Guard(action, nth)
    app = Plait(Doc, store=f"sqlite:///{tmp_path}/plait.db", authorize=guard.authorize)

    async def ask(address: str) -> int | None:
        if what in ("put", "rpc"):
            async with http(address) as web:
                url = "/threads/doc/one"
                answer = await (web.put(url, json=2) if what == "put" else web.post(f"{url}/rpc/add"))
                return answer.status_code
        if what == "cloudflare":
            async with connected(address, "/threads/doc/one") as client:
                return await client.until_closed()
        with pytest.raises(Closed) as told:
            async with connect(f"ws://{address}/threads/doc/one"):
                pass
        return told.value.code

    async with running(app) as address, asyncio.timeout(TIMEOUT):
        await app.thread(Doc, "one").set_state(5)
        asking = asyncio.create_task(ask(address))
        await guard.is_asked.wait()
        await app.destroy(Doc, "one")
        guard.answers.set()
        assert await asking == (403 if what in ("put", "rpc") else 4403)
        assert guard.asked[-1] == "create"
        assert [key async for key in app.threads()] == []
