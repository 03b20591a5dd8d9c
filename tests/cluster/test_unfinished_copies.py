"""No process serves an unfinished copy, whether it is a node or alone."""

import pytest
from tests.postgres import Postgres, new_schema
from tests.server.store.test_copying import fill_thread
from tests.workers.apps import Ledger

from plait import Plait
from plait.errors import StoreError
from plait.store.copying import UNFINISHED
from plait.store.urls import open_store


async def test_no_process_serves_an_unfinished_copy(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_schema(postgres.url)
    async with open_store(url) as store:
        await fill_thread(store, UNFINISHED, 1)
    for is_cluster in (False, True):
        if is_cluster:
            monkeypatch.setenv("PLAIT_CLUSTER", "1")
            monkeypatch.setenv("PLAIT_NODE", "a")
            monkeypatch.setenv("PLAIT_LISTEN_NODES", "127.0.0.1:1")
        app = Plait(Ledger, store=url)
        with pytest.raises(StoreError, match="unfinished copy"):
            await app.check_store()
        with pytest.raises(StoreError, match="unfinished copy"):
            await app.__aenter__()
