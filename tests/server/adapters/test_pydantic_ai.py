"""Agents of Pydantic AI in threads, with its models for tests; nothing goes to the network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.running import running

from plait import Context, Interrupted, Interruption, Plait, Thread, TooLarge, Values, current_context
from plait.adapters.pydantic_ai import load_messages, open_run, run_agent, save_messages
from plait_client import connect


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


class Conversation(Thread[dict[str, str]]):
    initial_state = {"answer": ""}  # noqa: RUF012
    texts = ("/answer",)
    values = Values()


class Script:
    """A model that says its words one by one, and remembers what it was sent."""

    def __init__(self, *words: str, after: Callable[[int], Any] = lambda _: None) -> None:
        self._words = words
        self._after = after
        self.seen: list[list[ModelMessage]] = []

    @property
    def agent(self) -> Agent:
        return Agent(FunctionModel(stream_function=self._say))

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        self.seen.append(messages)
        for number, word in enumerate(self._words):
            yield word
            await asyncio.sleep(0)
            self._after(number)

    @property
    def prompts(self) -> list[object]:
        """What the user had said when the model was called last."""
        return prompts(self.seen[-1])


def prompts(messages: list[ModelMessage]) -> list[object]:
    return [part.content for each in messages for part in each.parts if isinstance(part, UserPromptPart)]


def make_app(agent: Agent[Any, Any], store: str = "memory:", **options: Any) -> Plait:
    app = Plait(Conversation, store=store, secret="agents")

    @app.agent("talk", thread=Conversation)
    async def talk(ctx: Context, prompt: str) -> str:
        values = thread_of(ctx).values
        said: str = await run_agent(ctx, agent, prompt, values=values, text="/answer", **options)
        return said

    @app.agent("messages", thread=Conversation)
    async def messages(ctx: Context) -> Any:
        return list(await load_messages(thread_of(ctx).values))

    return app


def thread_of(ctx: Context) -> Conversation:
    assert isinstance(ctx.thread, Conversation)
    return ctx.thread


async def answer(app: Plait) -> str:
    state = await app.thread(Conversation, "one").state()
    return str(state["answer"])


async def test_the_next_run_continues_the_messages_also_after_a_restart(tmp_path: Path) -> None:
    script = Script("Yes", ".")
    for prompt in ("one", "two", "three"):
        async with make_app(script.agent, f"sqlite:///{tmp_path}/a.db") as app:
            assert await app.run("talk", prompt, thread="one") == "Yes."
    assert script.prompts == ["one", "two", "three"]
    assert sum(isinstance(each, ModelResponse) for each in script.seen[-1]) == 2


async def test_other_threads_have_other_messages() -> None:
    script = Script("Yes.")
    async with make_app(script.agent) as app:
        await app.run("talk", "one", thread="one")
        await app.run("talk", "two", thread="two")
    assert script.prompts == ["two"]


async def test_text_and_events_go_to_the_sockets_as_they_come() -> None:
    # The model goes on when the client has seen what it said.
    seen = asyncio.Event()
    answers: list[str] = []
    events: list[Any] = []

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("It ", "comes ", "bit by bit."):
            yield word
            async with asyncio.timeout(10):
                await seen.wait()
            seen.clear()

    app = make_app(Agent(FunctionModel(stream_function=say)), event="bot")
    async with running(app) as address, connect(f"ws://{address}/threads/conversation/one") as room:

        async def watch() -> None:
            async for change in room.changes():
                answers.append(change.state["answer"])
                seen.set()

        room.on_event("bot", events.append)
        watching = asyncio.create_task(watch())
        assert await app.run("talk", "How?", thread="one") == "It comes bit by bit."
        watching.cancel()
    assert answers == ["It ", "It comes ", "It comes bit by bit."]
    kinds = [each["event_kind"] for each in events]
    assert kinds[0] == "part_start"
    assert kinds.count("part_delta") == 2


@pytest.mark.parametrize("message", ["wait", None])
async def test_an_interrupt_keeps_what_the_model_had_said(message: str | None) -> None:
    asked: list[asyncio.Task[bool]] = []

    def interrupt(number: int) -> None:
        if number == 3:
            asked.append(asyncio.create_task(app.interrupt(app.thread(Conversation, "one"), message)))

    script = Script(*(f"{number} " for number in range(1000)), after=interrupt)
    app = make_app(script.agent)
    async with app:
        assert await app.run("talk", "count", thread="one") == Interruption(message)
        assert await asked[0]
        said = await answer(app)
        assert said.startswith("0 1 2 3 ")
        assert len(said.split()) < 1000
        kept = await app.run("messages", thread="one")
        assert isinstance(kept[-1], ModelResponse)
        assert kept[-1].state == "interrupted"
        assert kept[-1].parts == [TextPart(said)]
        script._words = ("Done",)
        assert await app.run("talk", "go on", thread="one") == "Done"
    assert script.prompts == ["count", "go on"]


@pytest.mark.parametrize("when", ["at the end", "twice"])
async def test_an_interrupt_while_the_messages_are_kept_loses_none(when: str) -> None:
    app = make_app(Script("Yes", ".").agent)

    @app.agent("hasty", thread=Conversation)
    async def hasty(ctx: Context) -> None:
        async with open_run(Script("Yes", ".").agent, "one", values=thread_of(ctx).values) as events:
            async for _ in events:
                pass
            await app.interrupt(ctx.thread)
            if when == "twice":
                with pytest.raises(Interrupted) as interrupted:
                    await ctx.checkpoint()
                await app.interrupt(ctx.thread)
                raise interrupted.value

    async with app:
        assert await app.run("hasty", thread="one") == Interruption()
        assert prompts(await app.run("messages", thread="one")) == ["one"]


async def test_a_tool_that_is_interrupted_ends_the_run_and_the_next_one_is_normal() -> None:
    agent = Agent(TestModel(custom_output_text="Done"))
    is_slow = True

    @agent.tool_plain
    async def look() -> str:
        context = current_context()
        if is_slow:
            await app.interrupt(context.thread, "stop")
            await thread_of(context).values.set("never", 1)
        return "found"

    @agent.tool_plain
    async def wait() -> str:
        if is_slow:
            await asyncio.Event().wait()
        return "waited"

    app = make_app(agent)
    async with app:
        assert await app.run("talk", "look", thread="one") == Interruption("stop")
        assert prompts(await app.run("messages", thread="one")) == ["look"]
        is_slow = False
        assert await app.run("talk", "again", thread="one") == "Done"
        assert prompts(await app.run("messages", thread="one")) == ["look", "again"]


async def test_a_run_that_fails_keeps_the_messages_of_those_before() -> None:
    def fail(number: int) -> None:
        if len(script.seen) == 2:
            raise LookupError("no model")

    script = Script("Yes.", after=fail)
    async with make_app(script.agent) as app:
        await app.run("talk", "one", thread="one")
        with pytest.raises(LookupError, match="no model"):
            await app.run("talk", "two", thread="one")
        await app.run("talk", "three", thread="one")
    assert script.prompts == ["one", "three"]


async def test_leaving_a_stream_keeps_what_was_said() -> None:
    script = Script(*(f"{number} " for number in range(1000)))
    app = make_app(script.agent)

    @app.agent("stream", thread=Conversation)
    async def stream(ctx: Context, prompt: str) -> AsyncIterator[str]:
        async with open_run(script.agent, prompt, values=thread_of(ctx).values) as events:
            async for each in events:
                yield each.event_kind

    async with app:
        async with aclosing(app.stream("stream", "count", thread="one")) as chunks:
            assert await anext(chunks) == "part_start"
        kept = await app.run("messages", thread="one")
    assert prompts(kept) == ["count"]
    assert isinstance(kept[-1], ModelResponse)
    assert kept[-1].state == "interrupted"


async def test_a_block_that_does_not_begin_the_run_changes_nothing() -> None:
    script = Script("Yes.")
    app = make_app(script.agent)

    @app.agent("open", thread=Conversation)
    async def open_only(ctx: Context) -> None:
        async with open_run(script.agent, "unsaid", values=thread_of(ctx).values):
            pass

    async with app:
        await app.run("talk", "one", thread="one")
        await app.run("open", thread="one")
        await app.run("talk", "two", thread="one")
    assert script.prompts == ["one", "two"]


@pytest.mark.parametrize(("most", "kept"), [(1, 3), (2, 2), (3, 2), (4, 4), (5, 4), (100, 8)])
async def test_messages_that_are_kept_begin_with_one_of_the_user(most: int, kept: int) -> None:
    call = [
        ModelRequest([UserPromptPart("look")]),
        ModelResponse([TextPart("I look.")]),
        ModelRequest([ToolReturnPart("look", "found", tool_call_id="1")]),
        ModelResponse([TextPart("Found.")]),
    ]
    messages = [*call, *([ModelRequest([UserPromptPart("thanks")]), ModelResponse([TextPart("Sure.")])] * 2)]
    if most == 1:
        messages = [*messages, ModelResponse([TextPart("Still there?")])]
    app = make_app(Agent(TestModel()))

    @app.agent("save", thread=Conversation)
    async def save(ctx: Context) -> Any:
        await save_messages(thread_of(ctx).values, messages, max_messages=most)
        return list(await load_messages(thread_of(ctx).values))

    async with app:
        assert await app.run("save", thread="one") == messages[-kept:]


@pytest.mark.parametrize("full", ["prompt", "others", "both"])
async def test_a_prompt_that_cannot_be_kept_is_refused_before_the_model_is_called(full: str) -> None:
    script = Script("Yes.")
    app = make_app(script.agent)
    prompt = "x" * {"prompt": 1 << 20, "others": 10, "both": 600_000}[full]
    async with app:
        await app.run("talk", "one", thread="one")
        values = app.thread(Conversation, "one").part(Conversation.values)
        room = await values.room("others")
        await values.set("others", "x" * {"prompt": 1, "others": room - 20_000, "both": 500_000}[full])
        with pytest.raises(TooLarge, match="the prompt and its answer need"):
            await app.run("talk", prompt, thread="one")
        assert len(script.seen) == 1
        assert prompts(await app.run("messages", thread="one")) == ["one"]


@pytest.mark.parametrize("most", [None, 1000])
async def test_a_conversation_that_is_too_large_goes_on_with_the_last_messages(most: int | None) -> None:
    script = Script("Yes.")
    async with make_app(script.agent, max_messages=most) as app:
        for number in range(6):
            assert await app.run("talk", f"{number}" * 300_000, thread="one") == "Yes."
        kept = await app.run("messages", thread="one")
    assert [str(prompt)[0] for prompt in prompts(kept)] == ["3", "4", "5"]
    assert isinstance(kept[-1], ModelResponse)


async def test_a_hundred_messages_are_kept_if_nothing_else_is_said() -> None:
    script = Script("Yes.")
    async with make_app(script.agent) as app:
        for number in range(53):
            await app.run("talk", str(number), thread="one")
        assert prompts(await app.run("messages", thread="one")) == [str(number) for number in range(3, 53)]


async def test_a_number_of_messages_that_makes_no_sense_is_refused_before_the_model_is_called() -> None:
    script = Script("Yes.")
    async with make_app(script.agent, max_messages=0) as app:
        with pytest.raises(ValueError, match="max_messages"):
            await app.run("talk", "one", thread="one")
    assert script.seen == []
