"""A large state that is changed in place."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec
import pytest
from tests.cases import each_case
from tests.server.rooms import House, open_house

from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Conflict, InvalidState, Readonly, Reject, StoreError, TooLarge, Unavailable
from plait.limits import Limits
from plait_schemas.patch import decode_ops

PATIENCE = 10.0


class Board(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"title": "x" * 200, "cards": [{"n": 0}, {"n": 1}], "votes": {}})

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if isinstance(next_state, dict) and next_state.get("title") == "bad":
            raise Reject("a bad title", path="/title")


class Player(msgspec.Struct, frozen=True):
    name: str
    score: int = 0


class Game(msgspec.Struct, frozen=True, rename="camel"):
    all_players: tuple[Player, ...] = (Player("Ada"),)
    status: str = "waiting"
    by_name: dict[str, list[int]] = {}


class GameRoom(Thread[Game]):
    initial_state = Game()


class Sparse(msgspec.Struct, frozen=True, omit_defaults=True):
    players: tuple[Player, ...] = ()
    score: int = 0


class SparseRoom(Thread[Sparse]):
    initial_state = Sparse((Player("Bob"), Player("Ada", 3)))


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def board(house: House) -> Any:
    return (await house.actor(Board)).thread


def operations(house: House) -> list[tuple[str, str]]:
    """Return what was last written."""
    (row,) = house.store.submitted[-1].changes
    return [(op.op, op.path) for op in decode_ops(row.ops)]


# One change


async def test_all_that_is_done_in_the_block_is_one_change_of_what_was_touched() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with thread.edit() as draft:
            draft["cards"][1]["n"] = 5
            draft["cards"].append({"n": 2})
            draft["votes"]["ada"] = 1
            assert thread.version == 0
            assert thread.state["votes"] == {}
        assert thread.version == 1
        assert thread.state["cards"] == [{"n": 0}, {"n": 5}, {"n": 2}]
        assert thread.state["votes"] == {"ada": 1}
        assert operations(house) == [("replace", "/cards/1/n"), ("add", "/cards/2"), ("add", "/votes/ada")]
        (row,) = house.store.submitted[-1].changes
        assert row.source == "server"
        await outcome(thread.set_state(thread.state))


async def test_members_are_attributes_and_arrays_are_lists() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with thread.edit() as draft:
            draft.title = draft.title.upper()
            draft.cards[0].n += 1
            draft.cards += [{"n": 7}]
            draft.cards.sort(key=lambda card: -card.n)
            del draft.votes
            for card in draft.cards:
                card.seen = True
        assert thread.state == {"title": "X" * 200, "cards": [{"n": n, "seen": True} for n in (7, 1, 1)]}


async def test_a_block_that_raises_changes_nothing() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        before = thread.state
        with pytest.raises(LookupError), thread.edit() as draft:  # noqa: PT012
            draft.title = "half"
            draft.cards.clear()
            raise LookupError
        with pytest.raises(LookupError):  # noqa: PT012
            async with thread.edit() as draft:
                draft.title = "half"
                raise LookupError
        assert (thread.version, thread.state) == (0, before)
        assert house.store.submitted == []


async def test_a_draft_changes_nothing_after_its_block_and_says_so() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with thread.edit() as left:
            card = left.cards[0]
            card.n = 1
        with contextlib.suppress(LookupError), thread.edit() as raised:
            raise LookupError
        async with thread.edit() as waited:
            waited.cards[0].n += 1
        changes: list[Callable[[], object]] = [
            lambda: setattr(card, "n", 7),
            lambda: left.cards.append({}),
            lambda: raised.update(title="late"),
            lambda: setattr(waited, "title", "late"),
        ]
        for change in changes:
            with pytest.raises(RuntimeError, match="has ended"):
                change()
        assert (thread.version, thread.state["cards"][0]) == (2, {"n": 2})


async def test_an_edit_is_for_one_block() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        edit = thread.edit()
        with edit as draft:
            draft.title = "kept"
            with pytest.raises(RuntimeError, match="already used"):
                edit.__enter__()
        with pytest.raises(RuntimeError, match="already used"):
            await edit.__aenter__()
        assert (thread.version, thread.state["title"]) == (1, "kept")


@each_case("number", [math.nan, math.inf])
async def test_a_number_that_json_does_not_have_is_refused_with_its_place(number: float) -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        for is_awaited in (False, True):
            with pytest.raises(InvalidState, match="infinite or not a number") as refused:  # noqa: PT012
                if is_awaited:
                    async with thread.edit() as draft:
                        draft.cards[1].n = [number]
                else:
                    with thread.edit() as draft:
                        draft.title = "half"
                        draft.cards[1].n = [number]
            assert refused.value.path == "/cards/1/n/0"
        assert thread.version == 0
        assert thread.state["title"] != "half"


async def test_a_block_in_which_nothing_is_done_makes_no_version() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        async with thread.edit() as draft:
            assert draft.cards[0].n == 0
            draft.cards[0].n = 0
        assert thread.version == 0
        assert house.store.submitted == []


async def test_everybody_is_told_of_the_change() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "a")
        async with (await board(house)).edit() as draft:
            draft.clear()
            draft.n = 1
        assert await client.next() == {"type": "cf_agent_state", "state": {"n": 1}}


@each_case("is_async", [False, True])
async def test_leaving_the_block_waits_for_the_disk_where_it_can(is_async: bool) -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.is_held = True

        async def change() -> Any:
            edit = thread.edit()
            if is_async:
                async with edit as draft:
                    draft.title = "new"
            else:
                with edit as draft:
                    draft.title = "new"
            return edit.commit

        task = asyncio.create_task(change())
        while not house.store.submitted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert task.done() is not is_async
        house.store.resume()
        commit = await outcome(task)
        assert await outcome(commit) == 1


async def test_a_change_that_could_not_be_stored_is_told_where_it_was_waited_for() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.fail_next()
        with pytest.raises(StoreError, match="full"):
            async with thread.edit() as draft:
                draft.title = "new"
        assert thread.version == 0
        assert thread.state["title"] == "x" * 200


# What is refused


async def test_what_is_refused_is_raised_where_the_block_is_left_and_changes_nothing() -> None:
    async with open_house(Board, GameRoom, limits=Limits(state=1_000, depth=5)) as house:
        thread = await board(house)
        before = thread.state
        with pytest.raises(Reject), thread.edit() as draft:
            draft.title = "bad"
        with pytest.raises(TooLarge), thread.edit() as draft:
            draft.title = "x" * 2_000
        with pytest.raises(TooLarge), thread.edit() as draft:
            draft.votes.deep = [[[[[]]]]]
        with pytest.raises(TypeError), thread.edit() as draft:
            draft.votes.strange = object()
        assert (thread.version, thread.state) == (0, before)
        game: Any = (await house.actor(GameRoom)).thread
        with pytest.raises(InvalidState) as caught, game.edit() as draft:
            draft.allPlayers[0].score = "many"
        assert caught.value.path == "/allPlayers/0/score"
        with pytest.raises(InvalidState), game.edit() as draft:
            draft.allPlayers.append({"score": 1})
        assert game.state == Game()


async def test_a_state_that_has_nothing_to_change_in_place_is_refused() -> None:
    class Number(Thread[Any]):
        pass

    async with open_house(Number) as house:
        thread: Any = (await house.actor(Number)).thread
        for value in (None, 5):
            if value is not None:
                await outcome(thread.set_state(value))
            with pytest.raises(TypeError, match="edited in place"), thread.edit():
                pass


async def test_a_thread_that_was_stopped_takes_no_edit() -> None:
    async with open_house(Board) as house:
        actor = await house.actor(Board)
        await outcome(actor.stop())
        with pytest.raises(Unavailable), actor.thread.edit() as draft:
            draft.title = "late"


class Guarded(Board):
    tried: ClassVar[list[str]]

    def should_be_readonly(self, connection: Connection, request: Any) -> bool:
        return connection.id == "reader"

    @rpc
    async def rename(self, title: str) -> None:
        self.tried.append(title)
        async with self.edit() as draft:
            draft.title = title

    @rpc
    async def put(self, pointer: str, value: Any) -> int:
        return await self.update(pointer, value)


async def test_what_a_readonly_client_asked_for_may_not_edit_and_what_others_ask_for_may() -> None:
    Guarded.tried = []
    async with open_house(Guarded) as house:
        reader, writer = await house.join(Guarded, "reader"), await house.join(Guarded, "writer")
        for method, args in (("rename", ["a"]), ("put", ["/title", "b"])):
            reader.call("1", method, *args)
            answer = await reader.next()
            assert (answer["success"], answer["error"]) == (False, str(Readonly("Connection is readonly")))
        writer.call("2", "rename", "c")
        assert (await writer.next())["state"]["title"] == "c"
        assert (await writer.next())["success"] is True
        writer.call("3", "put", "/title", "d")
        assert (await writer.next())["state"]["title"] == "d"
        assert (await writer.next())["result"] == 2
        assert Guarded.tried == ["a", "c"]


# Typed states


async def test_a_typed_state_is_edited_by_the_names_that_it_has_in_json() -> None:
    async with open_house(GameRoom) as house:
        thread: Any = (await house.actor(GameRoom)).thread
        before = thread.state
        with thread.edit() as draft:
            draft.allPlayers[0].score += 2
            draft.allPlayers.insert(0, Player("Bob"))
            draft.status = "playing"
        assert thread.state == Game((Player("Bob"), Player("Ada", 2)), "playing")
        assert before == Game()
        with thread.edit() as draft:
            draft.byName.ada = [1]
            draft.byName.ada.append(2)
        assert thread.state.by_name == {"ada": [1, 2]}
        assert before.by_name == {}
        stored = await outcome(thread.set_state(thread.state))
        assert stored == 2
        assert [await thread.at(version) for version in range(3)] == [
            Game(),
            Game((Player("Bob"), Player("Ada", 2)), "playing"),
            thread.state,
        ]


async def test_a_typed_state_that_leaves_out_defaults_is_edited_too() -> None:
    async with open_house(SparseRoom) as house:
        thread: Any = (await house.actor(SparseRoom)).thread
        with thread.edit() as draft:
            draft.players.sort(key=lambda player: player.name)
            draft.players[0].score += 1
            draft.score = 7
        assert thread.state == Sparse((Player("Ada", 4), Player("Bob")), 7)
        with thread.edit() as draft:
            del draft.score
            draft.players.pop()
        assert thread.state == Sparse((Player("Ada", 4),))
        await outcome(thread.set_state(thread.state))
        assert await thread.at(1) == Sparse((Player("Ada", 4), Player("Bob")), 7)


# Changes during a block


async def test_what_others_change_while_the_block_waits_is_kept() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        async with thread.edit() as draft:
            draft.cards[1].n = 9
            draft.cards.append({"n": "last"})
            await outcome(thread.set_state(lambda s: {**s, "cards": [{"n": "first"}, *s["cards"]], "title": "theirs"}))
            draft.votes.mine = 1
            thread.update("/votes/theirs", 2)
        assert thread.state == {
            "title": "theirs",
            "cards": [{"n": "first"}, {"n": 0}, {"n": 9}, {"n": "last"}],
            "votes": {"mine": 1, "theirs": 2},
        }
        assert thread.version == 3


async def test_of_two_who_change_the_same_place_the_one_who_leaves_last_wins() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        async with thread.edit() as first:
            first.title = "first"
            async with thread.edit() as second:
                second.title = "second"
                second.votes.second = 1
            assert thread.state["title"] == "second"
            first.votes.first = 1
        assert thread.state["title"] == "first"
        assert thread.state["votes"] == {"first": 1, "second": 1}


async def test_an_edit_of_what_is_gone_meanwhile_is_a_conflict_and_changes_nothing() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with pytest.raises(Conflict, match="no longer exists"):  # noqa: PT012
            async with thread.edit() as draft:
                draft.title = "mine"
                draft.cards[1].n = 5
                await outcome(thread.set_state(lambda s: {**s, "cards": s["cards"][:1]}))
        assert thread.version == 1
        assert (thread.state["title"], thread.state["cards"]) == ("x" * 200, [{"n": 0}])


async def test_a_block_may_wait_while_as_much_is_changed_as_is_remembered() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        async with thread.edit() as draft:
            draft.cards[0].n = -1
            for n in range(250):
                await outcome(thread.update("/votes/n", n))
        assert thread.state["cards"][0]["n"] == -1
        assert thread.state["votes"] == {"n": 249}


@each_case("is_durable", [False, True])
async def test_a_block_that_waits_while_more_is_changed_than_is_in_memory_is_rebased_over_it(
    is_durable: bool,
) -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        commit = thread.update("/votes/n", -1)
        if is_durable:
            await outcome(commit)
        async with thread.edit() as draft:
            draft.cards[1].n = -1
            await outcome(thread.update("/text", "x" * 100_000))
            await outcome(thread.update("/cards/-", {"n": 9}))
            with thread.edit() as other:
                other.cards.insert(0, {"n": 7})
            for n in range(300):
                await outcome(thread.update("/votes/n", n))
        assert [card["n"] for card in thread.state["cards"]][:3] == [7, 0, -1]
        assert thread.state["votes"] == {"n": 299}
        assert thread.version == 305


async def test_a_plain_block_that_waits_while_more_is_changed_than_is_in_memory_is_refused() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with pytest.raises(Conflict, match="too often"):  # noqa: PT012, SIM117
            with thread.edit() as draft:
                draft.cards[0].n = -1
                for n in range(300):
                    await outcome(thread.update("/votes/n", n))
        assert thread.state["cards"][0]["n"] == 0
        assert thread.version == 300


async def test_a_block_that_would_be_rebased_over_too_much_is_refused() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        await outcome(thread.update("/text", "x" * 100_000))
        with pytest.raises(Conflict, match="too many changes"):  # noqa: PT012
            async with thread.edit() as draft:
                for n in range(300):
                    draft.votes[f"mine {n}"] = n
                async with thread.edit() as other:
                    for n in range(300):
                        other.votes[f"theirs {n}"] = n
        assert len(thread.state["votes"]) == 300


async def test_an_edit_of_a_state_that_was_taken_back_meanwhile_is_a_conflict() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.is_held = True
        lost = thread.set_state(lambda s: {**s, "cards": [{"n": "lost"}, *s["cards"]]})
        with pytest.raises(Conflict, match="could not be stored"):  # noqa: PT012
            async with thread.edit() as draft:
                draft.cards[0].n = "on what is lost"
                house.store.fail_next()
                house.store.resume()
                with pytest.raises(StoreError):
                    await outcome(lost)
                await outcome(thread.update("/votes/other", 1))
        assert thread.version == 1
        assert thread.state["cards"] == [{"n": 0}, {"n": 1}]


async def test_an_edit_of_a_state_that_becomes_durable_meanwhile_is_kept() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.is_held = True
        first = thread.set_state(lambda s: {**s, "cards": [{"n": "first"}, *s["cards"]]})
        async with thread.edit() as draft:
            draft.cards[0].n = "edited"
            house.store.resume()
            await outcome(first)
            await outcome(thread.update("/votes/other", 1))
        assert thread.state["cards"] == [{"n": "edited"}, {"n": 0}, {"n": 1}]


async def test_an_edit_is_kept_whose_state_becomes_durable_and_is_then_forgotten() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.is_held = True
        first = thread.set_state(lambda s: {**s, "cards": [{"n": "first"}, *s["cards"]]})
        async with thread.edit() as draft:
            draft.cards[0].n = "edited"
            house.store.resume()
            await outcome(first)
            (await house.actor(Board)).state.history.forget()
            await outcome(thread.update("/votes/other", 1))
        assert thread.state["cards"] == [{"n": "edited"}, {"n": 0}, {"n": 1}]


async def test_a_change_in_place_of_the_state_is_none_of_the_edits() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        thread.state["cards"].append("in place")
        async with thread.edit() as draft:
            assert len(draft.cards) == 2
            draft.title = "new"
        assert len(thread.state["cards"]) == 2
        assert len((await house.handle(Board).state())["cards"]) == 2


async def test_an_edit_is_brought_past_a_large_part_that_the_same_transaction_has_set() -> None:
    async with open_house(Board) as house:
        handle = house.handle(Board)
        numbers = list(range(20_000))
        actor = await house.actor(Board)
        thread = actor.thread
        with thread.transaction(), thread.edit() as draft:
            thread.set_state({"title": "", "cards": [], "votes": {}, "numbers": numbers})
            draft["title"] = "edited"
        assert await handle.state() == {"title": "edited", "cards": [], "votes": {}, "numbers": numbers}


@each_case("use", ["attribute", "item", "read", "read item"])
async def test_an_edit_outside_of_its_block_says_how_it_is_used(use: str) -> None:
    async with open_house(Board) as house:
        edit: Any = (await house.actor(Board)).thread.edit()
        with pytest.raises((AttributeError, TypeError), match="change the draft of its block"):  # noqa: PT012
            match use:
                case "attribute":
                    edit.title = "new"
                case "item":
                    edit["title"] = "new"
                case "read":
                    edit.title  # noqa: B018
                case _:
                    edit["title"]


async def test_a_function_that_returns_none_is_told_to_return_the_next_state() -> None:
    async with open_house(Board) as house:
        thread: Any = (await house.actor(Board)).thread
        with pytest.raises(InvalidState, match="a function that is passed to `set_state` must return it"):
            thread.set_state(lambda state: state.update(title="new"))
        assert thread.state["title"] == "x" * 200
