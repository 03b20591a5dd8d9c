"""What a family shows of its threads, hands over, and forgets, on stores of several kinds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.parts.family_lab import Boss, FamilyLab, Kid, Plain, make_store, open_lab, until

from plait import Child, Conflict, MessageSubagent, Terminated, ThreadKey
from plait.store.thread_rows import RecordRange


@pytest.fixture(params=["sqlite", "postgresql"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


async def wait_for_status(lab: FamilyLab, *statuses: str, name: str = "b") -> list[Child]:
    """Return the children of a parent when they have some statuses."""

    async def is_so() -> bool:
        return [each.status for each in (await lab.boss(name)).kin.children] == [*statuses]

    await until(is_so)
    return (await lab.boss(name)).kin.children


async def wait_for_notices(lab: FamilyLab, *texts: str) -> None:
    async def have_come() -> bool:
        return await lab.notices() == [*texts]

    await until(have_come)


# What is shown


async def test_children_are_listed_with_what_they_were_spawned_with_and_their_status(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Kid, "k", title="Cook", description="makes soup")
    await boss.kin.spawn(Plain, "p")
    first, second = await wait_for_status(lab, "running", "running")
    assert (first.reference, first.name, first.title, first.description) == ("kid/k", "k", "Cook", "makes soup")
    assert (second.reference, second.name, second.title, second.description) == ("plain/p", "p", "", "")
    assert 0 < first.created_at < second.created_at
    assert (first.thread_name, first.resumable, first.blocking) == (None, None, None)
    assert (first.spawn_group_id, first.parent_communication) == (None, None)


async def test_only_a_child_of_the_thread_itself_is_found(lab: FamilyLab) -> None:
    await lab.kid("k", parent="b")
    await lab.kid("other", parent="c")
    boss = await lab.boss("b")
    assert await boss.kin.child("kid/k") is not None
    assert [await boss.kin.child(each) for each in ("kid/other", "kid/unknown", "k", "", "boss/b", "no-kind/k")] == (
        [None] * 6
    )
    assert boss.kin.parent is None


async def test_a_status_is_shown_to_the_parent_and_the_last_one_counts(lab: FamilyLab) -> None:
    kid = await lab.kid()
    for number in range(20):
        kid.family.set_status(f"at {number}")
    await wait_for_status(lab, "at 19")


async def test_a_message_about_a_child_is_read_with_what_is_known_of_it_then(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.kin.spawn(Kid, "k", title="Cook", description="makes soup")
    kid = await lab.thread(Kid, "k")
    await kid.family.notify_parent("ready")
    await wait_for_notices(lab, "ready")
    other = await boss.messages.inject("tool", "gone", subagent_id="kid/unknown")
    listed = (await lab.app.thread(Boss, "b").part(Boss.messages).list(include_silent=True)).messages
    assert [(each.content, each.subagent_id) for each in listed] == [("ready", "kid/k"), ("gone", "kid/unknown")]
    await wait_for_status(lab, "running")
    await kid.family.set_status("resting")
    await wait_for_status(lab, "resting")
    found = await boss.messages.get(listed[0].id)
    assert found is not None
    assert found.subagent == MessageSubagent(name="k", title="Cook", description="makes soup", status="resting")
    assert (await boss.messages.get(other.id)) == other
    # It is not stored, even if the message is changed.
    await boss.messages.update(found.id, "eaten")
    records = await lab.store.records(ThreadKey("boss", "b"), RecordRange("messages", "m/", limit=10))
    assert [b"subagent_id" in (each.value or b"") for each in records] == [True, True]
    assert [b"Cook" in (each.value or b"") for each in records] == [False, False]


async def test_a_family_is_the_same_after_a_restart(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = make_store(request, "sqlite", tmp_path)
    async with open_lab(store) as lab:
        await (await lab.kid()).family.set_status("cooking")
        before = await wait_for_status(lab, "cooking")
    async with open_lab(make_store(request, "sqlite", tmp_path)) as lab:
        assert (await lab.boss()).kin.children == before
        parent = (await lab.thread(Kid, "k")).family.parent
        assert parent is not None
        assert (parent.name, (await (await lab.thread(Kid, "k")).family.set_status("done"))) == ("b", None)
        await wait_for_status(lab, "done")


async def test_a_message_in_the_queue_of_a_child_comes_with_its_birth(lab: FamilyLab) -> None:
    await (await lab.boss()).kin.spawn(Kid, "k", message="make soup")
    pending = await (await lab.thread(Kid, "k")).messages.pending()
    assert [each.content for each in pending] == ["make soup"]


# Files


async def test_a_file_for_a_child_is_there_at_its_path_and_is_a_copy(lab: FamilyLab) -> None:
    boss = await lab.boss()
    await boss.files.write("recipes/soup.txt", "salt", metadata={"by": "Ada"})
    await boss.kin.spawn(Kid, "k", message="cook this", files=["recipes/soup.txt"])
    kid = await lab.thread(Kid, "k")
    (message,) = await kid.messages.pending()
    (attachment,) = message.attachments
    await boss.files.unlink("recipes/soup.txt")
    assert await kid.files.read(attachment["path"]) == b"salt"
    assert await kid.files.read("recipes/soup.txt") == b"salt"
    file = await kid.files.stat("recipes/soup.txt")
    assert file is not None
    assert (file.mime, file.metadata) == ("text/plain", {"by": "Ada"})


async def test_a_file_for_the_parent_is_readable_at_the_path_that_the_parent_gets(lab: FamilyLab) -> None:
    kid = await lab.kid()
    await kid.files.write("soup.txt", "hot")
    await kid.family.notify_parent("ready", files=["soup.txt"])
    await kid.files.write("soup.txt", "cold")
    await kid.family.notify_parent("not eaten", files=["soup.txt"])
    await wait_for_notices(lab, "ready", "not eaten")
    boss = await lab.boss()
    messages = (await boss.messages.list(include_silent=True)).messages
    paths = [attachment["path"] for message in messages for attachment in message.attachments]
    assert len(set(paths)) == 2
    assert await boss.files.read(paths[1]) == b"cold"
    # They belong to the messages.
    await boss.messages.delete(messages[0].id)
    assert [await boss.files.stat(path) is None for path in paths] == [True, False]


async def test_a_file_of_10_MB_is_handed_over_whole(lab: FamilyLab) -> None:
    kid, content = await lab.kid(), b"0123456789" * 1_000_000
    await kid.files.write("big.bin", content)
    await kid.family.notify_parent("here", files=["big.bin"])
    await wait_for_notices(lab, "here")
    boss = await lab.boss()
    (message,) = (await boss.messages.list(include_silent=True)).messages
    assert await boss.files.read(message.attachments[0]["path"]) == content


# The end


async def test_a_terminated_child_shows_it_and_can_tell_no_more(lab: FamilyLab) -> None:
    kid = await lab.kid()
    kid.family.notify_parent("last words")
    await kid.terminate()
    await kid.terminate()
    (child,) = await wait_for_status(lab, "terminated")
    await wait_for_notices(lab, "last words")
    assert await (await lab.boss()).kin.child(child.reference) is not None


async def test_a_terminated_parent_has_no_new_children_and_the_old_ones_go_on(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await boss.terminate()
    with pytest.raises(Terminated):
        boss.kin.spawn(Kid, "late")
    assert await lab.app.thread(Kid, "k").call(Kid.step) == 1
    assert kid.terminated_at is None
    await lab.wait_for_sent(Kid, "k")
    await kid.family.set_status("alone")
    await wait_for_status(lab, "alone")


async def test_a_destroyed_child_shows_it_and_its_name_may_be_used_again(lab: FamilyLab) -> None:
    await lab.kid()
    await lab.app.thread(Kid, "k").destroy()
    (child,) = await wait_for_status(lab, "destroyed")
    boss = await lab.boss()
    assert await boss.kin.child(child.reference) is None
    assert await boss.kin.spawn(Kid, "k") == child.reference
    assert await boss.kin.child(child.reference) is not None
    await wait_for_status(lab, "running")


async def test_a_destroyed_thread_leaves_nothing_of_its_family(lab: FamilyLab) -> None:
    await lab.kid()
    await lab.app.thread(Boss, "b").destroy()
    assert await lab.keys(Boss, "b", "kin") == []
    boss = await lab.boss()
    assert boss.kin.children == []


async def test_a_fork_has_no_family(lab: FamilyLab) -> None:
    kid, boss = await lab.kid(), await lab.boss()
    await kid.family.set_status("cooking")
    await wait_for_status(lab, "cooking")
    await lab.app.fork_thread(Kid, "k", "copy")
    await lab.app.fork_thread(Boss, "b", "copy")
    copy = await lab.thread(Kid, "copy")
    assert copy.family.parent is None
    assert (await lab.boss("copy")).kin.children == []
    await copy.family.notify_parent("from a copy")
    await copy.family.set_status("copied")
    await kid.family.notify_parent("from the child")
    await wait_for_notices(lab, "from the child")
    assert [(each.reference, each.status) for each in boss.kin.children] == [("kid/k", "cooking")]
    # It may get a parent of its own.
    with pytest.raises(Conflict):
        await (await lab.boss("copy")).kin.spawn(Kid, "k")
    assert await (await lab.boss("copy")).kin.spawn(Kid, "copy") == "kid/copy"
