"""A process that shares its store with no other, after its lease."""

import asyncio
from typing import Any

import pytest
from tests.cluster.proxy import Proxy
from tests.postgres import Postgres, new_schema
from tests.workers.apps import Ledger

from plait import Plait, Thread
from plait.cluster.lease import LEASE
from plait.errors import NewerState, Unavailable


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
