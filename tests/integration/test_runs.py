"""Agents that clients run over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from tests.running import running

from plait import Context, MemoryStore, Plait, Thread, Values
from plait_client import CallError, connect, connect_sync

pytestmark = pytest.mark.relayed(in_soak=True)

TIMEOUT = 60


class Desk(Thread[dict[str, str]]):
    """Has an answer, which agents write."""

    initial_state = {"answer": ""}  # noqa: RUF012
    texts = ("/answer",)
    values = Values()


def make_app() -> Plait:
    """Return an app with agents that count, talk and tell."""
    app = Plait(Desk, store=MemoryStore(), secret="of the test")

    @app.agent("count", thread=Desk)
    async def count(ctx: Context, by: int) -> int:
        total: int = await ctx.thread.values.get("total", 0) + by
        await ctx.thread.values.set("total", total)
        return total

    @app.agent("talk", thread=Desk)
    async def talk(ctx: Context, words: int) -> str:
        for number in range(words):
            ctx.thread.append("/answer", f"{number} ")
            await ctx.checkpoint()
        return "done"

    @app.agent("tell", thread=Desk)
    async def tell(ctx: Context) -> AsyncIterator[int]:
        number = 0
        ctx.thread.append("/answer", "listen")
        while True:
            yield number
            number += 1
            await asyncio.sleep(0)

    return app


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running(make_app()) as address:
        yield f"ws://{address}/threads/desk"


async def test_a_client_runs_an_agent_in_its_thread(url: str) -> None:
    async with connect(f"{url}/count") as room:
        for sum in (0, 18):  # As many at once as one client may have under way and waiting in a thread.
            runs = (asyncio.ensure_future(room.run("count", 2)) for _ in range(9))
            assert await asyncio.gather(*runs) == [*range(sum + 2, sum + 20, 2)]
        with pytest.raises(CallError, match="Expected `int`, got `str`") as refused:
            await room.run("count", "two")
        assert refused.value.code == "invalid_arguments"


async def test_what_an_agent_writes_is_seen_by_all_and_stays_when_it_is_interrupted(url: str) -> None:
    async with connect(f"{url}/talk") as one, connect(f"{url}/talk") as other:
        answer = asyncio.ensure_future(one.run("talk", 1_000_000))
        await other.wait_for(lambda state: "100 " in state["answer"], TIMEOUT)
        assert await other.interrupt("enough")
        assert await answer == {"message": "enough", "output": None, "interrupted": True}
        state = one.state["answer"]
        assert [int(word) for word in state.split()] == [*range(len(state.split()))]
        assert not await other.interrupt()
        assert await one.run("talk", 0) == "done"


async def test_leaving_a_stream_interrupts_the_agent_and_lets_the_next_run_begin(url: str) -> None:
    async with connect(f"{url}/tell") as room:
        async with aclosing(room.run_stream("tell")) as numbers:
            assert [await anext(numbers) for _ in range(3)] == [0, 1, 2]
        assert await asyncio.wait_for(room.run("count", 1), TIMEOUT) == 1


async def test_cancelling_a_run_of_an_agent_that_streams_interrupts_it_and_lets_the_next_run_begin(url: str) -> None:
    async with connect(f"{url}/left") as room:
        telling = asyncio.ensure_future(room.run("tell"))
        await room.wait_for(lambda state: bool(state["answer"]), TIMEOUT)
        telling.cancel()
        assert await asyncio.wait_for(room.run("count", 1), TIMEOUT) == 1


async def test_the_last_chunk_of_an_interrupted_stream_says_so(url: str) -> None:
    async with connect(f"{url}/told") as room:
        told = []
        async for chunk in room.run_stream("tell"):
            told.append(chunk)
            if chunk == 3:
                assert await room.interrupt()
    assert told[-1] == {"message": None, "output": None, "interrupted": True}
    assert told[:4] == [0, 1, 2, 3]


async def test_agents_run_without_asyncio_too(url: str) -> None:
    def use() -> None:
        with connect_sync(f"{url}/sync") as room:
            assert room.run("count", 3) == 3
            for chunk in room.run_stream("tell"):
                if chunk == 2:
                    break
            assert room.run("count", 3) == 6
            assert not room.interrupt()

    await asyncio.to_thread(use)
