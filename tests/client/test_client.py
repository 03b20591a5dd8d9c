"""The asyncio client against a real socket."""

import asyncio
import gc
import ssl
import threading
from collections.abc import Awaitable
from contextlib import aclosing
from http import HTTPStatus
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pytest
from tests.cases import each_case
from tests.client.serving import TIMEOUT, Server, serve
from tests.ports import hold_port

from plait_client import (
    CallError,
    ClientError,
    Closed,
    Disconnected,
    Refused,
    TooLarge,
    Unanswered,
    connect,
    connect_sync,
)
from plait_client.keepalive import Backoff
from plait_schemas import messages
from plait_schemas.patch import Op, PatchError

T = TypeVar("T")


class Note(msgspec.Struct, frozen=True):
    n: int = 0
    tags: tuple[str, ...] = ()
    by: dict[str, int] = {}


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, within a timeout."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


# Joining


async def test_entering_waits_for_the_state(server: Server) -> None:
    async with connect(server.url) as room:
        assert room.state == {"n": 1, "tags": ["a"], "by": {}}
        assert room.confirmed == room.state
        assert (room.epoch, room.version, room.status, room.readonly) == ("e", 0, "online", False)
        assert (room.connection, room.thread, room.pending) == ("s1", "note/a", 0)


async def test_the_state_is_of_the_type_of_the_server_and_made_once(server: Server) -> None:
    async with connect(server.url, state_type=Note) as room:
        assert room.state == Note(1, ("a",))
        assert room.state is room.state


async def test_a_state_of_another_type_is_told_where_it_is_read(server: Server) -> None:
    async with connect(server.url, state_type=int) as room:
        with pytest.raises(msgspec.ValidationError):
            _ = room.state


async def test_the_server_learns_who_the_client_is(server: Server) -> None:
    async with connect(server.url, client="me", schema="9c41", token="secret"):
        assert server.received == [messages.Join("me", None, "9c41", "secret")]


async def test_nothing_is_left_behind(server: Server) -> None:
    before = asyncio.all_tasks()
    async with connect(server.url) as room:
        await room.set({"n": 2})
    await server.until(lambda: server.sockets == 0)
    assert {task for task in asyncio.all_tasks() - before if task.get_name().startswith("plait")} == set()
    assert room.status == "closed"


async def test_what_was_changed_last_is_sent_before_the_end(server: Server) -> None:
    async with connect(server.url) as room:
        room.update("/n", 2)
    await server.until(lambda: server.sockets == 0)
    assert server.peer.state["n"] == 2


# Leaving


async def test_leaving_sends_all_that_is_waiting_and_brings_its_answers(server: Server) -> None:
    server.peer.hasty, server.peer.retry_after = 1, 0.05
    async with connect(server.url) as room:
        pushes = [room.update("/tags/-", str(n)) for n in range(200)]
    assert [await soon(push) for push in pushes] == list(range(1, 201))
    assert len(server.peer.state["tags"]) == 201


async def test_what_is_refused_while_leaving_is_told(server: Server) -> None:
    refusals: list[Any] = []
    async with connect(server.url) as room:
        room.on_refused(refusals.append)
        pushed = room.update("/n", -1)
    with pytest.raises(Refused, match="negative") as caught:
        await soon(pushed)
    assert refusals == [caught.value]


async def test_what_has_no_answer_when_the_time_for_leaving_is_over_raises_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait_client.live._CLOSING", 0.05)
    server.is_holding = True
    refusals: list[Any] = []
    async with connect(server.url) as room:
        room.on_refused(refusals.append)
        pushes = [room.update("/n", n) for n in (2, 3)]
    for pushed, refusal in zip(pushes, refusals, strict=True):
        with pytest.raises(Unanswered, match="closed before") as caught:
            await soon(pushed)
        assert caught.value is refusal


async def test_what_is_waiting_when_there_is_no_connection_to_leave_on_raises_so(server: Server) -> None:
    refusals: list[Any] = []
    async with connect(server.url) as room:
        room.on_refused(refusals.append)
        server.status = HTTPStatus.SERVICE_UNAVAILABLE
        await server.close_all()
        await soon(room.wait_for(lambda _: room.status == "offline"))
        pushed = room.update("/n", 2)
    with pytest.raises(Unanswered) as caught:
        await soon(pushed)
    assert refusals == [caught.value]


async def test_what_is_entered_is_entered_once_at_a_time(server: Server) -> None:
    connecting = connect(server.url)
    async with connecting as room:
        with pytest.raises(RuntimeError, match="call connect for each block"):
            await connecting.__aenter__()
        assert await soon(room.update("/n", 2)) == 1
    async with connecting as room:
        assert room.status == "online"


# Changing


async def test_a_change_shows_at_once_and_awaiting_it_gives_its_version(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url, state_type=Note) as room:
        pushed = room.set(Note(2))
        assert (room.state, room.confirmed, room.pending) == (Note(2), Note(1, ("a",)), 1)
        server.release()
        assert await soon(pushed) == 1
        assert (room.confirmed, room.version, room.pending) == (Note(2), 1, 0)


async def test_a_function_makes_the_next_state_of_the_one_shown(server: Server) -> None:
    async with connect(server.url, state_type=Note) as room:
        pushes = [room.set(lambda note: msgspec.structs.replace(note, n=note.n + 1)) for _ in range(3)]
        assert room.state.n == 4
        assert [await soon(push) for push in pushes] == [1, 2, 3]
        assert server.peer.state["n"] == 4


async def test_the_elements_of_a_list_are_told_apart_by_the_member_that_the_server_names(server: Server) -> None:
    server.peer.list_keys = {"/by/rows": "slug"}
    server.peer.state = {"n": 0, "by": {"rows": [{"slug": "a", "n": 0}, {"slug": "b", "n": 0}]}}
    async with connect(server.url) as room:
        await soon(room.set({"n": 0, "by": {"rows": [{"slug": "b", "n": 1}]}}))
    push = server.frames(messages.Push)[-1]
    assert push.ops == [Op("remove", "/by/rows/0"), Op("replace", "/by/rows/0/n", 1)]


async def test_setting_what_is_there_changes_nothing(server: Server) -> None:
    async with connect(server.url) as room:
        assert await soon(room.set({"by": {}, "n": 1, "tags": ["a"]})) == 0
        assert server.peer.version == 0


async def test_a_refused_change_is_taken_back_and_raises_why(server: Server) -> None:
    async with connect(server.url) as room:
        refusals: list[Any] = []
        room.on_refused(refusals.append)
        with pytest.raises(Refused, match="n cannot be negative") as caught:
            await soon(room.update("/n", -1))
        assert (caught.value.code, caught.value.path) == ("rejected", "/n")
        assert room.state["n"] == 1
        assert refusals == [caught.value]


async def test_a_refusal_for_the_whole_state_has_no_place_in_its_text(server: Server) -> None:
    server.peer.refused_at = ""
    async with connect(server.url) as room:
        with pytest.raises(Refused, match=r"^n cannot be negative \(rejected\)$") as caught:
            await soon(room.update("/n", -1))
        assert caught.value.path == ""


async def test_a_refusal_that_nobody_awaits_is_told_and_makes_no_noise(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server.url) as room:
        refusals: list[Any] = []
        room.on_refused(refusals.append)
        room.update("/n", -1)
        await soon(room.wait_for(lambda state: state["n"] == 1))
        assert [refusal.code for refusal in refusals] == ["rejected"]
        gc.collect()
    assert caplog.records == []


async def test_giving_up_waiting_does_not_take_the_change_back(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        pushed = room.update("/n", 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pushed, 0.01)
        server.release()
        assert await soon(pushed) == 1


async def test_a_change_may_be_waited_for_in_tasks_and_more_than_once(server: Server) -> None:
    async with connect(server.url) as room:
        pushed = room.update("/n", 2)
        task = asyncio.ensure_future(pushed)
        assert await soon(asyncio.gather(pushed, task, asyncio.wait_for(pushed, TIMEOUT))) == [1, 1, 1]


async def test_update_changes_or_adds_what_is_at_a_pointer(server: Server) -> None:
    async with connect(server.url) as room:
        room.update("/tags/-", "b")
        room.update("/tags/0", "A")
        await soon(room.update("/by/ada", 1))
        assert server.peer.state == {"n": 1, "tags": ["A", "b"], "by": {"ada": 1}}
        with pytest.raises(PatchError):
            room.update("/nowhere/x", 1)
        await soon(room.update("", {"n": 9}))
        assert server.peer.state == {"n": 9}


async def test_an_edit_is_one_change(server: Server) -> None:
    async with connect(server.url) as room:
        async with room.edit() as draft:
            draft["n"] += 1
            draft["tags"].append("b")
        assert server.peer.version == 1
        assert room.confirmed == {"n": 2, "tags": ["a", "b"], "by": {}}
        with room.edit() as draft:
            draft["n"] += 1
        assert room.state["n"] == 3


async def test_a_draft_has_the_members_of_the_state_as_attributes(server: Server) -> None:
    async with connect(server.url, state_type=Note) as room:
        async with room.edit() as draft:
            draft.n += 1
            draft.tags.append("b")
        assert room.state == Note(2, ("a", "b"))


async def test_the_state_that_is_shown_is_not_changed_by_a_draft(server: Server) -> None:
    async with connect(server.url) as room:
        before = room.state
        with room.edit() as draft:
            draft["tags"].append("b")
            assert room.state is before
        assert before["tags"] == ["a"]
        assert room.confirmed == before


async def test_a_state_that_has_no_members_cannot_be_edited(server: Server) -> None:
    server.peer.state = None
    async with connect(server.url) as room:
        assert room.state is None
        with pytest.raises(TypeError):
            room.edit()
        assert await soon(room.set({"n": 1})) == 1


async def test_an_edit_may_be_awaited_after_its_block(server: Server) -> None:
    async with connect(server.url) as room:
        edit = room.edit()
        with edit as draft:
            draft["n"] = -5
        with pytest.raises(Refused):
            await soon(edit)


async def test_an_edit_that_raises_changes_nothing(server: Server) -> None:
    async with connect(server.url) as room:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with room.edit() as draft:
                draft["n"] = 5
                draft["n"] = 1 / 0
        assert room.pending == 0
        assert room.state["n"] == 1


async def test_an_edit_is_made_on_what_has_come_meanwhile(server: Server) -> None:
    async with connect(server.url) as room:
        async with room.edit() as draft:
            draft["tags"][0] = "A"
            server.peer.change([Op("add", "/tags/0", "first")])
            await soon(room.wait_for(lambda state: len(state["tags"]) == 2))
        assert server.peer.state["tags"] == ["first", "A"]


async def test_an_edit_hits_no_other_element_than_its_own(server: Server) -> None:
    server.peer.state = {"n": 1, "tags": ["a", "b", "c"]}
    async with connect(server.url) as room:
        edit = room.edit()
        with edit as draft:
            del draft["tags"][1]
            server.peer.change([Op("remove", "/tags/0"), Op("add", "/tags/1", "x")])
            await soon(room.wait_for(lambda state: "x" in state["tags"]))
        await soon(edit)
        assert server.peer.state["tags"] == ["x", "c"]


async def test_an_edit_of_what_is_gone_is_refused(server: Server) -> None:
    async with connect(server.url) as room:
        server.peer.change([Op("add", "/by/ada", {"cards": []})])
        await soon(room.wait_for(lambda state: state["by"]))
        edit = room.edit()
        draft = edit.__enter__()
        draft["by"]["ada"]["cards"].append(1)
        server.peer.change([Op("remove", "/by/ada")])
        await soon(room.wait_for(lambda state: not state["by"]))
        with pytest.raises(Refused, match="no longer exists"):
            edit.__exit__(None, None, None)


# Following


async def test_changes_of_others_and_of_oneself_come_in_their_order(server: Server) -> None:
    async with connect(server.url, state_type=Note) as room:
        changes = room.changes()
        server.peer.change([Op("replace", "/n", 5)])
        await soon(room.wait_for(lambda state: state.n == 5))
        await soon(room.set(Note(6)))
        first, second = await soon(anext(changes)), await soon(anext(changes))
        assert (first.version, first.source, first.ops) == (1, "server", [Op("replace", "/n", 5)])
        assert (second.version, second.source, second.state) == (2, room.connection, Note(6))


async def test_following_ends_with_the_client(server: Server) -> None:
    async with connect(server.url) as room:
        changes = room.changes()
    assert [change async for change in changes] == []


async def test_following_raises_when_the_server_has_closed_for_good(server: Server) -> None:
    async with connect(server.url) as room:
        changes = room.changes()
        await server.close_all(4403, "go away")
        with pytest.raises(Closed, match=r"not allowed: go away \(4403\)"):
            await soon(anext(changes))


async def test_who_follows_too_slowly_gets_many_changes_as_one(server: Server) -> None:
    async with connect(server.url) as room:
        changes = room.changes()
        for n in range(2, 1103):
            server.peer.change([Op("replace", "/n", n)])
        await soon(room.wait_for(lambda state: state["n"] == 1102))
        change = await soon(anext(changes))
        assert (change.source, change.ops) == (None, [Op("replace", "/n", 1002)])
        assert (await soon(anext(changes))).version == 1002


async def test_waiting_for_a_state_has_a_limit(server: Server) -> None:
    async with connect(server.url) as room:
        assert await room.wait_for(lambda state: state["n"] == 1) == room.state
        with pytest.raises(TimeoutError):
            await room.wait_for(lambda state: state["n"] == 2, timeout=0.01)


# Calling


async def test_a_call_gives_its_result(server: Server) -> None:
    async with connect(server.url) as room:
        assert await soon(room.call("add", 1, 2)) == 3
        assert await soon(room.call("set_n", 7)) is None
        assert room.state["n"] == 7
        with pytest.raises(CallError, match="there is no nothing") as caught:
            await soon(room.call("nothing", team="red"))
        assert caught.value.code == "method_not_found"


async def test_a_stream_gives_what_comes(server: Server) -> None:
    async with connect(server.url) as room:
        assert [number async for number in room.stream("count", 3)] == [0, 1, 2]
        assert await soon(room.call("count", 3)) is None
        assert [number async for number in room.stream("add", 1, 2)] == [3]


async def test_a_run_is_a_call_with_the_input_as_its_argument(server: Server) -> None:
    async with connect(server.url) as room:
        assert await soon(room.run("echo", {"message": "hi"})) == {"given": [{"message": "hi"}]}
        assert await soon(room.run("echo")) == {"given": []}
        assert await soon(room.run("count", 3)) == [0, 1, 2]
        assert await soon(room.run("count", 0)) == []
        assert [number async for number in room.run_stream("count", 3)] == [0, 1, 2]
        assert (await soon(room.interrupt("stop")), await soon(room.interrupt())) == (True, False)
        with pytest.raises(CallError, match="there is no run:nothing"):
            await soon(room.run("nothing"))


async def test_leaving_a_stream_cancels_it(server: Server) -> None:
    async with connect(server.url) as room:
        async with aclosing(room.stream("begin")) as values:
            assert await soon(anext(values)) == "begun"
        await server.until(lambda: server.frames(messages.Cancel) == [messages.Cancel(1)])


async def test_a_call_that_nobody_waits_for_is_cancelled(server: Server) -> None:
    async with connect(server.url) as room:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(room.call("begin"), 0.05)
        await server.until(lambda: server.frames(messages.Cancel))


async def test_a_call_under_way_fails_with_the_connection(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        call = asyncio.create_task(room.call("add", 1, 2))
        await server.until(lambda: server.frames(messages.Call))
        await server.close_all()
        with pytest.raises(Disconnected, match="before add had answered"):
            await soon(call)
        server.release()
        assert await soon(room.call("add", 1, 2)) == 3


async def test_a_call_sees_all_that_was_changed_before_it(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        for n in range(200):
            room.update("/n", n)
        call = asyncio.create_task(room.call("set_n", 1000))
        values = room.stream("count", 1)
        stream = asyncio.ensure_future(anext(values))
        await server.until(lambda: len(server.frames(messages.Push)) == messages.UNANSWERED)
        room.update("/n", 2000)
        server.release()
        await soon(call)
        assert await soon(stream) == 0
    kinds = [type(frame) for frame in server.received if not isinstance(frame, messages.Join)]
    assert messages.Call not in kinds[:200]
    assert kinds.count(messages.Call) == 2
    assert [entry.ops[0].value for entry in server.peer.history][199] == 199


async def test_a_message_comes_after_all_that_was_changed_before_it(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        got: asyncio.Queue[Any] = asyncio.Queue()
        room.on_message(got.put_nowait)
        for n in range(100):
            room.update("/n", n)
        room.send("text")
        room.send(b"bytes")
        room.update("/n", 2000)
        await server.until(lambda: len(server.frames(messages.Push)) == messages.UNANSWERED)
        server.release()
        assert [await soon(got.get()), await soon(got.get())] == ["text", b"bytes"]
    kinds = [type(frame) for frame in server.received if not isinstance(frame, messages.Join | messages.Ping)]
    assert kinds[:100] == [messages.Push] * 100


async def test_a_call_that_waits_for_changes_to_be_sent_survives_the_connection(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        for n in range(100):
            room.update("/n", n)
        call = asyncio.create_task(room.call("add", 1, 2))
        await server.until(lambda: len(server.frames(messages.Push)) == messages.UNANSWERED)
        await server.close_all()
        await server.until(lambda: len(server.frames(messages.Push)) == 2 * messages.UNANSWERED)
        server.release()
        assert await soon(call) == 3
        assert server.peer.state["n"] == 99


# Messages and presence


async def test_messages_and_events_come_to_their_callbacks(server: Server) -> None:
    async with connect(server.url) as room:
        got: asyncio.Queue[Any] = asyncio.Queue()
        room.on_message(got.put_nowait)
        remove = room.on_event("goal", got.put_nowait)
        room.send([1, "two"])
        assert await soon(got.get()) == [1, "two"]
        room.send(b"\x00\x01")
        assert await soon(got.get()) == b"\x00\x01"
        room.send({"event": "other"})
        room.send({"event": "goal"})
        assert await soon(got.get()) == {"event": "goal"}
        remove()
        room.send({"event": "goal"})
        room.send("last")
        assert await soon(got.get()) == "last"


async def test_binary_messages_keep_their_place_among_all_that_is_sent(server: Server) -> None:
    async with connect(server.url) as room:
        room.send(b"one")
        room.send("two")
        room.send(b"three")
        await soon(room.call("add", 4))
    _, one, two, three, call = [frame for frame in server.received if not isinstance(frame, messages.Ping)]
    assert (one, two, three) == (b"one", messages.Message(msgspec.Raw(b'"two"')), b"three")
    assert isinstance(call, messages.Call)


async def test_a_callback_that_fails_is_logged_and_the_others_are_called(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server.url) as room:
        got: asyncio.Queue[Any] = asyncio.Queue()
        room.on_message(lambda message: message.nothing)
        room.on_message(got.put_nowait)
        room.send(1)
        assert await soon(got.get()) == 1
    assert [record.getMessage() for record in caplog.records] == ["a callback for message failed"]


async def test_presence_is_seen_and_said_again_after_a_reconnect(server: Server) -> None:
    async with connect(server.url) as room:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        room.on_presence(seen.put_nowait)
        room.set_presence({"name": "Ada"})
        assert await soon(seen.get()) == {room.connection: {"name": "Ada"}}
        assert room.presence == {room.connection: {"name": "Ada"}}
        await server.close_all()
        await soon(seen.get())
        assert len(server.frames(messages.Presence)) == 2


# Losing the connection


async def test_it_reconnects_and_gets_what_it_missed(server: Server) -> None:
    async with connect(server.url) as room:
        await server.close_all()
        server.peer.change([Op("replace", "/n", 5)])
        await soon(room.wait_for(lambda state: state["n"] == 5))
        assert server.frames(messages.Join)[1].have == ("e", 0)


async def test_what_is_changed_without_a_connection_is_sent_when_there_is_one(server: Server) -> None:
    async with connect(server.url) as room:
        server.status = HTTPStatus.SERVICE_UNAVAILABLE
        await server.close_all()
        await soon(room.wait_for(lambda _: room.status == "offline"))
        pushed = room.update("/n", 2)
        assert (room.state["n"], room.pending) == (2, 1)
        with pytest.raises(Disconnected):
            room.send("now")
        server.status = None
        assert await soon(pushed) == 1


async def test_a_change_whose_answer_was_lost_is_not_made_twice(server: Server) -> None:
    async with connect(server.url) as room:
        server.is_holding = True
        pushed = room.update("/tags/-", "b")
        await server.until(lambda: server.frames(messages.Push))
        for link in server.peer.links:
            link.send = lambda frame: None
        server.release()
        await server.close_all()
        assert await soon(pushed) == 1
        assert room.state["tags"] == ["a", "b"]
        assert len(server.frames(messages.Push)) == 2


async def test_a_change_that_came_too_fast_is_made_when_its_time_has_come(server: Server) -> None:
    server.peer.hasty, server.peer.retry_after = 1, 0.05
    async with connect(server.url) as room:
        pushes = [room.update("/n", 2), room.update("/n", 3)]
        assert [await soon(push) for push in pushes] == [1, 2]
        assert [push.ref for push in server.frames(messages.Push)] == [1, 2, 1, 2]


async def test_what_follows_a_change_that_came_too_fast_goes_out_when_its_time_has_come(server: Server) -> None:
    server.peer.hasty, server.peer.retry_after = 1, 0.05
    async with connect(server.url) as room:
        await soon(room.update("/n", 2))
        assert await soon(room.call("add", 1, 2)) == 3


async def test_leaving_sends_what_follows_changes_that_came_too_fast(server: Server) -> None:
    server.peer.hasty, server.peer.retry_after = 1, 0.05
    async with connect(server.url) as room:
        for n in range(100):
            room.update("/n", n)
        room.send("text")
        room.send(b"bytes")
    await server.until(lambda: server.sockets == 0)
    *_, text, data = [frame for frame in server.received if not isinstance(frame, messages.Ping)]
    assert [text, data] == [messages.Message(msgspec.Raw(b'"text"')), b"bytes"]


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the clients would have waited before their next attempts, which they make at once."""
    delays: list[float] = []
    delay = Backoff.delay

    def note(backoff: Backoff, **options: Any) -> float:
        delays.append(delay(backoff, **options))
        return 0.0

    monkeypatch.setattr(Backoff, "delay", note)
    return delays


@pytest.mark.parametrize("code", [1001, 1009])
async def test_delays_grow_as_long_as_what_is_joined_is_lost_at_once(
    server: Server, delays: list[float], code: int
) -> None:
    async with connect(server.url) as room:
        server.drops = code
        await server.close_all()
        await server.until(lambda: len(delays) == 5)
        server.drops = None
        await soon(room.wait_for(lambda _: room.status == "online"))
    assert all(shorter < longer for shorter, longer in pairwise(delays))


@pytest.mark.parametrize("is_push", [True, False])
async def test_delays_are_short_again_when_a_connection_was_of_use(
    server: Server, delays: list[float], is_push: bool
) -> None:
    async with connect(server.url) as room:
        for n in range(2, 6):
            await server.close_all()
            await server.until(lambda: server.sockets)
            await soon(room.wait_for(lambda _: room.status == "online"))
            await soon(room.update("/n", n) if is_push else room.call("add", n))
    assert len(delays) == 4
    assert max(delays) <= 0.1


async def test_there_is_no_delay_when_the_server_goes_away_after_a_connection_that_was_of_use(
    server: Server, delays: list[float]
) -> None:
    async with connect(server.url) as room:
        for n in range(2, 5):
            await soon(room.update("/n", n))
            await server.close_all(1001)
            await server.until(lambda n=n: len(server.frames(messages.Join)) == n)
            await soon(room.wait_for(lambda _: room.status == "online"))
    assert delays == [0.0, 0.0, 0.0]


async def test_a_gap_makes_it_join_anew(server: Server) -> None:
    async with connect(server.url) as room:
        server.send_all(messages.Change(9, [], "server"))
        await server.until(lambda: len(server.frames(messages.Join)) == 2)
        assert server.frames(messages.Join)[1].have is None
        await soon(room.wait_for(lambda _: room.status == "online"))


async def test_a_frame_that_is_none_is_passed_over(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(server.url) as room:
        got: asyncio.Queue[Any] = asyncio.Queue()
        room.on_message(got.put_nowait)
        server.send_all(messages.Message(msgspec.Raw(b'1},"type":"unheard-of"')))
        room.send(2)
        assert await soon(got.get()) == 2
    assert len(caplog.records) == 1


async def test_closing_the_client_raises_so_from_all_that_waits(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        values = room.stream("count", 1)
        calls = [asyncio.create_task(room.call("add", 1)), asyncio.ensure_future(anext(values))]
        waiting = asyncio.create_task(room.wait_for(lambda state: state["n"] == 99))
        await server.until(lambda: len(server.frames(messages.Call)) == 2)
        await soon(room.close())
        for each in (*calls, waiting, room.call("add", 1)):
            with pytest.raises(Closed, match=r"^the client was closed \(1000\)$"):
                await soon(each)


async def test_a_final_close_while_the_client_is_closing_is_what_is_raised(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        pushed = room.update("/n", 2)
        call = asyncio.create_task(room.call("add", 1))
        await server.until(lambda: server.frames(messages.Call))
        closing = asyncio.create_task(room.close())
        await asyncio.sleep(0)
        await server.close_all(4408)
        await soon(closing)
        for each in (pushed, call):
            with pytest.raises(Closed, match="another socket has joined as this client"):
                await soon(each)


async def test_a_final_close_raises_what_it_means_from_all_that_waits(server: Server) -> None:
    server.is_holding = True
    async with connect(server.url) as room:
        pushed = room.update("/n", 2)
        call = asyncio.create_task(room.call("add", 1))
        waiting = asyncio.create_task(room.wait_for(lambda state: state["n"] == 99))
        await server.until(lambda: server.frames(messages.Call))
        await server.close_all(4408)
        for each in (pushed, waiting, call, room.call("add", 1)):
            with pytest.raises(Closed, match="another socket has joined as this client") as caught:
                await soon(each)
            assert caught.value.code == 4408
        with pytest.raises(Closed):
            room.set({})
        assert room.status == "closed"


async def test_a_bad_frame_is_told_with_what_the_server_said_of_it(server: Server) -> None:
    async with connect(server.url) as room:
        server.send_all(messages.Error("bad_frame", "Invalid value 'pushy'"))
        await server.close_all(4400)
        with pytest.raises(Closed, match="pushy"):
            await soon(room.call("add", 1))


async def test_a_server_that_reads_no_more_is_noticed_while_sending_waits_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait_client.target.QUIET", 0.1)
    server.is_deaf = True
    async with connect(server.url) as room:
        for _ in range(60):
            room.send("x" * 500_000)
        server.is_deaf = False
        await server.until(lambda: len(server.frames(messages.Join)) > 1)


# Not getting in


async def test_a_client_without_a_token_joins_once_more_when_its_cookie_has_expired(server: Server) -> None:
    async with connect(server.url) as room:
        await server.close_all(4401, "the token has expired")
        await soon(room.wait_for(lambda _: room.status == "online" and len(server.frames(messages.Join)) == 2))
        await soon(room.update("/n", 2))
        server.refuses = 4401
        await server.close_all(4401, "the token has expired")
        with pytest.raises(Closed) as caught:
            await soon(room.wait_for(lambda _: False))
    assert caught.value.code == 4401
    assert len(server.frames(messages.Join)) == 3


async def test_a_client_with_a_token_that_has_expired_is_closed(server: Server) -> None:
    async with connect(server.url, token="a") as room:
        await server.close_all(4401, "the token has expired")
        with pytest.raises(Closed, match="the token has expired"):
            await soon(room.wait_for(lambda _: False))
    assert len(server.frames(messages.Join)) == 1


@pytest.mark.parametrize("code", [1008, 4401, 4404, 4409, 4410])
async def test_who_is_not_let_in_for_good_is_told_so(server: Server, code: int) -> None:
    server.refuses = code
    with pytest.raises(Closed, match="as told") as caught:
        async with connect(server.url):
            pass
    assert caught.value.code == code


@pytest.mark.parametrize(("status", "code"), [(401, 4401), (403, 4403), (404, 4404)])
async def test_a_refused_request_is_like_the_close_code(server: Server, status: int, code: int) -> None:
    server.status = HTTPStatus(status)
    with pytest.raises(Closed) as caught:
        async with connect(server.url):
            pass
    assert caught.value.code == code


async def test_a_request_that_is_refused_for_what_it_is_is_not_made_again(server: Server) -> None:
    server.status = HTTPStatus.GONE
    with pytest.raises(ClientError, match="410"):
        await soon(_join(server.url))
    with pytest.raises(ClientError, match="410"):
        await soon(anext(aiter(connect(server.url))))
    assert server.requests == 2


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_request_that_is_refused_for_the_time_being_is_made_again(server: Server, status: int) -> None:
    server.status = HTTPStatus(status)
    async with asyncio.TaskGroup() as tasks:
        joining = tasks.create_task(soon(_join(server.url)))
        await server.until(lambda: server.requests == 2)
        server.status = None
    assert joining.result() == {"n": 1, "tags": ["a"], "by": {}}


async def test_a_change_of_many_places_replaces_the_state(server: Server) -> None:
    server.peer.state = {"n": 1, "rows": {str(n): n for n in range(4_001)}}
    async with connect(server.url) as room:
        await soon(room.set(lambda state: {**state, "rows": {name: n + 1 for name, n in state["rows"].items()}}))
        await soon(room.set(lambda state: {**state, "rows": {**state["rows"], "0": 0}}))
    assert [[(op.op, op.path) for op in push.ops] for push in server.frames(messages.Push)] == [
        [("replace", "")],
        [("replace", "/rows/0")],
    ]


async def test_an_edit_of_many_steps_pushes_what_it_changes(server: Server) -> None:
    server.peer.state = {"n": 1, "text": "b", "rows": {}}
    async with connect(server.url) as room:
        with room.edit() as state:
            for _ in range(4_001):
                state.splice("text", 0, insert="a")
        edit = room.edit()
        with edit as state:
            state["rows"].update({str(n): n for n in range(4_001)})
        await soon(edit)
    assert [[(op.op, op.path) for op in push.ops] for push in server.frames(messages.Push)] == [
        [("splice", "/text")],
        [("replace", "")],
    ]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 421, 426])
async def test_an_answer_of_a_proxy_is_never_final(server: Server, status: int) -> None:
    server.status, server.answers = HTTPStatus(status), False
    async with asyncio.TaskGroup() as tasks:
        joining = tasks.create_task(soon(_join(server.url)))
        await server.until(lambda: server.requests == 2)
        server.status = None
    assert joining.result() == {"n": 1, "tags": ["a"], "by": {}}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 421, 426])
async def test_a_change_made_while_a_proxy_refuses_is_not_lost(server: Server, status: int) -> None:
    async with connect(server.url) as room:
        server.status, server.answers = HTTPStatus(status), False
        await server.close_all()
        await soon(room.wait_for(lambda _: str(status) in room.trouble))
        change = room.update("/n", 2)
        server.status = None
        assert await soon(change) == 1


@pytest.mark.parametrize("status", [400, 404, 421, 426])
async def test_a_client_that_had_joined_tries_again_where_plait_does_not_know_the_thread(
    server: Server, status: int
) -> None:
    async with connect(server.url) as room:
        server.status = HTTPStatus(status)
        await server.close_all()
        await soon(room.wait_for(lambda _: str(status) in room.trouble))
        server.status = None
        assert await soon(room.update("/n", 2)) == 1


@pytest.mark.parametrize("status", [401, 403, 410])
async def test_a_client_that_had_joined_ends_where_plait_refuses_it(server: Server, status: int) -> None:
    async with connect(server.url, token="abc") as room:
        server.status = HTTPStatus(status)
        await server.close_all()
        with pytest.raises(ClientError):
            await soon(room.wait_for(lambda _: False))


@pytest.mark.parametrize("location", ["http://127.0.0.1:1/login", "//[", "ws://127.0.0.1:1/threads/note/a"])
async def test_a_request_that_is_sent_elsewhere_for_the_time_being_is_made_again(server: Server, location: str) -> None:
    async with connect(server.url) as room:
        server.status, server.location = HTTPStatus.FOUND, location
        await server.close_all()
        await soon(room.wait_for(lambda _: "302" in room.trouble))
        assert location in room.trouble
        server.status = None
        assert await soon(room.update("/n", 2)) == 1


async def test_a_token_is_shown_to_nobody_but_the_server_at_the_url(server: Server) -> None:
    async with serve() as other:
        server.status, server.location = HTTPStatus.TEMPORARY_REDIRECT, other.url
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(soon(_join(server.url, token="secret")))
            await server.until(lambda: server.requests == 2)
            server.status = None
        assert joining.result() == {"n": 1, "tags": ["a"], "by": {}}
        assert (other.requests, other.received) == (0, [])


async def test_what_no_request_can_be_made_of_raises_at_once(server: Server) -> None:
    with pytest.raises(ClientError, match="no socket can be opened: "):
        await soon(_join(server.url, ssl=ssl.create_default_context()))


async def test_a_proxy_that_is_none_is_told_as_why_there_is_no_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url) as room:
        monkeypatch.setenv("http_proxy", "nowhere://127.0.0.1")
        monkeypatch.delenv("no_proxy", raising=False)
        await server.close_all()
        await soon(room.wait_for(lambda _: "nowhere" in room.trouble))
        monkeypatch.delenv("http_proxy")
        assert await soon(room.update("/n", 2)) == 1


async def _join(url: str, **options: Any) -> Any:
    async with connect(url, **options) as room:
        return room.state


async def test_who_cannot_connect_in_time_is_told_why() -> None:
    with hold_port() as held, pytest.raises(Disconnected, match=r"not joined after 0.3 seconds: .*[Cc]onnect"):
        async with connect(f"ws://127.0.0.1:{held.getsockname()[1]}/threads/note/a", open_timeout=0.3):
            pass


@each_case(
    ("url", "reason"),
    [
        ("nowhere", "scheme isn't ws or wss"),
        ("http://localhost/threads/note/a", "scheme isn't ws or wss"),
        ("ws:///threads/note/a", "hostname isn't provided"),
        ("ws://localhost:80a/threads/note/a", "80a"),
        ("ws://localhost:99999/threads/note/a", "[Pp]ort"),
        ("ws://[::1/threads/note/a", "IPv6"),
        ("ws://a..b/threads/note/a", "label"),
        ("ws://" + "a" * 64 + "/threads/note/a", "label"),
        ("ws://local host/threads/note/a", "spaces"),
        ("ws://localhost/threads/note/a b", "spaces"),
        ("ws://localhost\n/threads/note/a", "control"),
    ],
)
def test_what_is_no_url_of_a_socket_is_refused_where_it_is_given(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        connect(url)
    with pytest.raises(ValueError, match="no socket can be opened at"):
        connect_sync(url)
    assert [thread for thread in threading.enumerate() if thread.name == "plait client"] == []


@pytest.mark.parametrize(
    "url", ["wss://exämple.org/threads/note/ü", "ws://[::1]:8000/threads/note/a", "ws://my_host/threads/note/a%20b?x=1"]
)
def test_other_urls_are_taken_as_they_are(url: str) -> None:
    connect(url)


# Tokens


async def test_a_fresh_token_is_fetched_for_each_connection_and_when_one_expires(server: Server) -> None:
    tokens = iter(["one", "two", "three"])

    async def fetch() -> str:
        return next(tokens)

    async with connect(server.url, token=fetch):
        server.send_all(messages.AuthExpiring(30))
        await server.until(lambda: server.frames(messages.Auth) == [messages.Auth("two")])
        await server.close_all()
        await server.until(lambda: [join.token for join in server.frames(messages.Join)] == ["one", "three"])


async def test_a_token_that_is_always_the_same_is_not_shown_as_a_fresh_one(server: Server) -> None:
    async with connect(server.url, token="secret") as room:
        server.send_all(messages.AuthExpiring(30))
        server.send_all(messages.Message(msgspec.Raw(b'"after it"')))
        got: asyncio.Queue[Any] = asyncio.Queue()
        room.on_message(got.put_nowait)
        assert await soon(got.get()) == "after it"
        assert await soon(room.call("add", 1, 2)) == 3
    assert [type(frame) for frame in server.received] == [messages.Join, messages.Call]


async def test_an_error_of_the_function_that_fetches_tokens_comes_out(server: Server) -> None:
    def fetch() -> str:
        raise IndexError

    with pytest.raises(IndexError):
        await soon(_join(server.url, token=fetch))


async def test_a_timeout_of_the_function_that_fetches_tokens_is_not_that_of_opening(server: Server) -> None:
    async def fetch() -> str:
        raise TimeoutError("the tokens' server is slow")

    with pytest.raises(TimeoutError, match="tokens' server"):
        await soon(_join(server.url, token=fetch))


async def test_a_token_that_could_not_be_fetched_for_a_reconnect_is_fetched_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plait_client.carrier._FETCHING", 0.05)
    asked = []

    async def fetch() -> str:
        asked.append(len(asked))
        if len(asked) == 2:
            raise ConnectionError("unreachable")
        if len(asked) == 3:
            await asyncio.Event().wait()
        return f"token {len(asked)}"

    async with connect(server.url, token=fetch) as room:
        await server.close_all()
        await soon(room.wait_for(lambda _: "unreachable" in room.trouble))
        await server.until(lambda: len(server.frames(messages.Join)) == 2)
        await soon(room.wait_for(lambda _: room.status == "online"))
        assert room.trouble == ""
    assert [join.token for join in server.frames(messages.Join)] == ["token 1", "token 4"]
    assert [record.getMessage() for record in caplog.records] == ["no token could be fetched"] * 2


class TokenOnce:
    """Returns a token once, and None after that."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked > 1:
            raise ConnectionError("unreachable")
        return "token"


async def test_what_was_wrong_with_the_token_is_in_what_is_raised_for_it(server: Server) -> None:
    fetch = TokenOnce()

    async with connect(server.url, token=fetch) as room:
        await server.close_all()
        await soon(room.wait_for(lambda _: fetch.asked == 3))
        pushed = room.update("/n", 2)
    with pytest.raises(Unanswered, match=r"no token could be fetched: .*unreachable"):
        await soon(pushed)


async def test_a_token_that_could_not_be_renewed_is_in_what_the_end_raises(server: Server) -> None:
    fetch = TokenOnce()

    async with connect(server.url, token=fetch) as room:
        server.send_all(messages.AuthExpiring(30))
        await soon(room.wait_for(lambda _: room.trouble))
        await server.close_all(4401, "the token has expired")
        with pytest.raises(Closed, match=r"no token could be fetched: .*unreachable"):
            await soon(room.call("add", 1))


async def test_it_is_told_why_there_is_no_connection(server: Server) -> None:
    async with connect(server.url) as room:
        assert room.trouble == ""
        server.status = HTTPStatus.SERVICE_UNAVAILABLE
        await server.close_all()
        await soon(room.wait_for(lambda _: "lost (1006)" in room.trouble))
        await soon(room.wait_for(lambda _: "503" in room.trouble))
        server.status = None
        await soon(room.wait_for(lambda _: room.status == "online"))
        assert room.trouble == ""


# Iterating


async def test_iterating_gives_a_fresh_client_when_one_has_ended(server: Server) -> None:
    seen = []
    async with aclosing(aiter(connect(server.url, client="me"))) as rooms:
        async for room in rooms:
            seen.append(room.state["n"])
            try:
                await soon(room.update("/n", room.state["n"] + 1))
                if len(seen) == 1:
                    await server.close_all(4404)
                await soon(room.call("add", 1))
            except Closed:
                continue
            break
    assert seen == [1, 2]
    assert [push.ref for push in server.frames(messages.Push)] == [1, 2]


async def test_a_room_is_closed_when_the_loop_over_rooms_is_left(server: Server) -> None:
    pushes = []
    async for room in connect(server.url):
        pushes.append(room.update("/n", 2))
        break
    assert [await soon(push) for push in pushes] == [1]
    await server.until(lambda: server.sockets == 0)


async def test_iterating_goes_on_trying_when_it_cannot_connect(server: Server) -> None:
    server.status = HTTPStatus.SERVICE_UNAVAILABLE
    async with aclosing(aiter(connect(server.url, open_timeout=0.001))) as rooms:
        first = asyncio.create_task(soon(anext(rooms)))
        await server.until(lambda: server.requests == 3)
        server.status = None
        assert (await first).status == "online"


async def test_iterating_goes_on_trying_when_the_server_closes_before_the_join(server: Server) -> None:
    server.refuses = 1013
    async with aclosing(aiter(connect(server.url, open_timeout=0.001))) as rooms:
        first = asyncio.create_task(soon(anext(rooms)))
        await server.until(lambda: len(server.frames(messages.Join)) == 3)
        server.refuses = None
        assert (await first).status == "online"


@pytest.mark.parametrize("code", [1008, 4401, 4404])
async def test_iterating_ends_when_the_server_does_not_let_it_in_for_good(server: Server, code: int) -> None:
    server.refuses = code
    with pytest.raises(Closed) as caught:
        await soon(anext(aiter(connect(server.url))))
    assert caught.value.code == code
    assert server.requests == 1


async def test_who_stops_waiting_for_a_connection_leaves_nothing_behind(server: Server) -> None:
    before = asyncio.all_tasks()
    server.status = HTTPStatus.SERVICE_UNAVAILABLE
    waiting = asyncio.create_task(anext(aiter(connect(server.url))))
    await server.until(lambda: server.requests == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert {task for task in asyncio.all_tasks() - before if task.get_name().startswith("plait")} == set()


# Too large


async def test_a_change_that_the_server_does_not_take_for_its_size_is_refused_and_sent_once(server: Server) -> None:
    async with connect(server.url) as room:
        before = room.update("/n", 2)
        large = room.update("/tags/0", "x" * 2_000_000)
        later = room.update("/n", 3)
        with pytest.raises(Refused, match="larger than the server takes") as caught:
            await soon(large)
        assert caught.value.code == "too_large"
        assert [await soon(before), await soon(later)] == [1, 2]
        assert room.state == server.peer.state == {"n": 3, "tags": ["a"], "by": {}}
        assert len(server.frames(messages.Join)) == 2


async def test_a_change_that_is_larger_than_the_server_has_said_is_refused_without_being_sent(server: Server) -> None:
    server.peer.max_frame = 1000
    async with connect(server.url) as room:
        refusals: list[Any] = []
        room.on_refused(refusals.append)
        large = room.update("/tags/0", "x" * 1000)
        assert (room.state["tags"], room.pending, refusals) == (["a"], 0, [])
        with pytest.raises(Refused, match="larger than the server takes") as caught:
            await soon(large)
        assert refusals == [caught.value]
        assert await soon(room.update("/n", 3)) == 1
    assert [type(frame) for frame in server.received] == [messages.Join, messages.Push]


async def test_what_else_is_larger_than_the_server_takes_raises_and_the_connection_stays(server: Server) -> None:
    server.peer.max_frame = 1000
    async with connect(server.url) as room:
        with pytest.raises(TooLarge):
            await soon(room.call("add", "x" * 1000))
        with pytest.raises(TooLarge):
            await soon(anext(room.stream("count", "x" * 1000)))
        for say in (room.send, room.set_presence):
            with pytest.raises(TooLarge):
                say("x" * 1000)
        with pytest.raises(TooLarge):
            room.send(b"x" * 1001)
        assert await soon(room.call("add", 1, 2)) == 3
    assert [type(frame) for frame in server.received] == [messages.Join, messages.Call]
