"""Agents of Pydantic AI whose history is in a thread's messages; nothing goes to the network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic_ai import Agent, models
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from tests.cases import each_case

from plait import Context, Interruption, Limits, Message, Messages, Plait, Thread, TooLarge
from plait.adapters.pydantic_ai import open_run, run_agent
from plait.agents.execution.message_format import link, read_messages, write_message
from plait.parts.messages.frames import ChunkFrame
from plait.parts.messages.message import decode_message
from plait_schemas.codec import encode_json


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


class Desk(Thread[dict[str, str]]):
    initial_state = {"answer": ""}  # noqa: RUF012
    texts = ("/answer",)
    messages = Messages(agent="support", live=True)


Say = Callable[[list[ModelMessage]], AsyncIterator[Any]]


class Model:
    """A model that says what a function yields, and remembers what it was sent."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.seen: list[list[ModelMessage]] = []

    def agent(self, **options: Any) -> Agent:
        return Agent(FunctionModel(stream_function=self._stream), **options)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.seen.append([*messages])
        async for each in self._say(messages):
            yield each


async def agree(messages: list[ModelMessage]) -> AsyncIterator[Any]:
    yield "Yes"
    yield "."


async def look(messages: list[ModelMessage]) -> AsyncIterator[Any]:
    """Call a tool twice, after a thought, and then tell what it has found."""
    if isinstance(messages[-1].parts[0], ToolReturnPart):
        yield "Found."
        return
    yield {0: DeltaThinkingPart(content="Hm.")}
    yield "I "
    yield "look."
    yield {2: DeltaToolCall("look", '{"at": 1}', tool_call_id="c1")}
    yield {3: DeltaToolCall("look", '{"at": 2}', tool_call_id="c2")}


def make_app(agent: Agent[Any, Any], store: str = "memory:", *, limits: Limits | None = None, **options: Any) -> Plait:
    app = Plait(Desk, store=store, secret="agents", limits=limits)

    @app.agent("support", thread=Desk)
    async def support(ctx: Context[Desk]) -> None:
        await run_agent(ctx, agent, messages=ctx.thread.messages, **options)

    @app.agent("talk", thread=Desk)
    async def talk(ctx: Context[Desk], prompt: str) -> str:
        said: str = await run_agent(ctx, agent, prompt, messages=ctx.thread.messages, **options)
        return said

    @app.agent("do", thread=Desk)
    async def do(ctx: Context[Desk], work: Any) -> Any:
        return await work(ctx)

    return app


async def listed(app: Plait) -> list[Message]:
    page = await app.thread(Desk, "one").part(Desk.messages).list(10_000, include_silent=True)
    return list(page.messages)


async def answered(app: Plait) -> list[Message]:
    """Wait until nothing is queued, and return what is there."""
    async with asyncio.timeout(30):
        while await app.thread(Desk, "one").part(Desk.messages).pending():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return await listed(app)


def prompts(messages: list[ModelMessage]) -> list[object]:
    return [part.content for each in messages for part in each.parts if isinstance(part, UserPromptPart)]


def plain(messages: list[ModelMessage]) -> list[Any]:
    """Return messages as JSON, without the instructions."""
    whole: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return [{key: value for key, value in each.items() if key != "instructions"} for each in whole]


async def test_the_next_run_continues_the_messages_also_after_a_restart(tmp_path: Path) -> None:
    model = Model(agree)
    for prompt in ("one", "two", "three"):
        async with make_app(model.agent(), f"sqlite:///{tmp_path}/a.db") as app:
            assert await app.run("talk", prompt, thread="one") == "Yes."
            said = [(each.role, each.content) for each in await listed(app)]
    assert prompts(model.seen[-1]) == ["one", "two", "three"]
    assert said == [
        (role, text) for prompt in ("one", "two", "three") for role, text in (("user", prompt), ("assistant", "Yes."))
    ]


async def test_what_is_queued_is_the_prompt_and_each_message_is_at_its_place() -> None:
    model = Model(look)
    agent = model.agent(system_prompt="Be kind.", instructions="Be brief.")

    @agent.tool_plain(name="look")
    def find(at: int) -> dict[str, int]:
        return {"found": at}

    async with make_app(agent) as app:
        await app.thread(Desk, "one").part(Desk.messages).queue("Look!")
        found = await answered(app)
        first = model.seen[-1]
        await app.thread(Desk, "one").part(Desk.messages).queue("Again!")
        await answered(app)
    assert [(each.role, each.content, each.silent) for each in found] == [
        ("user", "Look!", False),
        ("system", "Be kind.", True),
        ("assistant", "I look.", False),
        ("assistant", None, False),
        ("assistant", None, True),
        ("tool", '{"found": 1}', False),
        ("tool", '{"found": 2}', False),
        ("assistant", "Found.", False),
    ]
    function = {"name": "look", "arguments": '{"at": 2}'}
    assert found[3].tool_calls is not None
    assert found[3].tool_calls[1] == {"id": "c2", "type": "function", "function": function}
    assert [(each.tool_call_id, each.name) for each in found[5:7]] == [("c1", "look"), ("c2", "look")]
    # What the model was sent in the run before comes back as it was.
    assert plain(model.seen[2][: len(first)]) == plain(first)
    assert prompts(model.seen[2]) == ["Look!", "Again!"]


async def test_a_question_that_is_queued_in_mid_run_steers_it() -> None:
    model = Model(look)
    agent = model.agent()
    hurried = asyncio.Event()

    @agent.tool_plain(name="look")
    async def find(at: int) -> str:
        await hurried.wait()
        return f"seen {at}"

    async with make_app(agent) as app:
        messages = app.thread(Desk, "one").part(Desk.messages)
        await messages.queue("Where?")
        async with asyncio.timeout(10):
            while len(model.seen) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await messages.queue("Hurry!")
        await messages.queue("Please!")
        hurried.set()
        found = await answered(app)
        await app.run("do", checked, thread="one")
    assert len(model.seen) == 2
    assert prompts(model.seen[1]) == ["Where?", "Hurry!", "Please!"]
    kinds = [part.part_kind for part in model.seen[1][-1].parts]
    assert kinds == ["tool-return", "tool-return", "user-prompt", "user-prompt"]
    assert [(each.role, each.content) for each in found if not each.silent] == [
        ("user", "Where?"),
        ("assistant", "I look."),
        ("assistant", None),
        ("tool", "seen 1"),
        ("tool", "seen 2"),
        ("user", "Hurry!"),
        ("user", "Please!"),
        ("assistant", "Found."),
    ]


async def checked(ctx: Context[Desk]) -> None:
    """Check that the history has nothing that only the run needs."""
    history = read_messages((await ctx.thread.messages.list()).messages)
    assert [each.metadata for each in history] == [None] * len(history)


async def test_what_is_queued_waits_in_a_run_with_a_prompt_of_its_own_and_after_the_last_call_of_the_model() -> None:
    async def queue(messages: list[ModelMessage]) -> AsyncIterator[Any]:
        if len(model.seen) < 3:
            await app.thread(Desk, "one").part(Desk.messages).queue(f"late {len(model.seen)}")
        yield "Yes."

    model = Model(queue)
    app = make_app(model.agent())
    async with app:
        await app.run("talk", "first", thread="one")
        found = await answered(app)
    assert prompts(model.seen[0]) == ["first"]
    assert [prompts(each)[-1] for each in model.seen] == ["first", "late 1", "late 2"]
    assert [each.content for each in found] == ["first", "Yes.", "late 1", "Yes.", "late 2", "Yes."]


async def test_several_messages_that_are_queued_are_one_prompt() -> None:
    model = Model(agree)
    async with make_app(model.agent()) as app:

        async def queue(ctx: Context[Desk]) -> None:
            ctx.thread.messages.queue("one")
            ctx.thread.messages.queue("two")

        await app.run("do", queue, thread="one")
        await answered(app)
        await app.run("talk", "three", thread="one")
        found = await listed(app)
    assert prompts(model.seen[0]) == [["one", "two"]]
    assert prompts(model.seen[1]) == ["one", "two", "three"]
    assert [each.content for each in found] == ["one", "two", "Yes.", "three", "Yes."]


async def test_the_model_gets_what_others_have_written_but_nothing_failed() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    model = Model(agree)
    async with make_app(model.agent()) as app:

        async def write(ctx: Context[Desk]) -> None:
            messages = ctx.thread.messages
            messages.inject("system", "Ada is a customer.", silent=True)
            messages.inject("user", "Hi")
            messages.inject("assistant", "I see.", tool_calls=[call])
            messages.inject("tool", "done", tool_call_id="c", name="f")
            messages.inject("assistant")
            with suppress(LookupError):
                async with messages.stream() as m:
                    m.append("half")
                    raise LookupError

        await app.run("do", write, thread="one")
        await app.run("talk", "So?", thread="one")
        parts = [part for each in model.seen[0] for part in each.parts]
    assert [(part.part_kind, getattr(part, "content", None)) for part in parts] == [
        ("system-prompt", "Ada is a customer."),
        ("user-prompt", "Hi"),
        ("text", "I see."),
        ("tool-call", None),
        ("tool-return", "done"),
        ("user-prompt", "So?"),
    ]


async def test_text_is_shown_while_it_comes() -> None:
    # The model goes on when the text before was shown.
    shown, texts = asyncio.Event(), list[str]()

    async def say(messages: list[ModelMessage]) -> AsyncIterator[Any]:
        for word in ("Bit ", "by ", "bit."):
            yield word
            async with asyncio.timeout(10):
                await shown.wait()
            shown.clear()

    def see(frames: list[Any]) -> None:
        if chunks := [frame.text for frame in frames if isinstance(frame, ChunkFrame)]:
            texts.extend(chunks)
            shown.set()

    app = make_app(Model(say).agent(), text="/answer")
    async with app:

        async def watch(ctx: Context[Desk]) -> None:
            ctx.thread.messages.feed.watch(see)

        await app.run("do", watch, thread="one")
        assert await app.run("talk", "How?", thread="one") == "Bit by bit."
        assert texts == ["Bit ", "by ", "bit."]
        assert (await app.thread(Desk, "one").state())["answer"] == "Bit by bit."
        assert [each.status for each in await listed(app)] == ["completed"] * 2


async def test_a_run_that_raises_leaves_nothing_but_a_failed_text() -> None:
    async def fail(messages: list[ModelMessage]) -> AsyncIterator[Any]:
        yield "so far"
        if len(model.seen) == 1:
            raise LookupError("no model")

    model = Model(fail)
    async with make_app(model.agent()) as app:
        with pytest.raises(LookupError, match="no model"):
            await app.run("talk", "one", thread="one")
        assert [(each.content, each.status) for each in await listed(app)] == [("so far", "failed")]
        await app.run("talk", "two", thread="one")
    assert prompts(model.seen[1]) == ["two"]
    assert len(model.seen[1]) == 1


async def test_an_agent_that_goes_on_after_a_failure_has_nothing_of_it_but_a_failed_text() -> None:
    async def fail(messages: list[ModelMessage]) -> AsyncIterator[Any]:
        yield "so far"
        raise LookupError("no model")

    agent = Model(fail).agent()
    async with make_app(agent) as app:

        async def go_on(ctx: Context[Desk]) -> None:
            with suppress(LookupError):
                await run_agent(ctx, agent, "one", messages=ctx.thread.messages)
            ctx.thread.messages.inject("assistant", "Sorry.")

        await app.run("do", go_on, thread="one")
        found = [(each.content, each.status) for each in await listed(app)]
    assert found == [("so far", "failed"), ("Sorry.", "completed")]


@each_case("is_queued", [False, True])
async def test_an_interrupt_keeps_what_the_model_had_said(is_queued: bool) -> None:
    asked: list[asyncio.Task[bool]] = []

    async def count(messages: list[ModelMessage]) -> AsyncIterator[Any]:
        for number in range(1000 if len(model.seen) == 1 else 1):
            yield f"{number} "
            await asyncio.sleep(0)
            if number == 3:
                asked.append(asyncio.create_task(app.interrupt(app.thread(Desk, "one"), "stop")))

    model = Model(count)
    app = make_app(model.agent())
    async with app:
        if is_queued:
            await app.thread(Desk, "one").part(Desk.messages).queue("count")
            found = await answered(app)
        else:
            assert await app.run("talk", "count", thread="one") == Interruption("stop")
            found = await listed(app)
        assert [each.status for each in found] == ["completed"] * 2
        assert (found[1].content or "").startswith("0 1 2 3 ")
        (_, response) = read_messages(found)
        assert isinstance(response, ModelResponse)
        assert response.state == "interrupted"
        assert response.parts == [TextPart(found[1].content or "")]
        assert await app.run("talk", "go on", thread="one") == "0 "
    assert prompts(model.seen[-1]) == ["count", "go on"]


@each_case("when", ["at the end", "twice"])
async def test_an_interrupt_while_the_messages_are_written_loses_and_doubles_none(when: str) -> None:
    app = make_app(Model(agree).agent())

    async def hasty(ctx: Context[Desk]) -> None:
        async with open_run(Model(agree).agent(), "one", messages=ctx.thread.messages) as events:
            async for _ in events:
                pass
            await app.interrupt(ctx.thread)
            if when == "twice":
                await app.interrupt(ctx.thread)

    async with app:
        assert await app.run("do", hasty, thread="one") == Interruption()
        assert [each.content for each in await listed(app)] == ["one", "Yes."]


async def test_a_block_that_does_not_begin_the_run_changes_nothing() -> None:
    model = Model(agree)
    async with make_app(model.agent()) as app:

        async def open_only(ctx: Context[Desk]) -> None:
            async with open_run(model.agent(), "unsaid", messages=ctx.thread.messages):
                pass

        await app.run("talk", "one", thread="one")
        await app.run("do", open_only, thread="one")
        assert [each.content for each in await listed(app)] == ["one", "Yes."]


@each_case(("most", "seen"), [(1, 1), (3, 3), (4, 3), (5, 5), (None, 9)])
async def test_the_model_gets_the_last_messages_and_the_thread_keeps_all(most: int | None, seen: int) -> None:
    model = Model(agree)
    async with make_app(model.agent(), max_messages=most) as app:
        for number in range(5):
            await app.run("talk", str(number), thread="one")
        assert len(await listed(app)) == 10
    assert len(model.seen[-1]) == seen


async def test_a_prompt_that_cannot_be_kept_is_refused_before_the_model_is_called() -> None:
    model = Model(agree)
    async with make_app(model.agent(), limits=Limits(record=65_536)) as app:
        with pytest.raises(TooLarge):
            await app.run("talk", "x" * 70_000, thread="one")
        assert await listed(app) == []
    assert model.seen == []


# As messages, and back

EVERYTHING: list[ModelMessage] = [
    ModelRequest([SystemPromptPart("Be kind."), UserPromptPart(["see", ImageUrl("http://x/a.png"), "this"])]),
    ModelRequest([UserPromptPart("Hi"), UserPromptPart("there")], run_id="r", metadata={"n": 1}),
    ModelResponse([TextPart("Hello.")], model_name="m"),
    ModelResponse(
        [ThinkingPart("I wonder.", signature="s"), TextPart("a"), ToolCallPart("f", {"n": 1}, "c1"), TextPart("b")]
    ),
    ModelResponse([ToolCallPart("f", '{"n": 1}', "c2"), ToolCallPart("g", None, "c3")]),
    ModelRequest(
        [
            ToolReturnPart("f", {"n": 1}, "c1"),
            ToolReturnPart("f", "two", "c2", metadata={"m": 2}),
            ToolReturnPart("g", None, "c3", outcome="failed"),
            RetryFeedbackPart("Wrong.", retry=RetryInfo(cause="validation_error")),
            UserPromptPart("and"),
        ]
    ),
    ModelResponse([ThinkingPart("only")]),
    ModelResponse([]),
]


def stored(messages: list[ModelMessage]) -> list[Message]:
    """Return messages as a thread has them."""
    found: list[Message] = []
    for message in messages:
        first: str | None = None
        for each in write_message(message):
            each["metadata"] = link(each["metadata"], first)
            found.append(Message(id=str(len(found)), position=len(found), **each))
            first = first or found[-1].id
            assert decode_message(encode_json(found[-1])) == found[-1]
    return found


def test_each_message_comes_back_as_it_was() -> None:
    assert plain(read_messages(stored(EVERYTHING))) == plain(EVERYTHING)


def test_what_is_only_for_the_model_is_silent() -> None:
    said = " ".join(str(each) for each in stored(EVERYTHING) if not each.silent)
    assert "Be kind." not in said
    assert "I wonder." not in said
    assert "Wrong." not in said
    assert "Hello." in said


def test_instructions_are_not_kept() -> None:
    (message,) = stored([ModelRequest([UserPromptPart("Hi")], instructions="secret")])
    assert "secret" not in str(message)


def test_the_content_of_a_message_that_was_changed_is_what_the_model_gets() -> None:
    for message in EVERYTHING:
        for place, each in enumerate(found := stored([message])):
            if each.content is not None:
                changed = [*found[:place], structs.replace(each, content="changed"), *found[place + 1 :]]
                contents = [getattr(part, "content", None) for back in read_messages(changed) for part in back.parts]
                assert contents.count("changed") == 1


def test_messages_whose_first_one_was_deleted_are_what_they_say() -> None:
    found = stored(EVERYTHING[5:6])[1:]
    assert [type(each.parts[0]) for each in read_messages(found)] == [ToolReturnPart] * 3
