"""What authors ask of a thread: its earlier states, and events."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
import pytest
from tests.cases import each_case
from tests.server.fakes import FakeTransport, TroubledStore
from tests.server.rooms import House, open_house
from tests.server.sessions import make_connection

from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.author_code import call
from plait.errors import Conflict, InvalidState, NotFound, Readonly, Reject
from plait.parts.values import Values
from plait.state.change_log import Change
from plait.state.retention import Retention
from plait.store.thread_rows import ChangeRow
from plait_schemas.patch import Op, apply

PATIENCE = 10.0


class Room(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0})

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state.get("n", 0) < 0:
            raise Reject("negative", path="/n")


class Game(msgspec.Struct, frozen=True):
    score: int = 0
    players: tuple[str, ...] = ()


class GameRoom(Thread[Game]):
    initial_state = Game()


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def awake(house: House, cls: type[Thread[Any]] = Room) -> Any:
    return (await house.actor(cls)).thread


# Validation


class Judge(Thread[dict[str, Any]]):
    """Is told of the operations of each change."""

    initial_state: Any = staticmethod(lambda: {"n": 0, "big": "x" * 20_000, "list": []})
    told: ClassVar[list[tuple[Source, list[Op]]]] = []

    def validate_state_change(self, next_state: Any, source: Source, ops: Sequence[Op] = ()) -> None:
        self.told.append((getattr(source, "id", source), list(ops)))
        for op in ops:
            if isinstance(op.value, list):
                op.value.append("mutated")
        if any(op.path == "/secret" for op in ops):
            raise Reject("secret", path="/secret")


def traced(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Named(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0})
    told: ClassVar[list[Any]] = []

    def validate_state_change(self, next_state: Any, source: Source, *, ops: Sequence[Op] = ()) -> None:
        self.told.append([op.path for op in ops])


class Traced(Named):
    @traced
    def validate_state_change(self, next_state: Any, source: Source, ops: Sequence[Op] = ()) -> None:
        self.told.append([op.path for op in ops])


class Strict(Named):
    def validate_state_change(  # type: ignore[override]
        self, next_state: Any, source: Source, strict: bool = False, *more: Any, **named: Any
    ) -> None:
        self.told.append((strict, more, named))


@each_case(("cls", "told"), [(Named, ["/n"]), (Traced, ["/n"]), (Strict, (False, (), {}))])
async def test_only_a_parameter_named_ops_gets_the_operations(cls: type[Named], told: Any) -> None:
    Named.told.clear()
    async with open_house(cls) as house:
        thread = await awake(house, cls)
        await outcome(thread.update("/n", 1))
    assert Named.told[-1] == told


class Archive(Thread[dict[str, Any]]):
    """Has cards that are never removed."""

    initial_state: Any = staticmethod(lambda: {"cards": {"a": {}}, "n": 0})
    told: ClassVar[list[Any]] = []

    def validate_state_change(
        self, next_state: Any, source: Source, ops: Sequence[Op] = (), before: Any = None
    ) -> None:
        self.told.append([json.loads(json.dumps(before)), [op.path for op in ops]])
        gone = before["cards"].keys() - next_state.get("cards", {}).keys()
        before.clear()  # It is a copy.
        if gone:
            raise Reject(f"{sorted(gone)} are archived, not removed")

    async def add(self, card: str) -> int:
        return await self.update(f"/cards/{card}", {})

    def delete(self) -> None:
        with self.edit() as draft:
            del draft["cards"]

    def replace_in_steps(self) -> None:
        with self.transaction():
            self.update("/cards", {})
            self.update("/cards/c", {})


@each_case(
    "remove",
    [
        lambda thread: thread.set_state({"cards": {}}),
        lambda thread: thread.set_state(lambda state: {"cards": {}}),
        lambda thread: thread.update("/cards", {"c": {}}),
        Archive.delete,
        Archive.replace_in_steps,
        lambda thread: thread.revert(1),
        lambda thread: thread.undo("server"),
    ],
)
async def test_a_hook_that_takes_the_state_before_sees_what_changes_however_it_is_written(remove: Any) -> None:
    async with open_house(Archive) as house:
        thread = await awake(house, Archive)
        await outcome(thread.update("/n", 1))
        await outcome(thread.add("b"))
        state = {"cards": {"a": {}, "b": {}}, "n": 1}
        Archive.told.clear()
        with pytest.raises(Reject, match="are archived"):
            await call(remove, thread)
        assert [before for before, _ in Archive.told] == [state]
        assert thread.state == state
        with thread.transaction():
            thread.update("/n", 2)
            thread.update("/n", 3)
        assert Archive.told[-1] == [state, ["/n"]]


async def test_a_hook_that_takes_the_operations_gets_those_of_each_change() -> None:
    Judge.told.clear()
    async with open_house(Judge) as house:
        client, thread = await house.join(Judge, "ada"), await awake(house, Judge)
        client.push({**thread.state, "n": 9})
        await outcome(thread.set_state(lambda state: {**state, "n": 1}))
        thread.update("/list", [1, {"a": 2}])
        with thread.transaction():
            thread.update("/n", 2)
            thread.update("/m", 3)
        with pytest.raises(Reject):
            thread.update("/secret", 1)
        assert [(source, [(op.op, op.path) for op in ops]) for source, ops in Judge.told] == [
            ("ada", [("replace", "/n")]),
            ("server", [("replace", "/n")]),
            ("server", [("add", "/list")]),
            ("server", [("add", "/n"), ("add", "/m")]),
            ("server", [("add", "/secret")]),
        ]
        assert Judge.told[2][1][0].value == [1, {"a": 2}, "mutated"]
        assert thread.state["list"] == [1, {"a": 2}]


# Update


async def test_an_update_sets_what_is_at_a_place_and_returns_its_version() -> None:
    async with open_house(Room, GameRoom) as house:
        room, game = await awake(house), await awake(house, GameRoom)
        assert await outcome(room.update("/list", [1])) == 1
        assert await outcome(room.update("/list/-", {"a": 2})) == 2
        assert await outcome(room.update("/list/1/a", 3)) == 3
        assert room.state == {"n": 0, "list": [1, {"a": 3}]}
        assert await outcome(game.update("/players/-", "Ada")) == 1
        assert await outcome(game.update("/players/0", "Bob")) == 2
        assert game.state == Game(0, ("Bob",))


async def test_an_update_is_refused_like_any_change() -> None:
    async with open_house(Room, GameRoom) as house:
        room, game = await awake(house), await awake(house, GameRoom)
        for thread, pointer, value, error in (
            (room, "/n", -1, Reject),
            (room, "/a/b", 1, Conflict),
            (room, "/a", object(), InvalidState),
            (game, "/score", "x", InvalidState),
            (game, "/players/5", "x", Conflict),
            (game, "", {"score": None}, InvalidState),
        ):
            before = thread.state
            with pytest.raises(error):
                thread.update(pointer, value)
            assert (thread.version, thread.state) == (0, before)


async def test_an_update_to_the_same_makes_a_typed_thread_no_version() -> None:
    async with open_house(GameRoom) as house:
        game = await awake(house, GameRoom)
        await outcome(game.set_state(Game(3)))
        assert await outcome(game.set_state(Game(3))) == 1


# History


async def test_history_tells_every_change_who_made_it_and_when() -> None:
    async with open_house(Room) as house:
        client, thread = await house.join(Room, "ada"), await awake(house)
        assert await thread.history() == []
        before = datetime.now(UTC)
        await outcome(thread.set_state({"n": 1}))
        client.transport.answer_ping()
        client.push({"n": 1, "m": [1]})
        async with thread.edit() as draft:
            draft.m.append(2)
        changes = await outcome(thread.history())
        assert [(each.version, each.source) for each in changes] == [(1, "server"), (2, "ada"), (3, "server")]
        assert changes[1].ops == [Op("add", "/m", [1])]
        state: Any = {"n": 0}
        for each in changes:
            state = apply(state, each.ops)
        assert state == thread.state == {"n": 1, "m": [1, 2]}
        for each in changes:
            assert before - timedelta(seconds=1) <= each.at <= datetime.now(UTC) + timedelta(seconds=1)


async def test_history_since_a_version_is_what_came_after_it() -> None:
    async with open_house(Room) as house:
        thread = await awake(house)
        for n in range(1, 6):
            await outcome(thread.set_state({"n": n}))
        assert [each.version for each in await thread.history(3)] == [4, 5]
        assert await thread.history(5) == []
        assert [each.version for each in await thread.history(0)] == [1, 2, 3, 4, 5]


async def test_history_has_no_more_changes_than_asked_for_the_first_after_a_version_or_the_last_of_all() -> None:
    async with open_house(Room) as house:
        thread = await awake(house)
        for n in range(1, 700):
            thread.set_state({"n": n})
        await outcome(thread.set_state({"n": 700}))
        for limit, since, versions in [
            (5, None, range(696, 701)),
            (600, None, range(101, 701)),
            (900, None, range(1, 701)),
            (0, None, range(0)),
            (5, 20, range(21, 26)),
            (600, 50, range(51, 651)),
            (5, 697, range(698, 701)),
        ]:
            found = await outcome(thread.history(since, limit=limit))
            assert [each.version for each in found] == list(versions)


class Forgetful(Room):
    retention = Retention(changes=100)


async def test_history_that_is_not_kept_is_not_found() -> None:
    async with open_house(Forgetful) as house:
        thread = await awake(house, Forgetful)
        for n in range(1, 1_001):
            await outcome(thread.set_state({"n": n}))
        kept = await outcome(thread.history())
        assert kept[-1].version == 1_000
        assert 100 <= len(kept) <= 500
        first = (await house.store.changes(thread._actor.key, after=0))[0].version
        assert first > 1
        assert [each.version for each in await thread.history(first - 1)] == list(range(first, 1_001))
        for version in (0, 500):
            with pytest.raises(NotFound, match=str(version)):
                await thread.history(version)
        for version in (0, first - 2):
            with pytest.raises(NotFound, match=str(version)):
                await thread.at(version)
        assert await thread.at(first - 1) == {"n": first - 1}


async def test_a_change_is_what_was_stored() -> None:
    row = ChangeRow(7, b'[{"op":"remove","path":"/a"}]', "undo 3 ada", 1_500_000)
    assert Change.of(row) == Change(7, [Op("remove", "/a")], "undo 3 ada", datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC))


# Earlier states


async def test_every_state_can_be_had_as_it_was() -> None:
    async with open_house(Room, GameRoom) as house:
        room, game = await awake(house), await awake(house, GameRoom)
        for n in range(1, 20):
            await outcome(room.set_state({"n": n, "list": [n] * n}))
            await outcome(game.set_state(Game(n, ("Ada",) * (n % 3))))
        for n in range(1, 20):
            assert await room.at(n) == {"n": n, "list": [n] * n}
            assert await game.at(n) == Game(n, ("Ada",) * (n % 3))
        assert await room.at(0) == {"n": 0}
        assert await game.at(0) == Game()
        for version in (-1, 20):
            with pytest.raises(NotFound):
                await room.at(version)


async def test_a_state_as_it_was_is_nobodys_but_the_callers() -> None:
    async with open_house(Room) as house:
        thread = await awake(house)
        await outcome(thread.set_state({"n": 1, "list": [1]}))
        for version in (0, 1):
            (await thread.at(version))["list"] = "changed"
        assert await thread.at(0) == {"n": 0}
        assert thread.state == await thread.at(1) == {"n": 1, "list": [1]}


async def test_to_revert_is_a_change_that_makes_the_state_what_it_was() -> None:
    async with open_house(Room, GameRoom) as house:
        client = await house.join(Room, "ada")
        room, game = await awake(house), await awake(house, GameRoom)
        for n in (1, 2, 3):
            await outcome(room.set_state({"n": n, "list": [n]}))
            await outcome(game.set_state(Game(n)))
        assert await outcome(room.revert(1)) == 4
        assert await outcome(game.revert(2)) == 4
        assert (room.state, game.state) == ({"n": 1, "list": [1]}, Game(2))
        assert [(await client.next())["state"]["n"] for _ in range(4)] == [1, 2, 3, 1]
        assert (await room.history())[-1].source == "server"
        assert await outcome(room.revert(3)) == 5
        assert room.state == {"n": 3, "list": [3]}
        assert await outcome(room.revert(5)) == 5
        with pytest.raises(NotFound):
            await room.revert(99)
        assert room.version == 5


class Untyped(Thread[Any]):
    kind = "game-room"
    initial_state = {"score": "none"}  # noqa: RUF012


async def test_a_version_that_is_of_another_type_can_be_told_from_one_that_is_not_kept() -> None:
    store = TroubledStore()
    async with open_house(Untyped, store=store) as house:
        await outcome((await awake(house, Untyped)).set_state({"score": 7, "players": []}))
    async with open_house(GameRoom, store=store) as house:
        game = await awake(house, GameRoom)
        assert await outcome(game.at(1)) == Game(7)
        for look in (game.at, game.revert):
            with pytest.raises(InvalidState, match="version 0 is of another type") as raised:
                await look(0)
            assert raised.value.path == "/score"
        assert (game.version, game.state) == (1, Game(7))


class Blank(Thread[dict[str, Any]]):
    pass


async def test_a_thread_without_a_state_was_not_there_at_version_0() -> None:
    async with open_house(Blank) as house:
        blank = await awake(house, Blank)
        for _ in range(2):
            with pytest.raises(NotFound):
                await blank.at(0)
            await outcome(blank.set_state({}))


class Reverting(Room):
    def should_be_readonly(self, connection: Connection, request: Any) -> bool:
        return True

    @rpc
    async def back(self, version: int) -> int:
        return await self.revert(version)


async def test_who_may_only_read_may_not_revert() -> None:
    async with open_house(Reverting) as house:
        reader = await house.join(Reverting, "a")
        await outcome(house.handle(Reverting).set_state({"n": 1}))
        assert (await reader.next())["type"] == "cf_agent_state"
        reader.call("1", "back", 0)
        answer = await reader.next()
        assert (answer["success"], answer["error"]) == (False, str(Readonly("Connection is readonly")))
        assert await house.handle(Reverting).back(0) == 2


class Filed(Room):
    values = Values()

    def should_be_readonly(self, connection: Connection, request: Any) -> bool:
        return True

    @rpc
    async def write(self, method: str, args: list[Any]) -> None:
        if method == "update":
            await self.values.update("n", lambda n: n + 1, 0)
        else:
            await getattr(self.values, method)(*args)


@each_case(
    ("method", "args"),
    [
        ("set", ["n", 1]),
        ("delete", ["old"]),
        ("clear", []),
        ("push", ["list", 1]),
        ("update", []),
        ("set_metadata", [{"a": 1}]),
    ],
)
async def test_who_may_only_read_may_not_write_values(method: str, args: list[Any]) -> None:
    async with open_house(Filed) as house:
        filed = house.handle(Filed)
        await filed.values.set("old", 0)
        reader = await house.join(Filed, "a")
        reader.call("1", "write", method, args)
        answer = await outcome(reader.next())
        assert (answer["success"], answer["error"]) == (False, str(Readonly("Connection is readonly")))
        assert (await filed.values.items(), await filed.values.metadata()) == ([("old", 0)], {})
        await filed.write(method, args)
        assert (await filed.values.items(), await filed.values.metadata()) != ([("old", 0)], {})


# Events


class Match(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(dict)
    events = {"goal": dict[str, str], "end": None}  # noqa: RUF012


class Guest:
    """A connection of the native protocol, as far as events go."""

    def __init__(self, actor: Any, id: str) -> None:
        self.transport = FakeTransport()
        self.connection = make_connection(actor, id, self.transport)
        actor.sockets.add(self.connection)


async def test_an_event_goes_to_everybody_but_those_left_out_and_not_to_clients_of_cloudflare() -> None:
    async with open_house(Match) as house:
        actor = await house.actor(Match)
        old = await house.join(Match, "old")
        a, b = Guest(actor, "a"), Guest(actor, "b")
        actor.thread.emit("goal", {"by": "Ada"}, without=[b.connection])
        actor.thread.emit("end")
        assert a.transport.sent == [
            {"type": "event", "name": "goal", "data": {"by": "Ada"}},
            {"type": "event", "name": "end", "data": None},
        ]
        assert b.transport.sent == a.transport.sent[1:]
        assert old.transport.take() == []
        actor.sockets.discard(a.connection)
        actor.sockets.discard(b.connection)


async def test_an_event_leaves_after_the_changes_before_it_and_not_at_all_if_they_failed() -> None:
    async with open_house(Match) as house:
        actor = await house.actor(Match)
        guest = Guest(actor, "a")
        house.store.is_held = True
        commit = actor.thread.set_state({"n": 1})
        actor.thread.emit("goal", {"by": "Ada"})
        assert guest.transport.sent == []
        house.store.resume()
        await outcome(commit)
        assert [each["name"] for each in guest.transport.sent] == ["goal"]
        house.store.fail_next()
        lost = actor.thread.set_state({"n": 2})
        actor.thread.emit("end")
        with pytest.raises(Exception, match="full"):
            await outcome(lost)
        assert len(guest.transport.sent) == 1
        actor.sockets.discard(guest.connection)


async def test_a_thread_that_names_its_events_emits_no_others() -> None:
    async with open_house(Match, Room) as house:
        match, room = await awake(house, Match), await awake(house)
        with pytest.raises(ValueError, match=r"'gaol' is not one of the events of Match: goal, end"):
            match.emit("gaol")
        room.emit("anything", 5)
        unnamed: Any = None
        with pytest.raises(TypeError, match="the name of an event must be a str, not None"):
            room.emit(unnamed, {"x": 1})


async def test_a_broadcast_goes_to_clients_of_both_protocols_in_their_own_form() -> None:
    async with open_house(Match) as house:
        actor = await house.actor(Match)
        old, guest = await house.join(Match, "old"), Guest(actor, "a")
        for data in ("text", {"n": 1}, b"\x00"):
            actor.thread.broadcast(data)
        assert old.transport.take() == ["text", {"n": 1}, b"\x00"]
        assert guest.transport.sent == [
            {"type": "message", "data": "text"},
            {"type": "message", "data": {"n": 1}},
            b"\x00",
        ]
        actor.sockets.discard(guest.connection)
