"""The state of AgentScope's agents in threads, with a model that is none; nothing goes to the network."""

# pyright: reportMissingImports=false

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from agentscope.agent import Agent
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import TextBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionMode
from agentscope.state import AgentState
from pydantic import BaseModel
from tests.server.cli.java_state import LOADED

from plait import Context, Interruption, Plait, Thread, ThreadValues, Values
from plait.adapters.agentscope import load_state, open_state, save_state


class Conversation(Thread[None]):
    values = Values()


class Echo(ChatModelBase):
    """A model that says how many messages it was sent by the user."""

    class Parameters(BaseModel):
        pass

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        super().__init__(CredentialBase(), "echo", self.Parameters(), stream=False, max_retries=0)
        self.formatter = OpenAIChatFormatter()
        self._fails = fails

    async def _call_api(self, model_name: str, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResponse:
        if self._fails():
            raise LookupError("no model")
        count = sum(message.role == "user" for message in messages)
        return ChatResponse(content=[TextBlock(text=f"That was {count}.")], is_last=True)


def make_app(model: Echo, store: str = "memory:") -> Plait:
    app = Plait(Conversation, store=store)

    @app.agent("talk", thread=Conversation)
    async def talk(ctx: Context, prompt: str) -> str:
        async with open_state(values_of(ctx), AgentState) as state:
            agent = Agent("echo", "Count.", model, state=state)
            reply = await agent.reply(UserMsg("user", prompt))
            return str(reply.get_text_content())

    @app.agent("state", thread=Conversation)
    async def state(ctx: Context) -> AgentState | None:
        return await load_state(values_of(ctx), AgentState)

    return app


def values_of(ctx: Context) -> ThreadValues:
    assert isinstance(ctx.thread, Conversation)
    return ctx.thread.values


async def test_the_next_run_continues_the_state_also_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        async with make_app(Echo(), f"sqlite:///{tmp_path}/a.db") as app:
            assert await app.run("talk", f"prompt {number}", thread="one") == f"That was {number}."


async def test_other_threads_have_other_states() -> None:
    async with make_app(Echo()) as app:
        assert await app.run("talk", "one", thread="one") == "That was 1."
        assert await app.run("talk", "two", thread="two") == "That was 1."
        assert await app.run("state", thread="three") is None


async def test_a_run_that_fails_keeps_the_state_before() -> None:
    is_broken = False
    async with make_app(Echo(lambda: is_broken)) as app:
        await app.run("talk", "one", thread="one")
        before = await app.run("state", thread="one")
        is_broken = True
        with pytest.raises(LookupError):
            await app.run("talk", "two", thread="one")
        assert await app.run("state", thread="one") == before
        is_broken = False
        assert await app.run("talk", "three", thread="one") == "That was 2."


async def test_an_interrupted_run_keeps_the_state_as_it_was_then() -> None:
    app = make_app(Echo())

    @app.agent("watch", thread=Conversation)
    async def watch(ctx: Context, prompt: str) -> None:
        async with open_state(values_of(ctx), AgentState) as state:
            agent = Agent("echo", "Count.", Echo(), state=state)
            async with aclosing(agent.reply_stream(UserMsg("user", prompt))) as events:
                async for _ in events:
                    await app.interrupt(ctx.thread, "stop")
                    await ctx.checkpoint()

    async with app:
        assert await app.run("watch", "one", thread="one") == Interruption("stop")
        assert await app.run("talk", "two", thread="one") == "That was 2."


async def test_an_interrupt_that_comes_with_the_end_loses_no_state() -> None:
    app = make_app(Echo())

    @app.agent("hasty", thread=Conversation)
    async def hasty(ctx: Context) -> None:
        async with open_state(values_of(ctx), AgentState) as state:
            state.summary = "So far so good."
            await app.interrupt(ctx.thread)

    async with app:
        assert await app.run("hasty", thread="one") == Interruption()
        assert (await app.run("state", thread="one")).summary == "So far so good."


async def test_a_whole_state_comes_back_as_it_was() -> None:
    state = AgentState(summary="So far so good.", middle_context={"n": [1, {"deep": None}]})
    state.permission_context.mode = PermissionMode.BYPASS
    state.context.append(UserMsg("user", "Grüße \U0001f600"))
    app = make_app(Echo())

    @app.agent("save", thread=Conversation)
    async def save(ctx: Context) -> None:
        await save_state(values_of(ctx), state)

    async with app:
        await app.run("save", thread="one")
        assert await app.run("state", thread="one") == state


async def test_a_state_that_was_imported_from_agentscope_for_java_is_read(tmp_path: Path) -> None:
    app = make_app(Echo(), f"sqlite:///{tmp_path}/a.db")
    async with app:
        values = app.session(Conversation, "s1", user_id="alice").part(Conversation.values)
        await values.set("agentscope", LOADED)
        state = await app.run("state", user_id="alice", session_id="s1")
        assert [message.role for message in state.context] == ["user", "assistant", "assistant"]
        assert state.context[1].content[1].input == '{"a":1}'
        # The summary is one of them.
        assert await app.run("talk", "And 2 + 2?", user_id="alice", session_id="s1") == "That was 3."
