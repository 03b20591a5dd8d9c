"""The session for the OpenAI Agents SDK, with its Runner and a model that is none; nothing goes to the network."""

# pyright: reportMissingImports=false

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    Session,
    SessionSettings,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from plait import Context, Plait, Thread, ThreadValues, Values
from plait.adapters.openai_agents import ThreadSession

set_tracing_disabled(True)


class Conversation(Thread[None]):
    values = Values()


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

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def make_app(model: Echo, store: str = "memory:", *, tools: Any = (), **options: Any) -> Plait:
    app = Plait(Conversation, store=store)
    agent = Agent(name="echo", model=model, tools=[*tools])

    @app.agent("talk", thread=Conversation)
    async def talk(ctx: Context, prompt: str) -> str:
        session = ThreadSession(values_of(ctx), session_id=ctx.thread.name, **options)
        assert isinstance(session, Session)
        return str((await Runner.run(agent, prompt, session=session)).final_output)

    return app


def values_of(ctx: Context) -> ThreadValues:
    assert isinstance(ctx.thread, Conversation)
    return ctx.thread.values


async def use(work: Any, **options: Any) -> Any:
    """Run a function with a session in an agent, and return what it returns, and what is there afterwards."""
    app = Plait(Conversation, store="memory:")

    @app.agent("work", thread=Conversation)
    async def run(ctx: Context) -> Any:
        return await work(ThreadSession(values_of(ctx), **options))

    @app.agent("items", thread=Conversation)
    async def items(ctx: Context) -> Any:
        return await ThreadSession(values_of(ctx)).get_items()

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
    # The items of the run before, and of this one, which are cut when it ends.
    run = ["user", "function_call", "function_call_output", "message"]
    assert kinds == [*run, *run[:3]]


async def test_what_is_kept_begins_with_the_last_message_of_the_user_if_more_came_after_it() -> None:
    user, other = {"role": "user"}, {"role": "assistant"}

    async def work(session: ThreadSession) -> None:
        await session.add_items([user, other, user, other, other, other])

    assert (await use(work, max_items=2))[1] == [user, other, other, other]


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
