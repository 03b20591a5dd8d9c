"""A stage whose last commit begins with a block: the changes of the block are stored with it, or not at all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.parts.workshop import FlakyStore, Workshop, open_workshop

from plait import Messages, Thread, Values
from plait.actor.actor import Actor
from plait.errors import Reject, StoreError
from plait.parts.stage import Stage


class Desk(Thread[dict[str, Any]]):
    """A thread that refuses negative counts."""

    values = Values()
    messages = Messages()

    @staticmethod
    def initial_state() -> dict[str, Any]:
        return {"count": 0}

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        if next_state["count"] < 0:
            raise Reject("the count is negative")


class Desked:
    """A thread, awake, with the stage of a run that the test is."""

    def __init__(self, desk: Desk, store: FlakyStore) -> None:
        self.desk = desk
        self.store = store
        assert isinstance(desk._actor, Actor)
        self.stage = Stage(desk._actor, lambda: None)
        self.stage.enter()

    def count(self, by: int = 1) -> None:
        self.desk.set_state(lambda state: {"count": state["count"] + by})

    def fail(self) -> None:
        """Change the state and a part, and raise KeyError."""
        self.count(100)
        self.desk.values.push("log", "failed")
        raise KeyError

    async def rest(self) -> None:
        """Change the state, and await."""
        self.count()
        await asyncio.sleep(0)

    async def log(self) -> list[Any]:
        """Return what is stored, after the stage."""
        self.stage.close()
        found: list[Any] = await self.desk.values.get("log", [])
        return found

    @property
    def writes(self) -> int:
        return len(self.store.writes)


@pytest.fixture
async def at(store: FlakyStore) -> AsyncIterator[Desked]:
    async with open_workshop(store, Desk) as shop:
        yield await open_desk(shop)


async def open_desk(shop: Workshop) -> Desked:
    desk = await shop.thread(Desk)
    await desk._actor.state.store_thread()
    shop.store.writes.clear()
    return Desked(desk, shop.store)


async def test_the_state_of_a_block_is_stored_with_what_was_staged_before_and_after_it_as_one_write(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with at.stage.open():
        at.count()
        at.desk.values.push("log", "in")
    at.desk.values.push("log", "after")
    at.count()
    assert at.writes == 0
    await at.stage.commit(is_last=True)
    assert at.writes == 1
    assert at.desk.state == {"count": 2}
    assert at.desk.version == 1
    assert await at.log() == ["before", "in", "after"]


async def test_an_await_after_the_block_rolls_everything_back_and_the_commit_says_so(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with at.stage.open():
        at.count()
    await asyncio.sleep(0)
    assert at.desk.state == {"count": 0}
    with pytest.raises(RuntimeError, match="rolled back"):
        await at.stage.commit(is_last=True)
    at.stage.drop()
    at.count()  # The calling code is in no transaction.
    assert await at.log() == []
    assert at.writes == 1


async def test_a_block_that_awaits_raises_and_the_stage_goes_on(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with pytest.raises(RuntimeError, match="rolled back"), at.stage.open():
        await at.rest()
    await at.stage.commit(is_last=True)
    assert at.desk.state == {"count": 0}
    assert await at.log() == ["before"]


async def test_a_block_that_raises_changes_nothing_and_the_stage_goes_on(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with pytest.raises(KeyError), at.stage.open():
        at.fail()
    await asyncio.sleep(0)
    with at.stage.open():
        at.count(10)
    await at.stage.commit(is_last=True)
    assert at.writes == 1
    assert at.desk.state == {"count": 10}
    assert await at.log() == ["before"]


async def test_a_second_block_and_a_transaction_inside_join_the_same_write(at: Desked) -> None:
    with at.stage.open(), at.desk.transaction():
        at.count()
    with at.stage.open():
        at.count()
        with pytest.raises(KeyError), at.desk.transaction():
            at.fail()
    with pytest.raises(KeyError), at.stage.open():
        at.fail()
    await at.stage.commit(is_last=True)
    assert at.writes == 1
    assert at.desk.state == {"count": 2}
    assert await at.log() == []


async def test_a_stage_that_is_dropped_after_the_block_stores_nothing(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with at.stage.open():
        at.count()
    at.stage.drop()
    assert at.desk.state == {"count": 0}
    assert await at.log() == []
    at.count()
    assert at.desk.state == {"count": 1}


async def test_a_state_that_is_refused_fails_the_commit_and_leaves_everything_staged(at: Desked) -> None:
    await at.desk.values.push("log", "before")
    with at.stage.open():
        at.count(-1)
    with pytest.raises(Reject):
        await at.stage.commit()
    assert at.desk.state == {"count": 0}
    with at.stage.open():
        at.count()
    await at.stage.commit(is_last=True)
    assert at.writes == 1
    assert await at.log() == ["before"]


async def test_a_store_that_refuses_the_write_keeps_nothing_of_the_block(at: Desked) -> None:
    at.store.refuses = lambda _: True
    await at.desk.values.push("log", "before")
    with at.stage.open():
        at.count()
    with pytest.raises(StoreError):
        await at.stage.commit()
    at.store.refuses = lambda _: False
    assert at.desk.state == {"count": 0}
    await at.stage.commit(is_last=True)
    assert await at.log() == ["before"]


async def test_a_write_that_reads_first_must_be_awaited_before_the_block(store: FlakyStore) -> None:
    async with open_workshop(store, Desk) as shop:
        message = await (await shop.thread(Desk)).messages.inject("user", "helo")
    async with open_workshop(store, Desk) as shop:
        at = await open_desk(shop)
        update = at.desk.messages.update(message.id, "hello")
        with pytest.raises(RuntimeError, match="await each write"), at.stage.open():
            at.count()
        await update
        async with at.stage.open():
            at.count()
        await at.stage.commit(is_last=True)
        assert at.writes == 1
        assert await at.desk.messages.get(message.id) is not None


async def test_an_edit_of_a_stored_message_is_prepared_before_the_block(store: FlakyStore) -> None:
    async with open_workshop(store, Desk) as shop:
        message = await (await shop.thread(Desk)).messages.inject("user", "helo")
        at = await open_desk(shop)
        await at.desk.messages.update(message.id, "hello")
        with pytest.raises(RuntimeError, match="async with"), at.stage.open():
            at.count()
        await at.stage.prepare()
        with at.stage.open():
            at.count()
        await at.stage.commit(is_last=True)
        assert at.writes == 1
        assert at.desk.state == {"count": 1}
        assert [each.content for each in (await at.desk.messages.list()).messages] == ["hello"]
