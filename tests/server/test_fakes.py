"""The store that tests hold up treats the owners of threads as the others do."""

import asyncio

import msgspec
import pytest
from tests.server.fakes import TroubledStore
from tests.server.store.contract import ROOM, beginning, change, outcomes, put
from tests.server.store.contract_records import (
    test_nothing_that_was_submitted_before_a_claim_is_stored_after_it,
    test_the_writes_of_an_owner_are_refused_as_soon_as_there_is_another,
    test_what_an_owner_has_submitted_before_its_release_is_stored_before_the_next_claim_returns,
)

__all__ = [
    "test_nothing_that_was_submitted_before_a_claim_is_stored_after_it",
    "test_the_writes_of_an_owner_are_refused_as_soon_as_there_is_another",
    "test_what_an_owner_has_submitted_before_its_release_is_stored_before_the_next_claim_returns",
]


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


async def test_a_claim_waits_for_what_is_held_up_of_an_owner_who_was_released(store: TroubledStore) -> None:
    async with store:
        await put(store, beginning())
        fence = await store.claim(ROOM)
        store.is_held = True
        future = store.submit(msgspec.structs.replace(change(1), fence=fence))
        store.release(ROOM, fence)
        claim = asyncio.create_task(store.claim(ROOM))
        await asyncio.sleep(0)
        assert not claim.done()
        store.resume()
        assert await claim > fence
        assert await outcomes([future]) == [None]
