"""What a model sees of messages, and which calls are open."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.parts.messages_lab import Chat, MessagesLab
from tests.server.parts.test_messages_runs import during

from plait import Context
from plait.parts.messages.message import Message, Role, Status, make_own
from plait.parts.messages.model_history import MODEL, Side, find_open_calls, select_history, view_history
from plait.parts.messages.thread_messages import ThreadMessages

OWN: dict[Side, Role] = {"a": "assistant", "b": "user"}


def call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


class Story(NamedTuple):
    """Messages of a thread, and the calls that are open after them."""

    messages: list[Message]
    open: list[str]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw what two models, their tools and others have written; ids of calls come again, as some models' do."""
    story: list[Message] = []
    open: list[str] = []

    def add(role: Role, content: str | None = None, **fields: Any) -> None:
        number = len(story)
        text = f"{number}" if content is None else content
        story.append(Message(id=f"m{number}", role=role, position=number + 1, content=text, **fields))

    for _ in range(draw(st.integers(0, 12))):
        match draw(st.sampled_from(["ask", "answer", "answer", "say", "failed", "nested"])):
            case "ask" if not open:
                open = draw(st.lists(st.sampled_from("xyz"), max_size=3, unique=True))
                content = draw(st.sampled_from([None, ""])) if open else None
                calls = [call(id) for id in open] or None
                add(
                    draw(st.sampled_from(["assistant", "user"])),
                    content,
                    tool_calls=calls,
                    metadata=make_own({MODEL: "fast"}),
                )
            case "answer" if open:
                add("tool", tool_call_id=open.pop(draw(st.integers(0, len(open) - 1))))
            case "say":
                add(draw(st.sampled_from(["user", "assistant", "system"])), silent=draw(st.booleans()))
            case "failed":
                status: Status = draw(st.sampled_from(["failed", "pending", "streaming"]))
                add("assistant", status=status, tool_calls=draw(st.sampled_from([None, [call("x")]])))
            case "nested":
                add("tool", depth=1, parent_id="m0", tool_call_id=draw(st.sampled_from("xyz")))
    return Story(story, open)


@given(stories())
def test_a_call_is_open_until_it_has_a_result(story: Story) -> None:
    assert [each["id"] for each in find_open_calls(select_history(story.messages))] == story.open


@given(stories(), st.sampled_from(["a", "b"]))
def test_a_result_stands_directly_after_its_call_and_what_came_between_after_it(story: Story, side: Side) -> None:
    seen = view_history(select_history(story.messages), side)
    waiting: list[str] = []
    for message in seen:
        if message.role == "tool":
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [each["id"] for each in message.tool_calls or ()]
    assert waiting == []
    spoken = [each.position for each in seen if each.role != "tool"]
    assert spoken == sorted(spoken)


@given(stories(), st.sampled_from(["a", "b"]))
def test_a_side_sees_itself_as_the_assistant_and_only_the_texts_of_the_other_one(story: Story, side: Side) -> None:
    history = select_history(story.messages)
    seen = {each.id: each for each in view_history(history, side)}
    own_results = set[str]()
    last = dict[str, Message]()
    for message in history:
        last.update(dict.fromkeys(message.tool_call_ids, message))
        if message.role == "tool":
            caller = last.get(message.tool_call_id or "")
            assert (message.id in seen) == (caller is not None and caller.role == OWN[side])
            own_results |= {message.id} & seen.keys()
        elif message.role == "system":
            assert seen[message.id] == message
        elif message.role != OWN[side]:
            assert (message.id in seen) == bool(message.content)
            if message.content:
                assert (seen[message.id].role, seen[message.id].tool_calls) == ("user", None)
                assert seen[message.id].content == message.content
        elif message.id in seen:
            assert seen[message.id].role == "assistant"
        else:
            assert message.tool_calls
    assert [each for each in seen.values() if each.role == "tool" and each.id not in own_results] == []


@given(stories(), st.sampled_from(["a", "b"]))
def test_no_model_sees_what_is_failed_or_not_written_yet_or_nested(story: Story, side: Side) -> None:
    hidden = {each.id for each in story.messages if each.status != "completed" or each.depth}
    assert hidden & {each.id for each in view_history(select_history(story.messages), side)} == set()


def texts(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(each.role, each.content) for each in messages]


def write(*lines: tuple[Role, str], **fields: Any) -> list[Message]:
    return [Message(id=text, role=role, content=text, position=at) for at, (role, text) in enumerate(lines, 1)]


def test_two_sides_see_each_other() -> None:
    history = write(("assistant", "a1"), ("user", "b1"), ("assistant", "a2"))
    assert texts(view_history(history, "a")) == [("assistant", "a1"), ("user", "b1"), ("assistant", "a2")]
    assert texts(view_history(history, "b")) == [("user", "a1"), ("assistant", "b1"), ("user", "a2")]


def test_a_result_belongs_to_the_last_call_with_its_id() -> None:
    first, one, second, two = write(("assistant", ""), ("tool", "one"), ("assistant", ""), ("tool", "two"))
    asked = [replace(each, tool_calls=[call("x")]) for each in (first, second)]
    results = [replace(each, tool_call_id="x") for each in (one, two)]
    history = [asked[0], results[0], asked[1], results[1]]
    assert view_history(history, "a") == history
    assert find_open_calls(history[:3]) == [call("x")]


def test_a_nested_run_has_the_history_of_its_message() -> None:
    one, two, three = write(("user", "one"), ("user", "two"), ("user", "three"))
    nested = [replace(two, parent_id="one", depth=1), replace(three, parent_id="x", depth=1)]
    assert select_history([one, *nested], "one") == nested[:1]


def test_a_result_that_was_deleted_after_an_answer_opens_no_call() -> None:
    asked, told = write(("assistant", "asked"), ("assistant", "told"))
    asked = replace(asked, tool_calls=[call("c")], metadata={MODEL: "fast"})
    assert find_open_calls([asked, told]) == [call("c")]  # A tool has injected it.
    answered = [asked, replace(told, metadata={MODEL: "fast"})]
    assert find_open_calls(answered) == []
    assert [each.tool_calls for each in view_history(answered, "a")] == [None, None]
    assert find_open_calls([asked, replace(told, role="user", metadata=make_own({MODEL: "fast"}))]) == []
    assert find_open_calls([asked, replace(told, role="user", metadata={MODEL: "mine"})]) == [call("c")]


@pytest.mark.parametrize("is_run", [True, False])
async def test_messages_say_which_calls_are_open(chats: MessagesLab, *, is_run: bool) -> None:
    async def work(messages: ThreadMessages) -> None:
        assert await messages.open_calls() == []
        async with messages.stream() as m:
            m.append("Let me look.")
            m.finish(tool_calls=[call("c1"), call("c2")])
        assert await messages.open_calls() == [call("c1"), call("c2")]
        for _ in range(60):
            messages.inject("user", "Hurry!")
        messages.inject("tool", "blue", tool_call_id="c1")
        assert await messages.open_calls() == [call("c2")]
        messages.inject("assistant", depth=1, tool_calls=[call("c3")])
        messages.inject("tool", "red", tool_call_id="c2")
        assert await messages.open_calls() == []

    if is_run:
        await chats.do(lambda ctx: work(ctx.thread.messages))
    else:
        await work(await chats.messages())
    assert await chats.handle.open_calls() == []


async def test_messages_that_are_taken_while_calls_are_open_are_seen_after_the_results(chats: MessagesLab) -> None:
    seen: list[list[tuple[str, str | None]]] = []

    async def work(ctx: Context[Chat]) -> None:
        messages = ctx.thread.messages
        await messages.take()
        messages.inject("assistant", "", tool_calls=[call("c1")])
        await during(chats, lambda others: others.queue("And the other?"))
        await messages.take()
        assert await messages.open_calls() == [call("c1")]
        messages.inject("tool", "blue", tool_call_id="c1")
        seen.append(texts(view_history(select_history((await messages.list()).messages), "a")))

    chats.work = work
    await chats.handle.queue("Which colour?")
    await chats.until(lambda found: len(found) == 4)
    assert seen == [[("user", "Which colour?"), ("assistant", ""), ("tool", "blue"), ("user", "And the other?")]]


async def test_failed_messages_are_neither_shown_to_a_model_nor_do_their_calls_open(chats: MessagesLab) -> None:
    messages = await chats.messages()

    async def fail() -> None:
        async with messages.stream() as m:
            m.append("half")
            m.finish(tool_calls=[call("c1")])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await fail()
    assert await messages.open_calls() == []
    assert select_history(await chats.all()) == []


def test_a_result_without_a_call_is_not_seen() -> None:
    asked = Message(id="u", role="user", content="Well?")
    result = Message(id="r", role="tool", content="found", tool_call_id="x")
    assert view_history([result, asked, result], "a") == [asked]
