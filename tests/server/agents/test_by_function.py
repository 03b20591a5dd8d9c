"""Agents that are run by their functions instead of their names."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from plait import Context, InvalidArguments, Plait, Thread


class Chat(Thread[None]):
    pass


class Question(msgspec.Struct, frozen=True):
    text: str


async def support(ctx: Context[Chat], input: Question) -> str:
    return f"{ctx.agent}: {input.text}"


async def count(ctx: Context[Chat], input: int) -> AsyncIterator[int]:
    for n in range(input):
        yield n


async def ask(ctx: Context[Chat]) -> Any:
    return [
        await ctx.run(support, Question("inner")),
        await ctx.run(count, 2),
        [chunk async for chunk in ctx.stream(count, 3)],
    ]


def make_app() -> Plait:
    app = Plait(Chat, store="memory://")
    app.agent("help", thread=Chat)(support)
    app.agent("count", thread=Chat)(count)
    app.agent("ask", thread=Chat)(ask)
    return app


async def test_an_agent_is_run_by_its_function() -> None:
    async with make_app() as app:
        assert await app.run(support, Question("Hello?"), thread="one") == "help: Hello?"
        assert await app.run(count, 3) == [0, 1, 2]
        assert [chunk async for chunk in app.stream(count, 2)] == [0, 1]
        with pytest.raises(InvalidArguments):
            await app.run(support, 5)  # type: ignore[arg-type]


async def test_an_agent_runs_another_one_by_its_function() -> None:
    async with make_app() as app:
        assert await app.run(ask) == ["help: inner", [0, 1], [0, 1, 2]]


async def test_a_function_that_does_not_stand_for_one_agent_is_refused() -> None:
    app = make_app()

    async def other(ctx: Context[Chat]) -> None: ...

    async with app:
        with pytest.raises(ValueError, match="other is not an agent of this app"):
            await app.run(other)
        with pytest.raises(TypeError, match="the agent 'help' does not stream: use `run`"):
            await anext(app.stream(support, Question("x")))  # type: ignore[call-overload]
    app.agent("again", thread=Chat)(support)
    async with app:
        with pytest.raises(ValueError, match="support is the function of the agents 'help' and 'again': give the name"):
            await app.run(support, Question("x"))
