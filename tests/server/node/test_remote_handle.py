"""Handles to threads that another node owns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.server.nodes import Nodes, open_nodes

from plait import (
    CallFailed,
    InvalidArguments,
    Messages,
    MethodNotFound,
    NotFound,
    Plait,
    Reject,
    Terminated,
    Thread,
    TooMany,
    rpc,
)

PATIENCE = 20.0


class Game(msgspec.Struct, frozen=True):
    score: int = 0


class Room(Thread[Game]):
    initial_state = Game()
    messages = Messages()

    @rpc(name="addScore")
    def add_score(self, n: int, *, twice: bool = False) -> int:
        self.set_state(lambda state: msgspec.structs.replace(state, score=state.score + n * (1 + twice)))
        return self.state.score

    @rpc(name="forHandles", clients=False)
    def for_handles(self) -> str:
        return "called"

    @rpc
    def whole(self, change: Game) -> Game:
        self.set_state(change)
        return self.state

    @rpc
    def echo(self, value: Any) -> Any:
        return value

    @rpc
    def wrong(self) -> int:
        return "not a number"  # type: ignore[return-value]

    @rpc
    def unsendable(self) -> Any:
        return self

    @rpc
    def fail(self, how: str) -> None:
        match how:
            case "reject":
                raise Reject("no", path="/score")
            case "many":
                raise TooMany("slow down", retry_after=2.5, limit="waiting_turns")
            case "key":
                raise KeyError("missing")
            case "own":
                raise OwnError("my own")

    @rpc
    async def count(self, to: int) -> AsyncIterator[Game]:
        for n in range(to):
            self.reached = n
            yield Game(n)

    @rpc
    def reached_so_far(self) -> int:
        return self.reached

    reached = -1


class OwnError(Exception):
    pass


def make() -> Plait:
    return Plait(Room, store="memory://")


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(make) as opened:
        yield opened


async def test_an_rpc_for_handles_only_is_called_at_the_owner(nodes: Nodes) -> None:
    room = nodes.handle(Room, 1)
    assert await room.for_handles() == await room.call("forHandles") == "called"


async def test_a_call_is_done_by_the_owner(nodes: Nodes) -> None:
    room = nodes.handle(Room, 1)
    assert await room.add_score(2) == 2
    assert await room.add_score(n=1, twice=True) == 4
    assert await room.call("addScore", 1) == 5
    assert await room.whole(Game(7)) == Game(7)
    assert [actor.key.name for actor in nodes.apps[1]._node.actors] == [room.name]
    assert nodes.apps[0]._node.actors == []
    assert nodes.sent > 0


@pytest.mark.parametrize("value", [None, 10**400, -1.5, "é😀", [1, {"a": None}], "x" * 1_000_000])
async def test_values_travel_as_json(nodes: Nodes, value: Any) -> None:
    assert await nodes.handle(Room, 1).echo(value) == value


async def test_arguments_are_checked_by_their_annotations(nodes: Nodes) -> None:
    room = nodes.handle(Room, 1)
    with pytest.raises(InvalidArguments) as found:
        await room.whole({"score": "x"})
    assert found.value.path == "/change/score"
    with pytest.raises(TypeError, match="argument 1 of echo cannot be sent"):
        await room.echo(lambda: None)
    with pytest.raises(ValueError, match="argument 1 of echo cannot be sent"):
        await room.echo(float("nan"))
    with pytest.raises(MethodNotFound):
        await room.call("missing")


async def test_a_result_that_cannot_travel_is_an_error(nodes: Nodes) -> None:
    with pytest.raises(TypeError, match="the result of unsendable cannot be sent"):
        await nodes.handle(Room, 1).unsendable()
    with pytest.raises(TypeError, match="wrong has returned a value that does not fit its annotation"):
        await nodes.handle(Room, 1).wrong()


async def test_errors_arrive_as_what_they_were(nodes: Nodes) -> None:
    room = nodes.handle(Room, 1)
    with pytest.raises(Reject, match="no") as rejected:
        await room.fail("reject")
    assert rejected.value.path == "/score"
    with pytest.raises(TooMany) as many:
        await room.fail("many")
    assert (many.value.retry_after, many.value.limit) == (2.5, "waiting_turns")
    with pytest.raises(KeyError) as key:
        await room.fail("key")
    assert key.value.args == ("missing",)
    with pytest.raises(CallFailed, match="internal error") as failed:
        await room.fail("own")
    assert failed.value.detail == "OwnError: my own"


async def test_no_function_of_the_state_loses_a_change_of_another_node(nodes: Nodes) -> None:
    def add(state: Game) -> Game:
        return Game(state.score + 1)

    handles = [nodes.handle(Room, 1, at=at) for at in (0, 1)]
    await asyncio.gather(*(handle.set_state(add) for handle in handles for _ in range(20)))
    assert await handles[0].state() == Game(40)


async def test_a_streaming_rpc_waits_for_its_reader(nodes: Nodes) -> None:
    room, found = nodes.handle(Room, 1), []
    async for each in room.count(100):
        found.append(each.score)
        if len(found) == 3:
            # Calls come after the chunks on the link, so nothing is on its way.
            reached = [await room.reached_so_far() for _ in range(20)][-1]
            assert 3 <= reached <= 3 + 16 + 1
    assert found == [*range(100)]


async def test_a_thread_is_terminated_and_destroyed(nodes: Nodes) -> None:
    room = nodes.handle(Room, 1)
    with pytest.raises(NotFound):
        await room.terminate()
    await room.add_score(1)
    await room.terminate()
    with pytest.raises(Terminated):
        await room.messages.queue("hello")
    await room.destroy()
    assert await room.state() == Game(0)
    with pytest.raises(NotFound):
        await nodes.apps[0].destroy("nothing", nodes.name_of("nothing", 1))
