"""Agents of Pydantic AI in threads, with its models for tests; nothing goes to the network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelMessage, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.running import running

from plait import Context, Interruption, Messages, Plait, Thread, Values, current_context
from plait.adapters.message_history import load_history
from plait.adapters.pydantic_ai import open_run, run_agent
from plait.agents.execution.message_format import read_messages
from plait_client import connect


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


class Conversation(Thread[dict[str, str]]):
    initial_state = {"answer": ""}  # noqa: RUF012
    texts = ("/answer",)
    values = Values()
    messages = Messages()


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
        said: str = await run_agent(ctx, agent, prompt, messages=thread_of(ctx).messages, text="/answer", **options)
        return said

    @app.agent("messages", thread=Conversation)
    async def messages(ctx: Context) -> Any:
        return read_messages(await load_history(thread_of(ctx).messages))

    return app


def thread_of(ctx: Context) -> Conversation:
    assert isinstance(ctx.thread, Conversation)
    return ctx.thread


async def answer(app: Plait) -> str:
    state = await app.thread(Conversation, "one").state()
    return str(state["answer"])


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


async def test_leaving_a_stream_keeps_what_was_said() -> None:
    script = Script(*(f"{number} " for number in range(1000)))
    app = make_app(script.agent)

    @app.agent("stream", thread=Conversation)
    async def stream(ctx: Context, prompt: str) -> AsyncIterator[str]:
        async with open_run(script.agent, prompt, messages=thread_of(ctx).messages) as events:
            async for each in events:
                yield each.event_kind

    async with app:
        async with aclosing(app.stream("stream", "count", thread="one")) as chunks:
            assert await anext(chunks) == "part_start"
        kept = await app.run("messages", thread="one")
    assert prompts(kept) == ["count"]
    assert isinstance(kept[-1], ModelResponse)
    assert kept[-1].state == "interrupted"


async def test_a_number_of_messages_that_makes_no_sense_is_refused_before_the_model_is_called() -> None:
    script = Script("Yes.")
    async with make_app(script.agent, max_messages=0) as app:
        with pytest.raises(ValueError, match="max_messages"):
            await app.run("talk", "one", thread="one")
    assert script.seen == []
