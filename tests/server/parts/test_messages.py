"""The history of a thread: what is added, read, changed and removed."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.server.parts.messages_lab import Chat, MessagesLab, contents

from plait import Context, Destroyed, Messages, NotFound, Plait, SqliteStore, StoreError, TooLarge
from plait.parts.messages.message import Message, Page
from plait.store.thread_rows import Record, RecordRange, ThreadKey


class CountingStore(SqliteStore):
    """A store that counts how often records are listed."""

    reads = 0

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        self.reads += 1
        return await super().records(key, wanted)


CYCLE: dict[str, Any] = {}
CYCLE["cycle"] = CYCLE
DEEP: Any = 1
for _ in range(600):
    DEEP = [DEEP]


async def fill(lab: MessagesLab, count: int = 25) -> None:
    messages = await lab.messages()
    for number in range(count):
        messages.inject("user", f"{number}")
    await messages.inject("user", f"{count}")


def numbers(first: int, last: int, step: int = 1) -> list[str]:
    return [str(number) for number in range(first, last, step)]


async def test_a_thread_has_no_messages_at_first(chats: MessagesLab) -> None:
    assert await chats.handle.list() == Page([], 0, False)
    assert await chats.handle.pending() == []
    assert await chats.handle.get("x") is None


async def test_the_newest_hundred_are_listed_with_the_oldest_first(chats: MessagesLab) -> None:
    await fill(chats, 129)
    page = await chats.handle.list()
    assert contents(page.messages) == numbers(30, 130)
    assert (page.total, page.has_more) == (130, True)
    page = await chats.handle.list(order="asc")
    assert contents(page.messages) == numbers(0, 100)
    assert (page.total, page.has_more) == (130, True)
    page = await chats.handle.list(order="desc")
    assert contents(page.messages) == numbers(129, 29, -1)
    page = await chats.handle.list(limit=130)
    assert len(page.messages) == 130
    assert not page.has_more


@pytest.mark.parametrize("order", [None, "asc", "desc"])
@pytest.mark.parametrize("limit", [24, 25, 26, 27, 28])
async def test_messages_that_fit_into_one_read_are_read_once(tmp_path: Path, order: Any, limit: int) -> None:
    store = CountingStore(tmp_path / "plait.db")
    async with MessagesLab(store).app as app:
        messages = app.thread(Chat, "one").part(Chat.messages)
        for number in range(26):
            await messages.inject("user", f"{number}")
        before = store.reads
        page = await messages.list(limit, order=order)
        assert store.reads == before + 1
        assert (len(page.messages), page.has_more) == (min(limit, 26), limit < 26)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_messages_of_more_bytes_than_are_read_at_once_are_all_listed(chats: MessagesLab, order: Any) -> None:
    texts = [f"{number}" + "x" * 500_000 for number in range(5)]
    for text in texts:
        await chats.handle.inject("user", text)
    found = contents((await chats.handle.list(order=order)).messages)
    assert found == (texts if order == "asc" else texts[::-1])


async def test_an_offset_leaves_out_the_newest(chats: MessagesLab) -> None:
    await fill(chats)
    assert contents((await chats.handle.list(limit=10, offset=10)).messages) == numbers(6, 16)
    assert contents((await chats.handle.list(limit=10, offset=20)).messages) == numbers(0, 6)
    assert contents((await chats.handle.list(limit=10, offset=20, order="asc")).messages) == numbers(20, 26)
    page = await chats.handle.list(limit=10, offset=26)
    assert (page.messages, page.total, page.has_more) == ([], 26, False)
    assert (await chats.handle.list(limit=0)).has_more


async def test_a_history_is_read_between_positions(chats: MessagesLab) -> None:
    await fill(chats)
    found: list[Message] = []
    before: int | None = None
    while page := (await chats.handle.list(limit=7, before=before)).messages:
        found = page + found
        before = page[0].position
    assert contents(found) == numbers(0, 26)
    middle = found[10].position
    assert contents((await chats.handle.list(after=middle, order="asc", limit=3)).messages) == numbers(11, 14)
    page = await chats.handle.list(after=middle, before=found[20].position)
    assert contents(page.messages) == numbers(11, 20)
    assert not page.has_more
    assert (await chats.handle.list(after=middle, limit=3)).has_more


@each_case("options", [{"limit": -1}, {"offset": -1}, {"order": "newest"}, {"max_depth": -1}, {"limit": "x"}])
async def test_an_impossible_page_is_refused(chats: MessagesLab, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        await chats.handle.list(**options)


async def test_silent_and_nested_messages_are_left_out_unless_asked_for(chats: MessagesLab) -> None:
    await chats.handle.inject("user", "a")
    await chats.handle.inject("system", "silent", silent=True)
    parent = await chats.handle.inject("assistant", "b")
    nested = await chats.handle.inject("assistant", "nested", depth=2, parent_id=parent.id)

    async def listed(**options: object) -> tuple[list[str | None], int]:
        page = await chats.handle.list(**options)
        return contents(page.messages), page.total

    assert await listed() == (["a", "b"], 2)
    assert await listed(include_silent=True) == (["a", "silent", "b"], 3)
    assert await listed(max_depth=1) == (["a", "b"], 2)
    assert await listed(max_depth=2, include_silent=True) == (["a", "silent", "b", "nested"], 4)
    assert await listed(limit=1, offset=1) == (["a"], 2)
    assert await chats.handle.get(nested.id) == nested
    assert (await chats.handle.get(nested.id)).parent_id == parent.id

    async def look(ctx: Context[Chat]) -> object:
        page = await ctx.thread.messages.list()
        hidden = await ctx.thread.messages.list(include_silent=False)
        return contents(page.messages), page.total, contents(hidden.messages)

    # A silent message is there for the agent.
    assert await chats.do(look) == (["a", "silent", "b"], 3, ["a", "b"])


async def test_an_injected_message_is_returned_as_it_is_stored(chats: MessagesLab) -> None:
    now = time.time_ns() // 1000
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    files = [{"id": "f", "type": "file", "path": "/a.txt", "name": "a.txt", "mimeType": "text/plain", "size": 1}]
    message = await chats.handle.inject(
        "assistant", "hi", name="n", tool_calls=calls, metadata={"a": [1]}, attachments=files
    )
    assert (message.role, message.content, message.depth, message.status) == ("assistant", "hi", 0, "completed")
    assert message.id
    assert 0 <= message.created_at - now < 1_000_000
    result = await chats.handle.inject("tool", None, tool_call_id="c1", name="add")
    await chats.restart()
    found = await chats.handle.get(message.id)
    assert found == message
    assert (found.tool_calls, found.metadata, found.attachments) == (calls, {"a": [1]}, files)
    assert await chats.handle.get(result.id) == result


async def test_a_message_keeps_the_child_that_it_is_about(chats: MessagesLab) -> None:
    injected = await chats.handle.inject("user", "done", subagent_id="cook", silent=True)
    queued = await chats.handle.queue("begun", subagent_id="cook")
    await chats.until(lambda found: "re begun" in contents(found))
    await chats.restart()
    found = [await chats.handle.get(injected.id), await chats.handle.get(queued.id)]
    assert [each.subagent_id for each in found] == ["cook", "cook"]
    edited = await chats.handle.update(injected.id, "ready")
    assert (edited.content, edited.subagent_id) == ("ready", "cook")


async def test_each_message_is_later_than_those_before(chats: MessagesLab) -> None:
    messages = await chats.messages()
    made = [messages.inject("user", "x").value for _ in range(50)]
    made.append(await messages.queue("x"))
    await chats.restart()
    made.append(await chats.handle.inject("user", "x"))
    times = [each.created_at for each in made]
    assert times == sorted(set(times))


async def test_the_agent_is_not_called_for_what_is_injected(chats: MessagesLab) -> None:
    await chats.handle.inject("user", "a")
    await chats.handle.queue("b")
    await chats.until(lambda found: contents(found) == ["a", "b", "re b"])
    assert chats.calls == 1


@each_case(
    ("arguments", "options", "error"),
    [
        (("robot", "x"), {}, ValueError),
        (("user", 1), {}, TypeError),
        (("user", "x"), {"depth": -1}, ValueError),
        (("user", "x"), {"depth": 1001}, ValueError),
        (("user", "x"), {"metadata": [1]}, TypeError),
        (("user", "x"), {"metadata": {"a": float("nan")}}, ValueError),
        (("user", "x"), {"metadata": {"a": object()}}, TypeError),
        (("user", "x"), {"attachments": ["a"]}, TypeError),
        (("user", "x"), {"tool_calls": {"id": "a"}}, TypeError),
        (("user", "\ud800"), {}, ValueError),
        (("user", "x"), {"silent": 0}, TypeError),
        (("user", "x"), {"silent": None}, TypeError),
        (("user", "x"), {"depth": True}, TypeError),
        (("user", "x"), {"metadata": CYCLE}, ValueError),
        (("user", "x"), {"attachments": [CYCLE]}, ValueError),
        (("user", "x"), {"attachments": [{"raw": msgspec.Raw(b"junk")}]}, ValueError),
        (("user", "x"), {"metadata": {"a": DEEP}}, ValueError),
        (("user", "x" * 1_048_576), {}, TooLarge),
    ],
)
async def test_what_is_no_message_is_refused_and_leaves_nothing(
    chats: MessagesLab, arguments: tuple[object, ...], options: dict[str, object], error: type[Exception]
) -> None:
    messages = await chats.messages()
    with pytest.raises(error):
        messages.inject(*arguments, **options)  # type: ignore[arg-type]

    async def work(ctx: Context[Chat]) -> None:
        with pytest.raises(error):
            ctx.thread.messages.inject(*arguments, **options)  # type: ignore[arg-type]

    await chats.do(work)
    assert await chats.all() == []
    await messages.delete((await messages.inject("user", "x" * 1_000_000)).id)


async def test_an_update_changes_the_content_and_merges_the_metadata(chats: MessagesLab) -> None:
    message = await chats.handle.inject("user", "a", metadata={"x": 1, "y": 1})
    other = await chats.handle.inject("user", "b")
    after = await chats.handle.update(message.id, "c", metadata={"y": 2, "z": 3})
    assert (after.content, after.metadata) == ("c", {"x": 1, "y": 2, "z": 3})
    assert (after.id, after.position, after.created_at) == (message.id, message.position, message.created_at)
    assert (await chats.handle.update(message.id)).content == "c"
    assert (await chats.handle.update(message.id, "")).content == ""
    await chats.restart()
    assert contents(await chats.all()) == ["", "b"]
    assert (await chats.handle.get(message.id)).metadata == {"x": 1, "y": 2, "z": 3}
    with pytest.raises(NotFound):
        await chats.handle.update("nothing", "x")
    with pytest.raises(TooLarge):
        await chats.handle.update(other.id, "x" * 1_048_576)
    with pytest.raises(ValueError, match="metadata"):
        await chats.handle.update(other.id, metadata={"x": float("inf")})
    assert await chats.handle.get(other.id) == other


async def test_a_removed_message_is_gone_with_the_results_of_its_tool_calls(chats: MessagesLab) -> None:
    await chats.handle.inject("user", "a")
    call = await chats.handle.inject("assistant", "calls", tool_calls=[{"id": "c1"}, {"id": "c2"}])
    first = await chats.handle.inject("tool", "first", tool_call_id="c1")
    await chats.handle.inject("assistant", "between")
    await chats.handle.inject("tool", "second", tool_call_id="c2", silent=True)
    await chats.handle.inject("tool", "of another", tool_call_id="c3")
    assert await chats.handle.delete(call.id) is True
    assert await chats.handle.delete(call.id) is False
    assert await chats.handle.delete(first.id) is False
    await chats.restart()
    assert contents(await chats.all()) == ["a", "between", "of another"]
    assert await chats.handle.get(first.id) is None
    with pytest.raises(NotFound):
        await chats.handle.update(call.id, "x")


async def test_changes_at_the_same_time_all_count(chats: MessagesLab) -> None:
    message = await chats.handle.inject("user", "a")
    tasks = [chats.handle.update(message.id, metadata={f"{number}": number}) for number in range(20)]
    await asyncio.gather(*tasks)
    assert (await chats.handle.get(message.id)).metadata == {f"{number}": number for number in range(20)}
    found = await asyncio.gather(*(chats.handle.delete(message.id) for _ in range(5)))
    assert sorted(found) == [False, False, False, False, True]
    assert await chats.all() == []


async def test_threads_do_not_see_the_messages_of_others(chats: MessagesLab) -> None:
    message = await (await chats.messages("one")).inject("user", "a")
    other = await chats.messages("two")
    assert (await other.list()).total == 0
    assert await other.get(message.id) is None


async def test_a_transaction_stores_state_values_and_messages_together_or_none(chats: MessagesLab) -> None:
    thread = await chats.thread()
    before = await thread.messages.inject("user", "before")

    def raise_within() -> None:
        with thread.transaction():
            thread.set_state({"count": 1})
            thread.values.set("a", 1)
            thread.messages.inject("user", "lost")
            thread.messages.queue("lost")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        raise_within()
    assert contents(await chats.all()) == ["before"]
    assert chats.calls == 0
    async with thread.transaction():
        thread.set_state({"count": 2})
        thread.values.set("a", 2)
        thread.messages.inject("user", "kept")
        thread.messages.queue("asked")
    found = await chats.until(lambda found: contents(found) == ["before", "kept", "asked", "re asked"])
    assert found[0] == before
    await chats.restart()
    thread = await chats.thread()
    assert (thread.state, await thread.values.get("a")) == ({"count": 2}, 2)
    assert contents(await chats.all()) == ["before", "kept", "asked", "re asked"]


async def test_an_inner_transaction_that_raises_takes_only_its_own_messages_back(chats: MessagesLab) -> None:
    thread = await chats.thread()

    def raise_within() -> None:
        with thread.transaction():
            thread.messages.inject("user", "b")
            raise RuntimeError("stop")

    async with thread.transaction():
        thread.messages.inject("user", "a")
        with pytest.raises(RuntimeError):
            raise_within()
        thread.messages.inject("user", "c")
    assert contents(await chats.all()) == ["a", "c"]


async def test_what_could_not_be_stored_was_never_there(troubled: MessagesLab) -> None:
    messages = await troubled.messages()
    await messages.inject("user", "a")
    troubled.store.fail_next()
    first, second = messages.inject("user", "b"), messages.inject("user", "c")
    for written in (first, second):
        with pytest.raises(StoreError):
            await written
    assert contents(await troubled.all()) == ["a"]
    message = await messages.inject("user", "d")
    # A position is never given twice.
    assert message.position > second.value.position
    await troubled.restart()
    assert contents(await troubled.all()) == ["a", "d"]


async def test_messages_go_with_their_thread(chats: MessagesLab) -> None:
    messages = await chats.messages()
    await messages.inject("user", "a")
    await chats.app.thread(Chat, "one").destroy()
    with pytest.raises(Destroyed):
        messages.inject("user", "b")
    assert (await chats.handle.list()).total == 0


def test_a_class_may_have_messages_without_an_agent() -> None:
    class Room(Chat):
        kind = "plain-room"
        messages = Messages()

    assert Plait(Room, store="memory://")
