"""Families that meet strangers, cycles, threads that are gone, and stores that refuse writes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.clocks import stopped_clock
from tests.schedules import in_soak
from tests.server.parts.family_lab import Boss, FamilyLab, FlakyMemory, Kid, Plain, make_store, open_lab, until

from plait import Conflict, Family, NotFound, Plait, Thread, ThreadKey
from plait.parts.family.rows import Item, Status
from plait.store.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


async def is_stored(lab: FamilyLab, cls: type[Thread[Any]], name: str) -> bool:
    return await lab.app._node.is_stored(ThreadKey(cls._kind.name, name))


# Strangers


async def test_a_handle_cannot_spawn_or_reach_the_relatives_of_a_thread(lab: FamilyLab) -> None:
    await lab.kid()
    for handle in (lab.app.thread(Boss, "b").part(Boss.kin), lab.app.thread(Kid, "k").part(Kid.family)):
        for name in ("spawn", "children", "child", "parent", "tell_children"):
            with pytest.raises(AttributeError):
                getattr(handle, name)


async def test_an_item_from_outside_the_family_changes_nothing(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Kid, "k")
    await lab.wait_for_sent(Boss, "b", "kin")
    keys = await lab.keys(Boss, "b", "kin")
    epoch = (await lab.actor(Boss, "b")).state.epoch
    item = Item("boss/b", Status("mine"), epoch, 1)
    for sender in ("kid/stranger", "boss/b", "", "kid"):
        assert "family" in await lab.app.thread(Boss, "b").part(Boss.kin)._receive(sender, [item])
    assert [each.status for each in boss.kin.children] == ["running"]
    assert await lab.keys(Boss, "b", "kin") == keys


async def test_clients_cannot_reach_a_family(lab: FamilyLab) -> None:
    await lab.kid()
    item = msgspec.to_builtins(Item("boss/b", Status("mine"), "", 1))
    transport = httpx.ASGITransport(lab.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method in ("kin", "kin._receive", "_receive", "kin/_receive", "part:kin", "spawn", "kin.spawn"):
            body = {"args": ["kid/k", [item]]}
            answer = await client.post(f"/threads/boss/b/rpc/{method}", json=body)
            assert answer.status_code == 404, (method, answer.text)
    assert [each.status for each in (await lab.boss()).kin.children] == ["running"]


async def test_a_thread_that_has_lost_its_row_in_the_parent_is_refused_and_forgets_the_parent(lab: FamilyLab) -> None:
    kid = await lab.kid()
    await lab.wait_for_sent(Boss, "b", "kin")
    await lab.app.thread(Boss, "b").destroy()
    await lab.boss("b")
    await (await lab.boss("b")).values.set("begun", "again")
    await kid.family.notify_parent("hello")
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == []
    assert kid.family.parent is None


# Names


async def test_a_name_is_one_child_however_often_it_is_spawned(lab: FamilyLab) -> None:
    boss = await lab.boss()
    with boss.transaction():
        first = boss.kin.spawn(Kid, "k", title="first", message="begin")
        second = boss.kin.spawn(Kid, "k", title="second", message="begin")
    assert await asyncio.gather(first, second, boss.kin.spawn(Kid, "k")) == ["kid/k"] * 3
    assert [each.title for each in boss.kin.children] == ["first"]
    await lab.wait_for_sent(Boss, "b", "kin")
    pending = await (await lab.thread(Kid, "k")).messages.pending()
    assert [each.content for each in pending] == ["begin"]


async def test_a_thread_has_one_parent(lab: FamilyLab) -> None:
    await lab.kid("k", parent="b")
    other = await lab.boss("other")
    with pytest.raises(Conflict, match="kid/k"):
        await other.kin.spawn(Kid, "k")
    assert other.kin.children == []
    parent = (await lab.thread(Kid, "k")).family.parent
    assert parent is not None
    assert parent.name == "b"


class HeldStore(FlakyMemory):
    """Holds reads of the contents of one thread's files."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ThreadKey("boss", "slow")
        self.is_reading, self.may_read = asyncio.Event(), asyncio.Event()

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        if key == self.held and part == "files":
            self.is_reading.set()
            await self.may_read.wait()
        return await super().record(key, part, name)


async def test_a_thread_that_copies_files_for_its_birth_has_one_parent_all_the_same() -> None:
    store = HeldStore()
    async with open_lab(store) as lab, asyncio.timeout(20):
        slow, quick = await lab.boss("slow"), await lab.boss("quick")
        await slow.files.write("a.txt", "a")
        # A new thread would know its parent before it copies files.
        await (await lab.thread(Kid, "k")).set_state({"n": 1})
        begun = asyncio.ensure_future(slow.kin.spawn(Kid, "k", files=["a.txt"]))
        await store.is_reading.wait()
        await quick.kin.spawn(Kid, "k")
        store.may_read.set()
        with pytest.raises(Conflict):
            await begun
        parent = (await lab.thread(Kid, "k")).family.parent
        assert parent is not None
        assert parent.name == "quick"
        assert slow.kin.children == []
        assert [each.status for each in quick.kin.children] == ["running"]


async def test_a_class_without_a_family_or_that_is_not_served_is_no_child(lab: FamilyLab) -> None:
    class Loner(Thread[None]):
        pass

    class Elsewhere(Thread[None]):
        family = Family()

    boss = await lab.boss()
    with pytest.raises((TypeError, NotFound)):
        boss.kin.spawn(Loner, "x")
    with pytest.raises(NotFound):
        boss.kin.spawn(Elsewhere, "x")
    with pytest.raises(TypeError, match="Plain has no Messages"):
        boss.kin.spawn(Plain, "x", message="begin")
    with pytest.raises(TypeError, match="Plain has no Files"):
        boss.kin.spawn(Plain, "x", files=["a.txt"])
    assert boss.kin.children == []
    assert await lab.keys(Boss, "b", "kin") == []


# Cycles


async def test_no_thread_is_below_itself(lab: FamilyLab) -> None:
    async with asyncio.timeout(20):
        kid = await lab.kid()
        with pytest.raises(Conflict):
            await kid.family.spawn(Boss, "b")
        await kid.family.spawn(Plain, "p")
        plain = await lab.thread(Plain, "p")
        for cls, name in ((Boss, "b"), (Kid, "k"), (Plain, "p")):
            with pytest.raises(Conflict):
                await plain.family.spawn(cls, name)
        assert plain.family.children == []
        assert (await lab.boss()).kin.parent is None


async def test_two_threads_that_spawn_each_other_at_once_are_not_both_the_parent(lab: FamilyLab) -> None:
    one, other = await lab.thread(Plain, "one"), await lab.thread(Plain, "other")
    async with asyncio.timeout(20):
        done = await asyncio.gather(
            one.family.spawn(Plain, "other"), other.family.spawn(Plain, "one"), return_exceptions=True
        )
    assert any(isinstance(each, Conflict) for each in done), done
    assert one.family.parent is None or other.family.parent is None


# Many


async def test_a_thousand_children_are_born_and_listed_in_order(lab: FamilyLab) -> None:
    boss, names = await lab.boss(), [f"p{number}" for number in range(1000)]
    with boss.transaction():
        for name in names:
            boss.kin.spawn(Plain, name)

    async def are_born() -> bool:
        return all(each.status == "running" for each in boss.kin.children)

    await until(are_born)
    assert [each.name for each in boss.kin.children] == names


# Threads that are gone


async def test_a_child_that_was_destroyed_unnoticed_does_not_come_back(tmp_path: Path) -> None:
    file = tmp_path / "plait.db"
    async with open_lab(SqliteStore(file)) as lab:
        await lab.kid()
    # Its parent is not served here, so that it cannot be told.
    async with Plait(Kid, Plain, store=SqliteStore(file)) as app:
        await app.thread(Kid, "k").destroy()
    async with open_lab(SqliteStore(file)) as lab:
        boss = await lab.boss()
        assert [each.status for each in boss.kin.children] == ["running"]
        await boss.kin.tell_children("nothing", {})
        await lab.wait_for_sent(Boss, "b", "kin")
        assert [each.status for each in boss.kin.children] == ["destroyed"]
        assert not await is_stored(lab, Kid, "k")
        assert await boss.kin.child("kid/k") is None


async def test_a_parent_that_is_destroyed_while_its_children_notify_it_does_not_come_back(lab: FamilyLab) -> None:
    kids = [await lab.kid(f"k{number}") for number in range(5)]
    is_over = False

    async def notify(kid: Kid) -> None:
        while not is_over:
            await lab.app.thread(Kid, kid.name).call(Kid.step)

    tasks = [asyncio.create_task(notify(kid)) for kid in kids]

    async def has_come() -> bool:
        return len(await lab.notices()) > 20

    await until(has_come)
    await lab.app.thread(Boss, "b").destroy()

    async def are_orphans() -> bool:
        return all(kid.family.parent is None for kid in kids)

    await until(are_orphans)
    is_over = True
    await asyncio.gather(*tasks)
    for kid in kids:
        await lab.wait_for_sent(Kid, kid.name)
    assert not await is_stored(lab, Boss, "b")


# Stores


async def test_a_target_that_refuses_its_writes_holds_up_no_other_and_is_tried_less_and_less_often() -> None:
    store = FlakyMemory()
    async with open_lab(store) as lab:
        boss, bad = await lab.boss(), ThreadKey("kid", "bad")
        store.refuses = lambda write: write.key == bad
        boss.kin.spawn(Kid, "bad", message="begin")
        # Enough for a loop without pauses to be seen.
        for number in range(200):
            assert await boss.kin.spawn(Kid, f"k{number}") == f"kid/k{number}"
        tried = sum(write.key == bad for write in store.writes)
        assert 1 <= tried <= 12
        assert [each.name for each in boss.kin.children if each.status == "starting"] == ["bad"]
        store.refuses = lambda _: False
        async with asyncio.timeout(90):
            assert await boss.kin.child("kid/bad") is not None
        pending = await (await lab.thread(Kid, "bad")).messages.pending()
        assert [each.content for each in pending] == ["begin"]


async def test_the_pauses_before_a_target_grow_although_the_thread_sleeps_in_between() -> None:
    store = FlakyMemory()
    with stopped_clock() as clock:
        async with open_lab(store) as lab:
            kid, pauses = await lab.kid(), list[float]()
            await lab.wait_for_sent(Boss, "b", "kin")
            store.refuses = lambda write: write.key == ThreadKey("boss", "b")
            await kid.family.notify_parent("hello")
            for _ in range(13):

                async def has_failed() -> bool:
                    return (await lab.actor(Kid, "k")).timer.wakes_at > clock.now

                await until(has_failed)
                pauses.append(((await lab.actor(Kid, "k")).timer.wakes_at - clock.now) / 1e6)
                await lab.sleep(Kid, "k")
                clock.move(pauses[-1])
            assert pauses[:4] == pytest.approx([0.1, 0.1, 0.2, 0.4])
            assert pauses[-2:] == [60.0, 60.0]


async def test_a_refused_write_of_a_parent_leaves_neither_row_nor_child() -> None:
    store = FlakyMemory()
    async with open_lab(store) as lab:
        boss = await lab.boss()
        await boss.values.set("begun", "yes")
        store.refuses = lambda write: write.key == ThreadKey("boss", "b")
        with pytest.raises(Exception, match="disk is full"):
            await boss.kin.spawn(Kid, "k")
        store.refuses = lambda _: False
        boss = await lab.boss()
        assert boss.kin.children == []
        assert not await is_stored(lab, Kid, "k")
        assert await boss.kin.spawn(Kid, "k") == "kid/k"
