"""Contents that no path has are removed after a crash, in terminated threads, and without using the thread."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.clocks import Clock
from tests.schedules import in_soak
from tests.server.parts.workshop import SECOND, FlakyStore, make_store, open_workshop, until

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.parts.files.file import CHUNK
from plait.parts.files.thread_files import Files
from plait.state.thread_records import Values
from plait.store.protocol import Write
from plait.store.thread_rows import RecordRange, ThreadKey

K = TypeVar("K")
T = TypeVar("T")


class Box(Thread[int]):
    """Has files, and nothing that keeps it awake."""

    initial_state = 0
    files = Files()
    idle_timeout = 0.3


class Passing(Thread[int]):
    """Expires an hour after its last use."""

    initial_state = 0
    files = Files()
    idle_timeout = 0.3
    expires_after = 3600.0

    @rpc
    def touch(self) -> None:
        """Use the thread."""
        self.set_state(self.state + 1)


HOUR = 3600 * SECOND


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlakyStore]:
    async with make_store(request.param, tmp_path) as store:
        yield store


async def find_keys(store: FlakyStore, prefix: str, kind: str = "box") -> list[str]:
    found = await store.records(ThreadKey(kind, "one"), RecordRange("files", prefix))
    return [record.key for record in found]


async def endless(started: asyncio.Event) -> AsyncIterator[bytes]:
    yield bytes(2 * CHUNK)
    started.set()
    await asyncio.Event().wait()


async def receive_some(box: Any, store: FlakyStore) -> asyncio.Task[Any]:
    """Begin an upload, and return when some of it is stored."""
    started = asyncio.Event()
    task = asyncio.create_task(box.files.receive(endless(started)))
    await started.wait()

    async def is_stored() -> bool:
        return len(await find_keys(store, "c/", box._actor.key.kind)) == 2

    await until(is_stored)
    return task


async def end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_what_a_crash_has_left_is_removed_though_the_thread_is_not_used(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Box) as shop:
        box = await shop.thread(Box)
        task = await receive_some(box, store)
        assert len(await find_keys(store, "u/")) == 1
        await shop.crash()
        await end(task)
    assert len(await find_keys(store, "c/")) == 2
    async with open_workshop(store, Box) as shop:

        async def is_empty() -> bool:
            return not await find_keys(store, "") and shop.are_asleep()

        await until(is_empty)
        assert await shop.due() == {}


async def test_a_thread_sleeps_only_when_its_contents_are_removed(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Box) as shop:
        box = await shop.thread(Box)
        await box.files.write("a", bytes(30 * CHUNK))
        await box.files.unlink("a")
        del box
        await until(lambda: shop.is_asleep(Box))
        assert await find_keys(store, "") == []
        assert await shop.due() == {}


async def test_contents_of_a_terminated_thread_are_removed(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Box) as shop:
        box = await shop.thread(Box)
        task = await receive_some(box, store)
        await box.terminate()
        await shop.crash()
        await end(task)
    assert list((await due(store)).values()) != []
    async with open_workshop(store, Box) as shop:

        async def is_empty() -> bool:
            return not await find_keys(store, "")

        await until(is_empty)
        assert await shop.due() == {}
        assert (await shop.thread(Box)).terminated_at is not None


async def due(store: FlakyStore) -> dict[ThreadKey, int]:
    return {each.key: each.due for each in await store.due_threads(until=2**62, limit=1000)}


async def test_removing_contents_neither_keeps_nor_uses_a_thread(store: FlakyStore, clock: Clock) -> None:
    async def is_empty() -> bool:
        return not await find_keys(store, "", "passing") and shop.are_asleep()

    async def is_gone() -> bool:
        return await store.find(ThreadKey("passing", "one")) is None

    async with open_workshop(store, Passing) as shop:
        task = await receive_some(await shop.thread(Passing), store)
        await shop.crash()
        await end(task)
    clock.move(1800)
    async with open_workshop(store, Passing) as shop:
        await until(is_empty)
        assert await due(store) == {ThreadKey("passing", "one"): clock.now + HOUR | 1}, "no use, which is twice as far"
        clock.move(3601)
        await until(is_gone)


async def test_a_thread_with_contents_to_remove_expires(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Passing) as shop:
        passing = await shop.thread(Passing)
        actor: Any = passing._actor
        with actor.usage.keep_awake():
            await passing.files.write("a", bytes(40 * CHUNK))
            actor.timer.stop()
            await passing.files.unlink("a")
            assert (actor.timer.due, actor.timer.expires_at > 0) == (2, True)
            actor.timer.start()


async def test_a_failure_to_remove_is_tried_again(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.files.contents._PAUSE", 0.01)
    refused = list[Write]()

    def refuses(write: Write) -> bool:
        if len(refused) < 3 and any(record.key.startswith("c/") and record.value is None for record in write.records):
            refused.append(write)
            return True
        return False

    async with open_workshop(store, Box) as shop:
        box = await shop.thread(Box)
        await box.files.write("a", bytes(40 * CHUNK))
        await box.files.unlink("a")
        store.refuses = refuses

        async def is_empty() -> bool:
            return not await find_keys(store, "")

        await until(is_empty)
        assert len(refused) == 3


class Marks(Values[K, T]):
    """Counts the marks that are looked at one after the other."""

    looks = 0

    def __iter__(self) -> Iterator[K]:
        for content in super().__iter__():
            self.looks += 1
            yield content

    def keys(self) -> Any:
        return [*self]


async def test_each_removed_file_is_the_same_work(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.files.contents.Values", Marks)
    async with open_workshop(store, Box) as shop:
        box, many = await shop.thread(Box), 200
        uploads = [await box.files.receive(b"x") for _ in range(many)]
        with box.transaction():
            for number, upload in enumerate(uploads):
                box.files.put(f"{number}", upload)
        marks = box.files._store.contents._marks
        assert isinstance(marks, Marks)
        marks.looks = 0
        for number in range(many):
            box.files.unlink(f"{number}")

        async def is_empty() -> bool:
            return not await find_keys(store, "")

        await until(is_empty)
        assert marks.looks < 10 * many
