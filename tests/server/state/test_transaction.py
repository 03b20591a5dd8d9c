"""Changes that are made together, or not at all."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.rooms import House, open_house
from tests.server.session.guests import until

from plait.actor.connection import Source
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import Conflict, Reject, StoreError
from plait.state.commit import Commit
from plait.store.thread_rows import Record
from plait_schemas.patch import decode_ops

PATIENCE = 10.0


class Board(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0, "cards": [{"id": "a"}, {"id": "b"}]})

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.told: list[Any] = []

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        self.asked.append(next_state)
        if next_state["n"] < 0:
            raise Reject("n cannot be negative", path="/n")

    def on_state_changed(self, state: Any, source: Source) -> None:
        self.told.append(state)

    @rpc
    async def wait_inside(self) -> None:
        with self.transaction():
            self.update("/n", 7)
            await asyncio.sleep(0)
            self.update("/n", 8)

    @rpc
    async def await_inside(self) -> None:
        with self.transaction():
            await self.update("/n", 7)

    @rpc
    def leave_open(self) -> int:
        self.transaction().__enter__()
        self.update("/n", 7)
        return 7

    @rpc
    def add(self) -> int:
        with self.transaction():
            self.set_state(lambda state: {**state, "n": state["n"] + 1})
            self.broadcast({"is": "added"})
        return int(self.state["n"])

    @rpc
    def send_and_fail(self) -> None:
        with self.transaction():
            self.update("/n", 7)
            self.broadcast({"is": "a lie"})
            raise Reject("no")

    @rpc
    async def stream_some(self, stream: Stream) -> None:
        stream.send("before")
        with contextlib.suppress(ZeroDivisionError), self.transaction():
            stream.send("inside")
            raise ZeroDivisionError
        stream.send("after")


class Bare(Thread[Any]):
    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state is None:
            raise TypeError("there is no state")


class Score(msgspec.Struct, frozen=True):
    points: int = 0
    log: tuple[str, ...] = ()


class ScoreRoom(Thread[Score]):
    initial_state = Score()


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def board(house: House) -> Any:
    return (await house.actor(Board)).thread


def operations(house: House) -> list[list[tuple[str, str]]]:
    """Return the operations of each change that was written."""
    rows = [row for write in house.store.submitted for row in write.changes]
    return [[(op.op, op.path) for op in decode_ops(row.ops)] for row in rows]


async def test_all_that_a_block_does_is_one_write_one_version_and_one_frame() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        thread = await board(house)
        with thread.transaction() as transaction:
            thread.update("/n", 1)
            thread.set_state(lambda state: {**state, "title": "sprint"})
            with thread.edit() as draft:
                draft.cards.append({"id": "c"})
        assert thread.version == 1
        assert await outcome(transaction.commit) == 1
        assert operations(house) == [[("add", "/n"), ("add", "/title"), ("add", "/cards/2")]]
        frame = await outcome(client.next())
        assert frame["state"] == {"n": 1, "cards": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "title": "sprint"}
        await until(lambda: thread.told == [frame["state"]])
        assert thread.asked == [frame["state"]]


async def test_inside_one_reads_what_was_done_and_nobody_else_sees_a_step_of_it() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        actor = await house.actor(Board)
        with thread.transaction():
            for n in range(1, 4):
                thread.set_state(lambda state: {**state, "n": state["n"] + 1})
                assert thread.state["n"] == n
                assert actor.state.history.current.state["n"] == 0
        assert thread.state["n"] == 3
        assert operations(house) == [[("replace", "/n")]]


@each_case("is_last", [True, False])
async def test_when_it_raises_everything_is_as_before(is_last: bool) -> None:
    async with open_house(Board, ScoreRoom) as house:
        client = await house.join(Board, "ada")
        thread = await board(house)
        inner: list[Commit] = []

        def change() -> None:
            with thread.transaction():
                thread.state["n"] = 99
                inner.append(thread.update("/n", -1))
                if not is_last:
                    raise Reject("no")

        with pytest.raises(Reject):
            change()
        assert thread.state["n"] == 0
        assert thread.version == 0
        with pytest.raises(StoreError, match="the transaction was rolled back"):
            await outcome(inner[0])
        assert operations(house) == []
        await outcome(thread.update("/n", 5))
        assert (await outcome(client.next()))["state"]["n"] == 5


async def test_a_typed_state_is_as_before_too() -> None:
    async with open_house(ScoreRoom) as house:
        thread: Any = (await house.actor(ScoreRoom)).thread
        with contextlib.suppress(ZeroDivisionError), thread.transaction():
            thread.set_state(Score(1))
            thread.set_state(lambda score: msgspec.structs.replace(score, log=("one",)))
            assert thread.state == Score(1, ("one",))
            raise ZeroDivisionError
        assert thread.state == Score()
        with thread.transaction():
            thread.set_state(Score(1))
            thread.set_state(lambda score: msgspec.structs.replace(score, log=("one",)))
        assert thread.state == Score(1, ("one",))
        assert operations(house) == [[("replace", "/points"), ("add", "/log/0")]]


async def test_a_nested_one_joins_the_outer_and_takes_back_its_own_part_alone() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        kept: list[Commit] = []
        lost: list[Commit] = []
        async with thread.transaction():
            thread.update("/n", 1)
            with contextlib.suppress(ZeroDivisionError), thread.transaction():
                lost.append(thread.update("/n", 2))
                raise ZeroDivisionError
            assert thread.state["n"] == 1
            with thread.transaction() as inner:
                kept.append(thread.update("/title", "x"))
        assert inner.commit is not None
        assert [await outcome(commit) for commit in (*kept, inner.commit)] == [1, 1]
        with pytest.raises(StoreError, match="rolled back"):
            await outcome(lost[0])
        assert thread.state == {"n": 1, "cards": [{"id": "a"}, {"id": "b"}], "title": "x"}
        assert len(operations(house)) == 1


async def test_a_block_that_changes_nothing_makes_no_version() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        async with thread.transaction() as transaction:
            thread.set_state(thread.state)
        assert transaction.commit.version == 0
        assert operations(house) == []


@pytest.mark.parametrize("method", ["wait_inside", "await_inside"])
async def test_a_transaction_that_awaits_is_rolled_back_with_an_error(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        with pytest.raises(RuntimeError, match="its block awaited something"):
            await outcome(house.handle(Board).call(method))
        thread = await board(house)
        assert thread.state["n"] == 0
        client.push({**thread.state, "n": 3})
        await until(lambda: thread.told == [{**thread.state, "n": 3}])
        assert "a transaction was rolled back" in caplog.text


async def test_what_others_push_while_a_transaction_wrongly_waits_is_kept() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        thread = await board(house)
        go_on = asyncio.Event()

        async def wait() -> None:
            with thread.transaction():
                thread.update("/n", 7)
                await go_on.wait()
                thread.update("/n", 8)

        task = asyncio.create_task(wait())
        asyncio.get_running_loop().call_soon(client.push, {"n": 3, "cards": []})
        await until(lambda: thread.told == [{"n": 3, "cards": []}])
        go_on.set()
        with pytest.raises(RuntimeError, match="its block awaited something"):
            await outcome(task)
        assert thread.state == {"n": 3, "cards": []}


async def test_a_push_at_the_very_moment_when_a_transaction_awaits_is_not_part_of_it() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        thread = await board(house)

        async def wait() -> None:
            asyncio.get_running_loop().call_soon(client.push, {"n": 3, "cards": []})
            with thread.transaction():
                thread.update("/n", 7)
                await asyncio.sleep(0)

        with pytest.raises(RuntimeError, match="its block awaited something"):
            await outcome(wait())
        await until(lambda: thread.told == [{"n": 3, "cards": []}])


async def test_a_transaction_that_is_never_left_is_rolled_back_and_does_not_hold_up_the_next_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(Board) as house:
        room: Any = house.handle(Board)
        left, added = asyncio.create_task(room.leave_open()), asyncio.create_task(room.add())
        with pytest.raises(StoreError, match="rolled back"):
            await outcome(left)
        assert await outcome(added) == 1
        assert "or was never left" in caplog.text


async def test_messages_of_a_block_follow_its_change_and_are_dropped_when_it_raises() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        room: Any = house.handle(Board)
        with pytest.raises(Reject):
            await outcome(room.send_and_fail())
        await outcome(room.add())
        assert (await outcome(client.next()))["state"]["n"] == 1
        assert await outcome(client.next()) == {"is": "added"}


async def test_a_value_that_is_set_in_a_loop_is_sent_once_and_inserted_elements_all_are() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with thread.transaction():
            for n in range(5):
                thread.update("/n", n)
                thread.update("/n", n * 2)
            for id in "cde":
                thread.update("/cards/-", {"id": id})
            for title in ("x", "y"):
                thread.update("/cards/0/title", title)
        assert thread.state["n"] == 8
        assert [card["id"] for card in thread.state["cards"]] == list("abcde")
        assert operations(house) == [[("add", "/n"), *[("add", "/cards/-")] * 3, ("add", "/cards/0/title")]]


async def test_records_of_a_block_are_stored_with_its_change_or_not_at_all() -> None:
    async with open_house(Board) as house:
        actor = await house.actor(Board)
        thread: Any = actor.thread
        with contextlib.suppress(ZeroDivisionError), thread.transaction():
            actor.state.store([Record("values", "a", b"0")])
            raise ZeroDivisionError
        async with thread.transaction():
            actor.state.store([Record("values", "a", b"1"), Record("values", "b", b"1")])
            thread.update("/n", 1)
            actor.state.store([Record("values", "a", b"2")])
        write = house.store.submitted[-1]
        assert (len(write.changes), write.version) == (1, 1)
        assert write.records == [Record("values", "a", b"2"), Record("values", "b", b"1")]
        async with thread.transaction() as transaction:
            actor.state.store([Record("values", "a", b"3")])
        assert transaction.commit.version == 1
        assert (house.store.submitted[-1].changes, house.store.submitted[-1].version) == ((), 1)
        assert await house.store.record(actor.key, "values", "a") == b"3"


async def test_when_the_change_cannot_be_stored_all_who_wait_for_a_part_of_it_are_told() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        house.store.fail_next()
        with thread.transaction():
            first, second = thread.update("/n", 1), thread.update("/title", "x")
        for commit in (first, second):
            with pytest.raises(StoreError, match="the disk is full"):
                await outcome(commit)
        assert thread.state == {"n": 0, "cards": [{"id": "a"}, {"id": "b"}]}


async def test_an_edit_around_changes_of_the_same_block_hits_its_elements() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with thread.transaction():
            thread.update("/n", 1)
            with thread.edit() as draft:
                draft.cards[1].title = "second"
                thread.set_state(lambda state: {**state, "cards": [{"id": "new"}, *state["cards"]]})
        assert thread.state["cards"] == [{"id": "new"}, {"id": "a"}, {"id": "b", "title": "second"}]
        with thread.edit() as draft, thread.transaction():
            draft.cards[0].title = "first"
            thread.set_state(lambda state: {**state, "cards": state["cards"][:2]})
            thread.update("/n", 2)
            with pytest.raises(Conflict):
                thread.update("/nowhere/1", 1)
        cards = [{"id": "new", "title": "first"}, {"id": "a"}]
        assert thread.state == {"n": 2, "cards": cards}


async def test_it_can_be_entered_once() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        transaction = thread.transaction()
        with transaction:
            pass
        with pytest.raises(RuntimeError, match="already used"), transaction:
            pass


async def test_an_undo_inside_is_refused_as_it_is_a_change_of_its_own() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        await outcome(thread.update("/n", 1))

        async def undo_inside() -> None:
            with thread.transaction():
                await thread.undo("server")

        with pytest.raises(RuntimeError):
            await outcome(undo_inside())
        assert thread.state["n"] == 1


async def test_a_nested_one_that_is_left_after_the_outer_one_changes_nothing_any_more() -> None:
    async with open_house(Board) as house:
        thread = await board(house)

        def deal() -> Iterator[None]:
            with thread.transaction():
                thread.update("/n", 1)
                yield

        for ending in ("finished", "closed"):
            hand = deal()
            with thread.transaction() as outer:
                next(hand)
            if ending == "finished":
                with pytest.raises(RuntimeError, match="left after its outer transaction"):
                    next(hand)
            else:
                hand.close()  # type: ignore[attr-defined]
            assert await outcome(outer.commit) == thread.version
            await outcome(thread.update("/n", 0))
        assert thread.version == 4


async def test_what_a_block_sends_after_it_was_rolled_back_is_dropped_like_what_it_sent_before() -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "ada")
        thread = await board(house)

        async def announce() -> None:
            with thread.transaction():
                thread.update("/n", 7)
                thread.broadcast({"n will be": 7})
                await asyncio.sleep(0)
                thread.broadcast({"n is": 7})

        with pytest.raises(RuntimeError, match="its block awaited something"):
            await outcome(announce())
        thread.broadcast({"n is still": 0})
        assert await outcome(client.next()) == {"n is still": 0}


async def test_a_task_that_was_begun_in_a_block_that_was_rolled_back_may_change_the_state_later() -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        go_on = asyncio.Event()

        async def change() -> int:
            await go_on.wait()
            return int(await thread.update("/n", 3))

        async def begin() -> asyncio.Task[int]:
            task: asyncio.Task[int] | None = None
            with contextlib.suppress(RuntimeError), thread.transaction():
                task = asyncio.create_task(change())
                await asyncio.sleep(0)
            assert task is not None
            return task

        task = await outcome(begin())
        go_on.set()
        assert await outcome(task) == 1


async def test_a_block_that_leaves_the_state_alone_is_not_validated() -> None:
    async with open_house(Bare) as house:
        actor = await house.actor(Bare)
        thread: Any = actor.thread
        async with thread.transaction():
            pass
        async with thread.transaction():
            actor.state.store([Record("values", "a", b"1")])
        assert await house.store.record(actor.key, "values", "a") == b"1"


async def test_one_that_cannot_be_entered_leaves_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(Board) as house:
        thread = await board(house)
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(thread.transaction().__enter__)
        assert await outcome(thread.update("/n", 1)) == 1
        assert caplog.text == ""


async def test_chunks_of_a_block_that_raises_are_dropped_and_the_stream_goes_on() -> None:
    async with open_house(Board) as house:
        chunks = [chunk async for chunk in house.handle(Board).stream_some()]
        assert chunks == ["before", "after"]


async def test_those_of_two_threads_are_separate() -> None:
    async with open_house(Board) as house:
        one, two = [(await house.actor(Board, name)).thread for name in ("one", "two")]
        thread: Any = one
        other: Any = two
        with thread.transaction():
            thread.update("/n", 1)
            with contextlib.suppress(ZeroDivisionError), other.transaction():
                other.update("/n", 2)
                thread.update("/title", "x")
                raise ZeroDivisionError
            assert other.state["n"] == 0
        assert thread.state == {"n": 1, "cards": [{"id": "a"}, {"id": "b"}], "title": "x"}


# A block is a list of steps: numbers to add, and inner blocks, with whether they raise.
BLOCKS = st.recursive(
    st.integers(1, 9), lambda inner: st.tuples(st.lists(inner, max_size=4), st.booleans()), max_leaves=20
)


class Undone(Exception):
    pass


def carry_out(thread: Any, block: Any) -> None:
    if isinstance(block, int):
        thread.set_state(lambda score: msgspec.structs.replace(score, points=score.points + block))
        return
    steps, raises = block
    with contextlib.suppress(Undone), thread.transaction():
        for step in steps:
            carry_out(thread, step)
        if raises:
            raise Undone


def total(block: Any) -> int:
    if isinstance(block, int):
        return block
    steps, raises = block
    return 0 if raises else sum(map(total, steps))


@given(st.lists(st.tuples(st.lists(BLOCKS, max_size=4), st.booleans()), max_size=5))
def test_whatever_is_nested_and_raises_the_state_is_that_of_what_was_kept(blocks: list[Any]) -> None:
    async def run() -> None:
        async with open_house(ScoreRoom) as house:
            thread: Any = (await house.actor(ScoreRoom)).thread
            kept = 0
            for block in blocks:
                before = thread.version
                carry_out(thread, block)
                kept += total(block)
                assert thread.state.points == kept
                assert thread.version == before + bool(total(block))
            actor = await house.actor(ScoreRoom)
            await actor.state.wait_until_durable()
            stored = await house.node.actor(actor.key)
            assert stored.state.history.durable.state.points == kept

    asyncio.run(run())


async def test_what_is_called_when_a_block_is_left_adds_records_to_its_write() -> None:
    async with open_house(Board) as house:
        thread, seen = await board(house), list[Any]()

        def leave() -> list[Record]:
            seen.append(list(thread.asked))
            return [Record("parts", "a", b"left"), Record("parts", "b", b"left")]

        with thread.transaction() as transaction:
            transaction.leaving.append(leave)
            thread._actor.records.write([Record("parts", "a", b"step"), Record("parts", "c", b"step")])
            with thread.transaction():
                thread.update("/n", 7)
            assert seen == []
        assert [[each["n"] for each in asked] for asked in seen] == [[7]]
        (write,) = house.store.submitted
        assert {record.key: record.value for record in write.records} == {"a": b"left", "b": b"left", "c": b"step"}
        with thread.transaction() as transaction:
            transaction.leaving.append(leave)
        assert len(house.store.submitted) == 2


@each_case("n", [-1, 1])
async def test_a_block_that_is_refused_or_cannot_be_left_is_undone(n: int) -> None:
    async with open_house(Board) as house:
        thread, called = await board(house), list[int]()

        def fail() -> list[Record]:
            called.append(n)
            raise ZeroDivisionError

        def change() -> None:
            with thread.transaction() as transaction:
                transaction.leaving.append(fail)
                commit = thread._actor.records.write([Record("parts", "a", b"lost")], undo=lambda: called.append(0))
                assert commit is not None
                thread.update("/n", n)

        with pytest.raises(Reject if n < 0 else ZeroDivisionError):
            change()
        assert called == ([0] if n < 0 else [1, 0])
        assert (thread.state["n"], thread.version, house.store.submitted) == (0, 0, [])
        await outcome(thread.update("/n", 5))


async def test_a_block_that_was_broken_for_a_reason_raises_it_although_that_was_caught() -> None:
    async with open_house(Board) as house:
        thread = await board(house)

        def change() -> None:
            with thread.transaction() as transaction:
                thread.update("/n", 7)
                transaction.break_(LookupError("gone"))
                assert thread.state["n"] == 0
                with pytest.raises(LookupError, match="gone"):
                    thread.update("/n", 8)

        with pytest.raises(LookupError, match="gone"):
            change()
        assert (thread.state["n"], house.store.submitted) == (0, [])
