"""What is served beside threads: whether a process is ready, its metrics and its pages."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from plait import MemoryStore, Plait, Thread
from plait.cluster.gate import LeaseGate
from plait.cluster.lease import LEASE, NodeLease
from plait.cluster.owners import Workers
from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.web.links.links import HOLD


class Room(Thread[dict[str, int]]):
    initial_state = {"n": 0}  # noqa: RUF012


class Engine(MemoryStore):
    """A store whose engine may be silent, or refuse writes."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: StoreError | None = None
        self.is_silent = False
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def check_writes(self) -> None:
        self.asked.set()
        if self.is_silent:
            await self.answers.wait()
        if self.failure is not None:
            raise self.failure


class Server:
    """An app on a shared engine, with a clock for its lease."""

    def __init__(self) -> None:
        self.now = 100.0
        self.engine = Engine()
        self.app = Plait(Room, store=self.engine)
        owners = Workers(0, 1, 1)
        owners.gate = self.gate = LeaseGate()
        self.app._context.owners = owners
        self.lease = NodeLease(lambda: self.now)
        self.gate.follow(self.lease)
        self.lease.extend(self.now)

    async def ready(self) -> int:
        """Return the status of `/readyz`."""
        return (await self.ask()).status_code

    async def ask(self) -> httpx.Response:
        """Return the answer of `/readyz`."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as http:
            return await http.get("/readyz")


async def test_a_node_without_its_engine_is_ready_until_it_refuses_what_it_has_held() -> None:
    server = Server()
    async with server.app:
        for since_beat, wanted in [(LEASE - 0.1, 200), (LEASE, 200), (LEASE + HOLD - 0.1, 200), (LEASE + HOLD, 503)]:
            server.now = 100.0 + since_beat
            assert await server.ready() == wanted, since_beat
        server.lease.extend(server.now)
        assert await server.ready() == 200


async def test_a_node_that_is_dead_is_ready_until_it_refuses_what_it_has_held() -> None:
    server = Server()
    async with server.app:
        server.lease.end()
        assert await server.ready() == 200
        server.now += HOLD
        assert await server.ready() == 503


async def test_a_node_that_has_not_joined_is_not_ready() -> None:
    server = Server()
    async with server.app:
        server.gate.follow(NodeLease(lambda: server.now))
        assert await server.ready() == 503


async def test_an_engine_that_does_not_answer_is_told_by_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.web.site._CHECK", 0.01)
    server = Server()
    async with server.app:
        server.engine.failure = Unreachable("the connection is lost")
        assert await server.ready() == 200
        server.engine.failure, server.engine.is_silent = None, True
        assert await server.ready() == 200
        server.engine.answers.set()


async def test_a_look_at_the_store_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.web.site._CHECK", 0.01)
    server = Server()
    async with server.app:
        server.engine.is_silent = True
        assert await server.ready() == 200
        check = server.app._site._check
        assert check is not None
        assert not check.done()
    assert check.done()


async def test_a_look_at_the_store_that_the_end_of_the_server_ends_finds_it_unready() -> None:
    server = Server()
    async with server.app:
        server.engine.is_silent = True
        asking = asyncio.create_task(server.ready())
        await server.engine.asked.wait()
    assert await asking == 503


def test_an_app_that_was_looked_at_is_started_and_stopped_in_another_loop() -> None:
    server = Server()

    async def serve(*, is_asked: bool) -> None:
        async with server.app:
            if is_asked:
                assert await server.ready() == 200

    asyncio.run(serve(is_asked=True))
    asyncio.run(serve(is_asked=False))


async def test_a_node_that_can_answer_is_ready_and_says_whether_its_engine_refuses_changes() -> None:
    server = Server()
    async with server.app:
        for failure, writes in ((StoreError("the disk is full"), "refused"), (None, "accepted")):
            server.engine.failure = failure
            answer = await server.ask()
            assert (answer.status_code, answer.json()["status"], answer.json()["writes"]) == (200, "ok", writes)


@pytest.mark.parametrize("path", ["", "/live"], ids=["alone", "mounted"])
@pytest.mark.parametrize("token", ["", "the token of operators"], ids=["open", "token"])
async def test_metrics_are_for_operators_if_there_is_a_token(
    path: str, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Plait(Room, store=MemoryStore(), metrics=True, operator_token=token)
    site = Starlette(routes=[Mount("/live", app)]) if path else app
    transport = httpx.ASGITransport(site)
    async with app, httpx.AsyncClient(transport=transport, base_url=f"http://localhost{path}") as http:
        assert (await http.get("/threads/room/one")).status_code == 404
        bearer = {"Authorization": f"Bearer {token}"}
        refused = await http.get("/metrics", headers={"Authorization": "Bearer another"})
        answer = await http.get("/metrics", headers=bearer)
        assert 'plait_requests_total{kind="room",method="GET",status="404"} 1.0' in answer.text
        # A page whose name leads to this server cannot know the token.
        foreign = await http.get("/metrics", headers=bearer | {"Host": "node.example"})
    assert (refused.status_code, foreign.status_code) == ((401, 200) if token else (200, 421))
    assert ("every client may read /metrics: set operator_token" in caplog.text) == (not token)


async def test_a_folder_of_pages_may_be_missing_unless_the_app_is_served(tmp_path: Path) -> None:
    app = Plait(Room, store=MemoryStore(), static=tmp_path / "dist")
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        assert (await http.get("/threads/room/one")).status_code == 404
    with pytest.raises(ValueError, match=r"^static: .*dist' is not a folder: make it with `mkdir /.*dist`"):
        await app.lifespan().__aenter__()
