"""Branches of a conversation: further answers and edits beside earlier ones, whatever the agent is doing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.agents.execution.lab import Desk, Script, make_prompt
from tests.server.parts.messages_lab import Chat, MessagesLab, Viewer, contents
from tests.server.parts.test_messages_queue import Gate
from tests.server.parts.workshop import until

from plait import (
    Agent,
    Conflict,
    Context,
    Files,
    MemoryStore,
    Messages,
    NotFound,
    Plait,
    Side,
    StoreError,
    Terminated,
    Thread,
    TooLarge,
    TooMany,
)
from plait.actor.begun import Begun
from plait.parts.messages import queue
from plait.parts.messages.message import Message
from plait.parts.messages.tree import Cut, find_path, find_shared, is_within
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import decode_json


async def numbered(ctx: Context[Chat]) -> None:
    """Answer one message after the other, each time otherwise."""
    messages = ctx.thread.messages
    while taken := await messages.take(limit=1):
        numbered.count += 1  # type: ignore[attr-defined]
        messages.inject("assistant", f"{taken[0].content} {numbered.count}")  # type: ignore[attr-defined]
        await ctx.flush()


@pytest.fixture(autouse=True)
def begin_count() -> None:
    numbered.count = 0  # type: ignore[attr-defined]


def shows(*expected: str) -> Any:
    return lambda found: contents(found) == [*expected]


async def test_a_loop_that_takes_messages_gets_the_question_again(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    assert await chats.handle.regenerate(found[1].id) is True
    await chats.until(shows("a", "a 2"))
    assert await chats.handle.regenerate() is True
    found = await chats.until(shows("a", "a 3"))
    assert contents(await chats.handle.siblings(found[1].id)) == ["a 1", "a 2", "a 3"]
    assert chats.calls == 3


async def test_the_run_that_answers_again_sees_only_what_is_shown(chats: MessagesLab) -> None:
    seen: list[Any] = []

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        seen.append(contents(await messages.pending()))
        taken = await messages.take()
        seen.append((contents(taken), contents((await messages.list()).messages), await messages.pending()))
        messages.inject("assistant", "answer")

    chats.work = work
    await chats.handle.queue("a")
    await chats.until(shows("a", "answer"))
    seen.clear()
    await chats.handle.regenerate()
    await chats.until(lambda found: len(seen) == 2 and contents(found) == ["a", "answer"])
    assert seen == [["a"], (["a"], ["a"], [])]


async def test_messages_that_were_queued_come_after_the_question_that_is_answered_again(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    await chats.until(shows("a", "a 1"))
    gate, started = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Context[Chat]) -> None:
        started.set()
        await gate.wait()
        await numbered(ctx)

    chats.work = slow
    await chats.handle.regenerate()
    await started.wait()
    await chats.handle.queue("b")
    gate.set()
    await chats.until(shows("a", "a 2", "b", "b 3"))


async def test_an_agent_that_takes_one_message_a_run_gets_the_question_and_then_the_queued_one(
    chats: MessagesLab, caplog: pytest.LogCaptureFixture
) -> None:
    async def one(ctx: Context[Chat]) -> None:
        (taken,) = await ctx.thread.messages.take(limit=1)
        ctx.thread.messages.inject("assistant", f"to {taken.content}")

    chats.work = one
    await chats.handle.queue("a")
    found, messages, gate = await chats.until(shows("a", "to a")), await chats.messages(), Gate()

    async def slow(ctx: Context[Chat]) -> None:
        await gate.wait()
        await one(ctx)

    chats.work = slow
    await chats.handle.queue("b")
    await gate.reached()
    begun = messages.regenerate(found[1].id)
    await until(lambda: messages._writer.attempt.is_interrupted)
    gate.open()
    await begun
    await chats.until(shows("a", "to a", "b", "to b"))
    assert chats.calls == 4
    assert "has failed" not in caplog.text


async def test_an_edit_hides_what_follows_and_keeps_the_attachments(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a", attachments=[{"url": "/x"}], metadata={"mine": 1})
    await chats.until(shows("a", "a 1"))
    await chats.handle.queue("b")
    found = await chats.until(shows("a", "a 1", "b", "b 2"))
    edited = await chats.handle.edit(found[0].id, "A")
    assert (edited.attachments, edited.metadata) == ([{"url": "/x"}], {"mine": 1})
    await chats.until(shows("A", "A 3"))
    assert contents(await chats.handle.siblings(edited.id)) == ["a", "A"]
    assert await chats.handle.switch(found[3].id) is True
    assert contents(await chats.all()) == ["a", "a 1", "b", "b 2"]
    assert await chats.handle.switch(found[3].id) is False
    forks = await chats.handle.forks(await chats.all())
    assert {id: contents(each) for id, each in forks.items()} == {found[0].id: ["a", "A"]}


async def test_two_that_regenerate_the_same_answer_get_one(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    done = await asyncio.gather(*(chats.handle.regenerate(found[1].id) for _ in range(3)))
    assert sorted(done) == [False, False, True]
    await chats.until(shows("a", "a 2"))
    assert chats.calls == 2


async def test_regenerating_in_the_middle_interrupts_the_run_and_keeps_what_was_queued(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        while taken := await messages.take(limit=1):
            async with messages.stream() as m:
                m.append(f"to {taken[0].content}")
                if chats.calls == 1:
                    await gate.wait()
                    await ctx.checkpoint()
            await ctx.flush()

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    await chats.handle.queue("b")
    messages = await chats.messages()
    answer = (await messages.list()).messages[0]
    assert answer.status == "streaming"
    begun = messages.regenerate(answer.id)
    await until(lambda: messages._writer.attempt.is_interrupted)
    gate.open()
    assert await begun is True
    await chats.until(shows("a", "to a", "b", "to b"))
    siblings = await messages.siblings((await chats.all())[1].id)
    assert contents(siblings) == ["to a", "to a"]
    assert siblings[0].id == answer.id
    assert chats.calls == 2


async def test_a_question_that_could_not_be_answered_again_is_tried_again(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    await chats.until(shows("a", "a 1"))
    failures = iter([True, True, False])

    async def work(ctx: Context[Chat]) -> None:
        (taken,) = await ctx.thread.messages.take()
        if next(failures):
            raise LookupError
        ctx.thread.messages.inject("assistant", f"{taken.content} at last")

    chats.work = work
    await chats.handle.regenerate()
    await chats.until(shows("a", "a at last"))


async def test_an_agent_that_does_not_take_the_question_has_failed(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    await chats.until(shows("a", "a 1"))

    async def work(ctx: Context[Chat]) -> None:
        pass

    chats.work = work
    await chats.handle.regenerate()
    found = await chats.until(lambda found: len(found) == 2)
    assert (found[1].role, found[1].status) == ("assistant", "failed")
    assert "has not taken" in str(Chat.told[-1])


async def test_a_question_is_answered_again_after_a_restart(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    await chats.until(shows("a", "a 1"))
    (await chats.messages()).caller._is_missing = True  # type: ignore[union-attr]
    await chats.handle.regenerate()
    assert contents(await chats.all()) == ["a"]
    await chats.restart()
    await chats.until(shows("a", "a 2"))
    assert chats.calls == 2


async def test_the_sender_of_the_question_is_the_user_of_the_run_that_answers_it_again(chats: MessagesLab) -> None:
    users: list[Any] = []

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        users.append(None if ctx.user is None else ctx.user.id)
        ctx.thread.messages.inject("assistant", "answer")

    chats.work = work
    messages = await chats.messages()
    changes = messages._writer.edit()
    changes.queue_message(messages._writer.make("user", "a", sender="ada", status="pending"))
    await messages._writer.store(changes)
    await chats.until(shows("a", "answer"))
    await chats.handle.regenerate()
    await chats.until(lambda found: len(users) == 2 and len(found) == 2)
    assert users == ["ada", "ada"]


async def test_a_deleted_question_is_not_answered_again(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    (await chats.messages()).caller._is_missing = True  # type: ignore[union-attr]
    await chats.handle.regenerate()
    await chats.handle.delete(found[0].id)
    await chats.restart()
    assert contents(await chats.all()) == []
    assert (await chats.messages())._writer.state.head.attempts.due == 0


async def test_a_run_cannot_change_its_own_branch(chats: MessagesLab) -> None:
    refused: list[str] = []

    async def work(ctx: Context[Chat]) -> None:
        (taken,) = await ctx.thread.messages.take()
        for change in (ctx.thread.messages.regenerate, ctx.thread.messages.switch):
            try:
                await change(taken.id)
            except RuntimeError as error:
                refused.append(str(error))
        ctx.thread.messages.inject("assistant", "answer")

    chats.work = work
    await chats.handle.queue("a")
    await chats.until(shows("a", "answer"))
    assert len(refused) == 2

    async def other(ctx: Context[Chat]) -> None:
        with pytest.raises(RuntimeError, match="a run cannot change the branch of its own thread"):
            ctx.thread.messages.regenerate()

    await chats.do(other)


async def test_odd_requests_are_refused(chats: MessagesLab) -> None:
    chats.work = numbered
    messages = await chats.messages()
    with pytest.raises(NotFound):
        await messages.regenerate()
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    for work in (messages.regenerate("no"), messages.switch("no"), messages.edit("no", "x")):
        with pytest.raises(NotFound):
            await work  # type: ignore[misc]
    with pytest.raises(Conflict):
        await messages.edit(found[1].id, "x")
    with pytest.raises(TypeError):
        messages.edit(found[0].id, 1)  # type: ignore[arg-type]
    messages.caller._is_missing = True  # type: ignore[union-attr]
    pending = await messages.queue("b")
    for begun in (messages.edit(pending.id, "x"), messages.regenerate(pending.id)):
        with pytest.raises(Conflict):
            await begun  # type: ignore[misc]
    assert contents(await messages.siblings(pending.id)) == ["b"]
    with pytest.raises(RuntimeError), (await chats.thread()).transaction():
        messages.switch(found[0].id)
    assert contents(await chats.all()) == ["a", "a 1", "b"]


async def test_a_full_queue_refuses_an_edit_and_changes_nothing(
    chats: MessagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    monkeypatch.setattr(queue, "MOST_QUEUED", 0)
    with pytest.raises(TooMany):
        await chats.handle.edit(found[0].id, "A")
    assert contents(await chats.all()) == ["a", "a 1"]


@pytest.mark.parametrize("is_large", [False, True])
async def test_an_edit_that_is_refused_does_not_end_the_run_that_is_answering(
    chats: MessagesLab, is_large: bool
) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        async with ctx.thread.messages.stream() as answer:
            started.set()
            await gate.wait()
            answer.append("whole")

    chats.work = slow
    await chats.handle.queue("b")
    await started.wait()
    with pytest.raises(TooLarge if is_large else Conflict):
        await chats.handle.edit(found[0 if is_large else 1].id, "A" * (3_000_000 if is_large else 1))
    gate.set()
    await chats.until(shows("a", "a 1", "b", "whole"))


async def test_a_question_is_edited_while_it_is_answered(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        (taken,) = await ctx.thread.messages.take()
        ctx.thread.messages.inject("assistant", f"to {taken.content}")
        if taken.content == "a":
            await gate.wait()
            await ctx.checkpoint()

    chats.work = work
    asked = await chats.handle.queue("a")
    await gate.reached()
    messages = await chats.messages()
    begun = messages.edit(asked.id, "A")
    await until(lambda: messages._writer.attempt.is_interrupted)
    gate.open()
    await begun
    await chats.until(shows("A", "to A"))
    assert contents(await messages.siblings((await chats.all())[0].id)) == ["a", "A"]


async def test_a_terminated_thread_keeps_its_answer(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    await chats.app.thread(Chat, "one").terminate()
    with pytest.raises(Terminated):
        await chats.handle.regenerate(found[1].id)
    assert contents(await chats.all()) == ["a", "a 1"]


async def test_a_silent_message_cannot_be_edited_as_a_question(chats: MessagesLab) -> None:
    messages = await chats.messages()
    silent = await messages.inject("user", "secret", silent=True, metadata={"secret": 1})
    with pytest.raises(Conflict):
        await messages.edit(silent.id, "mine")


async def test_a_branch_that_could_not_be_stored_is_not_there(troubled: MessagesLab) -> None:
    troubled.work = numbered
    await troubled.handle.queue("a")
    found = await troubled.until(shows("a", "a 1"))
    messages = await troubled.messages()
    viewer = Viewer(messages)
    await viewer.open()
    troubled.store.fail_next()
    with pytest.raises(StoreError):
        await messages.edit(found[0].id, "A")
    assert contents(await troubled.all()) == contents(viewer.shown) == ["a", "a 1"]


async def test_a_live_run_on_a_branch_that_is_left_tells_nothing_more(chats: MessagesLab) -> None:
    messages = await chats.messages()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    first = await messages.inject("user", "a")
    viewer = Viewer(messages)
    await viewer.open()
    async with messages.stream() as m:
        m.append("half")
        await messages.edit(first.id, "A")
        count = len(viewer.frames)
        m.append(" and more")
        m.add_input("c1", "pay", "{}")

        async def has_all() -> bool:
            return (await messages.get(m.id)).content == "half and more"  # type: ignore[union-attr]

        await until(has_all)
    await messages.inject("system", "later")
    assert contents(viewer.shown) == ["later", "A"]
    assert len(viewer.frames) == count + 1
    assert contents((await messages.list()).messages) == ["later", "A"]
    assert (await messages.list()).total == 2
    assert (await messages.get(m.id)).content == "half and more"  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1000, 1001])
async def test_clients_are_told_of_many_hidden_messages_one_by_one_or_read_the_newest_again(
    count: int, chats: MessagesLab
) -> None:
    messages = await chats.messages()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    first = await messages.inject("user", "first")
    written = [messages.inject("user", f"{number}") for number in range(count - 1)]
    await written[-1]
    viewer = Viewer(messages)
    await viewer.open()
    before = viewer.revision
    await messages.edit(first.id, "other")
    kinds = [type(each).__name__ for each in viewer.frames]
    assert kinds == (["DeleteFrame"] * count if count == 1000 else ["ResetFrame"]) + ["InsertFrame"]
    assert (await messages.list()).total == 1
    assert await messages.feed.since(before) is None  # They are more than 1,000 changes.
    viewer.close()
    await viewer.open()
    assert contents(viewer.shown) == ["other"]
    await messages.switch(first.id)
    assert (await messages.list()).total == count + 1


def make_files_app() -> Any:
    class Room(Thread[dict[str, Any]]):
        messages = Messages()
        files = Files()

    return Room


async def test_an_attached_file_stays_as_long_as_a_version_of_its_question_has_it() -> None:
    cls = make_files_app()
    async with Plait(cls, store=MemoryStore()) as app:
        room = app.thread(cls, "one")
        files, messages = room.part(cls.files), room.part(cls.messages)
        await files.write("attachments/x/a.txt", "hello")
        first = await messages.inject("user", "see", attachments=[{"path": "attachments/x/a.txt"}])
        edited = await messages.edit(first.id, "see this")
        (taken,) = await messages.take()
        assert taken.id == edited.id
        await messages.delete(first.id)
        assert await files.read("attachments/x/a.txt") == b"hello"
        await messages.delete(edited.id)
        assert await files.stat("attachments/x/a.txt") is None


@pytest.mark.parametrize(("is_edit", "is_switched"), [(False, False), (True, False), (True, True)])
async def test_a_file_stays_while_a_queued_edit_or_its_question_has_it(is_edit: bool, is_switched: bool) -> None:
    cls = make_files_app()
    async with Plait(cls, store=MemoryStore()) as app:
        room = app.thread(cls, "one")
        files, messages = room.part(cls.files), room.part(cls.messages)
        await files.write("attachments/x/a.txt", "hello")
        first = await messages.inject("user", "see", attachments=[{"path": "attachments/x/a.txt"}])
        edited = await messages.edit(first.id, "see this")
        if is_switched:
            await messages.switch(first.id)
        assert await messages.delete(edited.id if is_edit else first.id)
        assert await files.read("attachments/x/a.txt") == b"hello"
        assert await messages.delete(first.id if is_edit else edited.id)
        assert await files.stat("attachments/x/a.txt") is None


async def test_two_that_delete_a_message_with_a_file_delete_it_once(tmp_path: Path) -> None:
    cls = make_files_app()
    async with Plait(cls, store=f"sqlite:///{tmp_path}/plait.db") as app:
        messages = app.thread(cls, "one").part(cls.messages)
        first = await messages.inject("user", "see", attachments=[{"path": "attachments/x/a.txt"}])
        await messages.edit(first.id, "see this")
        (edited,) = await messages.take()
        await messages.inject("user", "more")
        done = await asyncio.gather(*(messages.delete(edited.id) for _ in range(2)))
        assert sorted(done) == [False, True]
        page = await messages.list()
        assert (contents(page.messages), page.total) == (["more"], 1)


async def test_a_message_that_is_being_changed_for_a_branch_is_awaited_by_its_turn(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    begun = (await chats.messages()).edit(found[0].id, "A")
    assert isinstance(begun, Begun)
    assert isinstance(await begun, Message)


def test_the_path_of_a_branch_has_the_spans_that_it_follows() -> None:
    cuts = [Cut(5, 2, 2), Cut(9, 6, 6), Cut(12, 0, 0)]
    assert find_path(cuts) == [(12, find_path([])[0].high)]
    assert find_path(cuts, 11) == [(0, 2), (5, 6), (9, 11)]
    assert find_shared(find_path(cuts, 11), find_path(cuts, 8)) == 6
    assert not is_within(find_path(cuts, 11), 3)


async def test_a_stopped_agent_answers_again_and_a_terminated_thread_does_not(tmp_path: Path) -> None:
    script = Script("one", "two")
    app = Plait(Desk, store=f"sqlite:///{tmp_path / 'desks.db'}", secret="x")
    app.execution(Desk, agents=[Agent("desk", Side("clerk"))], prompts=[make_prompt("clerk")], models=[script.model])
    async with app:
        desk = app.thread(Desk, "one")
        messages = desk.part(Desk.messages)
        await messages.queue("a")
        await until(lambda: has_shown(messages, "a", "one"))
        await messages.stop()
        await messages.regenerate()
        await until(lambda: has_shown(messages, "a", "two"))
        assert script.texts()[-1] == "user-prompt a"
        await desk.terminate()
        with pytest.raises(Terminated):
            await messages.regenerate()
        found = await messages.siblings((await messages.list()).messages[1].id)
        assert contents(found) == ["one", "two"]
        assert await messages.switch(found[0].id) is True


async def has_shown(messages: Any, *expected: str) -> bool:
    return contents((await messages.list()).messages) == [*expected]


async def test_a_message_that_another_run_has_taken_is_shown_on_the_branch_that_is_shown_then(
    chats: MessagesLab,
) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    messages, gate = await chats.messages(), Gate()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    await messages.queue("b")

    async def take(ctx: Context[Chat]) -> None:
        assert contents(await ctx.thread.messages.take()) == ["b"]
        await gate.wait()

    viewer = Viewer(messages)
    await viewer.open()
    taking = asyncio.create_task(chats.do(take))
    await gate.reached()
    await messages.edit(found[0].id, "A")
    gate.open()
    await taking
    assert contents(await chats.all()) == contents(viewer.shown) == ["b", "A"]


async def test_the_answers_to_a_question_stay_siblings_when_it_is_deleted(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    await chats.until(shows("a", "a 1"))
    await chats.handle.queue("b")
    await chats.until(shows("a", "a 1", "b", "b 2"))
    await chats.handle.regenerate()
    found = await chats.until(shows("a", "a 1", "b", "b 3"))
    await chats.handle.delete(found[2].id)
    for id in (found[3].id, (await chats.handle.siblings(found[3].id))[0].id):
        assert contents(await chats.handle.siblings(id)) == ["b 2", "b 3"]
    assert contents(await chats.handle.siblings(found[1].id)) == ["a 1"]


async def test_a_run_of_another_agent_sees_the_branch_that_is_shown(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    found = await chats.until(shows("a", "a 1"))
    messages, gate = await chats.messages(), Gate()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    seen: list[Any] = []

    async def look(ctx: Context[Chat]) -> None:
        own = ctx.thread.messages
        own.inject("system", "note")
        seen.append(contents((await own.list()).messages))
        await gate.wait()
        page = await own.list()
        seen.append((contents(page.messages), page.total))

    looking = asyncio.create_task(chats.do(look))
    await gate.reached()
    await messages.edit(found[0].id, "A")
    gate.open()
    await looking
    assert seen == [["a", "a 1", "note"], ([], 0)]
    assert contents((await messages.list()).messages) == ["A"]


async def test_what_a_run_deletes_after_a_flush_is_deleted(chats: MessagesLab) -> None:
    messages = await chats.messages()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    first, pending = await messages.inject("user", "a"), await messages.queue("b")

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.update(pending.id, "B")
        await ctx.flush()
        assert await ctx.thread.messages.delete(first.id) is True

    await chats.do(work)
    assert contents(await chats.all()) == ["B"]


async def test_looking_at_one_branch_after_the_other_stores_no_more_branches(chats: MessagesLab) -> None:
    chats.work = numbered
    await chats.handle.queue("a")
    first = await chats.until(shows("a", "a 1"))
    await chats.handle.regenerate()
    second = await chats.until(shows("a", "a 2"))
    for _ in range(5):
        for each in (first, second):
            assert await chats.handle.switch(each[1].id) is True
    assert contents(await chats.all()) == ["a", "a 2"]
    tree = await chats.store.record(ThreadKey("chat", "one"), "messages", "head/tree")
    assert len(decode_json(tree)) == 2
