"""A conversation in the native protocol, without a socket: joining, changes, messages, limits, bad frames."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.server.rooms import Client as CloudflareClient
from tests.server.rooms import House, open_house
from tests.server.session.guests import (
    LARGE,
    PATIENCE,
    Guest,
    Room,
    Slow,
    SlowReads,
    add,
    change,
    joined,
    joins,
    opening,
    put,
    until,
)

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import StoreError, Unavailable
from plait.limits import UNLIMITED, Limits
from plait.state.principal import Principal
from plait.state.retention import Retention
from plait.web.fairness import FairScheduler

# Joining


async def test_a_client_that_has_nothing_is_sent_the_state_with_all_that_it_needs_to_know() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        await change(actor, 1)
        guest = Guest(actor, "a")
        await guest.open()
        assert guest.frames == [
            {
                "type": "joined",
                "connection": guest.connection.id,
                "thread": "room/one",
                "epoch": actor.state.history.epoch,
                "version": 1,
                "state": {"n": 1},
                "max_frame": 1024 * 1024,
            }
        ]


async def test_a_push_from_before_principals_were_stored_with_clients_is_not_applied_twice() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        former, _ = await opening(actor, "a")
        former.push(put("/n", 1), base=0)
        await actor.wait_until_idle()
        former.leave()
        guest, frame = await opening(actor, "a", principal=Principal("ada"))
        assert frame["last_ref"] == 1
        guest.push(put("/n", 1), base=0, ref=1)
        guest.push(put("/n", 2), base=1, ref=2)
        await actor.wait_until_idle()
        assert guest.frames == [{"type": "ack", "ref": 1, "version": 1}, {"type": "ack", "ref": 2, "version": 2}]
        # What she pushes from there on is told to her alone.
        _, frame = await opening(actor, "a", principal=Principal("grace"))
        assert frame["last_ref"] == 1
        guest.leave()
        _, frame = await opening(actor, "a", principal=Principal("ada"))
        assert frame["last_ref"] == 2


async def test_a_client_is_told_how_large_its_frames_may_be_where_they_are_limited() -> None:
    async with open_house(Room, limits=Limits(frame=5_000)) as house:
        guest = Guest(await house.actor(Room), "a")
        await guest.open()
        assert guest.frames[0]["max_frame"] == 5_000
    async with open_house(Room, limits=UNLIMITED) as house:
        guest = Guest(await house.actor(Room), "a")
        await guest.open()
        assert "max_frame" not in guest.frames[0]


async def test_a_client_is_told_which_members_identify_the_elements_of_lists() -> None:
    class Board(Room):
        list_keys: ClassVar[Mapping[str, str]] = {"/columns/*/cards": "slug"}

    async with open_house(Board) as house:
        actor = await house.actor(Board)
        _, frame = await opening(actor, "a")
        assert frame["list_keys"] == {"/columns/*/cards": "slug"}
        actor.thread.update("/n", 1)
        await actor.wait_until_idle()
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 0))
        assert frame["ops"]
        assert frame["list_keys"] == {"/columns/*/cards": "slug"}
    async with open_house(Room) as house:
        _, frame = await opening(await house.actor(Room), "a")
        assert "list_keys" not in frame


async def test_a_client_that_joins_before_there_is_a_state_is_told_which_members_identify_elements_too() -> None:
    class Blank(Thread[Any]):
        list_keys: ClassVar[Mapping[str, str]] = {"/cards": "slug"}

    async with open_house(Blank) as house:
        _, frame = await opening(await house.actor(Blank), "a")
        assert "state" not in frame
        assert frame["list_keys"] == {"/cards": "slug"}


@each_case("protocol", ["native", "cloudflare"])
async def test_what_came_before_a_socket_was_closed_is_taken_though_it_waits_for_its_turn(protocol: str) -> None:
    class Gated(Room):
        def on_start(self) -> None:
            super().on_start()
            self.gate = asyncio.Event()

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await self.gate.wait()
            self.heard.append("connected")

        def on_message(self, connection: Connection, data: Any) -> None:
            self.heard.append(data)

        def on_close(self, connection: Connection, code: int, reason: str) -> None:
            self.heard.append("closed")

    async with open_house(Gated) as house:
        actor = await house.actor(Gated)
        thread: Any = actor.thread
        client = Guest(actor, "a") if protocol == "native" else CloudflareClient(actor, "a")
        # Another client has kept the server busy, so that costly work waits.
        scheduler = client.transport.scheduler = FairScheduler()
        if isinstance(client, Guest):
            await client.open()
            client.push(put("/n", 7), base=0)
            client.send("message", data="last")
        else:
            client.open()
            await until(lambda: actor.sockets)
            client.push({"n": 7})
            client.send("last")
        scheduler.spend(0.05)
        thread.gate.set()
        await until(lambda: "connected" in thread.heard)
        client.leave()
        await until(lambda: "closed" in thread.heard)
        await actor.wait_until_idle()
        assert thread.heard == ["connected", "last", "closed"]
        assert actor.state.current.state == {"n": 7}


async def test_a_client_that_has_the_version_is_sent_neither_state_nor_ops() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        await change(actor, 1)
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 1))
        assert frame == {"version": 1}


async def test_a_client_that_comes_back_is_sent_the_operations_that_it_missed() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 500})
        await change(actor, 1, 2)
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 1))
        assert frame == {"version": 3, "ops": [put("/n", 1), put("/n", 2)]}


async def test_a_client_whose_missed_operations_are_large_and_larger_than_the_state_is_sent_the_state() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        await change(actor, *LARGE)
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 0))
        assert frame == {"version": 3, "state": {"n": LARGE[-1]}}


async def test_a_client_that_has_missed_10_000_splices_is_sent_them_as_one_if_that_is_less_than_the_state() -> None:
    class Log(Room):
        retention = Retention(changes=None)

    async with open_house(Log) as house:
        actor = await house.actor(Log)
        await actor.thread.set_state({"text": "x" * 100_000})
        for n in range(10_000):
            commit = actor.thread.append("/text", f"{n % 1000:03}")
            if n % 100 == 99:
                await commit
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 1))
        inserted = "".join(f"{n % 1000:03}" for n in range(10_000))
        splice = {"op": "splice", "path": "/text", "at": 100_000, "insert": inserted}
        assert frame == {"version": 10_001, "ops": [splice]}


async def test_a_client_that_has_missed_a_damaged_change_is_sent_the_state_and_the_damage_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(Room, store=(store := SlowReads())) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 100_000})
        await change(actor, *range(1, 401))
        store.is_damaged = True
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 1))
        assert frame == {"version": 401, "state": actor.thread.state}
    assert [record.getMessage() for record in caplog.records] == ["room/one: change 2 is damaged"]


async def test_a_client_that_missed_more_than_is_in_memory_is_sent_operations_from_the_store() -> None:
    async with open_house(Room, store=(store := SlowReads())) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 100_000})
        await change(actor, *range(1, 401))
        _, frame = await opening(actor, "a", have=(actor.state.history.epoch, 1))
        assert frame == {"version": 401, "ops": [put("/n", n) for n in range(1, 401)]}
        assert store.reads == 1


class Forgetful(Room):
    """Keeps hardly any of its log."""

    kind = "room"
    retention = Room.retention.__class__(changes=1)


@each_case("have", [("another", 1), ("mine", 1), ("mine", 401), ("mine", -1), ("mine", 2**70)])
async def test_a_client_that_has_whatnobody_knows_or_can_tell_on_from_is_sent_the_state(have: tuple[str, int]) -> None:
    async with open_house(Forgetful) as house:
        actor = await house.actor(Forgetful)
        actor.thread.set_state({"n": 0, "text": "x" * 3_000})
        await change(actor, *range(1, 400))
        epoch = actor.state.history.epoch if have[0] == "mine" else have[0]
        _, frame = await opening(actor, "a", have=(epoch, have[1]))
        assert frame == {"version": 400, "state": {"n": 399, "text": "x" * 3_000}}


async def test_a_thread_without_state_says_so_by_version_0_and_nothing_else() -> None:
    class Empty(Thread[Any]):
        pass

    async with open_house(Empty) as house:
        actor = await house.actor(Empty)
        guest, frame = await opening(actor, "a")
        assert frame == {"version": 0}
        guest.push(put("", {"n": 1}), base=0)
        await actor.wait_until_idle()
        assert guest.frames == [{"type": "ack", "ref": 1, "version": 1}]
        _, frame = await opening(actor, "b")
        assert frame == {"version": 1, "state": {"n": 1}}


async def test_the_last_ref_is_told_from_memory_and_from_the_store_and_to_its_own_client_only() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, frame = await opening(actor, "a")
        assert "last_ref" not in frame
        a.push(put("/n", 1), base=0)
        a.push(put("/n", 2), base=0)
        await actor.wait_until_idle()
        again, frame = await opening(actor, "a")
        assert frame["last_ref"] == 2
        again.leave()
        await actor.wait_until_idle()
        assert again.connection.id not in actor.state.clients
        _, frame = await opening(actor, "a")
        assert frame["last_ref"] == 2
        _, frame = await opening(actor, "b")
        assert "last_ref" not in frame


async def test_who_joins_while_a_change_is_on_its_way_to_the_disk_is_told_of_it_afterwards_and_once() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        await actor.state.store_thread()
        house.store.is_held = True
        actor.thread.set_state({"n": 1})
        guest = Guest(actor, "a")
        entering = asyncio.create_task(guest.open())
        await asyncio.sleep(0)
        assert guest.frames == []
        actor.thread.set_state({"n": 2})
        house.store.resume(1)
        await entering
        assert guest.frames == []
        actor.thread.set_state({"n": 3})
        house.store.resume(1)
        await until(lambda: guest.transport.sent)
        assert joins(frames := guest.frames) == {"version": 2, "state": {"n": 2}}
        assert frames[1:] == []
        house.store.resume()
        await actor.wait_until_idle()
        assert guest.frames == [{"type": "change", "version": 3, "ops": [put("/n", 3)]}]


async def test_changes_while_the_store_is_read_for_a_join_are_neither_missed_nor_told_twice() -> None:
    async with open_house(Room, store=(store := SlowReads())) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 100_000})
        await change(actor, *range(1, 401))
        store.may_read.clear()
        guest = Guest(actor, "a", have=(actor.state.history.epoch, 1))
        entering = asyncio.create_task(guest.open())
        await until(lambda: store.reads)
        await change(actor, *range(401, 501))
        store.may_read.set()
        await entering
        await change(actor, 501)
        frames = guest.frames
        assert joins(frames)["ops"] == [put("/n", n) for n in range(1, 501)]
        assert frames[1:] == [
            {"type": "presence", "snapshot": {}},
            {"type": "change", "version": 502, "ops": [put("/n", 501)]},
        ]


async def test_changes_while_the_hooks_look_at_a_client_are_in_what_it_is_sent_first() -> None:
    class Asking(Slow):
        kind = "room"

        async def connection_tags(self, connection: Connection, request: Request) -> list[str]:
            await self.gate.wait()
            return ["tagged"]

    async with open_house(Asking) as house:
        actor = await house.actor(Asking)
        guest = Guest(actor, "a")
        await guest.open()
        await change(actor, 1)
        assert guest.frames == []
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert joins(guest.frames) == {"version": 1, "state": {"n": 1}}
        assert guest.connection.tags == ("tagged",)


async def test_what_comes_before_on_connect_has_finished_waits_for_it_and_in_the_end_nothing_more_is_read() -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        guest = Guest(actor, "a")
        await guest.open()
        for n in range(64):
            assert not guest.transport.is_paused
            guest.push(put("/n", n), base=0)
        assert guest.transport.is_paused
        guest.transport.resume()  # As it happens when the lobby hands over to the session.
        guest.push(put("/n", 64), base=0)
        assert guest.transport.is_paused
        assert actor.thread.state == {"n": 0}
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert [frame["version"] for frame in guest.frames if frame["type"] == "ack"] == [*range(1, 66)]
        assert not guest.transport.is_paused


async def test_a_connection_that_is_to_be_read_no_more_is_not_when_its_on_connect_has_finished() -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        guest = Guest(actor, "a")
        await guest.open()
        for n in range(64):
            guest.push(put("/n", n), base=0)
        await until(lambda: len(actor.sockets) == 1)
        draining = house.node.drain(PATIENCE)
        await until(lambda: guest.transport.is_stopped)
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await draining
        assert guest.transport.is_paused
        assert guest.closed == 1001


async def test_a_few_large_messages_before_on_connect_has_finished_are_enough_that_nothing_more_is_read() -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        guest = Guest(actor, "a")
        await guest.open()
        guest.send("message", data="x" * 600_000)
        assert not guest.transport.is_paused
        guest.send("message", data="x" * 600_000)
        assert guest.transport.is_paused
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert not guest.transport.is_paused
        assert actor.thread.heard == ["x" * 600_000] * 2  # type: ignore[attr-defined]


async def test_a_hook_that_raises_closes_with_1011_and_says_nothing() -> None:
    class Failing(Room):
        kind = "room"

        def on_connect(self, connection: Connection, request: Request) -> None:
            raise LookupError("secret")

    async with open_house(Failing) as house:
        actor = await house.actor(Failing)
        guest = Guest(actor, "a")
        await guest.open()
        await actor.wait_until_idle()
        assert guest.closed == 1011
        assert "secret" not in str(guest.transport.closed)
        assert len(actor.sockets) == 0


async def test_nothing_is_done_of_what_a_client_sent_before_on_connect_closed_it_though_a_change_is_being_stored() -> (
    None
):
    class Closing(Slow):
        kind = "room"

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await super().on_connect(connection, request)
            connection.send("goodbye")
            connection.close(4403, "you may not")

    async with open_house(Closing) as house:
        actor = await house.actor(Closing)
        guest = Guest(actor, "a")
        await guest.open()
        await until(actor.thread.greeting.is_set)  # type: ignore[attr-defined]
        house.store.is_held = True
        actor.thread.set_state({"n": 1})
        for _ in range(64):
            guest.send("message", data="hello")
        guest.push(put("/n", 2), base=0)
        guest.send("call", ref=1, method="set", args=[3])
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await until(lambda: actor.turns.mailbox.is_idle)
        assert guest.closed is None
        guest.send("message", data="still here")
        guest.push(put("/n", 4), base=0)
        house.store.resume()
        await actor.wait_until_idle()
        assert guest.closed == 4403
        assert guest.frames[-2:] == [{"type": "message", "data": "goodbye"}, None]
        assert actor.thread.heard == []  # type: ignore[attr-defined]
        assert actor.thread.state == {"n": 1}


@each_case("cls", [Room, Slow])
async def test_those_who_come_at_the_same_time_are_no_more_than_a_thread_may_have(cls: type[Room]) -> None:
    async with open_house(cls, limits=Limits(connections_per_thread=2)) as house:
        actor = await house.actor(cls)
        guests = [Guest(actor, client) for client in "abc"]
        for guest in guests:
            await guest.open()
        if isinstance(actor.thread, Slow):
            actor.thread.gate.set()
        await actor.wait_until_idle()
        assert [guest.closed for guest in guests] == [None, None, 1013]
        assert [each.id for each in actor.sockets] == [guest.connection.id for guest in guests[:2]]


@each_case("end", ["drop", "drain", "stop"])
async def test_who_joins_a_thread_that_has_ended_is_sent_away(end: str) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = Guest(actor, "a")
        match end:
            case "drop":
                actor.drop(Unavailable("the thread has moved"), is_awake=True)
            case "drain":
                await house.node.drain(PATIENCE)
            case _:
                await actor.stop()
        await guest.open()
        assert guest.closed == 1013
        assert len(actor.sockets) == 0


async def test_a_client_that_is_gone_before_its_turn_to_join_never_joins_and_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        first = Guest(actor, "a")
        await first.open()
        late = Guest(actor, "b")
        await late.open()
        late.push(put("/n", 1), base=0)
        late.leave()
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert list(actor.sockets) == [first.connection]
        assert actor.thread.state == {"n": 0}
        assert "b" not in actor.state.clients
        assert caplog.messages == []


async def test_a_client_whose_past_cannot_be_read_is_not_remembered_for_ever() -> None:
    async with open_house(Room, store=(store := SlowReads())) as house:
        actor = await house.actor(Room)
        await change(actor, *range(1, 401))
        store.is_broken = True
        guest = Guest(actor, "a", have=(actor.state.history.epoch, 1))
        with pytest.raises(StoreError):
            await guest.open()
        assert guest.connection.id not in actor.state.clients


async def test_the_same_client_on_another_socket_closes_the_older_one_with_4408() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        older, other = await joined(actor, "a"), await joined(actor, "b")
        newer = await joined(actor, "a")
        assert (older.closed, newer.closed, other.closed) == (4408, None, None)
        assert newer.connection.id == older.connection.id
        assert list(actor.sockets) == [other.connection, newer.connection]
        newer.push(put("/n", 1), base=0)
        await actor.wait_until_idle()
        assert newer.frames == [{"type": "ack", "ref": 1, "version": 1}]


async def test_the_newer_socket_of_a_client_is_connected_when_on_close_is_told_of_the_older_one() -> None:
    class Playing(Room):
        kind = "room"
        initial_state = {"players": {}}  # noqa: RUF012

        def on_connect(self, connection: Connection, request: Request) -> None:
            self.heard.append(("on_connect", connection))
            self.update(f"/players/{connection.id}", 1)

        def on_close(self, connection: Connection, code: int, reason: str) -> None:
            self.heard.append(("on_close", connection))
            if not any(each.id == connection.id for each in self.connections()):
                with self.edit() as draft:
                    draft.players.pop(connection.id, None)

    async with open_house(Playing) as house:
        actor = await house.actor(Playing)
        older, newer = await joined(actor, "a"), await joined(actor, "a")
        assert actor.thread.heard == [  # type: ignore[attr-defined]
            ("on_connect", older.connection),
            ("on_connect", newer.connection),
            ("on_close", older.connection),
        ]
        assert actor.thread.state == {"players": {newer.connection.id: 1}}
        newer.leave()
        await actor.wait_until_idle()
        assert actor.thread.state == {"players": {}}


async def test_a_join_that_came_first_and_took_longer_does_not_close_the_newer_socket() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        older, newer = Guest(actor, "a", arrival=1), Guest(actor, "a", arrival=2)
        await newer.open()
        await older.open()
        assert (older.closed, newer.closed) == (4408, None)
        assert list(actor.sockets) == [newer.connection]
        newer.push(put("/n", 1), base=0)
        await actor.wait_until_idle()
        assert newer.frames[-1] == {"type": "ack", "ref": 1, "version": 1}


@each_case("is_stored", [True, False])
async def test_a_push_on_the_older_socket_that_is_still_on_its_way_is_in_what_the_newer_one_joins_with(
    is_stored: bool,
) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        older = await joined(actor, "a")
        newer = Guest(actor, "a")
        joining = await newer.prepare()
        house.store.is_held = True
        older.push(put("/n", 1), base=0)
        newer.join(joining)
        assert older.closed == 4408
        older.push(put("/n", 2), base=0)
        newer.push(put("/n", 1), base=0)
        actor.thread.broadcast("to those who are here")
        assert newer.frames == []
        if not is_stored:
            house.store.fail_next()
        house.store.resume()
        await actor.wait_until_idle()
        frames, version = newer.frames, int(is_stored)
        assert joins(frames[:1]) == {"version": version, "last_ref": 1, "state": {"n": version}}
        assert (frames[1]["type"], frames[1]["ref"]) == ("ack" if is_stored else "nack", 1)
        # What was broadcast after a change that is not stored is not sent.
        assert frames[2:] == ([{"type": "message", "data": "to those who are here"}] if is_stored else [])
        newer.push(add("/m", 1), base=version, answered=0)
        await actor.wait_until_idle()
        assert newer.frames == [{"type": "ack", "ref": 2, "version": version + 1}]


# Changes of others


async def test_a_change_goes_to_all_but_its_sender_who_gets_an_ack() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b, c = [await joined(actor, client) for client in "abc"]
        a.push(put("/n", 1), base=0)
        await actor.wait_until_idle()
        told = {"type": "change", "version": 1, "ops": [put("/n", 1)], "source": a.connection.id}
        assert (b.frames, c.frames) == ([told], [told])
        assert a.frames == [{"type": "ack", "ref": 1, "version": 1}]


async def test_a_change_says_its_source_where_it_is_another_than_the_one_that_its_reader_was_told_last() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b, c = [await joined(actor, client) for client in "abc"]
        for guest, n in ((a, 1), (a, 2), (b, 3), (a, 4)):
            guest.push(put("/n", n), base=n - 1)
            await actor.wait_until_idle()
        await change(actor, 5)
        late = await joined(actor, "d")
        await change(actor, 6)
        frames = [each.frames for each in (a, b, c, late)]
        sources = [[frame.get("source") for frame in each if frame["type"] == "change"] for each in frames]
        ids = (a.connection.id, b.connection.id)
        assert sources == [
            [ids[1], "server", None],
            [ids[0], None, None, "server", None],
            [ids[0], None, ids[1], ids[0], "server", None],
            [None],
        ]


async def test_nothing_of_a_change_is_told_before_it_is_durable_and_then_all_in_order() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b = await joined(actor, "a"), await joined(actor, "b")
        house.store.is_held = True
        actor.thread.set_state({"n": 1})
        a.push(put("/n", 2), base=0)
        actor.thread.set_state({"n": 3})
        a.push(put("/n", 4), base=0)
        actor.thread.emit("late")
        for _ in range(10):
            await asyncio.sleep(0)
        assert (a.frames, b.frames) == ([], [])
        house.store.resume()
        await actor.wait_until_idle()
        assert [(each["type"], each.get("version")) for each in a.frames] == [
            ("change", 1),
            ("ack", 2),
            ("change", 3),
            ("ack", 4),
            ("event", None),
        ]
        assert [(each["type"], each.get("version")) for each in b.frames] == [
            *(("change", version) for version in (1, 2, 3, 4)),
            ("event", None),
        ]


async def test_native_and_cloudflare_clients_on_one_thread_see_each_others_changes() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        native, cloudflare = await joined(actor, "a"), CloudflareClient(actor, "b")
        cloudflare.open()
        await cloudflare.joined()
        native.push(put("/n", 1), base=0)
        assert await cloudflare.next() == {"type": "cf_agent_state", "state": {"n": 1}}
        assert native.frames == [{"type": "ack", "ref": 1, "version": 1}]
        cloudflare.push({"n": 2})
        await actor.wait_until_idle()
        assert native.frames == [{"type": "change", "version": 2, "ops": [put("/n", 2)], "source": "b"}]
        native.push(put("/n", 3), base=2)
        await actor.wait_until_idle()
        assert native.frames == [{"type": "ack", "ref": 2, "version": 3}]


async def test_a_connection_without_protocol_messages_is_told_of_no_change_and_no_presence() -> None:
    class Plain(Room):
        kind = "room"

        def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
            return connection.principal is None

    async with open_house(Plain) as house:
        actor = await house.actor(Plain)
        other = await joined(actor, "other")
        other.send("presence", data="here")
        actor.sockets.presence.flush()
        plain, frame = Guest(actor, "plain", principal=Principal("plain")), None
        await plain.open()
        await actor.wait_until_idle()
        frame = joins(frames := plain.frames)
        assert (frame, frames[1:]) == ({"version": 0}, [])
        await change(actor, 1)
        other.send("presence", data="still here")
        actor.sockets.presence.flush()
        actor.thread.broadcast("hello")
        assert plain.frames == [{"type": "message", "data": "hello"}]
        plain.push(put("/n", 2), base=1)
        plain.send("call", ref=7, method="set", args=[3])
        await actor.wait_until_idle()
        assert plain.frames == [{"type": "ack", "ref": 1, "version": 2}, {"type": "result", "ref": 7, "done": True}]
        again = Guest(actor, "plain", have=(actor.state.history.epoch, 0), principal=Principal("plain"))
        await again.open()
        await actor.wait_until_idle()
        assert joins(again.frames[:1]) == {"version": 0, "last_ref": 1}


async def test_a_readonly_connection_is_told_so_and_its_pushes_are_refused() -> None:
    class Guarded(Room):
        kind = "room"

        def should_be_readonly(self, connection: Connection, request: Request) -> bool:
            return True

    async with open_house(Guarded) as house:
        actor = await house.actor(Guarded)
        guest = Guest(actor, "a")
        await guest.open()
        await actor.wait_until_idle()
        assert joins(guest.frames)["readonly"] is True
        guest.push(put("/n", 1), base=0)
        guest.send("call", ref=1, method="set", args=[1])
        await actor.wait_until_idle()
        nack, error = guest.frames
        assert (nack["type"], nack["ref"], nack["code"], nack["version"]) == ("nack", 1, "readonly", 0)
        assert (error["type"], error["ref"], error["code"]) == ("error", 1, "readonly")
        assert actor.thread.state == {"n": 0}
        guest.connection.readonly = False
        guest.push(put("/n", 1), base=0)
        await actor.wait_until_idle()
        assert guest.frames == [{"type": "ack", "ref": 2, "version": 1}]


# Messages and events


@each_case(("sent", "heard"), [('"hello"', "hello"), ('{"a": [1]}', '{"a": [1]}'), (" 12", "12"), ('"\\u00e4"', "ä")])
async def test_a_message_reaches_its_hook_a_string_as_it_is_and_anything_else_as_json(sent: str, heard: str) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send_text(f'{{"type": "message", "data": {sent}}}')
        guest.send_bytes(b"\x00\xff")
        await actor.wait_until_idle()
        assert actor.thread.heard == [heard, b"\x00\xff"]  # type: ignore[attr-defined]


async def test_what_the_thread_sends_and_emits_reaches_all_but_those_left_out() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b = await joined(actor, "a"), await joined(actor, "b")
        cloudflare = CloudflareClient(actor, "c")
        cloudflare.open()
        await cloudflare.joined()
        actor.thread.broadcast({"to": "all"})
        actor.thread.broadcast(b"\x00", without=[a.connection])
        actor.thread.emit("goal", {"by": "Ada"})
        actor.thread.emit("own goal", without=[b.connection])
        b.connection.send("to b")
        message = {"type": "message", "data": {"to": "all"}}
        goal = {"type": "event", "name": "goal", "data": {"by": "Ada"}}
        assert a.frames == [message, goal, {"type": "event", "name": "own goal", "data": None}]
        assert b.frames == [message, b"\x00", goal, {"type": "message", "data": "to b"}]
        assert cloudflare.transport.take() == [{"to": "all"}, b"\x00"]


async def test_a_ping_is_answered_at_once() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        house.store.is_held = True
        actor.thread.set_state({"n": 1})
        guest.send("ping")
        assert guest.frames == [{"type": "pong"}]


# Bad frames


@each_case(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"type": "pushy"}',
        '{"type": "push"}',
        '{"type": "push", "ref": 1, "base": ["e", 0], "state": {"n": 1}}',
        '{"type": "push", "ref": "1", "base": ["e", 1], "ops": []}',
        '{"type": "push", "ref": 1, "base": ["e", 1], "ops": [{"op": "move", "path": ""}]}',
        '{"type": "call", "ref": 1.5, "method": "set"}',
        '{"type": "join", "client": "a"}',
        '{"type": "presence", "data": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
async def test_a_frame_that_is_none_is_answered_with_an_error_and_closes_with_4400(text: str) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send_text(text)
        error, end = guest.frames
        assert (error["type"], error["code"], "ref" in error, end) == ("error", "bad_frame", False, None)
        assert error["message"]
        assert guest.closed == 4400
        assert len(actor.sockets) == 0


async def test_what_comes_after_a_bad_frame_is_not_looked_at() -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        guest = Guest(actor, "a")
        await guest.open()
        guest.send_text("nonsense")
        guest.push(put("/n", 1), base=0)
        guest.send("message", data="hello")
        guest.send("call", ref=1, method="set", args=[1])
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert guest.closed == 4400
        assert actor.thread.state == {"n": 0}
        assert actor.thread.heard == []  # type: ignore[attr-defined]


async def test_unknown_fields_are_ignored() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send("ping", future={"field": 1})
        assert guest.frames == [{"type": "pong"}]


# Too many messages


async def test_pushes_that_come_too_fast_are_told_when_to_come_again_and_those_after_them_are_out_of_order() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=3)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for n in range(1, 6):
            guest.push(put("/n", n), base=0)
        await actor.wait_until_idle()
        *acks, first, second = guest.frames
        assert [frame["type"] for frame in acks] == ["ack"] * 3
        # Until then the server takes as many as it has refused.
        for ref, nack, pause in ((4, first, 1000), (5, second, 2000)):
            assert (nack["type"], nack["ref"], nack["code"]) == ("nack", ref, "rate_limited")
            assert pause - 100 < nack["retry_after"] <= pause
        _refill(guest)
        guest.push(put("/n", 5), base=3, ref=5)
        (gap,) = guest.frames
        assert (gap["type"], gap["code"], gap["ref"], gap["expected"]) == ("nack", "gap", 5, 4)
        guest.push(put("/n", 4), base=3, ref=4)
        guest.push(put("/n", 5), base=3, ref=5)
        await actor.wait_until_idle()
        assert guest.frames == [{"type": "ack", "ref": 4, "version": 4}, {"type": "ack", "ref": 5, "version": 5}]


async def test_a_first_push_that_came_too_fast_is_not_taken_for_done_when_the_next_came_in_time() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=2)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send("ping")
        guest.send("ping")
        guest.push(put("/n", 1), base=0, ref=1)
        _refill(guest)
        guest.push(add("/two", 2), base=0, ref=2)
        guest.push(put("/n", 1), base=0, ref=1)
        _refill(guest)
        guest.push(add("/two", 2), base=0, ref=2)
        await actor.wait_until_idle()
        assert actor.thread.state == {"n": 1, "two": 2}
        assert [(f["type"], f["ref"], f.get("code")) for f in guest.frames if f["type"] != "pong"] == [
            ("nack", 1, "rate_limited"),
            ("nack", 2, "gap"),
            ("ack", 1, None),
            ("ack", 2, None),
        ]


async def test_calls_messages_and_presences_that_come_too_fast_are_refused_with_an_error() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=3)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for _ in range(3):
            guest.send("ping")
        guest.send("call", ref=9, method="set", args=[1])
        guest.send("message", data="hello")
        guest.send_bytes(b"hello")
        await actor.wait_until_idle()
        assert [(f.get("code"), f.get("ref")) for f in guest.frames[3:]] == [
            ("rate_limited", 9),
            ("rate_limited", None),
            ("rate_limited", None),
        ]
        assert actor.thread.heard == []  # type: ignore[attr-defined]
        assert guest.closed is None


async def test_what_came_too_fast_is_told_apart_with_when_it_may_come_again() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.5, message_burst=6)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for _ in range(3):
            guest.send("ping")
        guest.send("ping", messages=0)
        guest.send("message", data="one")
        guest.send_bytes(b"two")
        guest.send("message", data="three")
        guest.send("presence", data=1)
        guest.send("auth", token="fresh")
        guest.send_bytes(b"four")
        guest.send("ping", messages=4)
        await actor.wait_until_idle()
        frames = [frame for frame in guest.frames if frame is not None]
        refusals = [frame for frame in frames if frame["type"] == "error"]
        assert [(frame["refused"], frame.get("messages")) for frame in refusals] == [
            ("message", 2),
            ("presence", None),
            ("auth", None),
            ("message", 2),
        ]
        waits = [frame["retry_after"] for frame in refusals]
        assert 0 < waits[0] < waits[1] < waits[2] < waits[3] <= 10
        assert [frame.get("messages") for frame in frames if frame["type"] == "pong"] == [None, None, None, 0, 2]
        assert actor.thread.heard == ["one", b"two"]  # type: ignore[attr-defined]


async def test_what_says_how_many_messages_were_taken_comes_after_the_errors_before_it() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=2)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send("ping", messages=0)
        guest.push(put("/n", 2), base=0)
        guest.send("message", data="refused")
        guest.send("ping", messages=1)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in guest.frames] == ["pong", "ack", "error", "pong"]


async def test_a_cancel_and_a_ping_that_come_too_fast_are_carried_out() -> None:
    class Waiting(Room):
        kind = "room"

        @rpc(concurrent=True)
        async def wait(self) -> None:
            await asyncio.Event().wait()

    async with open_house(Waiting, limits=Limits(messages_per_second=0.001, message_burst=1)) as house:
        actor = await house.actor(Waiting)
        guest = await joined(actor, "a")
        guest.send("call", ref=1, method="wait")
        guest.send("cancel", ref=1)
        await actor.wait_until_idle()
        assert guest.frames == []
        _refill(guest)
        guest.send("ping")
        guest.send("ping")
        assert guest.frames == [{"type": "pong"}] * 2


async def test_who_goes_on_regardless_is_closed_with_1013_after_as_many_refusals_in_a_row() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=3)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for _ in range(6):
            guest.send("ping")
        assert guest.closed is None
        _refill(guest)
        for _ in range(6):
            assert guest.closed is None
            guest.send("ping")
        assert guest.closed is None
        guest.send("ping")
        assert guest.closed == 1013


async def test_who_goes_on_regardless_is_closed_though_each_now_and_then_is_taken() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=3)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        limiter = guest.session._limiter
        assert limiter is not None
        for _ in range(6):
            guest.send("ping")
        assert guest.closed is None
        limiter.charge(-1)
        guest.send("ping")
        assert guest.closed is None
        guest.send("ping")
        assert guest.closed == 1013


def _refill(guest: Guest) -> None:
    """Advance the clock, so that all of the guest's messages are long ago."""
    assert guest.session._limiter is not None
    guest.session._limiter = guest.actor.limits.make_limiter(asyncio.get_running_loop().time())


# Slow readers


async def test_a_slow_reader_is_sent_no_states_until_it_has_caught_up_and_then_all_in_one_frame() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 500})
        await actor.wait_until_idle()
        slow, fast = await joined(actor, "slow"), await joined(actor, "fast")
        await change(actor, 1)
        slow.transport.is_backed_up = True
        await change(actor, 2, 3)
        slow.transport.is_backed_up = False
        await change(actor, 4)
        assert [frame["version"] for frame in fast.frames] == [2, 3, 4, 5]
        assert [frame["version"] for frame in slow.frames] == [2]
        slow.transport.catch_up()
        assert slow.frames == [{"type": "changes", "from": 2, "to": 5, "ops": [put("/n", n) for n in (2, 3, 4)]}]
        await change(actor, 5)
        assert [(f["type"], f["version"]) for f in slow.frames] == [("change", 6)]


async def test_a_slow_reader_is_sent_the_state_where_that_is_smaller_or_the_changes_are_not_there() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        epoch = actor.state.history.epoch
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        await change(actor, *LARGE)
        slow.transport.catch_up()
        assert slow.frames == [{"type": "snapshot", "epoch": epoch, "version": 3, "state": {"n": LARGE[-1]}}]
        actor.thread.set_state({"n": 3, "text": "x" * 100_000})
        await actor.wait_until_idle()
        slow.transport.take()
        slow.transport.is_backed_up = True
        await change(actor, *range(400))
        slow.transport.catch_up()
        (frame,) = slow.frames
        assert (frame["type"], frame["version"], frame["state"]["n"]) == ("snapshot", 404, 399)
        slow.transport.catch_up()
        assert slow.frames == []


async def test_whatever_else_a_slow_reader_is_sent_comes_after_the_changes_before_it() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"n": 0, "text": "x" * 500})
        await actor.wait_until_idle()
        slow = await joined(actor, "slow")
        acts: list[tuple[str, Callable[[], object]]] = [
            ("result", lambda: slow.send("call", ref=1, method="set", args=[2])),
            ("ack", lambda: slow.push(add("/own", 1), base=actor.thread.version)),
            ("nack", lambda: slow.push(put("/n", "forbidden"), base=actor.thread.version)),
            ("event", lambda: actor.thread.emit("goal")),
            ("message", lambda: actor.thread.broadcast("hello")),
        ]
        for n, (kind, act) in enumerate(acts, 10):
            slow.transport.is_backed_up = True
            await change(actor, n)
            act()
            await actor.wait_until_idle()
            if kind not in ("ack", "nack"):
                assert slow.frames == []
                slow.transport.catch_up()
            caught_up, answer = slow.frames
            assert (caught_up["type"], answer["type"]) == ("changes", kind)
            # A push is told of by its own ack, and not by what others have changed.
            assert caught_up["to"] == actor.thread.version - (kind == "ack")
            slow.transport.catch_up()
            assert slow.frames == []


async def test_events_bring_no_states_to_a_slow_reader_and_come_in_their_order_when_it_has_caught_up() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        for n in range(10):
            await change(actor, LARGE[n % 3] + str(n))
            actor.thread.emit("tick", n)
        slow.send("call", ref=1, method="set", args=[1])
        await actor.wait_until_idle()
        assert slow.frames == []
        slow.transport.catch_up()
        state, *others = slow.frames
        assert (state["type"], state["version"]) == ("snapshot", 11)
        assert [frame.get("data", frame["type"]) for frame in others] == [*range(10), "result"]


async def test_what_waits_for_a_slow_reader_comes_before_the_answer_to_its_push() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        await change(actor, 1)
        actor.thread.emit("tick")
        slow.push(add("/own", 1), base=1)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in slow.frames] == ["changes", "event", "ack"]


async def test_what_waits_for_a_slow_reader_goes_out_as_far_as_it_is_read() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        await change(actor, 1)
        for n in range(3):
            actor.thread.emit("tick", n)
        slow.transport.room_at_once = 2
        slow.transport.catch_up()
        assert [frame["type"] for frame in slow.frames] == ["changes", "event"]
        actor.thread.emit("tick", 3)
        assert slow.frames == []
        slow.transport.room_at_once = 9
        slow.transport.catch_up()
        assert [frame["data"] for frame in slow.frames] == [1, 2, 3]


@each_case("is_server_ending", [False, True])
async def test_a_slow_reader_whose_socket_is_closed_is_sent_first_what_waits_for_it(is_server_ending: bool) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        await change(actor, 1)
        actor.thread.emit("good-bye")
        if is_server_ending:
            await house.node.drain(PATIENCE)
        else:
            slow.connection.close(4000, "enough")
        assert slow.closed == (1001 if is_server_ending else 4000)
        assert [frame and frame["type"] for frame in slow.frames] == ["changes", "event", None]


async def test_a_slow_reader_for_whom_more_waits_than_the_write_buffer_holds_is_closed_with_1013() -> None:
    async with open_house(Room, limits=Limits(write_buffer=10_000)) as house:
        actor = await house.actor(Room)
        slow = await joined(actor, "slow")
        slow.transport.is_backed_up = True
        await change(actor, 1)
        for _ in range(9):
            actor.thread.emit("tick", "x" * 1_000)
        assert slow.closed is None
        actor.thread.emit("tick", "x" * 1_000)
        assert slow.closed == 1013


async def test_a_slow_reader_is_not_told_who_comes_and_goes_but_who_is_here_when_it_has_caught_up() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        slow, a, b = [await joined(actor, client) for client in ("slow", "a", "b")]
        slow.transport.is_backed_up = True
        for guest in (a, b):
            guest.send("presence", data="here")
            actor.sockets.presence.flush()
        assert slow.frames == []
        slow.transport.catch_up()
        here = {a.connection.id: "here", b.connection.id: "here"}
        assert slow.frames == [{"type": "presence", "snapshot": here}]
        slow.transport.is_backed_up = True
        a.leave()
        b.leave()
        actor.sockets.presence.flush()
        slow.transport.catch_up()
        assert slow.frames == [{"type": "presence", "snapshot": {}}]


# Presence


async def test_presence_is_told_as_it_comes_changes_and_goes() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b = await joined(actor, "a"), await joined(actor, "b")
        a.send("presence", data={"name": "Ada"})
        assert b.frames == []
        actor.sockets.presence.flush()
        told = {"type": "presence", "joined": {a.connection.id: {"name": "Ada"}}}
        assert (a.frames, b.frames) == ([told], [told])
        a.send("presence", data={"name": "Ada", "cursor": 1})
        a.send("presence", data={"name": "Ada", "cursor": 2})
        b.send("presence", data="Bob")
        actor.sockets.presence.flush()
        assert b.frames == [
            {
                "type": "presence",
                "joined": {b.connection.id: "Bob"},
                "updated": {a.connection.id: {"name": "Ada", "cursor": 2}},
            }
        ]
        a.leave()
        b.send("presence", data=None)
        actor.sockets.presence.flush()
        (gone,) = b.frames
        assert (gone["type"], sorted(gone["left"])) == ("presence", sorted([a.connection.id, b.connection.id]))
        assert actor.thread.presence() == {}


async def test_presence_is_told_within_its_time_without_being_asked() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a, b = await joined(actor, "a"), await joined(actor, "b")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        a.send("presence", data=1)
        assert await b.transport.next() == {"type": "presence", "joined": {a.connection.id: 1}}
        assert loop.time() - begun >= 0.04


async def test_who_joins_is_told_first_who_is_here_also_when_others_have_not_been_told_yet() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        a = await joined(actor, "a")
        guest = await joined(actor, "b")
        assert guest.frames == []
        a.send("presence", data="here")
        actor.sockets.presence.flush()
        assert guest.frames
        a.send("presence", data="there")
        c = Guest(actor, "c")
        await c.open()
        assert c.frames[1:] == [{"type": "presence", "snapshot": {a.connection.id: "here"}}]
        actor.sockets.presence.flush()
        told = [{"type": "presence", "updated": {a.connection.id: "there"}}]
        assert (guest.frames, c.frames) == (told, told)


async def joined_again(actor: Actor) -> tuple[Guest, Guest]:
    """Return the newer socket of a client whose older one shows a presence, and another client that was told of it."""
    older, other = await joined(actor, "a"), await joined(actor, "b")
    older.send("presence", data="here")
    actor.sockets.presence.flush()
    assert other.frames
    newer = Guest(actor, "a")
    await newer.open()
    return newer, other


async def test_the_presence_of_a_client_that_joins_again_is_not_lost() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        newer, other = await joined_again(actor)
        newer.send("presence", data="here")
        actor.sockets.presence.flush()
        here = {newer.connection.id: "here"}
        assert actor.thread.presence() == here
        assert newer.frames[1:] == [{"type": "presence", "snapshot": here}]
        assert other.frames == []


async def test_a_client_that_comes_back_is_told_also_that_there_is_no_presence() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = Guest(actor, "a", have=(actor.state.history.epoch, 0))
        await guest.open()
        assert guest.frames[1:] == [{"type": "presence", "snapshot": {}}]


async def test_the_presence_of_a_client_that_joins_again_and_shows_none_is_gone_for_all() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        newer, other = await joined_again(actor)
        assert newer.frames[1:] == [{"type": "presence", "snapshot": {newer.connection.id: "here"}}]
        actor.sockets.presence.flush()
        gone = [{"type": "presence", "left": [newer.connection.id]}]
        assert (newer.frames, other.frames) == (gone, gone)


@each_case("data", ["x" * 99, [[[[[]]]]]])
async def test_a_presence_that_is_too_large_or_too_deep_is_refused_and_the_one_before_stays(data: Any) -> None:
    async with open_house(Room, limits=Limits(presence=100, depth=4)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send("presence", data="x" * 98)
        guest.send("presence", data=data)
        (error,) = guest.frames
        assert (error["type"], error["code"], "ref" in error) == ("error", "too_large", False)
        assert guest.closed is None
        assert actor.thread.presence() == {guest.connection.id: "x" * 98}


async def test_the_server_may_show_somebody_without_a_connection_after_the_changes_before_it() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        house.store.is_held = True
        actor.thread.set_state({"n": 1})
        actor.thread.set_presence("agent", {"typing": True})
        actor.sockets.presence.flush()
        assert guest.frames == []
        house.store.resume()
        await actor.wait_until_idle()
        actor.sockets.presence.flush()
        frames = guest.frames
        assert [f["type"] for f in frames] == ["change", "presence"]
        assert frames[1]["joined"] == {"agent": {"typing": True}}
        actor.thread.set_presence("agent", None)
        actor.sockets.presence.flush()
        assert guest.frames == [{"type": "presence", "left": ["agent"]}]


# Other hands


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Room) as house:
        yield house


async def test_a_client_leaves_no_trace_but_what_is_stored(house: House) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    house.store.is_held = True
    guest.push(put("/n", 1), base=0)
    guest.leave()
    assert guest.connection.id in actor.state.clients
    house.store.resume()
    await actor.wait_until_idle()
    assert guest.connection.id not in actor.state.clients
    assert len(actor.sockets) == 0
    assert actor.thread.state == {"n": 1}


async def test_a_slow_reader_is_sent_each_change_between_its_push_and_the_ack_so_that_it_knows_its_own(
    house: House,
) -> None:
    actor = await house.actor(Room)
    slow = await joined(actor, "slow")
    await change(actor, 1)
    slow.transport.is_backed_up = True
    await change(actor, 2)
    assert [frame["version"] for frame in slow.frames] == [1]
    house.store.is_held = True
    actor.thread.set_state({"n": 3})
    slow.push(put("/n", 4), base=1)
    actor.thread.set_state({"n": 5})
    slow.push(put("/n", 6), base=1)
    actor.thread.set_state({"n": 7})
    house.store.resume()
    await actor.wait_until_idle()
    assert [(f["type"], f.get("version", f.get("to"))) for f in slow.frames] == [
        ("changes", 2),
        ("change", 3),
        ("ack", 4),
        ("change", 5),
        ("ack", 6),
    ]
    slow.transport.catch_up()
    assert [(f["type"], f.get("to")) for f in slow.frames] == [("changes", 7)]
