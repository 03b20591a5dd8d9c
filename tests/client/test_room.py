"""Changing and waiting, as the author of a program sees it, against a real socket."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.client.serving import TIMEOUT, Server

from plait_client import Refused, Room, connect, connect_sync
from plait_schemas import messages
from plait_schemas.patch import Op, splice

T = TypeVar("T")


class Note(msgspec.Struct, frozen=True):
    n: int = 0
    tags: frozenset[str] = frozenset()


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, within a timeout."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


def pushed(server: Server) -> list[Op]:
    """Return all operations that have come."""
    return [op for push in server.frames(messages.Push) for op in push.ops]


# A client's type


@pytest.mark.parametrize("change", [lambda note: replace(note, n=2), Note(2, frozenset("abc"))])
async def test_what_the_clients_type_does_not_see_or_sees_in_another_order_is_left_alone(
    server: Server, change: Any
) -> None:
    server.peer.state = {"n": 1, "tags": ["c", "a", "b"], "note": "precious"}
    async with connect(server.url, state_type=Note) as room:
        await soon(room.set(change))
    assert server.peer.state == {"n": 2, "tags": ["c", "a", "b"], "note": "precious"}
    assert pushed(server) == [Op("replace", "/n", 2)]


async def test_what_is_put_into_a_set_or_taken_out_leaves_the_other_elements_alone(server: Server) -> None:
    server.peer.state = {"n": 1, "tags": ["c", "a", "b"]}
    async with connect(server.url, state_type=Note) as room:
        await soon(room.set(lambda note: replace(note, tags=note.tags - {"a"})))
        await soon(room.set(lambda note: replace(note, tags=note.tags - {"c"} | {"d", "e"})))
    assert pushed(server) == [
        Op("remove", "/tags/1"),
        Op("remove", "/tags/0"),
        Op("add", "/tags/0", "d"),
        Op("add", "/tags/2", "e"),
    ]


async def test_a_state_that_is_not_of_the_clients_type_may_be_set_to_one_that_is(server: Server) -> None:
    server.peer.state = {"n": "one", "tags": 5, "note": 1}
    async with connect(server.url, state_type=Note) as room:
        room.update("/n", 1)
        await soon(room.set(Note(2)))
        assert room.state == Note(2)
    assert server.peer.state == {"n": 2, "tags": []}


async def test_what_the_clients_type_refuses_is_shown_to_nobody(server: Server) -> None:
    async with connect(server.url, state_type=Note) as room:
        refusals: asyncio.Queue[Any] = asyncio.Queue()
        room.on_refused(refusals.put_nowait)
        waiting = asyncio.create_task(room.wait_for(lambda note: note.n == 10))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match=r"Expected `int`, got `str` - at `\$\.n` \(invalid_state\)") as caught:
            await soon(room.update("/n", "a typo in a form"))
        assert await soon(refusals.get()) is caught.value
        with pytest.raises(Refused, match="invalid_state"):
            async with room.edit() as draft:
                draft.tags = 5
        await soon(room.update("/n", 10))
        assert (await soon(waiting)).n == 10
    assert pushed(server) == [Op("replace", "/n", 10)]


# States that were changed in place


class Mutable(msgspec.Struct):
    n: int = 0
    tags: list[str] = []


async def test_what_is_changed_in_place_in_what_was_read_spoils_nothing_and_is_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server.url) as room:
        changes = room.changes()
        room.state["tags"].append("mine")
        room.confirmed["by"]["ada"] = 1
        server.peer.change([Op("add", "/tags/-", {"deep": []})])
        change = await soon(anext(changes))
        change.state["tags"].append("mine")
        change.ops[0].value["deep"].append("mine")
        assert room.state == room.confirmed == server.peer.state == {"n": 1, "tags": ["a", {"deep": []}], "by": {}}
        await soon(room.update("/n", 3))
        assert room.state == server.peer.state
    assert [record.getMessage().split()[0] for record in caplog.records] == ["'/tags/1'", "'/by/ada'"]


@pytest.mark.parametrize("state_type", [Any, Mutable])
async def test_a_function_may_change_in_place_what_it_is_given(server: Server, state_type: Any) -> None:
    def change(state: Any) -> Any:
        (state["tags"] if isinstance(state, dict) else state.tags).append("b")
        return state

    async with connect(server.url, state_type=state_type) as room:
        before = room.state
        await soon(room.set(change))
        assert room.state != before
    assert server.peer.state == {"n": 1, "tags": ["a", "b"], "by": {}}
    assert pushed(server) == [Op("add", "/tags/1", "b")]


@pytest.mark.parametrize("state_type", [Any, Mutable])
async def test_a_state_that_was_read_changed_in_place_and_set_is_sent(
    server: Server, state_type: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server.url, state_type=state_type) as room:
        state = room.state
        (state["tags"] if isinstance(state, dict) else state.tags).append("b")
        await soon(room.set(state))
        assert room.state == state
    assert pushed(server) == [Op("add", "/tags/1", "b")]
    assert caplog.records == []


# Changes inside changes


@pytest.mark.parametrize("state_type", [dict, Note])
async def test_what_is_changed_inside_the_function_is_kept(server: Server, state_type: Any) -> None:
    server.peer.state = {"n": 1, "tags": ["a"]}
    async with connect(server.url, state_type=state_type) as room:

        def change(state: Any) -> Any:
            room.update("/tags/-", "b")
            with room.edit() as draft:
                draft["tags"].append("c")
            return {**state, "n": 2} if isinstance(state, dict) else replace(state, n=2)

        await soon(room.set(change))
    assert server.peer.state == {"n": 2, "tags": ["a", "b", "c"]}


async def test_an_edit_has_one_block(server: Server) -> None:
    async with connect(server.url) as room:
        edit = room.edit()
        async with edit as draft:
            draft["tags"].append("first")
        with pytest.raises(RuntimeError, match="one block"):
            edit.__enter__()
        with pytest.raises(RuntimeError, match="one block"):
            await edit.__aenter__()
    assert server.peer.state["tags"] == ["a", "first"]


async def test_an_edit_of_what_is_gone_is_told_like_any_refusal(server: Server) -> None:
    server.peer.state = {"by": {"ada": []}}
    async with connect(server.url) as room:
        refusals: asyncio.Queue[Any] = asyncio.Queue()
        room.on_refused(refusals.put_nowait)
        edit = room.edit()
        draft = edit.__enter__()
        draft["by"]["ada"].append(1)
        server.peer.change([Op("remove", "/by/ada")])
        await soon(room.wait_for(lambda state: not state["by"]))
        with pytest.raises(Refused, match="no longer exists") as caught:
            edit.__exit__(None, None, None)
        assert await soon(refusals.get()) is caught.value


# What is no JSON


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_what_is_not_a_number_of_json_is_refused_where_it_is_said(server: Server, number: float) -> None:
    async with connect(server.url) as room:
        says: list[Callable[[], object]] = [
            lambda: room.update("/n", number),
            lambda: room.set({"n": [number]}),
            lambda: room.set(lambda state: {**state, "n": {number}}),
            lambda: _edited(room, number),
            lambda: room.send({"n": number}),
            lambda: room.set_presence((None, number)),
        ]
        for say in says:
            with pytest.raises(ValueError, match="infinite or not a number"):
                say()
        for call in (room.call("add", number), room.call("add", n=number), anext(room.stream("count", number))):
            with pytest.raises(ValueError, match="infinite or not a number"):
                await call
        await soon(room.update("/tags", None))
        assert room.pending == 0
    assert [type(frame) for frame in server.received] == [messages.Join, messages.Push]


def _edited(room: Room[Any], number: float) -> None:
    with room.edit() as draft:
        draft["n"] = number


# Waiting


async def test_waiting_asks_only_about_a_state_that_there_is(server: Server) -> None:
    server.peer.state = None
    async with connect(server.url) as room:
        waiting = asyncio.create_task(room.wait_for(lambda state: len(state["players"]) == 2))
        await asyncio.sleep(0)
        await soon(room.set({"n": 1, "players": []}))
        await soon(room.update("/players", ["Ada", "Grace"]))
        assert await soon(waiting) == {"n": 1, "players": ["Ada", "Grace"]}


async def test_waiting_looks_past_a_state_that_a_change_without_an_answer_makes_one_of_another_type(
    server: Server,
) -> None:
    class Pair(msgspec.Struct):
        n: int
        tags: Annotated[list[str], msgspec.Meta(max_length=2)]

    server.is_holding = True
    async with connect(server.url, state_type=Pair) as room:
        changes = room.changes()
        with room.edit() as draft:
            draft["n"] = -1
            draft["tags"].append("b")
        waiting = asyncio.create_task(room.wait_for(lambda state: state.tags == ["x", "a"]))
        server.peer.change([Op("add", "/tags/0", "x")])
        await soon(anext(changes))
        with pytest.raises(msgspec.ValidationError):
            _ = room.state
        server.release()
        assert (await soon(waiting)).n == 1


def test_waiting_without_asyncio_asks_only_about_a_state_that_there_is(other_server: Server) -> None:
    other_server.peer.state = None
    with connect_sync(other_server.url) as room, pytest.raises(TimeoutError):
        room.wait_for(lambda state: len(state["players"]) == 2, timeout=0.01)


# Texts


async def test_what_is_done_in_a_text_is_sent_as_splices(server: Server) -> None:
    server.peer.state = {"note": "hello", "status": "doing", "n": 0}
    server.peer.texts = ["/note"]
    async with connect(server.url) as room:
        await soon(room.append("/note", " 😀"))
        await soon(room.splice("/note", 6, 1, "you"))
        await soon(room.update("/note", "Hello you"))
        await soon(room.set(lambda state: {**state, "note": "Hello, you", "status": "done"}))
        with room.edit() as draft:
            draft.note += "!"
            draft.splice("note", 0, 1, "J")
        assert room.state == {"note": "Jello, you!", "status": "done", "n": 0}
        await soon(room.append("/note", ""))
    assert pushed(server) == [
        splice("/note", 5, 0, " 😀"),
        Op("splice", "/note", at=6, remove=1, insert="you", own=True),
        splice("/note", 0, 1, "H"),
        splice("/note", 5, 0, ","),
        Op("replace", "/status", "done"),
        splice("/note", 10, 0, "!"),
        splice("/note", 0, 1, "J"),
    ]
    assert server.peer.state == {"note": "Jello, you!", "status": "done", "n": 0}


async def test_an_edit_merges_with_what_was_done_in_the_same_string_while_its_block_was_open(server: Server) -> None:
    server.peer.state = {"note": "abcdef", "n": 0}
    async with connect(server.url) as room:
        with room.edit() as draft:
            room.splice("/note", 1, 0, "X")
            room.splice("/note", 5, 0, "Y")
            draft.splice("note", 3, 0, "!")
        assert room.state == {"note": "aXbc!dYef", "n": 0}
    assert server.peer.state == {"note": "aXbc!dYef", "n": 0}


async def test_what_does_not_fit_a_text_is_refused_where_it_is_made(server: Server) -> None:
    server.peer.state = {"note": "hello", "n": 1}
    async with connect(server.url) as room:
        for pointer, at, remove in (("/note", 6, 0), ("/note", -1, 0), ("/note", 4, 2), ("/n", 0, 0), ("/x", 0, 0)):
            with pytest.raises(ValueError, match=pointer):
                room.splice(pointer, at, remove, "x")
        with pytest.raises(ValueError, match="surrogate"):
            room.append("/note", "\ud83d")
        await soon(room.append("/note", "!"))
    assert pushed(server) == [splice("/note", 5, 0, "!")]


async def test_a_text_is_changed_without_asyncio_too(server: Server) -> None:
    server.peer.state = {"note": "hello", "n": 0}

    def work() -> None:
        with connect_sync(server.url) as room:
            assert room.append("/note", " you") == 1
            assert room.splice("/note", 0, 1, "J") == 2
            with room.edit() as draft:
                draft.splice("note", 5, 4)
            assert room.state == {"note": "Jello", "n": 0}

    await soon(asyncio.to_thread(work))
