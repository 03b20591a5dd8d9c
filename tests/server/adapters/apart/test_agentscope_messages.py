"""The context of AgentScope's agents in messages of threads; nothing goes to the network."""

# pyright: reportMissingImports=false

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from agentscope.agent import Agent
from agentscope.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    UserMsg,
)
from agentscope.model import ChatResponse
from agentscope.permission import PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from tests.server.adapters.apart.test_agentscope import Echo

from plait import Context, Interruption, Message, Messages, Plait, Thread, Values
from plait.adapters.agentscope import Steering, open_state, save_state


class Desk(Thread[None]):
    values = Values()
    messages = Messages(agent="support", live=True)


def open_desk(ctx: Context[Desk]) -> Any:
    return open_state(ctx.thread.values, AgentState, messages=ctx.thread.messages)


def make_app(model: Echo) -> Plait:
    app = Plait(Desk, store="memory:")

    @app.agent("support", thread=Desk)
    async def support(ctx: Context[Desk]) -> None:
        async with open_desk(ctx) as state:
            await Agent("echo", "Count.", model, state=state).reply()

    @app.agent("talk", thread=Desk)
    async def talk(ctx: Context[Desk], prompt: str) -> str:
        async with open_desk(ctx) as state:
            reply = await Agent("echo", "Count.", model, state=state).reply(UserMsg("user", prompt))
            return str(reply.get_text_content())

    @app.agent("do", thread=Desk)
    async def do(ctx: Context[Desk], work: Any) -> Any:
        return await work(ctx)

    return app


async def change(app: Plait, work: Callable[[AgentState], Any]) -> None:
    """Do something with the state in a run."""

    async def run(ctx: Context[Desk]) -> None:
        async with open_desk(ctx) as state:
            work(state)

    await app.run("do", run, thread="one")


async def context(app: Plait) -> list[Msg]:
    """Return the context that the next run gets."""
    found: list[Msg] = []
    await change(app, lambda state: found.extend(each.model_copy(deep=True) for each in state.context))
    return found


async def listed(app: Plait) -> list[Message]:
    return list((await app.thread(Desk, "one").messages.list(include_silent=True)).messages)


def contents(messages: list[Message]) -> list[str | None]:
    return [each.content for each in messages]


async def test_what_is_queued_is_the_prompt_and_the_reply_is_a_message() -> None:
    async with make_app(Echo()) as app:
        messages = app.thread(Desk, "one").messages
        for number in (1, 2):
            await messages.queue(f"prompt {number}")
            async with asyncio.timeout(30):
                while await messages.pending():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert await app.run("talk", "prompt 3", thread="one") == "That was 3."
        found = await listed(app)
    assert [(each.role, each.content) for each in found] == [
        pair for number in (1, 2, 3) for pair in (("user", f"prompt {number}"), ("assistant", f"That was {number}."))
    ]
    assert found[1].name == "echo"


async def test_a_run_that_fails_leaves_nothing() -> None:
    is_broken = False
    async with make_app(Echo(lambda: is_broken)) as app:
        await app.run("talk", "one", thread="one")
        before = await listed(app)
        is_broken = True
        with pytest.raises(LookupError):
            await app.run("talk", "two", thread="one")
        assert await listed(app) == before
        is_broken = False
        assert await app.run("talk", "three", thread="one") == "That was 2."


async def test_an_interrupted_run_keeps_what_was_said_once() -> None:
    app = make_app(Echo())

    async def watch(ctx: Context[Desk]) -> None:
        async with open_desk(ctx) as state:
            agent = Agent("echo", "Count.", Echo(), state=state)
            async with aclosing(agent.reply_stream(UserMsg("user", "one"))) as events:
                async for _ in events:
                    await app.interrupt(ctx.thread, "stop")
                    await ctx.checkpoint()

    async def hasty(ctx: Context[Desk]) -> None:
        async with open_desk(ctx) as state:
            state.context.append(UserMsg("user", "two"))
            await app.interrupt(ctx.thread)

    async with app:
        assert await app.run("do", watch, thread="one") == Interruption("stop")
        assert await app.run("do", hasty, thread="one") == Interruption()
        assert contents(await listed(app)) == ["one", "two"]


def looked() -> Msg:
    """Return a reply that has called a tool."""
    return AssistantMsg(
        "echo",
        [
            ThinkingBlock(thinking="I wonder."),
            TextBlock(text="I look."),
            ToolCallBlock(id="c1", name="look", input='{"at": 1}'),
            ToolResultBlock(id="c1", name="look", output=[TextBlock(text="it")], state=ToolResultState.SUCCESS),
            TextBlock(text="Found."),
        ],
    )


async def test_each_message_of_a_context_comes_back_as_it_was() -> None:
    said = [
        UserMsg("Ada", [TextBlock(text="See"), DataBlock(source=Base64Source(data="AA==", media_type="image/png"))]),
        looked(),
        AssistantMsg("echo", [ThinkingBlock(thinking="Only this.")]),
    ]
    async with make_app(Echo()) as app:
        await change(app, lambda state: state.context.extend(each.model_copy(deep=True) for each in said))
        assert await context(app) == said
        found = await listed(app)
        assert await context(app) == said
        assert await listed(app) == found
    assert [(each.role, each.content, each.silent) for each in found] == [
        ("user", "See", False),
        ("assistant", "I look.\nFound.", False),
        ("tool", "it", False),
        ("assistant", None, True),
    ]
    function = {"name": "look", "arguments": '{"at": 1}'}
    assert found[1].tool_calls == [{"id": "c1", "type": "function", "function": function}]
    assert (found[2].tool_call_id, found[2].name) == ("c1", "look")


async def test_the_agent_gets_what_others_have_written_as_it_is_by_then() -> None:
    async with make_app(Echo()) as app:
        messages = app.thread(Desk, "one").messages
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        await change(app, lambda state: state.context.append(looked()))
        answer = (await listed(app))[0]
        await messages.inject("assistant", "I see.", tool_calls=[call])
        await messages.inject("tool", "done", name="f", tool_call_id="c")
        await messages.inject("system", "Hush.", silent=True)
        await messages.update(answer.id, "Nothing.")
        found = await context(app)
    assert [each.get_text_content() for each in found] == ["Nothing.", "I see.", None, "Hush."]
    assert [block.type for each in found for block in each.content][-3:] == ["tool_call", "tool_result", "text"]


async def test_the_rest_of_the_state_is_in_the_values() -> None:
    async with make_app(Echo()) as app:
        seen: list[str] = []

        def write(state: AgentState) -> None:
            state.summary = "So far so good."
            state.context.append(UserMsg("user", "Hi"))

        await change(app, write)
        await change(app, lambda state: seen.append(str(state.summary)))
        kept = await app.thread(Desk, "one").values.get("agentscope")
    assert seen == ["So far so good."]
    assert "Hi" not in str(kept)


async def test_what_is_compressed_leaves_the_context_and_stays_in_the_thread() -> None:
    async with make_app(Echo()) as app:
        for number in range(4):
            await change(app, lambda state, text=str(number): state.context.append(UserMsg("user", text)))
        await change(app, lambda state: state.context.append(looked()))

        def compress(state: AgentState) -> None:
            state.context = [state.context[2], state.context[4]]
            state.context[1].content = state.context[1].content[-1:]

        await change(app, compress)
        await app.thread(Desk, "one").messages.inject("user", "4")
        assert [each.get_text_content() for each in await context(app)] == ["2", "Found.", "4"]
        assert contents(await listed(app)) == ["0", "1", "2", "3", "I look.\nFound.", "it", "4"]

        def empty(state: AgentState) -> None:
            state.context = []

        await change(app, empty)
        await app.thread(Desk, "one").messages.inject("user", "5")
        assert [each.get_text_content() for each in await context(app)] == ["5"]
        assert len(await listed(app)) == 8


async def test_a_reply_that_goes_on_is_one_message_also_when_it_was_compressed() -> None:
    def go_on(state: AgentState) -> None:
        state.context[-1].content = [*state.context[-1].content[1:], TextBlock(text="Bye.")]

    async with make_app(Echo()) as app:
        await change(app, lambda state: state.context.append(looked()))
        await change(app, go_on)
        found = await listed(app)
        (reply,) = await context(app)
        assert await listed(app) == found
    assert contents(found) == ["I look.\nFound.\nBye.", "it"]
    assert [block.type for block in reply.content] == ["text", "tool_call", "tool_result", "text", "text"]


async def test_a_context_that_was_in_the_values_becomes_messages() -> None:
    said = [UserMsg("user", "Hi"), looked()]
    async with make_app(Echo()) as app:

        async def save(ctx: Context[Desk]) -> None:
            await save_state(ctx.thread.values, AgentState(context=said))

        await app.run("do", save, thread="one")
        assert await context(app) == said
        assert await context(app) == said
        assert contents(await listed(app)) == ["Hi", "I look.\nFound.", "it"]


async def test_a_question_that_is_queued_in_mid_run_steers_it() -> None:
    async def look() -> ToolChunk:
        """Look."""
        await app.thread(Desk, "one").messages.queue(f"Hurry {len(model.seen)}!")
        return ToolChunk(content=[TextBlock(text="it")])

    class Looking(Echo):
        """A model that calls its tool twice."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[str]] = []

        async def _call_api(self, model_name: str, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResponse:
            shown = [block for each in messages[1:] for block in each.content if block.type != "hint"]
            self.seen.append([block.text if block.type == "text" else block.type for block in shown])
            number = len(self.seen)
            content = (
                [ToolCallBlock(id=f"c{number}", name="look", input="{}")] if number < 3 else [TextBlock(text="It.")]
            )
            return ChatResponse(content=content, is_last=True)

    model, app = Looking(), make_app(Echo())

    async def support(ctx: Context[Desk]) -> None:
        steering = Steering()
        async with open_state(ctx.thread.values, AgentState, messages=ctx.thread.messages, steering=steering) as state:
            state.permission_context.mode = PermissionMode.BYPASS
            tools = Toolkit(tools=[FunctionTool(look)])
            await Agent("echo", "Look.", model, state=state, toolkit=tools, middlewares=[steering]).reply()

    async with app:
        messages = app.thread(Desk, "one").messages
        await messages.inject("user", "Look!")
        await app.run("do", support, thread="one")
        looks = [["tool_call", "tool_result", f"Hurry {number}!"] for number in (1, 2)]
        assert model.seen == [["Look!"], ["Look!", *looks[0]], ["Look!", *looks[0], *looks[1]]]
        found = await listed(app)
        assert [(each.role, each.content) for each in found] == [
            ("user", "Look!"),
            *(
                pair
                for number in (1, 2)
                for pair in (("assistant", None), ("tool", "it"), ("user", f"Hurry {number}!"))
            ),
            ("assistant", "It."),
        ]
        assert [each.content[-1].type for each in await context(app)] == ["text", *["tool_result", "text"] * 2, "text"]
        assert await listed(app) == found
