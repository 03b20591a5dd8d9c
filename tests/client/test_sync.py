"""The blocking client against a real socket."""

import asyncio
import gc
import sys
import threading
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from tests.client.serving import TIMEOUT, Server

from plait_client import CallError, ClientError, Closed, Disconnected, Refused, connect, connect_sync
from plait_schemas import messages
from plait_schemas.patch import Op


class Note(msgspec.Struct, frozen=True):
    n: int = 0
    tags: tuple[str, ...] = ()


def do(server: Server, function: Any) -> Any:
    """Do something in the loop of the server."""
    assert server.loop is not None
    return server.loop.do(function)


def wait(server: Server, function: Any) -> Any:
    """Wait for something in the loop of the server."""
    assert server.loop is not None
    return server.loop.wait(function, TIMEOUT)


def threads() -> set[str]:
    return {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}


def test_entering_waits_for_the_state_and_leaving_leaves_no_thread(other_server: Server) -> None:
    before = threads()
    with connect_sync(other_server.url, state_type=Note, client="me") as room:
        assert room.state == room.confirmed == Note(1, ("a",))
        assert (room.epoch, room.version, room.status, room.readonly) == ("e", 0, "online", False)
        assert (room.connection, room.thread, room.pending) == ("s1", "note/a", 0)
        assert threads() != before
    assert threads() == before
    room.close()


def test_what_is_changed_in_place_without_asyncio_spoils_nothing_and_is_logged(
    other_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_sync(other_server.url) as room:
        room.state["tags"].append("mine")
        assert room.update("/n", 2) == 1
        assert room.state == room.confirmed == other_server.peer.state == {"n": 2, "tags": ["a"], "by": {}}
    assert [record.getMessage().split()[0] for record in caplog.records] == ["'/tags/1'"]


def test_agents_run_without_asyncio_too(other_server: Server) -> None:
    with connect_sync(other_server.url) as room:
        assert room.run("echo", "hi") == {"given": ["hi"]}
        assert room.run("count", 2) == [*room.run_stream("count", 2)] == [0, 1]
        assert room.interrupt("stop")
        for value in room.run_stream("count", 5):
            if value == 1:
                break


def test_after_the_end_what_is_known_is_read_and_all_else_raises(other_server: Server) -> None:
    with connect_sync(other_server.url, state_type=Note) as room:
        changes = room.changes(timeout=TIMEOUT)
        room.update("/n", 2)
    assert (room.state, room.version, room.status, room.pending) == (Note(2, ("a",)), 1, "closed", 0)
    uses: list[Any] = [
        lambda: room.update("/n", 3),
        lambda: room.call("add", 1),
        lambda: room.run("echo", 1),
        room.interrupt,
        lambda: list(room.stream("count", 1)),
        lambda: room.wait_for(lambda note: note.n == 9),
        lambda: room.send(1),
        lambda: room.set_presence(1),
    ]
    for use in uses:
        with pytest.raises(Closed, match="the client was closed"):
            use()
    assert list(changes) == []


def test_closing_in_two_threads_while_others_use_it_leaves_none_of_them_waiting(other_server: Server) -> None:
    room = connect_sync(other_server.url)
    began = threading.Barrier(5)
    raised: list[ClientError] = []

    def use() -> None:
        began.wait(TIMEOUT)
        try:
            while room.call("add", 1) == 1:
                assert room.version == 0
        except ClientError as error:
            raised.append(error)

    def close() -> None:
        began.wait(TIMEOUT)
        room.close()

    users = [threading.Thread(target=each, daemon=True) for each in (use, use, close, close)]
    for user in users:
        user.start()
    began.wait(TIMEOUT)
    for user in users:
        user.join(TIMEOUT)
    assert [user for user in users if user.is_alive()] == []
    assert len(raised) == 2


def test_a_room_that_nobody_has_any_more_ends_its_thread(other_server: Server) -> None:
    before = set(threading.enumerate())
    room = connect_sync(other_server.url)
    (thread,) = set(threading.enumerate()) - before
    del room
    gc.collect()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    wait(other_server, lambda: other_server.until(lambda: other_server.sockets == 0))


@pytest.mark.parametrize("ending", ["return", "raise"])
def test_leaving_a_loop_over_rooms_for_good_makes_no_noise_at_the_end_of_asyncio(
    other_server: Server, ending: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> int:
        async for room in connect(other_server.url):
            version = await room.update("/n", 2)
            if ending == "raise":
                raise LookupError
            return version
        return 0

    if ending == "raise":
        with pytest.raises(LookupError):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) == 1
    gc.collect()
    assert caplog.records == []
    assert capsys.readouterr().err == ""
    wait(other_server, lambda: other_server.until(lambda: other_server.sockets == 0))


def test_who_does_not_get_in_leaves_no_thread(other_server: Server) -> None:
    before = threads()
    other_server.status = HTTPStatus.NOT_FOUND
    with pytest.raises(Closed, match="no such thread"):
        connect_sync(other_server.url)
    assert threads() == before


def test_a_change_returns_its_version_when_it_is_durable(other_server: Server) -> None:
    with connect_sync(other_server.url, state_type=Note) as room:
        assert room.set(Note(2)) == 1
        assert room.set(lambda note: Note(note.n + 1)) == 2
        assert room.update("/tags/-", "b") == 3
        assert room.confirmed == Note(3, ("b",))


def test_a_refusal_is_raised_where_the_change_is_made(other_server: Server) -> None:
    refusals: list[Any] = []
    with connect_sync(other_server.url) as room:
        room.on_refused(refusals.append)
        with pytest.raises(Refused, match="negative"):
            room.update("/n", -1)
        with pytest.raises(Refused), room.edit() as draft:
            draft["n"] = -2
        assert room.state["n"] == 1
    assert len(refusals) == 2


def test_an_edit_is_one_change_made_at_its_end(other_server: Server) -> None:
    with connect_sync(other_server.url) as room:
        edit = room.edit()
        with edit as draft:
            draft["n"] += 1
            draft["tags"].append("b")
        assert edit.pushed == room.version == 1
        assert room.state == {"n": 2, "tags": ["a", "b"], "by": {}}


def test_what_takes_too_long_raises(other_server: Server) -> None:
    other_server.is_holding = True
    with connect_sync(other_server.url, timeout=0.05) as room:
        with pytest.raises(TimeoutError, match=r"no answer to the change within 0\.05 seconds"):
            room.update("/n", 2)
        with pytest.raises(TimeoutError, match=r"no result of add within 0\.05 seconds"):
            room.call("add", 1)
        with pytest.raises(TimeoutError, match=r"nothing from count within 0\.05 seconds"):
            next(room.stream("count", 1))
        with pytest.raises(TimeoutError, match=r"no state that was waited for within 0\.05 seconds"):
            room.wait_for(lambda state: state["n"] == 9)
        with pytest.raises(TimeoutError, match=r"within 0\.01 seconds"):
            room.wait_for(lambda state: state["n"] == 9, timeout=0.01)
        with pytest.raises(TimeoutError, match=r"no change within 0\.02 seconds"):
            next(room.changes(timeout=0.02))
        assert room.pending == 1
        do(other_server, other_server.release)


def test_calls_and_streams(other_server: Server) -> None:
    with connect_sync(other_server.url, timeout=TIMEOUT) as room:
        assert room.call("add", 1, 2) == 3
        assert list(room.stream("count", 3)) == [0, 1, 2]
        with pytest.raises(CallError, match="there is no nothing"):
            room.call("nothing")
        for value in room.stream("begin"):
            assert value == "begun"
            break
        wait(other_server, lambda: other_server.until(lambda: other_server.frames(messages.Cancel)))


def test_a_state_may_be_waited_for_longer_than_all_else(other_server: Server) -> None:
    asked: list[int] = []

    def is_changed(state: Any) -> bool:
        if not asked:
            asked.append(1)
            do(other_server, lambda: other_server.peer.change([Op("replace", "/n", 2)]))
        return bool(state["n"] == 2)

    with connect_sync(other_server.url, timeout=0) as room:
        with pytest.raises(TimeoutError, match="within 0 seconds"):
            room.call("add", 1)
        assert room.wait_for(is_changed, timeout=None)["n"] == 2


def test_a_stream_left_open_does_not_outlive_the_client(other_server: Server) -> None:
    with connect_sync(other_server.url, timeout=TIMEOUT) as room:
        values = room.stream("begin")
        assert next(values) == "begun"
    values.close()


def test_changes_come_one_after_the_other_and_end_with_the_client(other_server: Server) -> None:
    with connect_sync(other_server.url) as room:
        changes = room.changes(timeout=TIMEOUT)
        for n in (2, 3):
            do(other_server, lambda n=n: other_server.peer.change([Op("replace", "/n", n)]))
        assert [next(changes).state["n"], next(changes).state["n"]] == [2, 3]
        assert room.wait_for(lambda state: state["n"] == 3)["n"] == 3
        impatient = room.changes(timeout=0.01)
        with pytest.raises(TimeoutError):
            next(impatient)
        do(other_server, lambda: other_server.peer.change([Op("replace", "/n", 4)]))
        assert next(changes).version == 3


def test_who_waits_for_changes_is_told_when_another_thread_closes_the_client(other_server: Server) -> None:
    room = connect_sync(other_server.url)
    got: list[int] = []
    first = threading.Event()

    def follow() -> None:
        for change in room.changes():
            got.append(change.version)
            first.set()

    following = threading.Thread(target=follow)
    following.start()
    while not first.wait(0.01):
        do(other_server, lambda: other_server.peer.change([Op("replace", "/n", 2)]))
    room.close()
    following.join(TIMEOUT)
    assert not following.is_alive()
    assert got


def test_messages_and_presence(other_server: Server) -> None:
    got: list[Any] = []
    came = threading.Event()
    with connect_sync(other_server.url) as room:
        removes = [room.on_message(got.append), room.on_event("goal", got.append)]
        room.on_presence(lambda presence: came.set())
        room.send("hello")
        room.send({"event": "goal"})
        room.set_presence({"name": "Ada"})
        assert came.wait(TIMEOUT)
        assert got == ["hello", {"event": "goal"}]
        assert room.presence == {room.connection: {"name": "Ada"}}
        for remove in removes:
            remove()


def test_a_callback_cannot_wait_for_its_own_client(other_server: Server) -> None:
    failures: list[RuntimeError] = []
    came = threading.Event()
    with connect_sync(other_server.url) as room:

        def callback(message: Any) -> None:
            with pytest.raises(RuntimeError, match="must not wait") as caught:
                room.call("add", 1)
            failures.append(caught.value)
            came.set()

        room.on_message(callback)
        room.send(1)
        assert came.wait(TIMEOUT)
    assert len(failures) == 1


def test_it_reconnects(other_server: Server) -> None:
    with connect_sync(other_server.url, timeout=TIMEOUT) as room:
        wait(other_server, other_server.close_all)
        assert room.update("/n", 2) == 1


def test_sending_without_a_connection_raises(other_server: Server) -> None:
    with connect_sync(other_server.url) as room:
        other_server.status = HTTPStatus.SERVICE_UNAVAILABLE
        wait(other_server, other_server.close_all)
        room.wait_for(lambda _: room.status == "offline", TIMEOUT)
        with pytest.raises(Disconnected):
            room.send(1)


def test_a_callback_that_ends_the_program_ends_what_waits(other_server: Server) -> None:
    before = threads()
    with pytest.raises(SystemExit, match="the game is over"), connect_sync(other_server.url, timeout=None) as room:  # noqa: PT012
        room.on_event("stop", lambda data: sys.exit("the game is over"))
        room.send({"event": "stop"})
        for _ in room.changes():
            pass
    assert threads() == before
    assert (room.state["n"], room.status) == (1, "closed")
    for use in (lambda: room.update("/n", 2), lambda: room.call("add", 1), room.close):
        with pytest.raises(SystemExit, match="the game is over"):
            use()


def test_a_callback_that_ends_the_program_does_so_at_the_latest_when_the_client_is_closed(
    other_server: Server,
) -> None:
    ended = threading.Event()

    def callback(message: Any) -> None:
        ended.set()
        sys.exit("the game is over")

    room = connect_sync(other_server.url)
    room.on_message(callback)
    room.send(1)
    assert ended.wait(TIMEOUT)
    with pytest.raises(SystemExit, match="the game is over"):
        room.close()


def test_closing_a_loop_over_rooms_sends_what_was_not_awaited_before_the_program_ends(other_server: Server) -> None:
    async def main() -> None:
        async with aclosing(aiter(connect(other_server.url))) as rooms:
            async for room in rooms:
                room.update("/n", 2)
                break

    asyncio.run(main())
    assert other_server.peer.state["n"] == 2
