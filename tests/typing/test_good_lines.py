"""The lines that type checkers accept do what they say."""

import asyncio
from typing import Any

from tests.running import running
from tests.typing import good
from tests.typing.rooms import Game, GameRoom, app, support

from plait import Context
from plait.testing import serve
from plait_client import connect, connect_sync


async def run_lines(ctx: Context[GameRoom], input: Any) -> None:
    await good.use_context(ctx)


app.agent("lines", thread=GameRoom)(run_lines)


async def test_the_lines_for_servers_run() -> None:
    async with app:
        await good.use_calls()
        await good.use_state()
        await good.use_parts()
        await good.use_subclasses()
        await good.use_agents()
        await good.use_copies()
        await app.run(run_lines, None)
        assert await app.run(support, good.Question("again")) == "again"


async def test_the_lines_for_clients_run() -> None:
    async with running(app) as url, connect(f"ws://{url}/threads/game-room/client", state_type=Game) as room:
        await good.use_client(room)
        # By the name for clients, and of the type of the annotation.
        assert await room.call(GameRoom.get_scores) == {}
        assert await room.call(GameRoom.find_game) == Game()
        assert await room.call(GameRoom.watch, 3) == [0, 1, 2]


async def test_the_lines_for_clients_that_block_run() -> None:
    def use(url: str) -> None:
        with connect_sync(f"ws://{url}/threads/game-room/sync", state_type=Game) as room:
            good.use_sync_client(room)
            assert room.call(GameRoom.find_game) == Game(("Eve",))
            assert list(room.stream(GameRoom.watch, 2)) == [0, 1]

    async with running(app) as url:
        await asyncio.to_thread(use, url)


def test_the_lines_for_tests_run() -> None:
    async def use() -> None:
        async with serve(app) as t:
            await good.use_served(t)

    asyncio.run(use())
