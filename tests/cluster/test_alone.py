"""A process that shares its store with no other, after its lease."""

import asyncio
from typing import Any

import pytest
from tests.cluster.proxy import Proxy
from tests.integration.socket_client import http
from tests.postgres import Postgres, new_schema
from tests.running import running
from tests.workers.apps import Ledger
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from plait import Plait, Thread
from plait.cluster.cell_directory import find_directory
from plait.cluster.lease import LEASE
from plait.errors import NewerState, Unavailable
from plait.store.urls import open_store
from plait.web.sockets.handshake import Handshake
from plait_client import connect


async def test_server_code_reads_nothing_after_the_lease(postgres: Postgres) -> None:
    async with Proxy(postgres.port) as engine:
        url = new_schema(postgres.url).replace(f":{postgres.port}/", f":{engine.port}/")
        app = Plait(Ledger, store=url)
        async with app:
            room = app.thread(Ledger, "one")
            await room.set_state({"n": 1})
            engine.silence()
            await asyncio.sleep(LEASE + 0.1)
            # Another process may have the thread by now.
            with pytest.raises(Unavailable, match="cut off"):
                await room.state()
            with pytest.raises(Unavailable):
                await room.set_state({"n": 2})
            engine.heal()
            async with asyncio.timeout(20):
                while not app._owners.gate.is_open:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await room.state() == {"n": 1}


@pytest.mark.parametrize("ws", [Handshake, "websockets-sansio"])
async def test_requests_and_new_sockets_are_refused_when_the_engine_is_away_for_too_long(
    postgres: Postgres, ws: Any
) -> None:
    async def wait_for(status: int) -> None:
        while (await web.get("/readyz")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async with Proxy(postgres.port) as engine:
        app = Plait(Ledger, store=new_schema(postgres.url).replace(f":{postgres.port}/", f":{engine.port}/"))
        app._context.links.hold = 0.2
        async with (
            asyncio.timeout(20),
            running(app, ws=ws) as address,
            http(address) as web,
            connect(f"ws://{address}/threads/ledger/one") as room,
        ):
            await room.update("/n", 1)
            engine.silence()
            await wait_for(503)
            for answer in (await web.get("/threads/ledger/one"), await web.put("/threads/ledger/one", json={})):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
                assert answer.headers["retry-after"] == "1"
            with pytest.raises(ConnectionClosed) as caught:
                async with websocket(
                    f"ws://{address}/threads/ledger/two", subprotocols=[Subprotocol("plait.v1")]
                ) as refused:
                    await refused.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1013
            engine.heal()
            await wait_for(200)
            # The socket that was open stays.
            await room.update("/n", 2)
            assert (await web.get("/threads/ledger/one")).json()["n"] == 2


async def test_what_is_held_while_the_process_is_dead_for_others_is_answered_when_it_has_joined_again(
    postgres: Postgres,
) -> None:
    url = new_schema(postgres.url)
    async with Proxy(postgres.port) as engine:
        app = Plait(Ledger, store=url.replace(f":{postgres.port}/", f":{engine.port}/"))
        async with asyncio.timeout(30), running(app, ws="websockets-sansio") as address, http(address) as web:
            engine.silence()
            while app._owners.gate.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            put = asyncio.create_task(web.put("/threads/ledger/one", json={"n": 1}))
            opening = websocket(f"ws://{address}/threads/ledger/two", subprotocols=[Subprotocol("plait.v1")])
            opened = asyncio.create_task(opening.__aenter__())
            directory = find_directory(open_store(url))
            assert directory is not None
            async with directory:
                (node,) = (await directory.read()).alive().values()
                assert await directory.mark_dead(node.id, node.beats)
            assert not put.done()
            assert not opened.done()
            engine.heal()
            await (await opened).close()
            assert (await put).status_code == 200
            async with connect(f"ws://{address}/threads/ledger/one") as one:
                assert one.state["n"] == 1
        assert app._owners.gate.generation > 1


class Doc(Thread[Any]):
    initial_state = 0


class NewDoc(Doc):
    kind = "doc"
    state_version = 2


async def test_older_code_that_comes_back_alone_serves_what_newer_code_has_not_stored(postgres: Postgres) -> None:
    url = new_schema(postgres.url)
    async with Plait(NewDoc, store=url) as app:
        await app.thread(NewDoc, "new").set_state(1)
    async with asyncio.timeout(20), Plait(Doc, store=url) as app:
        await app.thread(Doc, "other").set_state(2)
        assert await app.thread(Doc, "other").state() == 2
        with pytest.raises(NewerState):
            await app.thread(Doc, "new").state()
