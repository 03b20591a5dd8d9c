"""A thread as other server code sees it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.server.rooms import open_house

from plait.actor.current import current
from plait.actor.handle import Handle
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import CallFailed, Forbidden, InvalidArguments, InvalidState, MethodNotFound, Reject, StoreError
from plait.limits import DEFAULT_LIMITS
from plait.state.principal import Principal
from plait_schemas.patch import Op

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


class Game(msgspec.Struct, frozen=True):
    score: int = 0
    log: str = ""


class Room(Thread[Game]):
    initial_state = Game()

    def validate_state_change(self, next_state: Game, source: Any) -> None:
        if next_state.score < 0:
            raise Reject("score cannot be negative", path="/score")

    @rpc(name="addScore")
    def add_score(self, n: int, *, twice: bool = False) -> int:
        self.set_state(lambda state: Game(state.score + n * (1 + twice)))
        return self.state.score

    @rpc
    async def fail(self) -> None:
        raise LookupError("my own error")

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n
        if to > 3:
            raise LookupError("too many")

    @rpc
    async def by_hand(self, stream: Stream, *, error: str | None = None) -> None:
        stream.send("chunk")
        if error is not None:
            stream.error(error)
        else:
            stream.end("last")

    @rpc
    async def endless(self) -> AsyncIterator[int]:
        n = 0
        try:
            while True:
                yield n
                n += 1
        finally:
            self.ended.set()

    def on_start(self) -> None:
        self.ended = asyncio.Event()

    def hidden(self) -> None:
        pass


async def test_a_handle_has_the_rpcs_of_the_thread_as_its_methods() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        assert await outcome(handle.add_score(2)) == 2
        assert await outcome(handle.add_score(n=1, twice=True)) == 4
        assert await outcome(handle.call("addScore", 1)) == 5
        assert handle.name == "one"
        assert "room/one" in repr(handle)


async def test_a_method_that_is_no_rpc_is_not_there() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        for name in ("hidden", "missing", "addScore", "_actor"):
            with pytest.raises(AttributeError, match=name):
                getattr(handle, name)
        for name in ("hidden", "missing", "add_score"):
            with pytest.raises(MethodNotFound, match=name):
                await handle.call(name)


async def test_a_call_raises_what_the_rpc_raised() -> None:
    async with open_house(Room) as house:
        with pytest.raises(LookupError, match="my own error"):
            await outcome(house.handle(Room).fail())
        with pytest.raises(InvalidArguments, match="'n' is missing"):
            await outcome(house.handle(Room).add_score())


async def test_the_state_is_read_and_set_with_its_type() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        assert await handle.state() == Game(0)
        assert await handle.set_state(Game(3)) == 1
        assert await handle.set_state(lambda state: Game(state.score + 1)) == 2
        assert await handle.state() == Game(4)
        with pytest.raises(InvalidState):
            await handle.set_state({"score": "x"})
        with pytest.raises(Reject) as rejected:
            await handle.set_state(Game(-1))
        assert rejected.value.path == "/score"
        assert await handle.append("/log", "abc") == 3
        assert await handle.splice("/log", 1, 1, "xx") == 4
        assert await handle.state() == Game(4, "axxc")


async def test_the_state_is_told_when_it_is_durable() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        await handle.state()
        house.store.is_held = True
        change = asyncio.create_task(handle.set_state(Game(1)))
        await asyncio.sleep(0)
        look = asyncio.create_task(handle.state())
        await asyncio.sleep(0)
        assert not look.done()
        house.store.resume()
        assert await outcome(look) == Game(1)
        assert await outcome(change) == 1


async def test_a_state_that_could_not_be_stored_is_told_to_nobody() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        await handle.state()
        house.store.is_held = True
        change = asyncio.create_task(handle.set_state(Game(1)))
        await asyncio.sleep(0)
        look = asyncio.create_task(handle.state())
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        for task in (change, look):
            with pytest.raises(StoreError):
                await outcome(task)
        assert await handle.state() == Game(0)


async def test_what_a_caller_does_to_the_state_it_was_told_is_its_own_affair() -> None:
    class Plain(Thread[dict[str, Any]]):
        initial_state = {"list": []}  # noqa: RUF012

    async with open_house(Plain) as house:
        handle = house.handle(Plain)
        (await handle.state())["list"].append(1)
        assert await handle.state() == {"list": []}
        await handle.set_state(lambda state: {**state, "n": 1})
        assert await handle.state() == {"list": [], "n": 1}


async def test_a_handle_may_be_kept_and_used_by_many() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        results = await outcome(asyncio.gather(*(handle.add_score(1) for _ in range(20))))
        assert results == list(range(1, 21))


# Streams


async def test_a_streamed_rpc_is_an_iterator_of_its_chunks() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        assert [n async for n in handle.count(3)] == [0, 1, 2]
        assert await handle.call("count", 3) == [0, 1, 2]


async def test_a_stream_that_fails_raises_after_its_chunks() -> None:
    async with open_house(Room) as house:
        stream = house.handle(Room).count(4)
        assert [await outcome(anext(stream)) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(LookupError, match="too many"):
            await outcome(anext(stream))


async def test_a_stream_by_hand_has_its_chunks_and_its_error() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        assert [chunk async for chunk in handle.by_hand()] == await handle.call("by_hand") == ["chunk"]
        with pytest.raises(CallFailed, match="no more"):
            _ = [chunk async for chunk in handle.by_hand(error="no more")]
        with pytest.raises(CallFailed, match="no more"):
            await handle.call("by_hand", error="no more")


async def test_a_stream_that_nobody_reads_any_more_is_ended() -> None:
    async with open_house(Room) as house:
        thread: Any = (await house.actor(Room)).thread
        stream = house.handle(Room).endless()
        assert [await outcome(anext(stream)) for _ in range(3)] == [0, 1, 2]
        await stream.aclose()
        await outcome(thread.ended.wait())
        assert await house.handle(Room).state() == Game(0)


class Source(Thread[int]):
    """Streams numbers, and takes its time to end."""

    initial_state = 0

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        try:
            for self.made in range(1, to + 1):
                yield self.made
        finally:
            await asyncio.sleep(0)
            self.ended_in = current().thread
            self.set_state(-1)


async def test_a_generator_whose_reader_has_gone_ends_in_its_turn() -> None:
    async with open_house(Source) as house:
        actor = await house.actor(Source)
        thread: Any = actor.thread
        stream = house.handle(Source).count(10_000)
        assert await outcome(anext(stream)) == 1
        await stream.aclose()
        await outcome(actor.wait_until_idle())
        assert thread.ended_in is thread
        assert thread.state == -1


async def test_a_generator_that_sends_what_is_no_chunk_ends_in_its_turn() -> None:
    async with open_house(Source) as house:
        actor = await house.actor(Source)
        thread: Any = actor.thread

        def refuse(what: object, value: object) -> Any:
            raise TypeError("not JSON")

        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        actor.turns.call(actor.kind.methods["count"], ([3], {}), make_resolver(ended), sink=refuse)
        with pytest.raises(TypeError, match="not JSON"):
            await outcome(ended)
        assert thread.ended_in is thread


async def test_a_generator_waits_for_a_reader_who_is_slow() -> None:
    async with open_house(Source) as house:
        thread: Any = (await house.actor(Source)).thread
        stream = house.handle(Source).count(200)
        for n in range(1, 201):
            assert await outcome(anext(stream)) == n
            for _ in range(100):
                await asyncio.sleep(0)
            assert thread.made <= n + 20
        assert [n async for n in stream] == []


async def test_a_generator_waits_for_a_reader_while_its_chunks_wait_for_the_disk() -> None:
    class Storing(Thread[int]):
        initial_state = 0

        @rpc
        async def count(self) -> AsyncIterator[int]:
            for n in range(200):
                self.set_state(n + 1)
                yield n

    async with open_house(Storing) as house:
        await house.actor(Storing)
        house.store.is_held = True
        stream = house.handle(Storing).count()
        first = asyncio.create_task(anext(stream))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert 1 < len(house.store.submitted) < 30
        house.store.resume()
        assert [await outcome(first), *[n async for n in stream]] == list(range(200))


class ByHand(Thread[None]):
    """Sends numbers until it cannot."""

    @rpc
    async def talk(self, stream: Stream, *, waits: bool, insists: bool = False) -> None:
        for self.made in range(100_000):
            try:
                stream.send("x" * 90)
            except CallFailed:
                if not insists:
                    raise
                return
            if waits:
                await asyncio.sleep(0)


SMALL = msgspec.structs.replace(DEFAULT_LIMITS, write_buffer=1000)


@each_case("insists", [False, True])
async def test_a_stream_by_hand_ends_when_more_waits_than_the_write_buffer_holds(insists: bool) -> None:
    async with open_house(ByHand, limits=SMALL) as house:
        stream = house.handle(ByHand).talk(waits=False, insists=insists)
        assert [await outcome(anext(stream)) for _ in range(10)] == ["x" * 90] * 10
        with pytest.raises(CallFailed, match="too slow"):
            await outcome(anext(stream))
        thread: Any = (await house.actor(ByHand)).thread
        assert thread.made == 10


async def test_a_stream_by_hand_goes_on_while_its_reader_keeps_up() -> None:
    async with open_house(ByHand, limits=SMALL) as house:
        stream = house.handle(ByHand).talk(waits=True)
        for _ in range(2000):
            await outcome(anext(stream))
        await stream.aclose()


# By the functions of the class


class Loud(Room):
    """Replaces an rpc of the class that it derives from."""

    @rpc(name="addScore")
    def add_score(self, n: int, *, twice: bool = False) -> int:
        return -n

    @rpc
    def take(self, games: list[Game]) -> list[Game]:
        return games

    @rpc
    def wrong(self) -> int:
        return "not a number"  # type: ignore[return-value]

    @rpc
    def unsendable(self) -> Any:
        return self

    @rpc
    async def wrong_chunk(self) -> AsyncIterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]


async def test_an_rpc_is_called_by_its_function() -> None:
    async with open_house(Room) as house:
        handle: Handle[Room] = house.handle(Room)
        assert await handle.call(Room.add_score, 2) == 2
        assert await handle.call(Room.add_score, n=1, twice=True) == 4
        assert await handle.call(Room.count, 3) == [0, 1, 2]
        assert await handle.call(Room.by_hand) == ["chunk"]
        assert [n async for n in handle.stream(Room.count, 3)] == [0, 1, 2]
        assert [n async for n in handle.stream("count", 3)] == [0, 1, 2]
        assert [chunk async for chunk in handle.stream(Room.by_hand)] == ["chunk"]


async def test_the_function_of_a_class_calls_what_a_subclass_has_in_its_place() -> None:
    async with open_house(Loud) as house:
        handle: Handle[Loud] = house.handle(Loud)
        assert await handle.call(Room.add_score, 2) == await handle.call(Loud.add_score, 2) == -2


async def test_a_function_that_is_no_rpc_of_the_class_is_refused() -> None:
    async with open_house(Room, Loud) as house:
        handle = house.handle(Room)
        for function in (Loud.take, Room.hidden, len):
            with pytest.raises(MethodNotFound, match=rf"{function.__qualname__} is not an rpc of Room"):
                await handle.call(function)
        with pytest.raises(TypeError, match="addScore of Room does not stream: use `call`"):
            handle.stream(Room.add_score, 1)


async def test_a_wrong_name_is_told_with_the_one_that_was_meant() -> None:
    async with open_house(Room) as house:
        handle = house.handle(Room)
        for name, meant in (("ad_score", "add_score"), ("set_sate", "set_state"), ("spice", "splice")):
            with pytest.raises(AttributeError, match=rf"Room has no rpc '{name}'; did you mean {meant}\?"):
                getattr(handle, name)
        with pytest.raises(MethodNotFound, match=r"Method cuont does not exist; did you mean count\?"):
            await handle.call("cuont")


async def test_what_works_only_inside_of_a_thread_says_to_call_an_rpc() -> None:
    async with open_house(Room) as house:
        for name in ("edit", "transaction", "emit", "hidden"):
            with pytest.raises(
                AttributeError, match=f"Room.{name} can only be used inside of the thread: `call` an rpc"
            ):
                getattr(house.handle(Room), name)


# Values cross as JSON


async def test_arguments_and_results_are_of_the_types_of_their_annotations() -> None:
    async with open_house(Loud) as house:
        handle = house.handle(Loud)
        assert await handle.call(Loud.take, [{"score": 1}, Game(2)]) == [Game(1), Game(2)]
        for name in ("addScore", "take"):
            with pytest.raises(InvalidArguments, match=r"Expected `(int|array)`, got `str`"):
                await handle.call(name, "x")
        with pytest.raises(InvalidArguments):
            _ = [n async for n in handle.count("x")]


async def test_what_is_not_json_is_refused() -> None:
    async with open_house(Loud) as house:
        handle = house.handle(Loud)
        with pytest.raises(TypeError, match="argument 1 of take cannot be sent, as it is not JSON: a function"):
            await handle.call(Loud.take, len)
        with pytest.raises(TypeError, match="the result of unsendable cannot be sent"):
            await handle.call(Loud.unsendable)
        with pytest.raises(TypeError, match="wrong has returned a value that does not fit its annotation"):
            await handle.call(Loud.wrong)
        stream = handle.stream(Loud.wrong_chunk)
        assert await anext(stream) == 1
        with pytest.raises(TypeError, match="does not fit its annotation"):
            await anext(stream)


async def test_an_argument_is_not_shared_with_the_thread() -> None:
    class Shelf(Thread[None]):
        @rpc
        def keep(self, books: list[str]) -> list[str]:
            self.books = books
            return books

    async with open_house(Shelf) as house:
        given = ["a"]
        kept = await house.handle(Shelf).keep(given)
        given.append("b")
        kept.append("c")
        thread: Any = (await house.actor(Shelf)).thread
        assert thread.books == ["a"]


# The state and its history


class Board(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"note": "", "users": {}})
    can_write = ("/users/{user}",)


class Author:
    """A connection, as far as undos know it."""

    id = "server"
    trace: object = None

    def __init__(self, user: str | None) -> None:
        self.user, self.principal = user, None if user is None else Principal(user)


async def test_an_undo_for_a_connection_is_bound_by_its_permissions() -> None:
    async with open_house(Board) as house:
        handle: Handle[Any] = house.handle(Board)
        await handle.update("/note", "a")
        for user in ("ada", None):
            with pytest.raises(Forbidden):
                await handle.undo(Author(user))  # type: ignore[arg-type]
        await handle.update("/users/ada", 1)
        assert await handle.undo(Author("ada")) == 3  # type: ignore[arg-type]
        assert await handle.undo("server") == 4
        assert await handle.state() == {"note": "", "users": {}}


async def test_the_state_is_updated_and_undone_and_its_history_read() -> None:
    async with open_house(Room) as house:
        handle: Handle[Room] = house.handle(Room)
        assert await handle.update("/score", 5) == 1
        assert await handle.update("/log", "a") == 2
        assert await handle.undo("server") == 3
        assert await handle.undo("another") is None
        assert await handle.state() == Game(5)
        changes = await handle.history()
        assert [(change.version, change.source) for change in changes] == [
            (1, "server"),
            (2, "server"),
            (3, "undo 2 server"),
        ]
        assert changes[0].ops == [Op("add", "/score", 5)]
        assert await handle.history(1, limit=1) == changes[1:2]
        with pytest.raises(InvalidState, match="no field 'nothing'"):
            await handle.update("/nothing", 1)


async def test_reading_the_history_begins_no_thread() -> None:
    async with open_house(Room) as house:
        handle: Handle[Room] = house.handle(Room)
        assert await handle.history() == []
        assert house.store.submitted == []
