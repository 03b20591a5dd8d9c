"""One reader of server-sent events, without a server: what it is told, when it is slow, and when it goes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.server.holding import MOST_HELD, measure_held
from tests.server.rooms import House, make_request, open_house
from tests.server.session.guests import PATIENCE, Room, Slow, SlowReads, change, put, until
from tests.server.session.guests import joined as guest_joined

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.errors import Reject, StoreError, TooMany, Unavailable
from plait.limits import Limits
from plait.session import event_stream
from plait.session.event_stream import EventStream
from plait_schemas.messages import Version

# Two of these wait before a reader counts as slow.
HUGE = [letter * 40_000 for letter in "abcdef"]


class Picky(Room):
    """Refuses every connection."""

    kind = "picky"

    def on_connect(self, connection: Connection, request: Request) -> None:
        raise Reject("nobody comes in")


class Reader:
    """Reads a stream by hand. An event is its id and its frame; `None` is a comment."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        # How often the end was told.
        self.ended = 0
        self.stream = EventStream(actor, "http-1", None, ended=self._end)
        self.connection = self.stream.connection
        self.lines = self.stream.lines()

    async def open(self, have: Version | None = None) -> None:
        """Join."""
        await self.stream.open(make_request(), have)

    async def next(self) -> Any:
        """Return the next event. Raises StopAsyncIteration at the end."""
        async with asyncio.timeout(PATIENCE):
            return _event(await anext(self.lines))

    async def until_version(self, version: int) -> list[Any]:
        """Return the frames up to the one that brings a version."""
        frames: list[Any] = []
        while not frames or frames[-1].get("version", frames[-1].get("to")) != version:
            frames.append((await self.next())[1])
        return frames

    async def rest(self) -> list[Any]:
        """Return the frames up to the end."""
        async with asyncio.timeout(PATIENCE):
            return [_event(line)[1] async for line in self.lines]

    def _end(self) -> None:
        self.ended += 1

    @property
    def is_in(self) -> bool:
        return self.connection in self.actor.thread.connections()


def _event(line: bytes) -> Any:
    if line.startswith(b":"):
        return None
    assert line.endswith(b"\n\n")
    id, data = line[:-2].split(b"\n")
    assert id.startswith(b"id: ")
    assert data.startswith(b"data: ")
    return id[4:].decode(), json.loads(data[6:])


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Room, limits=Limits(write_buffer=200_000)) as house:
        yield house


async def reading(house: House, cls: type[Room] = Room, **options: Any) -> Reader:
    """Return a reader that has joined, and has read that."""
    reader = Reader(await house.actor(cls), **options)
    await reader.open()
    assert (await reader.next())[1]["type"] == "joined"
    return reader


# What it is told


async def test_it_is_told_the_state_and_then_each_change_with_its_version_as_id(house: House) -> None:
    actor = await house.actor(Room)
    epoch = actor.state.history.epoch
    reader = Reader(actor)
    await reader.open()
    assert await reader.next() == (
        f"{epoch}:0",
        {
            "type": "joined",
            "connection": "http-1",
            "thread": "room/one",
            "epoch": epoch,
            "version": 0,
            "readonly": True,
            "state": {"n": 0},
        },
    )
    await change(actor, 1, 2)
    for n in (1, 2):
        frame = {"type": "change", "version": n, "ops": [put("/n", n)], "source": "server"}
        assert await reader.next() == (f"{epoch}:{n}", frame)
    actor.thread.broadcast({"hello": "all"})
    actor.thread.emit("goal", "Ada")
    assert await reader.next() == (f"{epoch}:2", {"type": "message", "data": {"hello": "all"}})
    assert await reader.next() == (f"{epoch}:2", {"type": "event", "name": "goal", "data": "Ada"})


async def test_many_readers_do_not_write_at_once(house: House) -> None:
    actor, written, numbers = await house.actor(Room), list[int](), count(1)

    async def read() -> None:
        reader = await reading(house)
        async for _ in reader.lines:
            end = time.thread_time() + 0.001
            while time.thread_time() < end:
                pass
            written.append(1)

    async def tell_all() -> None:
        written.clear()
        await change(actor, next(numbers))
        await until(lambda: len(written) == 150)

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read()) for _ in range(150)]
        await until(lambda: len(actor.thread.connections()) == 150)
        assert await measure_held(tell_all) < MOST_HELD
        for each in readers:
            each.cancel()


async def test_a_binary_message_is_left_out(house: House) -> None:
    reader = await reading(house)
    reader.actor.thread.broadcast(b"\x00\xff")
    reader.actor.thread.broadcast("text")
    assert (await reader.next())[1] == {"type": "message", "data": "text"}


async def test_line_breaks_in_the_json_of_a_state_do_not_break_an_event(house: House) -> None:
    actor = await house.actor(Room)
    guest = await guest_joined(actor, "a")
    json_of_state = b'{\r\n  "n": 1,\n  "text": "a\\nb"\r}'
    await actor.state.put(json_of_state, guest.connection)
    reader = Reader(actor)
    await reader.open()
    assert (await reader.next())[1]["state"] == {"n": 1, "text": "a\nb"}
    await actor.state.put(json_of_state.replace(b"1", b"[\n2]"), guest.connection)
    assert (await reader.next())[1]["version"] == 2


async def test_who_is_here_comes_after_joined_and_then_what_changes(house: House) -> None:
    actor = await house.actor(Room)
    guest = await guest_joined(actor, "a")
    guest.send("presence", data={"name": "Ada"})
    await until(lambda: guest.frames)
    reader = await reading(house)
    here = {guest.connection.id: {"name": "Ada"}}
    assert (await reader.next())[1] == {"type": "presence", "snapshot": here}
    guest.leave()
    assert (await reader.next())[1] == {"type": "presence", "left": [guest.connection.id]}


async def test_silence_is_broken_by_a_comment(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_SILENCE", 0.001)
    reader = await reading(house)
    assert await reader.next() is None
    await change(reader.actor, 1)
    while (event := await reader.next()) is None:
        pass
    assert event[1]["version"] == 1


async def test_it_may_write_nothing_and_is_a_connection_like_any_other(house: House) -> None:
    reader = await reading(house)
    assert reader.is_in
    assert reader.connection.readonly
    assert not reader.actor.is_unused
    reader.connection.send("to you alone")
    assert (await reader.next())[1] == {"type": "message", "data": "to you alone"}


# Coming back


@pytest.mark.parametrize(("version", "ops"), [(1, [put("/n", 2), put("/n", 3)]), (3, None)])
async def test_it_is_told_what_it_missed_and_nothing_if_it_has_all(house: House, version: int, ops: Any) -> None:
    actor = await house.actor(Room)
    await change(actor, 1, 2, 3)
    reader = Reader(actor)
    await reader.open((actor.state.history.epoch, version))
    _, frame = await reader.next()
    assert (frame["version"], frame.get("ops"), "state" in frame) == (3, ops, False)


@pytest.mark.parametrize("have", [("other", 1), ("", 4), ("", -1)])
async def test_it_is_told_the_state_if_what_it_has_is_not_there(house: House, have: Version) -> None:
    actor = await house.actor(Room)
    await change(actor, 1, 2, 3)
    reader = Reader(actor)
    await reader.open((have[0] or actor.state.history.epoch, have[1]))
    assert (await reader.next())[1]["state"] == {"n": 3}


@each_case("is_broken", [False, True])
async def test_what_it_missed_is_read_from_the_store_or_it_ends(is_broken: bool) -> None:
    store = SlowReads()
    async with open_house(Room, store=store) as house:
        actor = await house.actor(Room)
        await change(actor, 1, 2, 3)
        actor.state.history.forget()
        store.is_broken = is_broken
        reader = Reader(actor)
        opening = reader.open((actor.state.history.epoch, 1))
        if is_broken:
            with pytest.raises(StoreError, match="broken"):
                await opening
        else:
            await opening
            assert (await reader.next())[1]["ops"] == [put("/n", 2), put("/n", 3)]
        assert reader.is_in is not is_broken
        assert reader.ended == is_broken
        assert store.reads == 1


# Slow readers


@pytest.mark.parametrize(("values", "kind"), [([*HUGE, 1, 2], "snapshot"), ([*HUGE[:2], 1, 2, 3], "changes")])
async def test_who_does_not_read_is_told_all_in_one_frame_when_it_does(
    house: House, values: list[Any], kind: str
) -> None:
    reader = await reading(house)
    await change(reader.actor, *values)
    assert reader.is_in
    frames = await reader.until_version(len(values))
    assert [frame["type"] for frame in frames] == ["change", "change", kind]
    if kind == "changes":
        assert frames[2] == {"type": "changes", "from": 2, "to": 5, "ops": [put("/n", n) for n in (1, 2, 3)]}
    else:
        assert frames[2]["state"] == {"n": 2}
    await change(reader.actor, "then")
    id, frame = await reader.next()
    assert (frame["type"], frame["version"]) == ("change", len(values) + 1)
    assert id.endswith(f":{len(values) + 1}")


async def test_who_does_not_read_costs_no_more_than_a_constant(house: House) -> None:
    reader = await reading(house)
    for n in range(50):
        await change(reader.actor, HUGE[n % 6])
    assert reader.is_in
    frames = await reader.until_version(50)
    assert len(frames) == 3
    assert frames[-1]["state"] == {"n": HUGE[49 % 6]}


async def test_a_message_to_who_does_not_read_comes_after_the_changes_before_it(house: House) -> None:
    reader = await reading(house)
    await change(reader.actor, *HUGE[:2], 1)
    reader.actor.thread.broadcast("here")
    await change(reader.actor, 2)
    frames = await reader.until_version(4)
    assert [frame["type"] for frame in frames] == ["change", "change", "changes"]
    assert (frames[2]["from"], frames[2]["to"]) == (2, 4)
    assert (await reader.next())[1] == {"type": "message", "data": "here"}


async def test_who_does_not_read_is_told_who_is_here_when_it_does(house: House) -> None:
    reader = await reading(house)
    guest = await guest_joined(reader.actor, "a")
    await change(reader.actor, *HUGE[:2])
    for name in ("Ada", "Grace"):
        guest.transport.take()
        guest.send("presence", data={"name": name})
        await until(lambda: any(frame["type"] == "presence" for frame in guest.frames))
    await reader.until_version(2)
    assert (await reader.next())[1] == {"type": "presence", "snapshot": {guest.connection.id: {"name": "Grace"}}}


async def test_who_lets_more_messages_wait_than_the_write_buffer_holds_is_sent_away(house: House) -> None:
    reader = await reading(house)
    *texts, one_too_many = HUGE
    for text in texts:
        reader.actor.thread.broadcast(text)
        assert reader.is_in
    reader.actor.thread.broadcast(one_too_many)
    assert not reader.is_in
    assert [frame["data"] for frame in await reader.rest()] == texts


# Going


async def test_a_reader_that_goes_is_gone_from_the_thread(house: House) -> None:
    reader = await reading(house)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert reader.is_in
    for _ in range(2):
        reader.stream.end()
    assert not reader.is_in
    assert reader.actor.is_unused
    assert reader.ended == 1


async def test_a_connection_that_the_thread_closes_has_read_all_before(house: House) -> None:
    reader = await reading(house)
    await change(reader.actor, 1)
    reader.connection.close(4000, "enough")
    assert not reader.is_in
    assert [frame["version"] for frame in await reader.rest()] == [1]
    await change(reader.actor, 2)


async def test_a_slow_reader_that_the_thread_closes_has_read_all_before(house: House) -> None:
    reader = await reading(house)
    await change(reader.actor, *HUGE[:2], 1)
    reader.actor.thread.broadcast("good-bye")
    reader.connection.close(4000, "enough")
    assert [frame["type"] for frame in await reader.rest()] == ["change", "change", "changes", "message"]


async def test_a_thread_that_ends_ends_its_streams(house: House) -> None:
    reader = await reading(house)
    await change(reader.actor, 1)
    await house.node.drain(5)
    assert [frame["version"] for frame in await reader.rest()] == [1]


async def test_a_reader_that_a_hook_refuses_is_not_in_the_thread() -> None:
    async with open_house(Picky) as house:
        actor = await house.actor(Picky)
        reader = Reader(actor)
        with pytest.raises(Reject, match="nobody"):
            await reader.open()
        assert not reader.is_in
        await actor.wait_until_idle()
        assert actor.is_unused


async def test_a_reader_for_whom_there_is_no_room_is_told_so() -> None:
    async with open_house(Room, limits=Limits(connections_per_thread=1)) as house:
        await reading(house)
        reader = Reader(await house.actor(Room))
        with pytest.raises(TooMany, match="1 connections"):
            await reader.open()
        assert not reader.is_in
        assert reader.ended == 1


async def test_a_reader_that_comes_when_the_server_is_ending_is_told_so(house: House) -> None:
    reader = Reader(await house.actor(Room))
    await house.node.drain(5)
    with pytest.raises(Unavailable, match="shutting down"):
        await reader.open()
    assert not reader.is_in
    assert reader.ended == 1


@each_case("is_greeted", [False, True])
async def test_a_reader_that_goes_while_a_hook_is_asked_is_not_in_the_thread(is_greeted: bool) -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        thread: Any = actor.thread
        first = Reader(actor)
        opening = asyncio.create_task(first.open())
        await thread.greeting.wait()
        second = Reader(actor)
        waiting = asyncio.create_task(second.open())
        await asyncio.sleep(0)
        reader, task = (first, opening) if is_greeted else (second, waiting)
        task.cancel()
        await asyncio.wait([task])
        thread.gate.set()
        await actor.wait_until_idle()
        assert not reader.is_in
        other = second if is_greeted else first
        await (waiting if is_greeted else opening)
        assert other.is_in
