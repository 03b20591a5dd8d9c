"""What goes in and out of an agent crosses as JSON, in one process, too."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from plait import Context, InvalidArguments, MemoryStore, Plait, Thread


class Desk(Thread[dict[str, Any]]):
    initial_state: Any = dict


class Box(msgspec.Struct):
    numbers: list[int]


@pytest.fixture
async def app() -> AsyncIterator[Plait]:
    app = Plait(Desk, store=MemoryStore(), secret="s")
    kept = Box([])

    @app.agent("keep", thread=Desk)
    async def keep(ctx: Context[Desk], given: Box) -> Box:
        given.numbers.append(0)
        kept.numbers.extend(given.numbers)
        return kept

    @app.agent("stream", thread=Desk)
    async def stream(ctx: Context[Desk], given: Box) -> AsyncIterator[Box]:
        given.numbers.append(0)
        kept.numbers.extend(given.numbers)
        yield kept

    @app.agent("outer", thread=Desk)
    async def outer(ctx: Context[Desk], inner: str) -> list[Box]:
        given = Box([1])
        returned = await ctx.run(inner, given)
        (returned if inner == "keep" else returned[0]).numbers.append(9)
        return [given, kept]

    @app.agent("wrong", thread=Desk, output=list[int])
    async def wrong(ctx: Context[Desk], what: str) -> Any:
        return {"function": [print], "text": ["1"], "number": [1]}[what]

    async with app:
        yield app


@pytest.mark.parametrize("door", ["run", "call"])
@pytest.mark.parametrize("agent", ["keep", "stream"])
async def test_a_run_shares_no_object_with_its_caller(app: Plait, agent: str, door: str) -> None:
    given = Box([1])
    for expected in ([1, 0], [1, 0, 1, 0]):
        if door == "run":
            found: Any = await app.run(agent, given, thread="one")
        else:
            found = await app.thread(Desk, "one").call(f"run:{agent}", given)
        found = found if agent == "keep" else found[0]
        assert (given, found) == (Box([1]), Box(expected))
        found.numbers.append(9)


@pytest.mark.parametrize("agent", ["keep", "stream"])
async def test_an_agent_shares_no_object_with_the_one_that_calls_it(app: Plait, agent: str) -> None:
    assert await app.run("outer", agent, thread="one") == [Box([1]), Box([1, 0])]


async def test_an_input_that_is_not_json_is_a_type_error_and_one_of_another_type_invalid(app: Plait) -> None:
    with pytest.raises(TypeError, match="the input of keep cannot be sent, as it is not JSON"):
        await app.run("keep", {"numbers": [object()]}, thread="one")
    with pytest.raises(InvalidArguments) as refused:
        await app.run("keep", {"numbers": ["1"]}, thread="one")
    assert refused.value.path == "/numbers/0"


async def test_an_output_that_is_not_json_or_of_another_type_is_a_type_error(app: Plait) -> None:
    assert await app.run("wrong", "number", thread="one") == [1]
    with pytest.raises(TypeError, match="what the agent wrong returned cannot be sent, as it is not JSON"):
        await app.run("wrong", "function", thread="one")
    with pytest.raises(TypeError, match="the agent wrong returned a value that does not fit its annotation"):
        await app.run("wrong", "text", thread="one")
