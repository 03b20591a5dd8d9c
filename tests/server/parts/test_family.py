"""Families: children are created, and what one thread tells another is applied once and in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.schedules import in_soak
from tests.server.parts.family_lab import Boss, FamilyLab, Kid, make_store, open_lab, until

from plait import Context, StoreError
from plait.store.protocol import Write


@pytest.fixture(params=["sqlite", "postgresql", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


async def test_a_spawned_child_knows_its_parent_and_is_found_by_its_reference(lab: FamilyLab) -> None:
    boss = await lab.boss()
    reference = await boss.kin.spawn(Kid, "k")
    assert reference == "kid/k"
    child = await boss.kin.child(reference)
    assert child is not None
    assert child.name == "k"
    kid = await lab.thread(Kid, "k")
    assert kid.family.parent is not None
    assert kid.family.parent.name == "b"
    assert boss.kin.parent is None


async def test_a_notice_is_a_silent_message_of_the_parent_and_leaves_no_item(lab: FamilyLab) -> None:
    kid = await lab.kid()
    await kid.family.notify_parent("halfway")

    async def has_come() -> bool:
        return await lab.notices() == ["halfway"]

    await until(has_come)
    await lab.wait_for_sent(Kid, "k")
    assert await lab.keys(Kid, "k") == ["head"]
    message = (await (await lab.boss()).messages.list(include_silent=True)).messages[0]
    assert (message.role, message.silent, message.subagent_id) == ("user", True, "kid/k")


async def test_notices_come_once_and_in_order(lab: FamilyLab) -> None:
    kid = await lab.kid()
    for number in range(250):
        kid.family.notify_parent(str(number))

    async def have_come() -> bool:
        return len(await lab.notices()) >= 250

    await until(have_come)
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == [str(number) for number in range(250)]


# The end of threads


async def test_a_destroyed_child_delivers_its_notices_and_its_row_says_so(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    kid.family.notify_parent("last words")
    await lab.app.destroy(Kid, "k")
    assert await lab.notices() == ["last words"]
    assert [child.status for child in boss.kin.children] == ["destroyed"]
    assert await boss.kin.child("kid/k") is None


async def test_a_sleeping_child_that_is_destroyed_tells_its_parent(lab: FamilyLab) -> None:
    await lab.kid()
    await lab.wait_for_sent(Boss, "b", "kin")
    await lab.sleep(Kid, "k")
    await lab.app.destroy(Kid, "k")
    assert [child.status for child in (await lab.boss()).kin.children] == ["destroyed"]


async def test_a_sleeping_child_that_cannot_start_is_destroyed_and_tells_its_parent(
    lab: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.kid()
    await lab.wait_for_sent(Boss, "b", "kin")
    await lab.sleep(Kid, "k")

    def fail(self: Kid) -> None:
        raise LookupError

    monkeypatch.setattr(Kid, "on_start", fail)
    await lab.app.destroy(Kid, "k")
    assert [child.status for child in (await lab.boss()).kin.children] == ["destroyed"]
    assert not await lab.is_stored(Kid, "k")


@pytest.mark.parametrize("is_asleep", [True, False])
async def test_a_parent_may_destroy_its_children_when_it_is_destroyed(lab: FamilyLab, *, is_asleep: bool) -> None:
    kid = await lab.kid("k", "careful")
    (await lab.boss("careful")).is_careful = True
    if is_asleep:
        await lab.wait_for_sent(Boss, "careful", "kin")
        await lab.sleep(Kid, "k")
    else:
        kid.family.notify_parent("too late")
    await asyncio.wait_for(lab.app.destroy(Boss, "careful"), 4)
    assert not await lab.is_stored(Boss, "careful")
    assert not await lab.is_stored(Kid, "k")


async def test_a_terminated_child_delivers_its_last_notice_and_its_row_says_so(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    kid.family.notify_parent("last words")
    await kid.terminate()
    kid.family.set_status("busy")
    await kid.family.notify_parent("really the last")
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == ["last words", "really the last"]
    assert [child.status for child in boss.kin.children] == ["terminated"]
    found = await boss.kin.child("kid/k")
    assert found is not None
    assert await found.terminated_at() is not None


async def test_a_notice_never_creates_a_parent_that_is_gone(lab: FamilyLab) -> None:
    kid = await lab.kid()
    await lab.app.destroy(Boss, "b")
    await kid.family.notify_parent("hello?")
    await lab.wait_for_sent(Kid, "k")
    assert not await lab.is_stored(Boss, "b")
    assert kid.family.parent is None


async def test_a_row_whose_thread_is_gone_says_so_when_it_is_asked_for(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await lab.wait_for_sent(Boss, "b", "kin")
    kid.family._sender.say_destroyed = lab.do_nothing  # type: ignore[method-assign]
    await lab.app.destroy(Kid, "k")
    assert [child.status for child in boss.kin.children] == ["running"]
    assert await boss.kin.child("kid/k") is None
    assert [child.status for child in boss.kin.children] == ["destroyed"]
    assert not await lab.is_stored(Kid, "k")


# One write


async def test_a_transaction_that_raises_leaves_no_item_and_no_child(lab: FamilyLab) -> None:
    boss = await lab.boss()
    with suppress(LookupError), boss.transaction():
        boss.kin.spawn(Kid, "k")
        boss.set_state({"made": ["k"]})
        raise LookupError
    assert boss.kin.children == []
    kid = await lab.kid("other")
    with suppress(LookupError), kid.transaction():
        kid.family.notify_parent("never")
        raise LookupError
    await kid.family.notify_parent("after")
    await lab.wait_for_sent(Kid, "other")
    await lab.wait_for_sent(Boss, "b", "kin")
    assert await lab.notices() == ["after"]
    assert not await lab.is_stored(Kid, "k")


async def test_the_state_and_the_child_of_a_transaction_are_one_write(lab: FamilyLab) -> None:
    boss = await lab.boss()
    with boss.transaction():
        spawned = boss.kin.spawn(Kid, "k", title="K", description="the first", message="begin")
        boss.set_state({"made": ["k"]})
        assert await spawned == "kid/k"  # It must not wait here.
        assert [child.status for child in boss.kin.children] == ["starting"]
    assert await spawned == "kid/k"  # It waits here.
    (child,) = boss.kin.children
    assert (child.reference, child.name, child.title, child.description) == ("kid/k", "k", "K", "the first")
    assert child.status == "running"
    assert child.created_at > 0
    execution = (child.thread_name, child.resumable, child.blocking, child.spawn_group_id, child.parent_communication)
    assert execution == (None,) * 5
    kid = await lab.thread(Kid, "k")
    assert [message.content for message in await kid.messages.pending()] == ["begin"]


async def test_a_run_stages_its_children_and_notices_and_commits_them_together(lab: FamilyLab) -> None:
    async def work(ctx: Context[Boss]) -> list[str]:
        kin = ctx.thread.kin
        assert await kin.spawn(Kid, "k") == "kid/k"
        assert await kin.spawn(Kid, "k") == "kid/k"
        assert not await lab.is_stored(Kid, "k")
        return [child.reference for child in kin.children]

    assert await lab.run(work) == ["kid/k"]
    boss = await lab.boss()
    assert await boss.kin.child("kid/k") is not None
    assert len(boss.kin.children) == 1


async def test_a_run_that_raises_leaves_no_child(lab: FamilyLab) -> None:
    async def work(ctx: Context[Boss]) -> None:
        await ctx.thread.kin.spawn(Kid, "k")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await lab.run(work)
    boss = await lab.boss()
    assert boss.kin.children == []
    assert await boss.kin.spawn(Kid, "other") == "kid/other"
    assert not await lab.is_stored(Kid, "k")


async def test_a_write_that_the_store_refuses_leaves_no_item_and_later_ones_are_sent(lab: FamilyLab) -> None:
    kid = await lab.kid()
    submit = lab.store.submit

    def refuse(write: Write) -> "asyncio.Future[int]":
        refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreError("the disk is full"))
        return refused

    lab.store.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await kid.family.notify_parent("never")
    lab.store.submit = submit  # type: ignore[method-assign]
    await kid.family.notify_parent("after")
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == ["after"]


async def test_a_removal_that_the_store_refuses_delivers_nothing_twice(lab: FamilyLab) -> None:
    kid, refused = await lab.kid(), list[Write]()
    submit = lab.store.submit

    def refuse_one(write: Write) -> "asyncio.Future[int]":
        if refused or not any(record.key.startswith("o/") and record.value is None for record in write.records):
            return submit(write)
        refused.append(write)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("the disk is full"))
        return future

    lab.store.submit = refuse_one  # type: ignore[method-assign]
    await kid.family.notify_parent("once")
    await lab.wait_for_sent(Kid, "k")
    assert len(refused) == 1
    assert await lab.notices() == ["once"]
