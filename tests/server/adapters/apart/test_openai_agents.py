"""The session for the OpenAI Agents SDK, with its Runner and a model that is none; nothing goes to the network."""

# pyright: reportMissingImports=false

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Session,
    SessionSettings,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from plait import Context, Message, Messages, Plait, Thread, rpc
from plait.adapters.openai_agents import ThreadSession

set_tracing_disabled(True)


class Conversation(Thread[None]):
    messages = Messages()


class Echo(Model):
    """A model that says how many messages of the user it was sent, after calling its tool if it has one."""

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.seen: list[list[Any]] = []
        self._fails = fails

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        self.seen.append(list(input))
        if self._fails(len(self.seen)):
            raise LookupError("no model")
        output: list[Any]
        if tools and input[-1].get("type") != "function_call_output":
            call = {"call_id": f"call{len(self.seen)}", "name": tools[0].name, "arguments": "{}"}
            output = [ResponseFunctionToolCall(type="function_call", **call)]
        else:
            said = f"That was {sum(item.get('role') == 'user' for item in input)}."
            text = ResponseOutputText(type="output_text", text=said, annotations=[])
            output = [
                ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        output = (await self.get_response(*args, **kwargs)).output
        options: Any = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "object": "response"}
        response = Response(id="r", created_at=0, model="echo", output=output, **options)
        yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


def make_app(model: Echo, store: str = "memory:", *, tools: Any = (), **options: Any) -> Plait:
    app = Plait(Conversation, store=store)
    agent = Agent(name="echo", model=model, tools=[*tools])

    @app.agent("talk", thread=Conversation)
    async def talk(ctx: Context, prompt: str) -> str:
        session = session_of(ctx, session_id=ctx.thread.name, **options)
        assert isinstance(session, Session)
        return str((await Runner.run(agent, prompt, session=session)).final_output)

    return app


def session_of(ctx: Context, **options: Any) -> ThreadSession:
    assert isinstance(ctx.thread, Conversation)
    return ThreadSession(ctx.thread.messages, **options)


async def use(work: Any, **options: Any) -> Any:
    """Run a function with a session in an agent, and return what it returns, and what is there afterwards."""
    app = Plait(Conversation, store="memory:")

    @app.agent("work", thread=Conversation)
    async def run(ctx: Context) -> Any:
        return await work(session_of(ctx, **options))

    @app.agent("items", thread=Conversation)
    async def items(ctx: Context) -> Any:
        return await session_of(ctx).get_items()

    async with app:
        return await app.run("work", thread="one"), await app.run("items", thread="one")


async def test_the_next_run_continues_the_items_also_after_a_restart(tmp_path: Path) -> None:
    model = Echo()
    for number in (1, 2, 3):
        async with make_app(model, f"sqlite:///{tmp_path}/a.db") as app:
            assert await app.run("talk", f"prompt {number}", thread="one") == f"That was {number}."
    assert [item["content"] for item in model.seen[-1] if item["role"] == "user"] == [
        "prompt 1",
        "prompt 2",
        "prompt 3",
    ]


async def test_other_threads_have_other_items() -> None:
    async with make_app(Echo()) as app:
        assert await app.run("talk", "one", thread="one") == "That was 1."
        assert await app.run("talk", "two", thread="two") == "That was 1."


async def test_a_run_that_fails_keeps_the_items_of_those_before() -> None:
    async with make_app(Echo(fails=lambda number: number == 2)) as app:
        await app.run("talk", "one", thread="one")
        with pytest.raises(LookupError):
            await app.run("talk", "two", thread="one")
        assert await app.run("talk", "three", thread="one") == "That was 2."


@pytest.mark.parametrize("most", [2, 5])
async def test_calls_of_tools_are_kept_and_cut_off_only_together_with_their_results(most: int) -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "found"

    model = Echo()
    async with make_app(model, tools=[look], max_items=most) as app:
        for number in range(4):
            await app.run("talk", f"prompt {number}", thread="one")
    kinds = [item.get("type") or item["role"] for item in model.seen[-1]]
    # The items of the run before, and of this one, which are cut when it ends, or when it begins.
    run = ["user", "function_call", "function_call_output", "message"]
    assert kinds == [*run, *run[:3]]


async def test_limits_give_the_last_items() -> None:
    async def work(session: ThreadSession) -> Any:
        await session.add_items([{"role": "user", "content": str(number)} for number in range(4)])
        limited = [len(await session.get_items(limit)) for limit in (None, 0, 1, 4, 9)]
        session.session_settings = SessionSettings(limit=2)
        return [*limited, [item["content"] for item in await session.get_items()]]

    assert (await use(work))[0] == [4, 0, 1, 4, 4, ["2", "3"]]


async def test_items_are_popped_from_the_end_and_cleared() -> None:
    async def pop(session: ThreadSession) -> Any:
        await session.add_items([{"n": 1}, {"n": 2}])
        return [await session.pop_item(), await session.pop_item(), await session.pop_item()]

    async def clear(session: ThreadSession) -> None:
        await session.add_items([{"n": 1}])
        await session.clear_session()
        await session.add_items([])

    assert await use(pop) == ([{"n": 2}, {"n": 1}, None], [])
    assert await use(clear) == (None, [])


async def test_changing_what_was_got_changes_nothing() -> None:
    async def work(session: ThreadSession) -> None:
        await session.add_items([{"content": ["a"]}])
        (item,) = await session.get_items()
        item["content"].append("b")

    assert (await use(work))[1] == [{"content": ["a"]}]


def test_a_most_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ThreadSession(None, max_items=0)  # type: ignore[arg-type]


# In messages


def chatting(model: Echo, work: Any = None, *, tools: Any = ()) -> tuple[Plait, asyncio.Event]:
    """Return an app whose agent answers what is queued, and what is set when it has; `work` is another agent."""
    app, answered = Plait(Chat, store="memory:"), asyncio.Event()
    agent = Agent(name="echo", model=model, tools=[*tools])

    @app.agent("talk", thread=Chat)
    async def talk(ctx: Context[Chat]) -> None:
        assert await ctx.thread.messages.take()
        await Runner.run(agent, [], session=ThreadSession(ctx.thread.messages))
        ctx.wait_until(done())

    async def done() -> None:
        answered.set()

    @app.agent("work", thread=Chat)
    async def run(ctx: Context[Chat]) -> Any:
        return await work(ctx.thread.messages)

    return app, answered


class Chat(Thread[None]):
    messages = Messages(agent="talk", live=True)


async def test_what_is_queued_is_the_prompt_and_calls_and_results_are_messages() -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "found"

    model = Echo()
    app, answered = chatting(model, tools=[look])
    async with app:
        messages = app.thread(Chat, "one").messages
        await messages.inject("system", "Be kind.")
        await messages.queue("Look!")
        async with asyncio.timeout(30):
            await answered.wait()
        found: list[Message] = (await messages.list()).messages
    assert model.seen[0] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Look!"}]
    assert [(each.role, each.content) for each in found] == [
        ("system", "Be kind."),
        ("user", "Look!"),
        ("assistant", None),
        ("tool", "found"),
        ("assistant", "That was 1."),
    ]
    function = {"name": "look", "arguments": "{}"}
    assert found[2].tool_calls == [{"id": "call1", "type": "function", "function": function}]
    assert found[3].tool_call_id == "call1"


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": "x"}]},
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "id": "f1", "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "x"}]},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant"},
        {"n": 1},
    ],
)
async def test_each_item_comes_back_as_it_was(item: Any) -> None:
    async def work(session: ThreadSession) -> None:
        await session.add_items([item])

    assert (await use(work))[1] == [item]


async def test_what_a_model_has_thought_is_for_agents_only() -> None:
    async def work(messages: Any) -> Any:
        session = ThreadSession(messages)
        await session.add_items([{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "r1", "summary": []}])
        return [each.silent for each in (await messages.list()).messages]

    async with chatting(Echo(), work)[0] as app:
        assert await app.run("work", thread="one") == [False, True]
        assert len((await app.thread(Chat, "one").messages.list()).messages) == 1


async def test_an_item_whose_message_was_changed_is_what_the_message_says() -> None:
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}], "id": "1"}

    async def work(messages: Any) -> Any:
        session = ThreadSession(messages)
        await session.add_items([answer])
        (message,) = (await messages.list()).messages
        await messages.update(message.id, "b")
        return await session.get_items()

    async with chatting(Echo(), work)[0] as app:
        assert await app.run("work", thread="one") == [{"role": "assistant", "content": "b"}]


async def test_an_item_is_popped_of_a_message_that_has_several() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    async def work(messages: Any) -> Any:
        session = ThreadSession(messages)
        await messages.inject("assistant", "I look.", tool_calls=[call])
        return [await session.pop_item(), await session.get_items()]

    async with chatting(Echo(), work)[0] as app:
        popped = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        assert await app.run("work", thread="one") == [popped, [{"role": "assistant", "content": "I look."}]]


async def test_the_agent_gets_the_last_items_and_the_thread_keeps_all() -> None:
    async def work(messages: Any) -> Any:
        for number in range(300):
            messages.inject("user", str(number))
            messages.inject("assistant", "yes")
            messages.inject("assistant", "and no")
        items = await ThreadSession(messages, max_items=250).get_items()
        return [len(items), items[0], (await messages.list()).total]

    async with chatting(Echo(), work)[0] as app:
        assert await app.run("work", thread="one") == [249, {"role": "user", "content": "217"}, 900]


async def test_failed_and_pending_messages_are_no_items_outside_of_runs_either() -> None:
    class Desk(Thread[None]):
        messages = Messages()

        @rpc
        async def items(self) -> list[Any]:
            self.messages.queue("not yet")
            with suppress(LookupError):
                async with self.messages.stream() as m:
                    m.append("so far")
                    raise LookupError
            self.messages.inject("system", "hush", silent=True)
            return await ThreadSession(self.messages).get_items()

    async with Plait(Desk, store="memory:") as app:
        assert await app.thread(Desk, "one").items() == [{"role": "system", "content": "hush"}]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_question_that_is_queued_in_mid_run_steers_it(*, is_streamed: bool) -> None:
    @function_tool
    async def look() -> str:
        if len(model.seen) == 1:
            await app.thread(Conversation, "one").part(Conversation.messages).queue("Hurry!")
        return "found"

    class Twice(Echo):
        """A model that calls its tool twice."""

        async def get_response(
            self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
        ) -> ModelResponse:
            last = [*input, {"role": "user"}] if len(self.seen) == 1 else input
            found = await super().get_response(system_instructions, last, model_settings, tools, *args, **kwargs)
            self.seen[-1] = [*input]
            return found

    model = Twice()
    app = Plait(Conversation, store="memory:")

    @app.agent("support", thread=Conversation)
    async def support(ctx: Context[Conversation]) -> None:
        session = ThreadSession(ctx.thread.messages)
        agent = Agent(name="echo", model=model, tools=[look])
        if is_streamed:
            async for _ in session.run_streamed(agent, run_config=RunConfig()).stream_events():
                pass
        else:
            await session.run(agent, run_config={"workflow_name": "desk"})

    async with app:
        messages = app.thread(Conversation, "one").part(Conversation.messages)
        await messages.queue("Look!")
        await app.run("support", thread="one")
        kinds = [[each.get("role") or each["type"] for each in seen] for seen in model.seen]
        found = (await messages.list()).messages
    asked = ["user", "function_call", "function_call_output", "user"]
    assert kinds == [["user"], asked, [*asked, "function_call", "function_call_output"]]
    assert [each.content for each in found if each.role == "user"] == ["Look!", "Hurry!"]
    assert [each.role for each in found] == ["user", "assistant", "tool", "user", "assistant", "tool", "assistant"]
