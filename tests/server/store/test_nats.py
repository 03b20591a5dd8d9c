"""The store in NATS JetStream."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.nats import Nats, new_stream
from tests.server.owning import owned
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import OTHER, ROOM, beginning, put
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.nats import index
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl
from plait.store.protocol import ThreadQuery


@pytest.fixture
def store(nats_server: Nats) -> NatsStore:
    return NatsStore(NatsUrl.parse(new_stream(nats_server.url, "replicas=1")))


async def test_listings_at_the_same_moment_sort_the_threads_once(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    sort_in_steps = index.sort_in_steps

    async def sort(rows: Sequence[Any], *functions: Any) -> list[Any]:
        counts.append(len(rows))
        await asyncio.sleep(0)  # As with many rows.
        return await sort_in_steps(rows, *functions)

    monkeypatch.setattr(index, "sort_in_steps", sort)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
        await store.threads()
        ask = partial(store._index.threads, ThreadQuery(order="created", limit=9))
        found = await asyncio.gather(ask(), ask(), ask())
    assert [len(rows) for rows in found] == [2, 2, 2]
    assert counts == [2, 2]  # By name, and by the times.
