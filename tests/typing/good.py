"""Lines that type checkers accept, with the types that they find; they run, too."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from typing import Any, assert_type

from tests.typing.rooms import Arena, Cart, CartThread, Game, GameRoom, Lobby, Question, app, count, support, tick

from plait import (
    Change,
    Context,
    Handle,
    Interruption,
    Principal,
    Source,
    Thread,
    ThreadMessages,
    ThreadSchedule,
    ThreadValues,
)
from plait.testing import Served
from plait_client import Connecting, Room, RoomQuery, SyncQuery, SyncRoom


async def use_calls() -> None:
    room = app.thread(GameRoom, "calls")
    assert_type(room, Handle[GameRoom])
    assert_type(await room.call(GameRoom.add_player, "Ada"), int)
    assert_type(await room.call(GameRoom.add_player, "Bob", team=2), int)
    assert_type(await room.call(GameRoom.add_player, name="Cyd"), int)
    assert_type(await room.call(GameRoom.remove, "Ada"), bool)
    assert_type(await room.call(GameRoom.get_scores), dict[str, int])
    assert_type((await room.call(GameRoom.find_game)).score, int)
    assert_type(await room.call(GameRoom.watch, 3), list[int])
    assert_type(await room.call(GameRoom.talk, "hi"), list[Any])
    assert_type(await room.call(GameRoom.talk, text="hi"), list[Any])
    assert_type(await room.call(GameRoom.invite, "hall"), int)
    assert_type(await room.call("add_player", "Dan"), Any)
    assert_type(room.stream(GameRoom.watch, 3), AsyncGenerator[int])
    async for n in room.stream(GameRoom.watch, n=3):
        assert_type(n, int)
    async for chunk in room.stream(GameRoom.talk, "hi"):
        assert_type(chunk, Any)
    await room.call(GameRoom.reset)
    assert_type(room.name, str)


async def use_state() -> None:
    room = app.thread(GameRoom, "state")
    assert_type(await room.state(), Game)
    assert_type((await room.state()).score, int)
    assert_type(await room.set_state(Game()), int)
    assert_type(await room.set_state(lambda s: Game(s.players, s.score + 1)), int)
    assert_type(await room.update("/score", 5), int)
    assert_type(await room.append("/note", "abc"), int)
    assert_type(await room.splice("/note", 1, 1), int)
    assert_type(await room.history(since=1, limit=2), list[Change])
    assert_type(await room.undo("server"), int | None)
    lobby = app.thread(Lobby, "state")
    assert_type(await lobby.set_state({"a": 1}), int)
    assert_type(await lobby.set_state(lambda s: {**s, "b": 1}), int)
    assert_type(await lobby.state(), dict[str, int])


async def use_parts() -> None:
    room = app.thread(GameRoom, "parts")
    assert_type(room.part(GameRoom.values), ThreadValues)
    assert_type(room.part(GameRoom.messages), ThreadMessages)
    assert_type(room.part(GameRoom.schedule), ThreadSchedule)
    await room.part(GameRoom.values).set("a", 1)
    assert_type(await room.part(GameRoom.values).keys(), list[str])


async def use_subclasses() -> None:
    arena = app.thread(Arena, "sub")
    assert_type(await arena.call(GameRoom.add_player, "Ada"), int)
    assert_type(await arena.call(Arena.add_player, "Bob"), int)
    assert_type(await arena.call(Arena.fight), str)
    assert_type(await arena.state(), Game)
    base: Handle[GameRoom] = arena
    assert_type(await base.call(GameRoom.add_player, "Ada"), int)
    assert await find_score(arena) == 0
    assert await read_game(base) == await base.state()
    assert_type(await app.thread(CartThread, "sub").state(), Cart)


async def find_score(thread: Handle[Thread[Game]]) -> int:
    return (await thread.state()).score


async def read_game(room: Handle[GameRoom]) -> Game:
    return await room.state()


async def use_agents() -> None:
    room = app.thread(GameRoom, "agents")
    assert_type(await app.run(support, Question("x"), thread=room), str | Interruption)
    assert_type(await app.run(support, Question("x"), session_id="s"), str | Interruption)
    assert_type(await app.run(support, input=Question("x")), str | Interruption)
    assert_type(await app.run(count, 3), list[int | Interruption])
    assert_type(await app.run(tick), int | Interruption)
    assert_type(await app.run("support", {"text": "x"}), Any)
    async for chunk in app.stream(count, 3):
        assert_type(chunk, int | Interruption)
    session = app.session(GameRoom, "s", user_id="ada")
    assert_type(session, Handle[GameRoom])
    assert_type(await session.call(GameRoom.remove, "Ada"), bool)


async def use_context(ctx: Context[GameRoom]) -> None:
    assert_type(await ctx.run(support, Question("x")), str)
    assert_type(await ctx.run(count, 3), list[int])
    assert_type(await ctx.run(tick), int)
    assert_type(ctx.stream(count, 3), AsyncIterator[int])
    assert_type(ctx.thread.thread(Lobby, "x"), Handle[Lobby])


async def use_copies() -> None:
    await app.thread(GameRoom, "one").call(GameRoom.add_player, "Ada")
    assert_type(await app.fork_thread(GameRoom, "one", "two"), Handle[GameRoom])
    assert_type(await app.fork_thread("game-room", "one", "three"), Handle[Any])


async def use_client(room: Room[Game]) -> None:
    assert_type(room.state, Game)
    assert_type(await room.call(GameRoom.add_player, "Ada", team=1), int)
    assert_type(await room.call(GameRoom.remove, "Ada"), bool)
    assert_type(await room.call(GameRoom.get_scores), dict[str, int])
    assert_type((await room.call(GameRoom.find_game)).score, int)
    assert_type(await room.call(GameRoom.watch, 3), list[int])
    assert_type(await room.call("add_player", "Bob"), Any)
    async for n in room.stream(GameRoom.watch, 3):
        assert_type(n, int)
    assert_type(room.query(GameRoom.find_game), RoomQuery[Game])
    assert_type(room.query(GameRoom.remove, ["Ada"]), RoomQuery[bool])
    assert_type(room.query("find_game", ("Ada", 1)), RoomQuery[Any])
    async with aclosing(room.query(GameRoom.find_game)) as games:
        assert_type(games.at, int)
    async for game in games:
        assert_type(game, Game)
    await room.call(GameRoom.reset)


def use_sync_client(room: SyncRoom[Game]) -> None:
    assert_type(room.call(GameRoom.add_player, "Eve", team=1), int)
    assert_type(room.call(GameRoom.find_game).players, tuple[str, ...])
    assert_type(room.call(GameRoom.watch, 3), list[int])
    for n in room.stream(GameRoom.watch, 3):
        assert_type(n, int)
    assert_type(room.query(GameRoom.remove, ["Ada"], timeout=1), SyncQuery[bool])
    with closing(room.query(GameRoom.find_game)) as games:
        assert_type(iter(games), SyncQuery[Game])


async def use_served(t: Served) -> None:
    assert_type(t.connect(GameRoom, "served"), Connecting[Game])
    async with t.connect(GameRoom, "served", principal=Principal("ada"), open_timeout=5) as room:
        assert_type(room, Room[Game])
        assert_type(room.state.score, int)
        assert_type(await room.call(GameRoom.add_player, "Ada"), int)
    async with t.connect(Lobby, "served", token="x", headers={"x-user": "ada"}) as lobby:
        assert_type(lobby.state, dict[str, int])
    await t.clock.advance(60)
    assert_type(t.clock.now, float)


class Listed(Thread[Game]):
    can_write = ("/players",)


class Ruled(Thread[Game]):
    def can_write(self, state: Game, viewer: Principal | None) -> list[str]:
        return [] if viewer is None else ["/players"]

    def validate_state_change(self, next_state: Game, source: Source, before: Game | None = None) -> None:
        assert before is None or before.score <= next_state.score


class MoreRuled(Ruled):
    def can_write(self, state: Game, viewer: Principal | None) -> list[str]:
        return [*super().can_write(state, viewer), "/note"]
