"""Items of families: taken once, in order, only from the family, each target and each item for itself."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import in_soak
from tests.server.parts.family_lab import Boss, FamilyLab, FlakyMemory, Kid, make_store, open_lab, until

from plait import Family, Limits, Messages, Thread, ThreadKey, TooLarge, TooMany
from plait.errors import Unavailable
from plait.parts.family import sending
from plait.parts.family.receiving import STRANGER
from plait.parts.family.rows import Handed, Item, Outbox
from plait.parts.part import Part
from plait.store.sqlite.backup import back_up, restore
from plait.store.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", "postgresql", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


@pytest.fixture
async def flaky() -> AsyncIterator[FamilyLab]:
    async with open_lab(FlakyMemory()) as lab:
        yield lab


def notice(number: int, text: str, *, epoch: str = "e", to: str = "boss/b") -> Item:
    body = {"role": "user", "content": text, "silent": True, "subagent_id": "kid/k"}
    return Item(to, Handed("messages", body), epoch, number)


# Once and in order


async def test_items_that_are_sent_again_are_not_taken_again(lab: FamilyLab) -> None:
    await lab.kid()
    family = lab.app.thread(Boss, "b").part(Boss.kin)
    assert await family._receive("kid/k", [notice(1, "a"), notice(2, "b")]) == ""
    assert await family._receive("kid/k", [notice(1, "a"), notice(2, "b"), notice(3, "c")]) == ""
    assert await lab.notices() == ["a", "b", "c"]


async def test_numbers_continue_after_a_thread_has_slept(lab: FamilyLab) -> None:
    kid = await lab.kid()
    for text in ("a", "b"):
        await kid.family.notify_parent(text)
        await lab.wait_for_sent(Kid, "k")
        await lab.sleep(Kid, "k")
        kid = await lab.thread(Kid, "k")
    assert await lab.notices() == ["a", "b"]


async def test_numbers_of_a_new_epoch_begin_again(lab: FamilyLab) -> None:
    await lab.kid()
    family = lab.app.thread(Boss, "b").part(Boss.kin)
    await family._receive("kid/k", [notice(7, "a", epoch="before")])
    await family._receive("kid/k", [notice(3, "b", epoch="after")])
    assert await lab.notices() == ["a", "b"]


async def test_after_a_restored_backup_notices_come_at_least_once_and_links_hold(tmp_path: Path) -> None:
    path, copy = tmp_path / "plait.db", tmp_path / "copy.db"
    async with open_lab(SqliteStore(path)) as lab:
        kid = await lab.kid()
        await kid.family.notify_parent("before")
        await lab.wait_for_sent(Kid, "k")
        back_up(path, copy)
        await kid.family.notify_parent("lost")
        await lab.wait_for_sent(Kid, "k")
    restore(copy, path)
    async with open_lab(SqliteStore(path)) as lab:
        kid = await lab.thread(Kid, "k")
        assert kid.family.parent is not None
        for text in ("again", "and again"):
            await kid.family.notify_parent(text)
        await lab.wait_for_sent(Kid, "k")
        assert await lab.notices() == ["before", "again", "and again"]
        assert await (await lab.boss()).kin.child("kid/k") is not None


async def test_items_wait_for_a_target_that_fails_and_others_do_not(
    flaky: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss, fails = await flaky.boss(), True
    deliver = boss.kin._sender._deliver

    async def fail(to: str, items: Any) -> str:
        if to == "kid/bad" and fails:
            raise Unavailable("it is away")
        return await deliver(to, items)

    monkeypatch.setattr(boss.kin._sender, "_deliver", fail)
    bad = boss.kin.spawn(Kid, "bad")
    assert await boss.kin.spawn(Kid, "good") == "kid/good"
    assert not await flaky.is_stored(Kid, "bad")
    fails = False
    assert await bad == "kid/bad"
    assert [child.status for child in boss.kin.children] == ["running", "running"]


async def test_an_item_that_cannot_be_taken_is_reported_and_the_next_ones_are_taken(lab: FamilyLab) -> None:
    await lab.kid()
    boss = await lab.boss()
    poison = Item("boss/b", Handed("messages", {"role": "poet", "content": "x", "silent": True}), "e", 2)
    await lab.app.thread(Boss, "b").part(Boss.kin)._receive("kid/k", [notice(1, "a"), poison, notice(3, "c")])
    assert await lab.notices() == ["a", "c"]

    async def is_reported() -> bool:
        return len(boss.errors) == 1

    await until(is_reported)
    assert "role must be one of" in str(boss.errors[0])


async def test_files_for_which_there_is_no_room_hold_up_nothing_else() -> None:
    async with open_lab(FlakyMemory(), limits=Limits(files=10_000)) as lab:
        kid, boss = await lab.kid(), await lab.boss()
        await kid.files.write("page.txt", bytes(3_000))
        with kid.transaction():
            for number in range(5):
                kid.family.notify_parent(str(number), files=["page.txt"])
        await kid.family.set_status("done")
        await lab.wait_for_sent(Kid, "k")
        assert await lab.notices() == ["0", "1", "2"]
        assert [child.status for child in boss.kin.children] == ["done"]
        assert {type(error) for error in boss.errors} == {TooLarge}


class Counting(FlakyMemory):
    """Counts the reads of the contents of a parent's files."""

    reads = 0

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        self.reads += key.kind == "boss" and part == "files"
        return await super().record(key, part, name)


async def test_an_item_that_is_sent_again_copies_its_files_once() -> None:
    store = Counting()
    async with open_lab(store) as lab:
        kid, boss = await lab.kid(), await lab.boss()
        await boss.files.write("a.txt", bytes(3_000))
        for number in range(1000):
            kid.messages.queue(str(number))
        item = Item("kid/k", Handed("messages", {"content": "x"}, ["a.txt"]), "e", 1)
        family, reads = lab.app.thread(Kid, "k").part(Kid.family), set[int]()
        for _ in range(3):
            with pytest.raises(TooMany):
                await family._receive("boss/b", [item])
            reads.add(store.reads)
        assert len(reads) == 1
        await kid.messages.take()
        assert await family._receive("boss/b", [item]) == ""
        assert {store.reads} == reads
        (message,) = await kid.messages.pending()
        assert await kid.files.read(message.attachments[0]["path"]) == bytes(3_000)


# Only from the family


async def test_an_item_from_outside_of_the_family_is_refused_and_creates_no_thread(lab: FamilyLab) -> None:
    await lab.kid()
    family = lab.app.thread(Boss, "b").part(Boss.kin)
    assert await family._receive("kid/stranger", [notice(1, "a")]) == STRANGER
    assert await lab.app.thread(Boss, "new").part(Boss.kin)._receive("kid/k", [notice(1, "a")]) == STRANGER
    assert await lab.notices() == []
    assert not await lab.is_stored(Boss, "new")


class Eager(Thread[dict[str, int]]):
    """A parent that is stored as soon as it wakes."""

    family = Family()
    messages = Messages()

    def on_start(self) -> None:
        self.set_state({"n": 1})


async def test_a_destroyed_parent_that_writes_when_it_starts_does_not_come_back() -> None:
    async with open_lab(FlakyMemory(), Eager) as lab:
        await (await lab.thread(Eager, "e")).family.spawn(Kid, "k")
        kid = await lab.thread(Kid, "k")
        await lab.app.destroy(Eager, "e")
        await kid.family.notify_parent("hello?")
        await lab.wait_for_sent(Kid, "k")
        assert not await lab.is_stored(Eager, "e")


async def test_a_destroyed_child_that_writes_when_it_starts_does_not_come_back() -> None:
    async with open_lab(FlakyMemory(), Eager) as lab:
        boss = await lab.boss()
        await boss.kin.spawn(Eager, "e")
        await lab.wait_for_sent(Boss, "b", "kin")
        (await lab.thread(Eager, "e")).family._sender.say_destroyed = lab.do_nothing  # type: ignore[method-assign]
        await lab.app.destroy(Eager, "e")
        await boss.kin.tell_children("bag", {})
        assert await boss.kin.child("eager/e") is None
        assert not await lab.is_stored(Eager, "e")


async def test_a_child_whose_parent_does_not_know_it_has_no_parent_after_its_first_notice(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await lab.wait_for_sent(Boss, "b", "kin")
    boss.kin._store.rows.clear()  # As after a restored backup from before its birth.
    await kid.family.notify_parent("hello?")
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == []
    assert kid.family.parent is None


# Their cost


async def test_a_notice_takes_three_commits_and_a_burst_about_one_for_each(flaky: FamilyLab) -> None:
    kid = await flaky.kid()
    await flaky.wait_for_sent(Boss, "b", "kin")
    assert isinstance(flaky.store, FlakyMemory)
    flaky.store.writes.clear()
    await kid.family.notify_parent("alone")
    await flaky.wait_for_sent(Kid, "k")
    assert len(flaky.store.writes) == 3
    flaky.store.writes.clear()
    for number in range(100):
        kid.family.notify_parent(str(number))
    await kid.set_state({"n": 1})
    await flaky.wait_for_sent(Kid, "k")
    assert len(flaky.store.writes) <= 105


async def test_a_delivered_item_leaves_no_record_and_nothing_in_memory(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    for number in range(300):
        kid.family.notify_parent(str(number))
    await kid.set_state({"n": 1})
    await lab.wait_for_sent(Kid, "k")
    assert await lab.keys(Kid, "k") == ["head"]
    assert len(await lab.keys(Boss, "b", "kin")) == 2  # The head, and the row of the child.
    sender = kid.family._sender
    assert len(kid.family._store.outbox) == 0
    assert (kid.family._store.outbox.targets, sender._ready, sender._paused, sender._pauses) == ([], {}, set(), [])
    assert len(boss.kin._store.outbox) == 0


async def test_a_parent_that_never_wakes_up_does_not_fill_the_memory_of_a_child(
    flaky: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 3)
    kid = await flaky.kid()

    async def fail(to: str, items: Any) -> str:
        raise Unavailable("it is away")

    monkeypatch.setattr(kid.family._sender, "_deliver", fail)
    for number in range(3):
        await kid.family.notify_parent(str(number))
    with pytest.raises(TooMany):
        kid.family.notify_parent("one more")
    assert len(await flaky.keys(Kid, "k")) == 4


async def test_a_full_outbox_takes_each_status_so_that_its_thread_can_be_terminated(
    flaky: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 2)
    kid, boss, is_away = await flaky.kid(), await flaky.boss(), True
    deliver = kid.family._sender._deliver

    async def maybe_fail(to: str, items: Any) -> str:
        if is_away:
            raise Unavailable("it is away")
        return await deliver(to, items)

    monkeypatch.setattr(kid.family._sender, "_deliver", maybe_fail)
    for number in range(2):
        await kid.family.notify_parent(str(number))
    with pytest.raises(TooMany):
        kid.family.notify_parent("more")
    for status in ("one", "two"):
        await kid.family.set_status(status)
    assert len(kid.family._store.outbox) == 3
    await kid.terminate()
    is_away = False
    await flaky.wait_for_sent(Kid, "k")
    assert await flaky.notices() == ["0", "1"]
    assert [child.status for child in boss.kin.children] == ["terminated"]


# Other parts


class Bag(Part[None]):
    """A part that hands down a value, and keeps what it gets."""

    role = "bag"

    def __init__(self) -> None:
        super().__init__()
        self.got: dict[str, list[Any]] = {}
        self.started: dict[str, list[Any]] = {}

    def bind(self, actor: Any) -> None:
        return None

    def hand_down(self, actor: Any) -> dict[str, Any]:
        return {"from": actor.key.name}

    def take_item(self, actor: Any, body: Any) -> None:
        self.got.setdefault(actor.key.name, []).append(body)


class Sack(Thread[None]):
    """A thread whose part hands something down."""

    family = Family()
    bag = Bag()

    def on_start(self) -> None:
        Sack.bag.started[self.name] = list(Sack.bag.got.get(self.name, []))


async def test_a_part_hands_down_a_value_at_birth_and_sends_more_to_all_children() -> None:
    async with open_lab(FlakyMemory(), Sack) as lab:
        root = await lab.thread(Sack, "root")
        for name in ("a", "b", "ended", "gone"):
            await root.family.spawn(Sack, name)
        assert await root.family.spawn(Kid, "plain") == "kid/plain"
        await lab.app.thread(Sack, "ended").terminate()
        await lab.app.destroy(Sack, "gone")
        await root.family.tell_children("bag", {"n": 1})
        await lab.wait_for_sent(Sack, "root")
        expected = {name: [{"from": "root"}, {"n": 1}] for name in ("a", "b", "ended")}
        assert Sack.bag.got == {**expected, "gone": [{"from": "root"}]}
        at_start = {name: [{"from": "root"}] for name in ("a", "b", "ended", "gone")}
        assert Sack.bag.started == {"root": [], **at_start}
        assert not await lab.is_stored(Sack, "gone")


async def test_objects_that_wait_for_a_child_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 2)
    async with open_lab(FlakyMemory(), Sack) as lab:
        root, is_away = await lab.thread(Sack, "top"), True
        await root.family.spawn(Sack, "below")
        deliver = root.family._sender._deliver

        async def maybe_fail(to: str, items: Any) -> str:
            if is_away:
                raise Unavailable("it is away")
            return await deliver(to, items)

        monkeypatch.setattr(root.family._sender, "_deliver", maybe_fail)
        for number in range(5):
            await root.family.tell_children("bag", {"n": number, str(number): 1})
        assert len(root.family._store.outbox) == 1
        is_away = False
        await lab.wait_for_sent(Sack, "top")
        assert Sack.bag.got["below"] == [{"from": "top"}, {"n": 4, "0": 1, "1": 1, "2": 1, "3": 1, "4": 1}]
    Sack.bag.got.clear()
    Sack.bag.started.clear()


# The outbox


def test_an_outbox_gives_durable_items_in_order_at_most_a_hundred_at_once() -> None:
    outbox = Outbox()
    for number in range(1, 151):
        outbox.set(number, notice(number, "x"))
    assert outbox.take("boss/b") == []
    outbox.stored = 120
    assert [item.number for item in outbox.take("boss/b")] == list(range(1, 101))
    taken = [outbox.set(number, None) for number in range(1, 101)]
    for item in reversed(taken):  # The write that has removed them was rolled back.
        assert item is not None
        outbox.set(item.number, item)
    assert [item.number for item in outbox.take("boss/b")] == list(range(1, 101))


def test_an_outbox_gives_large_items_in_several_calls() -> None:
    outbox = Outbox()
    for number in range(1, 6):
        outbox.set(number, notice(number, "x" * 200_000))
    outbox.stored = 5
    assert [item.number for item in outbox.take("boss/b")] == [1, 2]
    assert outbox.take("kid/k") == []
