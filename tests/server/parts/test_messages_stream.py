"""Messages that are shown while they are written, and what clients are told."""

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.messages_lab import Chat, MessagesLab, Shared, Viewer, contents, open_lab
from tests.server.parts.test_messages_queue import Gate, statuses, until_called
from tests.server.parts.test_messages_runs import during
from tests.server.parts.workshop import until

from plait import Conflict, Context, Limits, MemoryStore, Plait, PlaitError, StoreError, Thread, TooLarge
from plait.parts.attempts import PAUSES
from plait.parts.messages.frames import ChunkFrame, EndFrame
from plait.parts.messages.message import Message, make_call
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.store.thread_rows import RecordRange, ThreadKey
from plait_schemas.codec import decode_json


async def until_text(messages: ThreadMessages, text: str) -> Message:
    """Wait until a stream that is the last message has a text that is durable."""
    async with asyncio.timeout(10):
        while (found := (await messages.list()).messages)[-1].content != text:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return found[-1]


async def test_a_stream_is_durable_while_it_grows(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()
    async with messages.stream(name="bot", metadata={"x": 1}) as m:
        m.append("Hel")
        m.append("lo")
        found = await until_text(messages, "Hello")
        assert (found.status, found.role, found.name, found.metadata) == ("streaming", "assistant", "bot", {"x": 1})
        assert m.text == "Hello"
        m.append(" world")
    found = (await messages.list()).messages[0]
    assert (found.id, found.content, found.status) == (m.id, "Hello world", "completed")
    assert contents(viewer.shown) == ["Hello world"]
    chunks = [frame for frame in viewer.frames if isinstance(frame, ChunkFrame)]
    assert "".join(each.text for each in chunks) == "Hello world"
    assert isinstance(viewer.frames[-1], EndFrame)
    await chats.restart()
    assert statuses(await chats.all()) == ["completed"]


async def test_many_pieces_are_few_writes(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()
    began = asyncio.get_running_loop().time()
    async with messages.stream() as m:
        for _ in range(200):
            for _ in range(50):
                m.append("0123456789")
            await messages.get(m.id)  # What was written is durable.
    writes = (asyncio.get_running_loop().time() - began) / 0.04
    assert len(viewer.shown[0].content or "") == 100_000
    assert len([frame for frame in viewer.frames if isinstance(frame, ChunkFrame)]) <= writes + 2


async def test_a_write_of_a_stream_has_the_new_text_only(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    await messages.inject("user", "x")
    before = len(troubled.store.submitted)
    async with messages.stream() as m:
        for _ in range(8):
            m.append("0123456789" * 1_000)
            await messages.get(m.id)  # What was written is durable.
            await asyncio.sleep(0.05)
        pieces = await records_of(troubled, "t/")
        assert len(pieces) >= 5
        assert len(await records_of(troubled, "u/")) == 0
    written = [record for write in troubled.store.submitted[before:] for record in write.records]
    assert sum(len(record.value or b"") for record in written) <= 80_000 * 2 + 4_000
    assert await records_of(troubled, "t/") == []
    assert (await messages.get(m.id)) == (await messages.list(1)).messages[0]
    assert len((await messages.list(1)).messages[0].content or "") == 80_000


async def records_of(lab: MessagesLab, prefix: str) -> list[Any]:
    found: list[Any] = await lab.store.records(ThreadKey("chat", "one"), RecordRange("messages", prefix=prefix))
    return found


async def test_a_reader_sees_all_of_a_text_whose_pieces_are_replaced(
    chats: MessagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.messages.message_stream._INTERVAL", 0.0)
    monkeypatch.setattr("plait.parts.messages.message_stream._MOST_PIECES", 3)
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()
    seen = [""]

    async def read() -> None:
        while len(seen[-1]) < 400:
            found = (await messages.list(1)).messages
            seen.append((found[0].content or "") if found else "")
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    async with messages.stream() as m:
        for number in range(100):
            m.append(f"{number:04}")
            await messages.get(m.id)
            assert len(await records_of(chats, "t/")) <= 3
    async with asyncio.timeout(10):
        await reading
    text = "".join(f"{number:04}" for number in range(100))
    assert all(text.startswith(each) for each in seen)
    assert [len(each) for each in seen] == sorted(len(each) for each in seen)
    assert contents(viewer.shown) == [text]


async def test_a_thread_that_wakes_has_the_text_that_was_durable(chats: MessagesLab) -> None:
    messages = await chats.messages()
    async with AsyncExitStack() as apps:
        stream = messages.stream(metadata={"x": 1})
        await stream.__aenter__()
        for text in ("one ", "two ", "three"):
            stream.append(text)
            await asyncio.sleep(0.05)
            await until_text(messages, stream.text)
        assert len(await records_of(chats, "t/")) == 3
        lab = await apps.enter_async_context(open_lab(Shared(chats.store)))
        woken = await lab.messages()
        (found,) = await lab.all()
        assert (found.content, found.status, found.metadata) == ("one two three", "failed", {"x": 1})
        await woken.inject("user", "next")
        assert await woken.get(stream.id) == found
        assert await records_of(lab, "t/") == []
        assert await woken.delete(stream.id)
        assert contents(await lab.all()) == ["next"]
        with suppress(PlaitError):
            await stream.__aexit__(None, None, None)


async def test_a_stream_becomes_history_with_its_run(chats: MessagesLab) -> None:
    written, ended = Gate(), Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        async with messages.stream() as m:
            m.append("answer")
            await written.wait()
            page = await messages.list()
            assert contents(page.messages) == ["question"]
        page = await messages.list()
        assert (contents(page.messages), statuses(page.messages)) == (["question", "answer"], ["completed"] * 2)
        assert page.total == 2
        await ended.wait()

    chats.work = work
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()
    question = await messages.queue("question")
    await written.reached()
    found = await until_text_of(messages, "answer")
    # Clients are told that the question, which is pending, stands before the answer.
    assert found.taken == [question.id]
    written.open()
    await ended.reached()
    assert {each.content: each.status for each in await chats.all()} == {"question": "pending", "answer": "streaming"}
    late = Viewer(messages)
    await late.open()
    assert late.held[found.id].taken == [question.id]
    ended.open()
    await chats.until(lambda found: statuses(found) == ["completed"] * 2)
    assert contents(await chats.all()) == contents(viewer.shown) == contents(late.shown) == ["question", "answer"]
    assert statuses(viewer.shown) == statuses(late.shown) == ["completed"] * 2


async def until_text_of(messages: ThreadMessages, text: str) -> Message:
    async with asyncio.timeout(10):
        while True:
            for each in (await messages.list()).messages:
                if each.status == "streaming" and each.content == text:
                    return each
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("place", ["in the block", "after the block"])
async def test_a_stream_of_a_run_that_raises_is_failed_with_its_text(chats: MessagesLab, place: str) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        async with messages.stream() as m:
            m.append("half an answer")
            if place == "in the block":
                raise RuntimeError("stop")
        messages.inject("assistant", "lost")
        raise RuntimeError("stop")

    viewer = Viewer(await chats.messages())
    await viewer.open()
    with pytest.raises(RuntimeError, match="stop"):
        await chats.do(work)
    found = await chats.until(lambda found: statuses(found) == ["failed"])
    assert contents(found) == contents(viewer.shown) == ["half an answer"]
    assert statuses(viewer.shown) == ["failed"]

    async def look(ctx: Context[Chat]) -> object:
        page = await ctx.thread.messages.list()
        return page.messages, page.total

    assert await chats.do(look) == ([], 0)
    await chats.restart()
    assert (contents(await chats.all()), statuses(await chats.all())) == (["half an answer"], ["failed"])
    assert await chats.handle.delete(found[0].id) is True


async def test_a_stream_that_raises_in_a_run_that_goes_on_is_failed(chats: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        try:
            async with messages.stream() as m:
                m.append("a")
                raise RuntimeError("stop")
        except RuntimeError:
            messages.inject("assistant", "b")

    await chats.do(work)
    assert [(each.content, each.status) for each in await chats.all()] == [("a", "failed"), ("b", "completed")]


async def test_what_a_failed_attempt_has_streamed_stands_until_the_next_one_streams(
    chats: MessagesLab, clock: Clock
) -> None:
    viewer = Viewer(await chats.messages())
    await viewer.open()
    streamed, ended = Gate(), Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        taken = await messages.take(limit=1)
        for number in range(2):
            async with messages.stream() as m:
                m.append(f"{chats.calls}.{number} {taken[0].content}")
                if chats.calls == 2:
                    streamed.is_reached.set()
                    await ended.wait()
        if chats.calls == 1:
            raise RuntimeError("stop")

    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    found = await chats.all()
    assert (contents(found), statuses(found)) == (["1.0 a", "1.1 a", "a"], ["failed", "failed", "pending"])
    clock.move(1)
    await streamed.reached()
    found = await chats.all()
    assert statuses(found) == ["streaming", "pending"]
    ended.open()
    found = await chats.until(lambda found: contents(found) == ["a", "2.0 a", "2.1 a"])
    assert statuses(found) == ["completed"] * 3
    assert contents(viewer.shown) == contents(found)
    await chats.restart()
    assert contents(await chats.all()) == contents(found)


async def test_what_a_failed_attempt_has_streamed_goes_with_the_end_of_the_next_one(
    chats: MessagesLab, clock: Clock
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        if chats.calls == 1:
            async with messages.stream() as m:
                m.append("half")
                raise RuntimeError("stop")
        messages.inject("assistant", "re a")

    viewer = Viewer(await chats.messages())
    await viewer.open()
    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    clock.move(1)
    await chats.until(lambda found: contents(found) == ["a", "re a"])
    assert contents(viewer.shown) == ["a", "re a"]


async def test_what_a_failed_attempt_has_streamed_goes_with_the_failure_of_the_next_one_that_ran(
    troubled: MessagesLab, clock: Clock
) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        if troubled.calls == 1:
            async with messages.stream() as m:
                m.append("half")
                raise RuntimeError("stop")
        raise RuntimeError("stop at once")

    troubled.work = work
    await troubled.handle.queue("a")
    await until_called(troubled, 1)
    await troubled.restart()
    assert contents(await troubled.all()) == ["half", "a"]
    # The begin of an attempt that could not be stored is none.
    actor, submitted = await troubled.actor(), len(troubled.store.submitted)
    troubled.store.fail_next()
    clock.move(1)
    async with asyncio.timeout(10):
        while len(troubled.store.submitted) < submitted + 2 or not actor.state.is_durable:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (contents(await troubled.all()), troubled.calls) == (["half", "a"], 1)
    clock.move(1)
    await until_called(troubled, 2)
    assert contents(await troubled.all()) == ["a"]


async def test_a_question_that_is_given_up_stands_before_the_last_failure(chats: MessagesLab, clock: Clock) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        taken = await messages.take()
        async with messages.stream() as m:
            m.append(f"{chats.calls} {taken[0].content}")
        if taken[0].content == "bad":
            raise RuntimeError("stop")

    viewer, late = Viewer(await chats.messages()), Viewer(await chats.messages())
    await viewer.open()
    await late.open()
    chats.work = work
    await chats.handle.queue("first")
    await chats.until(lambda found: contents(found) == ["first", "1 first"])
    late.close()
    await chats.handle.queue("bad")
    for number in range(2, PAUSES.attempts + 1):
        await until_called(chats, number)
        clock.move(2.0 ** (number - 2))
    found = await chats.until(lambda found: contents(found) == ["first", "1 first", "bad", "6 bad"])
    assert statuses(found) == ["completed", "completed", "failed", "failed"]
    await chats.handle.queue("next")
    found = await chats.until(lambda found: contents(found)[4:] == ["next", "7 next"])
    await late.open()
    assert contents(viewer.shown) == contents(late.shown) == contents(found)
    assert statuses(viewer.shown) == statuses(late.shown) == statuses(found)
    await chats.restart()
    assert contents(await chats.all()) == contents(found)


async def test_a_failure_that_was_deleted_is_not_removed_again(chats: MessagesLab, clock: Clock) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        async with messages.stream() as m:
            m.append(f"{chats.calls}")
        if chats.calls == 1:
            raise RuntimeError("stop")

    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    failed = next(each for each in await chats.all() if each.status == "failed")
    assert await chats.handle.delete(failed.id)
    clock.move(1)
    await chats.until(lambda found: contents(found) == ["a", "2"])


async def test_a_text_that_is_over_a_limit_which_was_lowered_stops_no_later_write(chats: MessagesLab) -> None:
    messages = await chats.messages()
    async with AsyncExitStack() as apps:
        stream = messages.stream()
        await stream.__aenter__()
        for _ in range(3):
            stream.append("x" * 900)
            await until_text(messages, stream.text)
        lab = await apps.enter_async_context(open_lab(Shared(chats.store), limits=Limits(record=2000)))
        woken = await lab.messages()
        await woken.inject("user", "next")
        (found, _) = await lab.all()
        assert (found.content, found.status) == ("x" * 2700, "failed")
        assert await woken.delete(stream.id)
        assert contents(await lab.all()) == ["next"]
        with suppress(PlaitError):
            await stream.__aexit__(None, None, None)


async def test_a_stream_of_an_attempt_in_a_thread_that_was_taken_over_is_removed(chats: MessagesLab) -> None:
    gate = Gate()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        async with messages.stream() as m:
            m.append("half")
            await gate.wait()

    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    await until_text_of(await chats.messages(), "half")
    async with AsyncExitStack() as apps:
        lab = await apps.enter_async_context(open_lab(Shared(chats.store)))
        found = await lab.until(lambda found: contents(found) == ["a", "re a"])
        assert statuses(found) == ["completed", "completed"]
        head = await chats.store.record(ThreadKey("chat", "one"), "messages", "head")
        assert decode_json(head).get("streams", []) == []
        missed = await (await lab.messages()).feed.since(1)
        assert missed is not None
        assert {each.content: each.status for each in missed.items} == {"a": "completed", "re a": "completed"}


async def test_a_message_that_is_being_written_is_not_changed_by_others(chats: MessagesLab) -> None:
    messages = await chats.messages()
    async with messages.stream() as m:
        m.append("a")
        with pytest.raises(Conflict):
            await messages.update(m.id, "b")
        with pytest.raises(Conflict):
            await messages.delete(m.id)
    assert (await messages.update(m.id, "b")).content == "b"


async def test_a_stream_has_the_limits_of_a_record(chats: MessagesLab) -> None:
    messages = await chats.messages()
    async with messages.stream() as m:
        with pytest.raises(ValueError, match="surrogates"):
            m.append("\ud800")
        m.append('"' * 500_000)
        with pytest.raises(TooLarge):
            m.append('"' * 50_000)
        m.append("end")
    found = await messages.get(m.id)
    assert found is not None
    assert found.content == '"' * 500_000 + "end"


async def test_a_stream_is_written_in_its_block_only(chats: MessagesLab) -> None:
    messages = await chats.messages()
    stream = messages.stream()
    with pytest.raises(RuntimeError, match="block"):
        stream.append("a")
    async with stream:
        pass
    with pytest.raises(RuntimeError, match="block"):
        stream.append("a")
    with pytest.raises(RuntimeError, match="entered"):
        async with stream:
            pass
    assert [(each.content, each.status) for each in await chats.all()] == [("", "completed")]


async def test_a_stream_whose_text_could_not_be_stored_says_so(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    await messages.inject("user", "before")
    viewer = Viewer(messages)
    await viewer.open()

    async def write() -> None:
        async with messages.stream() as m, asyncio.timeout(10):
            m.append("a")
            await until_text(messages, "a")
            troubled.store.fail_next()
            while True:
                m.append("b")
                await asyncio.sleep(0.001)

    with pytest.raises(StoreError):
        await write()
    found = await troubled.all()
    assert [(each.content, each.status) for each in found][:1] == [("before", "completed")]
    assert found[1].status == "failed"
    assert contents(viewer.shown) == contents(found)


async def test_frames_come_in_order_and_a_viewer_that_was_away_gets_the_rest(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer, away = Viewer(messages), Viewer(messages)
    await viewer.open()
    first = await messages.inject("user", "a")
    await away.open()
    away.close()
    second = await messages.inject("user", "b")
    await messages.inject("user", "silent", silent=True)
    await messages.update(first.id, "A")
    await messages.delete(second.id)
    nested = await messages.inject("user", "nested", depth=3)
    await away.open()
    assert viewer.shown == away.shown == [await messages.get(first.id), nested]
    assert viewer.revision == away.revision == 5
    assert [type(frame).__name__ for frame in viewer.frames] == [
        "InsertFrame",
        "InsertFrame",
        "UpdateFrame",
        "DeleteFrame",
        "InsertFrame",
    ]
    await chats.restart()
    messages = await chats.messages()
    await away.open(messages)
    assert contents(away.shown) == ["A", "nested"]


async def test_a_viewer_that_has_missed_more_than_is_kept_begins_anew(chats: MessagesLab) -> None:
    messages = await chats.messages()
    message = await messages.inject("user", "a")
    for number in range(1_200):
        await messages.update(message.id, f"{number}") if number % 2 else messages.inject("user", "x")
    await messages.inject("user", "last")
    revision = (await messages.feed.newest(1))[0]
    assert revision == 1_202
    assert await messages.feed.since(revision - 1001) is None
    missed = await messages.feed.since(revision - 1000)
    assert missed is not None
    assert await messages.feed.since(revision + 1) is None
    lines = await chats.store.records(ThreadKey("chat", "one"), RecordRange("messages", prefix="u/", limit=5000))
    assert 600 <= len(lines) <= 1000
    for _ in range(900):
        await messages.update(message.id, "x")
    assert (
        len(await chats.store.records(ThreadKey("chat", "one"), RecordRange("messages", prefix="u/", limit=5000)))
        == 1000
    )
    assert await messages.feed.since(revision) is not None


async def test_a_viewer_that_has_missed_a_part_of_a_revision_begins_with_the_newest(chats: MessagesLab) -> None:
    messages = await chats.messages()
    messages.caller._is_missing = True  # type: ignore[union-attr]
    for number in range(999):
        messages.queue(f"{number}")
    await messages.queue("last")
    away = Viewer(messages)
    await away.open()
    away.close()

    async def work(ctx: Context[Chat]) -> None:
        await ctx.thread.messages.take()
        await during(chats, lambda others: others.inject("user", "between"))

    # Each message that was taken is a line of the log, of one revision, as another one stands after them.
    await chats.do(work)
    async with messages.stream() as m:
        m.append("text")
    await away.open()
    assert {each.status for each in away.shown} == {"completed"}
    assert len(away.shown) == 1002


async def test_a_viewer_that_has_missed_a_mebibyte_begins_anew(chats: MessagesLab) -> None:
    messages = await chats.messages()
    await messages.inject("user", "a")
    for _ in range(3):
        await messages.inject("user", "x" * 400_000)
    assert await messages.feed.since(1) is None
    assert await messages.feed.since(2) is not None


async def test_what_a_transaction_does_is_told_after_it_and_together(chats: MessagesLab) -> None:
    thread = await chats.thread()
    viewer = Viewer(thread.messages)
    await viewer.open()

    def raise_within() -> None:
        with thread.transaction():
            thread.messages.inject("user", "lost")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        raise_within()
    with thread.transaction():
        thread.messages.inject("user", "a")
        thread.messages.inject("user", "b")
        assert viewer.frames == []
    await thread.messages.inject("user", "c")
    assert contents(viewer.shown) == ["a", "b", "c"]


async def test_messages_that_are_not_live_are_told_to_none() -> None:
    class Quiet(Thread[dict[str, Any]]):
        messages = Messages()

    async with Plait(Quiet, store=MemoryStore()) as app:
        actor = await app._node.actor(app.thread(Quiet, "one")._key)
        messages = actor.thread.messages  # type: ignore[attr-defined]
        viewer = Viewer(messages)
        await viewer.open()
        message = await messages.inject("user", "a")
        await messages.update(message.id, "b")
        async with messages.stream() as m:
            m.append("c")
        await messages.delete(message.id)
        assert viewer.frames == []
        assert await app._store.records(actor.key, RecordRange("messages", prefix="u/")) == []


CALLS = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


@pytest.mark.parametrize("is_run", [True, False])
async def test_a_stream_gets_its_text_calls_and_metadata_in_one_write(troubled: MessagesLab, *, is_run: bool) -> None:
    async def write(messages: ThreadMessages) -> Message:
        async with messages.stream(metadata={"side": "a"}) as m:
            m.append("Let me look.")
            await until_text_of(messages, "Let me look.") if not is_run else None
            m.finish(tool_calls=CALLS, metadata={"tokens": 7})
        return (await messages.list()).messages[-1]

    messages = await troubled.messages()
    viewer = Viewer(messages)
    await viewer.open()
    seen = await troubled.do(lambda ctx: write(ctx.thread.messages)) if is_run else await write(messages)
    stored = (await troubled.all())[0]
    for each in (seen, stored, *viewer.shown):
        assert (each.content, each.status, each.tool_calls) == ("Let me look.", "completed", CALLS)
        assert each.metadata == {"side": "a", "tokens": 7}
    written = [decode_json(data) for data in values_of(troubled, f"m/{stored.position:016x}") if data is not None]
    ends = [each for each in written if each.get("status") != "streaming"]
    assert [each.get("tool_calls") for each in ends] == [CALLS]
    late = Viewer(messages)
    await late.open()
    assert late.shown == viewer.shown
    await troubled.restart()
    assert (await troubled.all())[0].tool_calls == CALLS


def values_of(lab: MessagesLab, key: str) -> list[bytes | None]:
    """Return what was stored for a key, in order."""
    return [each.value for write in lab.store.submitted for each in write.records if each.key == key]


async def test_a_client_that_reconnects_gets_the_calls_of_a_stream(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer = Viewer(messages)
    async with messages.stream() as m:
        m.append("half")
        await until_text(messages, "half")
        await viewer.open()
        viewer.close()
        m.finish(tool_calls=CALLS)
    await viewer.open()
    assert [each.tool_calls for each in viewer.shown] == [CALLS]


async def test_a_stream_that_fails_after_its_finish_has_only_its_text(chats: MessagesLab) -> None:
    messages = await chats.messages()

    async def write() -> None:
        async with messages.stream() as m:
            m.append("half")
            m.finish(tool_calls=CALLS, metadata={"tokens": 7})
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await write()
    (found,) = await chats.all()
    assert (found.content, found.status, found.tool_calls, found.metadata) == ("half", "failed", None, {})


async def test_a_finish_is_the_last_that_is_added_to_a_stream(chats: MessagesLab) -> None:
    messages = await chats.messages()
    stream = messages.stream()
    with pytest.raises(RuntimeError, match="in the block"):
        stream.finish()
    async with stream as m:
        m.append("all")
        m.finish()
        with pytest.raises(RuntimeError, match="after `finish`"):
            m.append("more")
        with pytest.raises(RuntimeError, match="after `finish`"):
            m.finish(metadata={"x": 1})
    assert [(each.content, each.metadata) for each in await chats.all()] == [("all", {})]


async def test_an_invalid_finish_is_refused_and_the_stream_goes_on(chats: MessagesLab) -> None:
    messages = await chats.messages()
    async with messages.stream() as m:
        with pytest.raises(TypeError, match="tool_calls"):
            m.finish(tool_calls="look")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="metadata"):
            m.finish(metadata={"x": object()})
        with pytest.raises(TooLarge):
            m.finish(metadata={"x": "y" * (1 << 20)})
        m.append("good")
    assert [(each.content, each.status, each.metadata) for each in await chats.all()] == [("good", "completed", {})]


async def test_what_a_model_thinks_is_nested_in_its_message_and_ends_with_it(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()
    async with messages.stream(parent_id="x", depth=2) as m:
        m.think("Wh")
        m.think("y?")
        m.append("Yes.")
        assert m.text == "Yes."
    answer, thoughts = await chats.all()
    assert (thoughts.content, thoughts.role, thoughts.name) == ("Why?", "assistant", "reasoning")
    assert (thoughts.parent_id, thoughts.depth, thoughts.status) == (answer.id, 3, "completed")
    assert contents(viewer.shown) == ["Yes.", "Why?"]
    assert statuses(viewer.shown) == ["completed"] * 2
    with pytest.raises(RuntimeError, match="block"):
        m.think("Late.")


async def test_the_thoughts_of_a_failed_attempt_go_when_its_answer_goes(chats: MessagesLab, clock: Clock) -> None:
    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        async with messages.stream() as m:
            m.think(f"Hm {chats.calls}.")
            m.append("half")
            if chats.calls == 1:
                raise RuntimeError("stop")

    viewer = Viewer(await chats.messages())
    await viewer.open()
    chats.work = work
    await chats.handle.queue("a")
    await until_called(chats, 1)
    found = await chats.all()
    assert (contents(found), statuses(found)) == (["half", "Hm 1.", "a"], ["failed", "failed", "pending"])
    clock.move(1)
    await chats.until(lambda found: contents(found) == ["a", "half", "Hm 2."])
    assert contents(viewer.shown) == ["a", "half", "Hm 2."]
    assert (await chats.handle.list()).total == 2


async def test_thoughts_that_could_not_be_stored_fail_with_their_answer(troubled: MessagesLab) -> None:
    messages = await troubled.messages()

    async def answer() -> None:
        async with messages.stream() as m:
            m.append("Yes.")
            await until_text(messages, "Yes.")
            troubled.store.fail_next()
            m.think("Hm.")

    with pytest.raises(StoreError):
        await answer()
    assert (contents(await troubled.all()), statuses(await troubled.all())) == (["Yes."], ["failed"])


def arguments(message: Message) -> dict[str, str]:
    return {call["id"]: call["function"]["arguments"] for call in message.tool_calls or ()}


async def test_the_arguments_of_calls_are_shown_while_they_are_written(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer, late = Viewer(messages), Viewer(messages)
    await viewer.open()
    async with messages.stream() as m:
        m.append("I pay.")
        m.add_input("c", "pay", '{"ce')
        m.add_input("d", "tell", "{")
        await until(lambda: arguments(viewer.held[m.id]) == {"c": '{"ce', "d": "{"} if m.id in viewer.held else False)
        assert arguments((await messages.list()).messages[0]) == {"c": '{"ce', "d": "{"}
        m.add_input("c", "pay", 'nts": ')
        await late.open()
        m.add_input("c", "pay", "7}")
        m.add_input("d", "tell", "}")
        await until(lambda: arguments(viewer.held[m.id]) == {"c": '{"cents": 7}', "d": "{}"})
        assert late.held == viewer.held
        assert await records_of(chats, "t/") != []
        m.finish(tool_calls=[make_call("c", "pay", '{"cents": 7}'), make_call("d", "tell", "{}")])
    (found,) = await chats.all()
    assert found.tool_calls == viewer.held[m.id].tool_calls == late.held[m.id].tool_calls
    assert arguments(found) == {"c": '{"cents": 7}', "d": "{}"}


async def test_a_message_that_fails_has_no_call_of_those_that_were_shown(chats: MessagesLab) -> None:
    messages = await chats.messages()
    viewer = Viewer(messages)
    await viewer.open()

    async def work(ctx: Context[Chat]) -> None:
        async with ctx.thread.messages.stream() as m:
            m.append("I pay.")
            m.add_input("c", "pay", "{")
            await until(lambda: bool(m.id in viewer.held and viewer.held[m.id].tool_calls))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await chats.do(work)
    found = await chats.until(lambda found: statuses(found) == ["failed"])
    assert (found[0].content, found[0].tool_calls) == ("I pay.", None)
    assert [(each.content, each.status, each.tool_calls) for each in viewer.shown] == [("I pay.", "failed", None)]


async def test_arguments_are_told_after_what_was_stored_before_them(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    viewer = Viewer(messages)
    await viewer.open()
    async with messages.stream() as m:
        await until(lambda: m.id in viewer.held)
        troubled.store.is_held = True
        messages.inject("user", "before")
        m.add_input("c", "pay", "{")
        await asyncio.sleep(0.1)
        assert viewer.held[m.id].tool_calls is None
        troubled.store.resume()
        await until(lambda: bool(viewer.held[m.id].tool_calls))
        assert contents(viewer.shown) == ["", "before"]
        with pytest.raises(TooLarge):
            m.add_input("c", "pay", "x" * 2_000_000)


@pytest.mark.parametrize("where", ["block", "group"])
async def test_a_message_whose_run_is_interrupted_is_completed_and_says_so(chats: MessagesLab, where: str) -> None:
    gate, seen = Gate(), list[list[str | None]]()

    async def go_on(ctx: Context[Chat]) -> None:
        await gate.wait()
        await ctx.checkpoint()

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        seen.append(contents((await messages.list()).messages))
        if chats.calls > 1:
            return
        async with messages.stream(metadata={"x": 1}) as m:
            m.think("Hm.")
            m.append("Half")
            if where == "block":
                await go_on(ctx)
            async with asyncio.TaskGroup() as group:
                group.create_task(go_on(ctx))

    viewer = Viewer(await chats.messages())
    await viewer.open()
    chats.work = work
    await chats.handle.queue("a")
    await gate.reached()
    assert await chats.app.interrupt(chats.app.thread(Chat, "one"))
    gate.open()
    found = await chats.until(lambda found: statuses(found) == ["completed"] * 3)
    assert contents(found) == contents(viewer.shown) == ["a", "Half", "Hm."]
    assert found[1].metadata == viewer.shown[1].metadata == {"x": 1, "plait": {"interrupted": True}}
    await chats.handle.queue("b")
    await chats.until(lambda found: contents(found) == ["a", "Half", "Hm.", "b"] and statuses(found)[-1] != "pending")
    assert seen == [["a"], ["a", "Half", "b"]]
    assert chats.calls == 2
