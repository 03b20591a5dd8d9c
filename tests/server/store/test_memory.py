"""The store in memory."""

import pytest
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import ROOM, beginning, change, put, versions
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_what_is_in_it_is_there_as_long_as_the_store_is() -> None:
    store = MemoryStore()
    async with store:
        await put(store, beginning(), change(1))
    async with store:
        assert await versions(store) == (1, [1])
        await put(store, change(2))
    assert await MemoryStore().load(ROOM) is None
