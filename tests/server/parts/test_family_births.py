"""Births of children: for whom, with what, and when there is none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import in_soak
from tests.server.parts.family_lab import Boss, FamilyLab, FlakyMemory, Kid, Plain, make_store, open_lab, until

from plait import Conflict, Family, MessageHooks, Messages, NotFound, Terminated, Thread, ThreadKey, TooMany
from plait.parts.family import sending
from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", "postgresql", *in_soak(["memory"])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path), Early, Fragile, Loose) as lab:
        yield lab


class Fragile(Thread[None]):
    """A child that cannot start at first."""

    family = Family()
    is_broken = True

    def on_start(self) -> None:
        if self.is_broken:
            raise LookupError("there is no plan")


class Early(Thread[None]):
    """A child that uses its family when it starts."""

    family = Family()

    async def on_start(self) -> None:
        parent = self.family.parent
        self.found = None if parent is None else parent.name, self.user_id
        await self.family.notify_parent("started")


def refuse(_: Any, message: Any) -> None:
    raise ValueError(message.content)


class Picky(Thread[dict[str, int]]):
    """A child that takes no message."""

    family = Family()
    messages = Messages(hooks=MessageHooks(before_create_message=refuse))


class Loose(Thread[None]):
    """A thread without a family."""


# For whom


@pytest.mark.parametrize(("given", "expected"), [({}, "ada"), ({"user": "bob"}, "bob"), ({"user": None}, None)])
async def test_a_child_belongs_to_the_user_of_its_parent_or_another_one(
    given: dict[str, Any], expected: str | None, lab: FamilyLab
) -> None:
    boss = await lab.boss()
    boss._actor.state.history.set_owner("ada")
    await boss.set_state({"made": []})
    await boss.kin.spawn(Kid, "k", message="hello", **given)
    await boss.kin.spawn(Kid, "last", **given)  # After it, the first one has gone to the store.
    kid = await lab.thread(Kid, "k")
    assert kid.user_id == expected
    assert [message.sender for message in await kid.messages.pending()] == [expected]
    found = [row.key.name async for row in lab.app.threads(kind=Kid, user_id="bob")]
    assert found == (["k", "last"] if expected == "bob" else [])


async def test_a_child_has_its_parent_and_its_user_when_it_starts(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Early, "e", user="ada")
    assert (await lab.thread(Early, "e")).found == ("b", "ada")
    await lab.wait_for_sent(Early, "e")
    assert await lab.notices() == ["started"]


async def test_a_child_starts_only_with_its_parent_and_its_user_also_after_a_failed_write() -> None:
    async with open_lab(FlakyMemory(), Early) as lab:
        failed: list[Write] = []

        def refuse_first(write: Write) -> bool:
            is_first = write.key.name == "e" and not failed
            failed.extend([write] if is_first else [])
            return is_first

        lab.store.refuses = refuse_first  # type: ignore[attr-defined]
        (await lab.boss()).kin.spawn(Early, "e", user="ada")
        await until(lambda: lab.is_stored(Early, "e"))
        assert len(failed) == 1
        early = await lab.thread(Early, "e")
        assert (early.found, early._actor.state.history.user) == (("b", "ada"), "ada")


# With what


async def test_a_child_gets_copies_of_files_and_the_message_names_them(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.files.write("docs/plan.md", "the plan", metadata={"by": "ada"})
    await boss.kin.spawn(Kid, "k", message="read it", files=["/docs/plan.md"])
    await boss.files.unlink("docs/plan.md")
    kid = await lab.thread(Kid, "k")
    assert await kid.files.read("docs/plan.md") == b"the plan"
    file = await kid.files.stat("docs/plan.md")
    assert file is not None
    assert (file.mime, file.metadata) == ("text/markdown", {"by": "ada"})
    (message,) = await kid.messages.pending()
    assert (message.content, message.attachments) == ("read it", [{"path": "docs/plan.md"}])


async def test_a_parent_gets_copies_of_the_files_of_a_notice_even_if_the_child_is_destroyed(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await kid.files.write("report.txt", "all done")
    kid.family.notify_parent("done", files=["report.txt"])
    await lab.app.destroy(Kid, "k")
    (message,) = (await boss.messages.list(include_silent=True)).messages
    (attachment,) = message.attachments
    assert attachment["path"].startswith("attachments/")
    assert await boss.files.read(attachment["path"]) == b"all done"
    await boss.messages.delete(message.id)
    assert await boss.files.read(attachment["path"]) is None


async def test_a_file_that_is_missing_is_reported_and_the_child_is_born(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.files.write("b.txt", "b")
    await boss.kin.spawn(Kid, "k", files=["a.txt", "b.txt"])
    kid = await lab.thread(Kid, "k")
    assert await kid.files.read("b.txt") == b"b"

    async def is_reported() -> bool:
        return "boss/b has no file a.txt for kid/k" in [str(error) for error in kid.errors]

    await until(is_reported)


# Twice


async def test_a_child_is_spawned_once_by_its_name(lab: FamilyLab) -> None:
    boss = await lab.boss()
    assert await boss.kin.spawn(Kid, "k", title="first", message="one") == "kid/k"
    assert await boss.kin.spawn(Kid, "k", title="second", message="two") == "kid/k"
    assert [child.title for child in boss.kin.children] == ["first"]
    assert [message.content for message in await (await lab.thread(Kid, "k")).messages.pending()] == ["one"]


async def test_a_destroyed_child_can_be_spawned_again(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await lab.kid()
    await lab.app.destroy(Kid, "k")
    assert await boss.kin.spawn(Kid, "k", title="again") == "kid/k"
    assert [(child.title, child.status) for child in boss.kin.children] == [("again", "running")]
    kid = await lab.thread(Kid, "k")
    await kid.family.notify_parent("hello")
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == ["hello"]


async def test_children_have_random_names_by_default(lab: FamilyLab) -> None:
    boss = await lab.boss()
    references = [await boss.kin.spawn(Kid) for _ in range(3)]
    assert len(set(references)) == 3
    assert [child.reference for child in boss.kin.children] == references


async def test_a_thread_without_a_family_yet_becomes_a_child(lab: FamilyLab) -> None:
    await (await lab.thread(Kid, "k")).set_state({"n": 5})
    assert (await lab.kid()).state == {"n": 5}
    assert (await lab.thread(Kid, "k")).family.parent is not None


@pytest.mark.parametrize("owner", ["bob", None])
async def test_a_thread_of_another_user_does_not_become_a_child(owner: str | None, lab: FamilyLab) -> None:
    kid, boss = await lab.thread(Kid, "k"), await lab.boss()
    kid._actor.state.history.set_owner(owner)
    await kid.set_state({"n": 5})
    with pytest.raises(Conflict, match="kid/k cannot be a child of boss/b: it belongs to another user"):
        await boss.kin.spawn(Kid, "k", user="ada")
    assert (kid.user_id, kid.family.parent, boss.kin.children) == (owner, None, [])
    assert await boss.kin.spawn(Kid, "k", user=owner) == "kid/k"
    assert kid.family.parent is not None


async def test_the_name_of_a_session_is_no_child_for_another_user(lab: FamilyLab) -> None:
    name, boss = lab.app.session(Kid, "s1", user_id="bob").name, await lab.boss()
    with pytest.raises(Conflict, match="it belongs to another user"):
        await boss.kin.spawn(Kid, name, user="ada")
    assert (await lab.thread(Kid, name)).family.parent is None
    await boss.kin.spawn(Kid, name, user="bob")
    assert (await lab.thread(Kid, name)).user_id == "bob"


async def test_a_thread_that_is_awake_but_not_stored_becomes_a_child_of_the_user(lab: FamilyLab) -> None:
    kid = await lab.thread(Kid, "k")
    await (await lab.boss()).kin.spawn(Kid, "k", user="ada")
    assert kid.user_id == "ada"
    assert [row.key.name async for row in lab.app.threads(kind=Kid, user_id="ada")] == ["k"]


async def test_a_thread_that_refuses_its_first_message_is_a_child_all_the_same() -> None:
    async with open_lab(FlakyMemory(), Picky) as lab:
        picky, boss = await lab.thread(Picky, "p"), await lab.boss()
        await picky.set_state({"n": 1})
        await boss.kin.spawn(Picky, "p", message="bad")
        assert picky.family.parent is not None
        assert await picky.messages.pending() == []
        assert await boss.kin.child("picky/p") is not None


# Not at all


async def test_of_two_births_the_first_one_counts_even_if_its_files_come_later(lab: FamilyLab) -> None:
    slow, quick = await lab.boss("slow"), await lab.boss("quick")
    await slow.files.write("a.txt", bytes(3_000_000))
    begun = asyncio.ensure_future(slow.kin.spawn(Kid, "k", files=["a.txt"]))

    async def is_known() -> bool:
        actor = lab.app._node._threads.find_awake(ThreadKey("kid", "k"))
        return actor is not None and Kid.family.of(actor).parent is not None

    await until(is_known)
    with pytest.raises(Conflict):
        await quick.kin.spawn(Kid, "k")
    assert await begun == "kid/k"
    parent = (await lab.thread(Kid, "k")).family.parent
    assert parent is not None
    assert parent.name == "slow"


async def test_a_child_of_another_parent_a_parent_and_a_terminated_thread_are_refused(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await lab.kid("taken", parent="other")
    await (await lab.thread(Kid, "ended")).terminate()
    await (await lab.thread(Kid, "parent")).family.spawn(Plain, "grandchild")
    for name, why in (
        ("taken", "it has another parent, or children"),
        ("parent", "it has another parent, or children"),
        ("ended", "it was terminated"),
    ):
        with pytest.raises(Conflict, match=f"kid/{name} cannot be a child of boss/b: {why}"):
            await boss.kin.spawn(Kid, name)
    assert boss.kin.children == []
    await lab.wait_for_sent(Boss, "b", "kin")
    assert await lab.keys(Boss, "b", "kin") == ["head"]
    assert (await lab.thread(Kid, "taken")).family.parent is not None


async def test_no_thread_is_its_own_child_or_its_parents_parent(lab: FamilyLab) -> None:
    kid = await lab.kid()
    with pytest.raises(Conflict):
        await kid.family.spawn(Kid, "k")
    with pytest.raises(Conflict):
        await kid.family.spawn(Boss, "b")
    assert (await lab.boss()).kin.parent is None
    assert kid.family.children == []


async def test_a_refused_birth_without_a_caller_is_reported(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await lab.kid("taken", parent="other")
    boss.kin.spawn(Kid, "taken")

    async def is_reported() -> bool:
        return [type(error) for error in boss.errors] == [Conflict]

    await until(is_reported)
    assert boss.kin.children == []


async def test_a_spawn_raises_what_on_start_raises_and_the_birth_is_tried_again(
    lab: FamilyLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    boss = await lab.boss()
    with pytest.raises(LookupError, match="there is no plan"):
        await boss.kin.spawn(Fragile, "f")
    assert [child.status for child in boss.kin.children] == ["starting"]
    monkeypatch.setattr(Fragile, "is_broken", False)
    child = await boss.kin.child("fragile/f")  # It waits for the birth.
    assert child is not None
    assert [child.status for child in boss.kin.children] == ["running"]


async def test_what_cannot_be_a_child_is_refused_at_once(lab: FamilyLab) -> None:
    boss, plain = await lab.boss(), await lab.thread(Plain, "p")
    with pytest.raises(TypeError, match="Loose has no Family"):
        boss.kin.spawn(Loose)
    with pytest.raises(TypeError, match="Plain has no Messages"):
        boss.kin.spawn(Plain, message="hello")
    with pytest.raises(TypeError, match="Plain has no Files"):
        boss.kin.spawn(Plain, files=["a"])
    with pytest.raises(TypeError, match="Plain has no Files"):
        plain.family.spawn(Kid, files=["a"])
    with pytest.raises(TypeError, match="files must be several paths"):
        boss.kin.spawn(Kid, files="a.txt")
    with pytest.raises(NotFound, match="a thread's name must have 1 to 256 characters"):
        boss.kin.spawn(Kid, "x" * 257)
    for what in ("title", "description", "message", "user"):
        for value in (1, b"ada"):
            with pytest.raises(TypeError, match=f"{what} must be str or NoneType, not {type(value).__name__}"):
                boss.kin.spawn(Kid, **{what: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a user id must not be empty"):
        boss.kin.spawn(Kid, user="")
    await boss.terminate()
    with pytest.raises(Terminated):
        boss.kin.spawn(Kid)
    assert boss.kin.children == []


async def test_what_cannot_be_told_is_refused_at_once(lab: FamilyLab) -> None:
    await (await lab.thread(Plain, "p")).family.spawn(Kid, "k")
    family = (await lab.thread(Kid, "k")).family
    with pytest.raises(TypeError, match="Plain has no Messages"):
        family.notify_parent("hello")
    for text in ("", " ", "destroyed", "terminated", "starting"):
        with pytest.raises(ValueError, match="status must not be empty, and not starting, terminated, destroyed"):
            family.set_status(text)
    with pytest.raises(ValueError, match="the text of a notice must not be empty"):
        family.notify_parent("")
    with pytest.raises(ValueError, match="is not JSON"):
        family.notify_parent("\ud800")


async def test_a_thread_without_a_parent_tells_nothing(lab: FamilyLab) -> None:
    family = (await lab.thread(Kid, "k")).family
    await family.notify_parent("hello?")
    await family.set_status("busy")
    assert await family.child("kid/unknown") is None
    assert not await lab.is_stored(Kid, "k")


async def test_a_status_is_shown_by_the_parent(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await kid.family.set_status(" busy ")
    await lab.wait_for_sent(Kid, "k")
    assert [child.status for child in boss.kin.children] == ["busy"]


async def test_names_may_be_longer_than_keys_of_records(lab: FamilyLab) -> None:
    name = "ä" * 256
    kid = await lab.kid(name)
    await kid.family.notify_parent("hello")
    await lab.wait_for_sent(Kid, name)
    assert await lab.notices() == ["hello"]


async def test_a_thread_has_a_limited_number_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_CHILDREN", 2)
    async with open_lab(FlakyMemory()) as lab:
        boss = await lab.boss()
        for name in ("a", "b"):
            await boss.kin.spawn(Kid, name)
        with pytest.raises(TooMany):
            boss.kin.spawn(Kid, "c")
        assert len(boss.kin.children) == 2


async def test_a_full_family_still_tells_things_and_forgets_destroyed_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "MOST_CHILDREN", 2)
    async with open_lab(FlakyMemory()) as lab:
        boss, kid = await lab.boss(), await lab.kid()
        for name in ("a", "b"):
            await kid.family.spawn(Plain, name)
        await kid.family.notify_parent("full")
        await lab.wait_for_sent(Kid, "k")
        assert await lab.notices() == ["full"]
        await lab.app.destroy(Plain, "a")
        assert await kid.family.spawn(Plain, "c") == "plain/c"
        assert [child.reference for child in kid.family.children] == ["plain/b", "plain/c"]
        assert await kid.family.spawn(Plain, "b") == "plain/b"
        assert len(boss.kin.children) == 1


# Copies


async def test_a_fork_has_no_family(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await kid.family.spawn(Plain, "p")
    await lab.app.fork_thread(Kid, "k", "copy")
    copy = await lab.thread(Kid, "copy")
    assert (copy.family.parent, copy.family.children) == (None, [])
    assert await lab.keys(Kid, "copy") == []
    await copy.family.notify_parent("hello?")
    assert await lab.notices() == []
    assert len(boss.kin.children) == 1


async def test_a_child_is_asked_for_again_after_the_server_was_started_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with open_lab(SqliteStore(tmp_path / "plait.db")) as lab:
            await lab.kid()
            boss = await lab.boss()
            assert await boss.kin.child("kid/k") is not None
            assert [child.status for child in boss.kin.children] == ["running"]


def test_a_class_has_one_family() -> None:
    with pytest.raises(RuntimeError) as raised:  # Python 3.11 wraps what `__set_name__` raises.
        type("Two", (Thread,), {"a": Family(), "b": Family()})
    assert str(raised.value.__cause__) == "Two may have one Family"
