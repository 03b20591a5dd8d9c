"""Children that are spawned again, after they were destroyed or while they live."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.schedules import in_soak
from tests.server.parts.family_lab import Boss, FamilyLab, FlakyMemory, Kid, Plain, make_store, open_lab, until

from plait import Conflict, Family, Messages, Plait, PlaitError, Thread
from plait.parts.family.rows import Item
from plait.store.sqlite.store import SqliteStore


class Fragile(Thread[None]):
    """A child that cannot start while it is broken."""

    family = Family()
    is_broken = False

    def on_start(self) -> None:
        if self.is_broken:
            raise LookupError("there is no plan")


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path), Fragile) as lab:
        yield lab


class Short(Thread[None]):
    """A child that destroys itself when it starts, at first."""

    family = Family()
    messages = Messages()
    is_short = True

    async def on_start(self) -> None:
        if self.is_short:
            await self.destroy()


async def test_a_child_that_destroys_itself_when_it_starts_is_born_again_with_its_second_task_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_lab(FlakyMemory(), Short) as lab, asyncio.timeout(20):
        boss = await lab.boss()
        with pytest.raises(PlaitError):
            await boss.kin.spawn(Short, "s", message="old")
        assert [child.status for child in boss.kin.children] == ["destroyed"]
        await lab.wait_for_sent(Boss, "b", "kin")
        monkeypatch.setattr(Short, "is_short", False)
        await boss.kin.spawn(Short, "s", message="new")
        pending = await (await lab.thread(Short, "s")).messages.pending()
        assert [message.content for message in pending] == ["new"]
        assert [child.status for child in boss.kin.children] == ["running"]


async def test_what_waits_for_a_child_that_is_destroyed_does_not_reach_the_next_one(
    lab: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Fragile, "f")
    await lab.sleep(Fragile, "f")
    monkeypatch.setattr(Fragile, "is_broken", True)
    await boss.kin.tell_children("nothing", {})

    async def has_failed() -> bool:
        return boss.kin._sender._paused == {"fragile/f"}

    await until(has_failed)
    monkeypatch.setattr(Fragile, "is_broken", False)
    await lab.app.destroy(Fragile, "f")
    assert [child.status for child in boss.kin.children] == ["destroyed"]
    assert await lab.has_sent(Boss, "b", "kin")
    assert await boss.kin.spawn(Fragile, "f") == "fragile/f"
    assert await lab.is_stored(Fragile, "f")


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_child_that_was_destroyed_unnoticed_is_born_again(tmp_path: Path, *, is_told: bool) -> None:
    file = tmp_path / "plait.db"
    async with open_lab(SqliteStore(file)) as lab:
        await lab.kid()
    # Its parent is not served here, so that it cannot be told.
    async with Plait(Kid, Plain, store=SqliteStore(file)) as app:
        await app.thread(Kid, "k").destroy()
    async with open_lab(SqliteStore(file)) as lab:
        boss = await lab.boss()
        with boss.transaction():
            if is_told:
                boss.kin.tell_children("nothing", {})
            spawned = boss.kin.spawn(Kid, "k", title="again", message="new")
        assert await spawned == "kid/k"
        await lab.wait_for_sent(Boss, "b", "kin")
        assert [(child.title, child.status) for child in boss.kin.children] == [("again", "running")]
        kid = await lab.thread(Kid, "k")
        assert [message.content for message in await kid.messages.pending()] == ["new"]
        await boss.kin.spawn(Kid, "k", title="third", message="more")
        assert [message.content for message in await kid.messages.pending()] == ["new"]
        assert [child.title for child in boss.kin.children] == ["again"]


async def test_a_spawn_again_says_that_the_child_cannot_be_reached(
    lab: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Fragile, "f")
    await lab.sleep(Fragile, "f")
    monkeypatch.setattr(Fragile, "is_broken", True)
    with pytest.raises(LookupError, match="there is no plan"):
        await boss.kin.spawn(Fragile, "f")
    assert [child.status for child in boss.kin.children] == ["running"]


async def test_a_birth_that_was_sent_twice_does_not_bring_back_a_child_that_was_destroyed(
    lab: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = await lab.boss()
    deliver = boss.kin._sender._deliver

    async def deliver_twice(to: str, items: Sequence[Item]) -> str:
        await deliver(to, items)
        await lab.app.destroy(Fragile, "f")
        return await deliver(to, items)

    monkeypatch.setattr(boss.kin._sender, "_deliver", deliver_twice)
    with pytest.raises(Conflict, match="fragile/f is not a child of boss/b, or was destroyed"):
        await boss.kin.spawn(Fragile, "f")
    assert not await lab.is_stored(Fragile, "f")
    assert [child.status for child in boss.kin.children] == ["destroyed"]
