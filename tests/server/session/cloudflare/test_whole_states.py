"""Whole states that clients of the Cloudflare protocol write: merged with the concurrent changes of others."""

import asyncio
import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.rooms import Client, House, make_request, open_house

from plait.actor.connection import Connection, Source
from plait.actor.thread import Thread
from plait.errors import Reject, TooLarge
from plait.limits import Limits

REJECTED = {"type": "cf_agent_state_error", "error": "State update rejected"}


def state(value: Any) -> dict[str, Any]:
    return {"type": "cf_agent_state", "state": value}


class Room(Thread[Any]):
    initial_state = {"a": 0, "b": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if isinstance(next_state, dict) and next_state.get("forbidden"):
            raise Reject("that one is forbidden")


class Item(msgspec.Struct):
    id: str
    title: str = ""
    color: str = "white"


class Board(msgspec.Struct):
    name: str = ""
    theme: str = "light"
    items: list[Item] = []
    note: str | msgspec.UnsetType = msgspec.UNSET


class Boards(Thread[Board]):
    kind = "room"
    initial_state = Board(name="one", theme="dark", items=[Item("x", "X", "red"), Item("y", "Y", "blue")], note="hello")


class Cells(msgspec.Struct):
    name: str = ""
    cells: list[list[int]] = []
    note: str = ""


class Sheet(Thread[Cells]):
    kind = "room"
    initial_state = Cells(cells=[[0]] * 20_000)


@dataclass
class Plain:
    name: str
    cells: list[Item]


class PlainSheet(Thread[Plain]):
    kind = "room"
    initial_state = Plain("", [])


@dataclass
class Noted:
    name: str
    note: str = field(default="", compare=False)


class Notes(Thread[Noted]):
    kind = "room"
    initial_state = Noted("")


async def stored(house: House, cls: type[Thread[Any]] = Room) -> Any:
    found = await house.handle(cls).state()
    return msgspec.to_builtins(found)


async def two(house: House, cls: type[Thread[Any]] = Room) -> tuple[Client, Client]:
    return await house.join(cls, "a"), await house.join(cls, "b")


# What crosses


async def test_writes_that_cross_in_different_fields_both_survive_and_both_clients_are_told() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        a.push({"a": 1, "b": 0})
        b.push({"a": 0, "b": 1})
        assert await stored(house) == {"a": 1, "b": 1}
        assert a.transport.take()[-1] == b.transport.take()[-1] == state({"a": 1, "b": 1})


def send_measured(client: Client, text: str) -> int:
    """Send a message, and return the most bytes that handling it has taken."""
    tracemalloc.start()
    try:
        client.send(text)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - held


async def test_a_large_typed_write_that_crosses_another_is_decoded_once() -> None:
    async with open_house(Sheet) as house:
        a, b = await two(house, Sheet)
        a.push({"name": "a", "cells": [[0]] * 20_000})
        text = json.dumps({"type": "cf_agent_state", "state": {"name": "", "cells": [[1]] * 20_000}})
        taken = send_measured(b, text)
        found = await stored(house, Sheet)
        assert found == {"name": "a", "cells": [[1]] * 20_000, "note": ""}
        assert taken < 2_500_000


async def test_a_large_typed_write_without_a_field_that_crosses_another_is_decoded_once() -> None:
    async with open_house(Sheet) as house:
        a, b = await two(house, Sheet)
        a.push({"name": "", "cells": [[0]] * 20_000, "note": "a"})
        text = json.dumps({"type": "cf_agent_state", "state": {"cells": [[1]] * 20_000}}, separators=(",", ":"))
        taken = send_measured(b, text)
        assert await stored(house, Sheet) == {"name": "", "cells": [[1]] * 20_000, "note": "a"}
        assert taken < 2_500_000


@each_case("spelled", ['{"name":"","cells":[%s], "note":""}', '{"note":"","cells":[%s],"name":"\\u0041"}'])
async def test_a_large_typed_write_that_is_spelled_in_another_way_is_stored_as_it_was_sent(spelled: str) -> None:
    async with open_house(Sheet) as house:
        a, _ = await two(house, Sheet)
        for cell in ("[1]", "[ 2]"):
            sent = spelled % ",".join([cell] * 20_000)
            a.send(f'{{"type":"cf_agent_state","state":{sent}}}')
            assert await stored(house, Sheet) == json.loads(sent)
            assert not [frame for frame in a.transport.take() if "error" in frame]


async def test_rows_of_a_large_typed_write_keep_the_fields_that_it_leaves_out() -> None:
    items = [{"id": f"i{at}", "title": "x" * 20, "color": "red"} for at in range(2_000)]
    async with open_house(Boards) as house:
        a = await house.join(Boards, "a")
        a.push({"name": "one", "theme": "dark", "items": items, "note": "hello"})
        await stored(house, Boards)
        short = [{"id": each["id"], "title": "y"} for each in items]
        a.push({"name": "two", "items": short, "note": "hello"})
        found = await stored(house, Boards)
        assert found["theme"] == "dark"
        assert found["items"] == [{**each, "color": "red"} for each in short]


async def test_large_values_of_a_state_that_is_converted_as_a_whole_are_merged() -> None:
    async with open_house(PlainSheet) as house:
        a, b = await two(house, PlainSheet)
        cells = [{"id": "x", "title": "x" * 20_000, "color": "white"}]
        a.push({"name": "a", "cells": []})
        b.push({"name": "", "cells": cells})
        assert await stored(house, PlainSheet) == {"name": "a", "cells": cells}


async def test_a_field_that_does_not_compare_is_kept_by_the_next_write_of_a_client_that_has_not_seen_it() -> None:
    async with open_house(Notes) as house:
        a, b = await two(house, Notes)
        a.push({"name": "", "note": "kept"})
        await stored(house, Notes)
        b.push({"name": "b", "note": ""})
        await stored(house, Notes)
        b.push({"name": "c", "note": ""})
        assert await stored(house, Notes) == {"name": "c", "note": "kept"}


async def test_a_write_that_crosses_what_the_server_sets_leaves_that() -> None:
    async with open_house(Room) as house:
        a, _ = await two(house)
        await house.handle(Room).set_state({"a": 0, "b": 0, "c": 1})
        a.push({"a": 1, "b": 0})
        assert await stored(house) == {"a": 1, "b": 0, "c": 1}
        assert a.transport.take() == [state({"a": 0, "b": 0, "c": 1}), state({"a": 1, "b": 0, "c": 1})]


async def test_a_write_that_crosses_one_on_its_way_to_the_disk_leaves_that() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        house.store.is_held = True
        a.push({"a": 1, "b": 0})
        b.push({"a": 0, "b": 1})
        house.store.resume()
        assert await stored(house) == {"a": 1, "b": 1}
        assert a.transport.take()[-1] == b.transport.take()[-1] == state({"a": 1, "b": 1})


async def test_elements_that_two_clients_add_to_a_list_both_stay() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"list": [1]})
        a, b = await two(house)
        a.push({"list": [1, "a"]})
        b.push({"list": [0, 1]})
        assert (await stored(house))["list"] == [0, 1, "a"]


async def test_of_two_writes_to_one_field_the_last_wins_and_its_sender_is_told() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        a.push({"a": 1, "b": 0})
        b.push({"a": 2, "b": 5})
        assert await stored(house) == {"a": 2, "b": 5}
        assert b.transport.take() == [state({"a": 1, "b": 0}), state({"a": 2, "b": 5})]


async def test_a_write_after_a_state_was_seen_takes_it_back() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        b.push({"a": 0, "b": 2})
        assert await a.next() == state({"a": 0, "b": 2})
        a.push({"a": 1, "b": 2})
        assert await b.next() == state({"a": 1, "b": 2})
        b.transport.answer_ping()
        b.push({"a": 0, "b": 2})
        assert await stored(house) == {"a": 0, "b": 2}
        assert b.transport.take() == []


async def test_a_write_in_answer_to_a_state_before_the_pong_is_made_on_that_state() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        await house.handle(Room).set_state({"a": 0, "b": 0, "list": ["server"]})
        assert await a.next() == await b.next() == state({"a": 0, "b": 0, "list": ["server"]})
        await house.handle(Room).set_state({"a": 0, "b": 5, "list": ["server"]})
        # Its pong has not come yet.
        a.push({"a": 1, "b": 0, "list": ["server"]})
        assert await stored(house) == {"a": 1, "b": 5, "list": ["server"]}
        b.push({"a": 0, "b": 6})
        assert await stored(house) == {"a": 1, "b": 6, "list": ["server"]}


async def test_a_state_that_a_write_removes_what_others_changed_inside_is_removed() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"card": {"title": "x"}, "b": 0})
        a, b = await two(house)
        a.push({"card": {"title": "y"}, "b": 0})
        b.push({"b": 0})
        assert await stored(house) == {"b": 0}


# Writes of one client


async def test_writes_without_a_pause_are_each_made_on_the_one_before() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        b.push({"a": 0, "b": 7})
        for n in range(1, 20):
            a.push({"a": n, "b": 0})
        assert await stored(house) == {"a": 19, "b": 7}
        a.push({"a": 19, "b": 0, "c": 1})
        assert await stored(house) == {"a": 19, "b": 7, "c": 1}


async def test_a_write_of_a_client_that_has_lost_its_last_one_from_sight_does_not_take_it_back() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        b.push({"a": 0, "b": 1})
        assert await a.next() == state({"a": 0, "b": 1})
        a.push({"a": 0, "b": 0, "c": "mine"})
        # It reads the state of b after its write, and adds to that before it is sent what both led to.
        a.session.pong(a.transport.pings[1])
        a.push({"a": 5, "b": 1})
        assert await stored(house) == {"a": 5, "b": 1, "c": "mine"}


async def test_typing_alone_is_answered_with_no_state() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        for n in range(1, 50):
            a.push({"a": n, "b": 0})
        await stored(house)
        assert a.transport.take() == []
        assert b.transport.take()[-1] == state({"a": 49, "b": 0})


async def test_a_write_after_one_that_was_refused_is_judged_with_what_that_changed() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        b.push({"a": 0, "b": 1})
        a.push({"a": 1, "b": 0, "forbidden": True})
        a.push({"a": 1, "b": 0})
        assert await stored(house) == {"a": 1, "b": 1}
        assert REJECTED in a.transport.take()


async def test_a_write_after_one_that_could_not_be_stored_leaves_what_others_changed() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        house.store.fail_next()
        a.push({"a": 1, "b": 0})
        assert [await a.next(), await a.next()] == [REJECTED, state({"a": 0, "b": 0})]
        b.push({"a": 0, "b": 1})
        a.push({"a": 1, "b": 0, "c": 1})
        found = await stored(house)
        assert (found["b"], found["c"]) == (1, 1)


@play_seeds(3)
async def test_clients_that_write_fields_of_their_own_lose_none_of_them(seed: int) -> None:
    chance = random.Random(seed)
    async with open_house(Room) as house:
        await house.handle(Room).set_state({})
        clients = [await house.join(Room, str(number)) for number in range(3)]
        shown: list[Any] = [{} for _ in clients]
        last: dict[str, int] = {}
        answered = [len(client.transport.pings) for client in clients]

        def read(number: int) -> None:
            for frame in clients[number].transport.take():
                shown[number] = frame["state"]
            if len(clients[number].transport.pings) > answered[number]:
                answered[number] = len(clients[number].transport.pings)
                clients[number].transport.answer_ping()

        for n in range(200):
            number = chance.randrange(3)
            match chance.randrange(6):
                case 0 | 1:
                    read(number)
                case 2 | 3:
                    field = f"{number}.{chance.randrange(3)}"
                    shown[number] = {**shown[number], field: n}
                    last[field] = n
                    clients[number].push(shown[number])
                case 4:
                    house.store.is_held = True
                case _:
                    house.store.resume()
                    await asyncio.sleep(0)
        house.store.resume()
        assert await stored(house) == last


async def test_a_write_on_a_state_before_others_were_held_back_takes_nothing_back() -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        a.push({"a": 0, "b": 0, "c": 0})
        answered = len(a.transport.pings)
        b.push({"a": 0, "b": 1, "c": 0})
        await stored(house)
        shown = a.transport.take()[-1]["state"]
        assert shown["b"] == 1
        a.transport.is_backed_up = True
        b.push({**shown, "b": 2})
        await stored(house)
        assert a.transport.take() == []
        a.session.pong(a.transport.pings[answered])
        a.push({**shown, "a": 1})
        assert await stored(house) == {"a": 1, "b": 2, "c": 0}


# Which state a client shows


async def test_a_client_that_has_answered_no_ping_shows_the_state_that_it_was_sent_first() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"list": [1]})
        a = Client(await house.actor(Room), "a")
        a.open()
        await a.joined()
        await house.handle(Room).set_state({"list": [0, 1]})
        a.push({"list": [1, "mine"]})
        assert await stored(house) == {"list": [0, 1, "mine"]}


@each_case("size", [0, 100_000])
@each_case("has_written", [True, False])
async def test_a_client_shows_the_state_whose_ping_it_has_answered(size: int, *, has_written: bool) -> None:
    async with open_house(Room) as house:
        a, _ = await two(house)
        text = "x" * size
        await house.handle(Room).set_state({"text": text, "list": []})
        a.transport.answer_ping()
        if has_written:
            a.push({"text": text, "list": [], "a": 0})
        answered = len(a.transport.pings)
        for n in range(1, 8):
            await house.handle(Room).set_state(lambda state, n=n: {**state, "list": [*state["list"], n]})
        assert len(a.transport.pings) == answered + 7
        a.session.pong(a.transport.pings[answered + 2])
        shown = a.transport.take()[-5]["state"]
        assert shown["list"] == [1, 2, 3]
        a.push({**shown, "list": ["mine", *shown["list"]]})
        assert (await stored(house))["list"] == ["mine", 1, 2, 3, 4, 5, 6, 7]


@each_case("has_written", [True, False])
async def test_a_client_that_does_not_answer_is_sent_the_newest_state_when_it_does(*, has_written: bool) -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        (a if has_written else b).push({"list": []})
        await stored(house)
        a.transport.answer_ping()
        a.transport.take()
        answered = len(a.transport.pings)
        for n in range(1100):
            await house.handle(Room).set_state({"list": [n]})
        frames = a.transport.take()
        assert len(frames) == 50
        assert len(frames) == len(a.transport.pings) - answered
        a.session.pong(a.transport.pings[answered + 4])
        assert a.transport.take() == [state({"list": [1099]})]
        a.push({"list": ["mine", 4]})
        assert await stored(house) == {"list": ["mine", 1099]}
        a.transport.answer_ping()
        a.push({"list": ["mine"]})
        assert await stored(house) == {"list": ["mine"]}


async def test_large_states_that_a_client_has_not_answered_are_kept_up_to_a_size() -> None:
    async with open_house(Room) as house:
        a, _ = await two(house)
        a.push({"list": []})
        answered = len(a.transport.pings)
        for n in range(30):
            await house.handle(Room).set_state({"text": "x" * 1_000_000, "n": n})
        assert len(a.transport.pings) - answered == 2
        a.transport.take()
        a.transport.answer_ping()
        assert [each["state"]["n"] for each in a.transport.take()] == [29]


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop the loop's clock, so that no more pings are due."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        yield


@each_case(("others", "pings"), [(31, 41), (32, 8)])
async def test_in_a_crowd_a_client_that_only_reads_is_pinged_a_few_times(others: int, pings: int) -> None:
    async with open_house(Room) as house:
        for number in range(others):
            await house.join(Room, f"other {number}")
        with stopped_clock():
            a = await house.join(Room, "a")
            for n in range(1, 41):
                await house.handle(Room).set_state({"n": n})
        assert len(a.transport.pings) == pings
        assert len(a.transport.take()) == 40


async def test_the_first_write_in_a_crowd_is_made_on_the_state_that_was_sent_last_and_doubles_nothing() -> None:
    async with open_house(Room) as house:
        for number in range(32):
            await house.join(Room, f"other {number}")
        with stopped_clock():
            a = await house.join(Room, "a")
            for n in range(20):
                await house.handle(Room).set_state({"list": list(range(n))})
                if len(a.transport.pings) < 8:
                    a.transport.answer_ping()
        a.transport.answer_ping()
        shown = a.transport.take()[-1]["state"]
        a.push({"list": [*shown["list"], "mine"]})
        assert await stored(house) == {"list": [*range(19), "mine"]}
        # It was not sure, so the client is told what its write led to, and pinged with it.
        assert a.transport.take() == [state({"list": [*range(19), "mine"]})]
        assert len(a.transport.pings) == 9


async def test_a_first_write_that_crosses_a_state_without_a_ping_doubles_nothing() -> None:
    async with open_house(Room) as house:
        for number in range(32):
            await house.join(Room, f"other {number}")
        with stopped_clock():
            a = await house.join(Room, "a")
            for n in range(20):
                await house.handle(Room).set_state({"list": list(range(n))})
                a.transport.answer_ping()
        # It has not read the last one.
        a.push({"list": [*range(18), "mine"]})
        assert await stored(house) == {"list": [*range(18), "mine"]}


async def test_a_client_that_left_a_crowd_is_not_taken_to_have_seen_a_state_without_a_ping() -> None:
    async with open_house(Room) as house:
        for number in range(32):
            await house.join(Room, f"other {number}")
        with stopped_clock():
            a = await house.join(Room, "a")
            for n in range(20):
                await house.handle(Room).set_state({"n": n})
                a.transport.answer_ping()
            a.leave()
        back = Client(await house.actor(Room), "a", departures=house.departures)
        back.open()
        await back.joined()
        back.push({"n": "made offline"})
        assert await stored(house) == {"n": 19}
        assert REJECTED in back.transport.take()


@play_seeds(3)
async def test_clients_that_add_to_one_list_lose_and_double_nothing(seed: int) -> None:
    chance = random.Random(seed)
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"list": []})
        clients = [await house.join(Room, str(number)) for number in range(3)]
        shown: list[list[Any]] = [[] for _ in clients]
        # What has been sent to each, with its ping, and how much of it has been read.
        sent: list[list[tuple[bytes, Any]]] = [[] for _ in clients]
        read = [0] * 3
        before = [len(client.transport.pings) for client in clients]

        def take(number: int) -> None:
            transport = clients[number].transport
            pings = transport.pings[before[number] + len(sent[number]) :]
            sent[number] += zip(pings, transport.take(), strict=True)

        def read_frames(number: int, most: int) -> bool:
            """Read some frames as a client, each after its ping; return whether there were any."""
            take(number)
            frames = sent[number][read[number] :][:most]
            for ping, frame in frames:
                read[number] += 1
                clients[number].session.pong(ping)
                shown[number] = frame["state"]["list"]
            return bool(frames)

        wrote = []
        for n in range(150):
            number = chance.randrange(3)
            match chance.randrange(6):
                case 0 | 1:
                    read_frames(number, chance.randrange(1, 4))
                case 2 | 3:
                    place = chance.randrange(len(shown[number]) + 1)
                    shown[number] = [*shown[number][:place], n, *shown[number][place:]]
                    wrote.append(n)
                    clients[number].push({"list": shown[number]})
                case 4:
                    house.store.is_held = True
                case _:
                    house.store.resume()
                    await asyncio.sleep(0)
        house.store.resume()
        found = (await stored(house))["list"]
        assert sorted(found) == wrote
        for number in range(3):
            while read_frames(number, 1000):  # States are held back while 50 pings wait for their answers.
                pass
        assert shown == [found] * 3


class Strict(Room):
    kind = "room"
    conflict = "reject"


class Votes(Room):
    kind = "room"

    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        return current + proposed - base


async def test_a_class_that_rejects_conflicts_refuses_the_later_of_two_writes_to_one_field_and_no_other() -> None:
    async with open_house(Strict) as house:
        a, b = await two(house, Strict)
        a.push({"a": 1, "b": 0})
        b.push({"a": 2, "b": 0})
        assert await stored(house, Strict) == {"a": 1, "b": 0}
        assert b.transport.take() == [state({"a": 1, "b": 0}), REJECTED, state({"a": 1, "b": 0})]
        b.transport.answer_ping()
        b.push({"a": 1, "b": 2})
        a.push({"a": 3, "b": 0})
        assert await stored(house, Strict) == {"a": 3, "b": 2}


async def test_a_class_that_resolves_conflicts_is_asked_about_writes_that_cross() -> None:
    async with open_house(Votes) as house:
        a, b = await two(house, Votes)
        a.push({"a": 1, "b": 0})
        b.push({"a": 2, "b": 0})
        assert await stored(house, Votes) == {"a": 3, "b": 0}
        assert b.transport.take()[-1] == state({"a": 3, "b": 0})


async def test_a_write_into_what_others_have_taken_away_is_refused() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"list": [{"id": 1, "n": 0}, {"id": 2, "n": 0}]})
        a, b = await two(house)
        a.push({"list": [{"id": 2, "n": 0}]})
        b.push({"list": [{"id": 1, "n": 5}, {"id": 2, "n": 0}]})
        assert await stored(house) == {"list": [{"id": 2, "n": 0}]}
        assert b.transport.take()[1:] == [REJECTED, state({"list": [{"id": 2, "n": 0}]})]


class Replacing(Room):
    kind = "room"
    merge_whole_states = False


async def test_a_class_may_have_whole_states_replace_what_is_there() -> None:
    async with open_house(Replacing) as house:
        a, b = await two(house, Replacing)
        a.push({"a": 1, "b": 0})
        b.push({"a": 0, "b": 1})
        assert await stored(house, Replacing) == {"a": 0, "b": 1}
        assert a.transport.take()[-1] == b.transport.take()[-1] == state({"a": 0, "b": 1})


async def test_what_a_client_that_was_sent_no_state_writes_replaces_what_is_there() -> None:
    class Silent(Room):
        kind = "room"

        def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
            return False

    async with open_house(Silent) as house:
        actor = await house.actor(Silent)
        plain = Client(actor, "plain")
        plain.open()
        await actor.wait_until_idle()
        plain.push({"a": 1})
        await house.handle(Silent).set_state({"a": 1, "b": 2})
        plain.push({"a": 3})
        assert await stored(house, Silent) == {"a": 3}


# Typed states


async def test_a_field_that_a_write_leaves_out_stays_as_the_client_was_shown_it() -> None:
    async with open_house(Boards) as house:
        a, b = await two(house, Boards)
        items = [{"id": "x", "title": "X"}, {"id": "y", "title": "Y"}]
        a.push({"name": "two", "items": [items[1], {"id": "z"}, {**items[0], "title": "XX"}], "note": "hello"})
        expected = {
            "name": "two",
            "theme": "dark",
            "items": [
                {"id": "y", "title": "Y", "color": "blue"},
                {"id": "z", "title": "", "color": "white"},
                {"id": "x", "title": "XX", "color": "red"},
            ],
            "note": "hello",
        }
        assert await stored(house, Boards) == expected
        assert a.transport.take() == [state(expected)]
        assert b.transport.take() == [state(expected)]


async def test_a_field_that_a_write_leaves_out_and_others_have_changed_is_theirs() -> None:
    async with open_house(Boards) as house:
        a, b = await two(house, Boards)
        whole = await stored(house, Boards)
        a.push({**whole, "theme": "blue"})
        b.push({"name": "two", "items": whole["items"], "note": "hello"})
        assert await stored(house, Boards) == {**whole, "name": "two", "theme": "blue"}


async def test_a_field_that_may_be_absent_is_taken_away_by_a_write_without_it() -> None:
    async with open_house(Boards) as house:
        a, _ = await two(house, Boards)
        whole = await stored(house, Boards)
        del whole["note"]
        a.push(whole)
        assert await stored(house, Boards) == whole
        assert a.transport.take() == []


async def test_unknown_fields_of_a_write_that_crosses_another_are_dropped() -> None:
    async with open_house(Boards) as house:
        a, b = await two(house, Boards)
        whole = await stored(house, Boards)
        a.push({**whole, "name": "two"})
        items = [{**whole["items"][0], "unknown": 1, "title": "new"}, whole["items"][1]]
        b.push({**whole, "unknown": 1, "items": items})
        expected = {**whole, "name": "two", "items": [{"id": "x", "title": "new", "color": "red"}, whole["items"][1]]}
        assert await stored(house, Boards) == expected
        assert b.transport.take()[-1] == state(expected)


async def test_a_write_of_another_type_that_crosses_another_is_refused() -> None:
    async with open_house(Boards) as house:
        a, b = await two(house, Boards)
        whole = await stored(house, Boards)
        a.push({**whole, "name": "two"})
        b.push({**whole, "theme": 5})
        assert await stored(house, Boards) == {**whole, "name": "two"}
        assert b.transport.take()[1:] == [REJECTED, state({**whole, "name": "two"})]


# Pages


async def join_page(house: House, cls: type[Thread[Any]] = Room) -> Client:
    """Return a page in a browser, which answers each ping at once, whether the page has read the state or not."""
    page = Client(await house.actor(cls), "page")
    page.open(make_request(origin="http://localhost"))
    await page.joined()
    page.transport.answer_ping()
    return page


class Note(Thread[dict[str, Any]]):
    kind = "room"
    initial_state = {"note": ""}  # noqa: RUF012
    texts = ("/note",)


ROWS = [{"id": n, "title": f"row {n}"} for n in (1, 2, 3)]


@each_case(
    ("first", "second"),
    [
        ({"items": ["first"]}, {"items": ["second"]}),
        ({"note": "Hello big world"}, {"note": "Hello"}),
        ({"rows": ROWS}, {"rows": ROWS[:1]}),
        ({"rows": ROWS}, {"rows": [ROWS[2], ROWS[0]]}),
        ({"items": [1, 2, 3]}, {"items": [1]}),
        ({"items": [1, 1, 1]}, {"items": [1]}),
        ({"items": [1]}, {"items": [1, 1]}),
        ({"note": "aaaa"}, {"note": "aa"}),
        ({"note": "one two"}, {"note": ""}),
    ],
)
@each_case("others_wrote", [True, False])
async def test_what_a_page_writes_alone_is_the_state(first: Any, second: Any, *, others_wrote: bool) -> None:
    async with open_house(Note) as house:
        page = await join_page(house, Note)
        if others_wrote:
            await house.handle(Note).set_state(first)
            page.transport.answer_ping()
        else:
            page.push(first)
        page.push(second)
        assert await stored(house, Note) == second
        page.push(first)
        assert await stored(house, Note) == first


async def test_a_page_that_has_answered_a_ping_and_not_read_the_state_undoes_it_and_doubles_nothing() -> None:
    async with open_house(Room) as house:
        page = await join_page(house)
        await house.handle(Room).set_state({"list": ["theirs", 1]})
        page.transport.answer_ping()
        page.push({"list": [1, "mine"]})
        assert await stored(house) == {"list": [1, "mine"]}


async def test_a_write_of_a_page_on_a_state_that_has_not_reached_its_browser_takes_nothing_back() -> None:
    async with open_house(Room) as house:
        page = await join_page(house)
        await house.handle(Room).set_state({"list": [1]})
        page.transport.answer_ping()
        await house.handle(Room).set_state({"list": ["theirs", 1]})
        page.push({"list": [1, "mine"]})
        assert await stored(house) == {"list": ["theirs", 1, "mine"]}


async def test_a_page_that_takes_back_at_once_what_it_has_read_does_so() -> None:
    async with open_house(Room) as house:
        page = await join_page(house)
        page.push({"a": 0, "b": 2})
        await house.handle(Room).set_state({"a": 0, "b": 2, "c": 1})
        page.transport.answer_ping()
        page.push({"a": 0, "b": 2})
        assert await stored(house) == {"a": 0, "b": 2}


def made_of(kind: str, *words: str) -> Any:
    """Return a state whose elements are the words."""
    match kind:
        case "ids":
            return {"note": "", "items": [{"id": word} for word in words]}
        case "strings":
            return {"note": "", "items": [*words]}
        case _:
            return {"note": "".join(f"{word} " for word in words), "items": []}


async def cross(house: House, page: Client, *, first: Any, theirs: Any, second: Any) -> None:
    """Write twice as a page whose browser answers, between the writes, the ping of a state sent before the first."""
    other = await house.join(Note, "other")
    other.push(theirs)
    await stored(house, Note)
    ping = page.transport.pings[-1]
    page.push(first)
    page.session.pong(ping)
    page.push(second)


@each_case("kind", ["ids", "strings", "texts"])
async def test_a_page_that_writes_twice_beside_another_client_doubles_and_loses_nothing(kind: str) -> None:
    async with open_house(Note) as house:
        await house.handle(Note).set_state(made_of(kind))
        page = await join_page(house, Note)
        first, theirs, second = made_of(kind, "a1"), made_of(kind, "x"), made_of(kind, "a1", "a2")
        await cross(house, page, first=first, theirs=theirs, second=second)
        found = await stored(house, Note)
        assert sorted(found["note"].split()) == (["a1", "a2", "x"] if kind == "texts" else [])
        words = [each["id"] if kind == "ids" else each for each in found["items"]]
        assert sorted(words) == ([] if kind == "texts" else ["a1", "a2", "x"])


@each_case("kind", ["ids", "strings", "texts"])
async def test_a_page_that_reads_the_state_after_its_second_write_doubles_and_loses_nothing(kind: str) -> None:
    async with open_house(Note) as house:
        await house.handle(Note).set_state(made_of(kind))
        page = await join_page(house, Note)
        first, theirs, second = made_of(kind, "a1"), made_of(kind, "x"), made_of(kind, "a1", "a2")
        await cross(house, page, first=first, theirs=theirs, second=second)
        page.push(made_of(kind, "a1", "a2", "a3"))
        # The page has read theirs by now, and does not show what it wrote before that.
        page.push(made_of(kind, "x", "a4"))
        page.push(made_of(kind, "x", "a4", "a5"))
        found = await stored(house, Note)
        words = found["note"].split() + [each["id"] if kind == "ids" else each for each in found["items"]]
        assert sorted(words) == ["a1", "a2", "a3", "a4", "a5", "x"]


async def test_a_page_edits_what_it_has_just_added_beside_another_client() -> None:
    async with open_house(Note) as house:
        await house.handle(Note).set_state({"items": []})
        page = await join_page(house, Note)
        await cross(
            house,
            page,
            first={"items": [{"id": 1, "title": ""}]},
            theirs={"items": [{"id": 2, "title": "theirs"}]},
            second={"items": [{"id": 1, "title": "mine"}]},
        )
        found = (await stored(house, Note))["items"]
        assert sorted(each["title"] for each in found) == ["mine", "theirs"]


@each_case("is_page", [True, False])
async def test_only_a_page_has_two_possible_bases(*, is_page: bool) -> None:
    async with open_house(Note) as house:
        await house.handle(Note).set_state({"a": 0, "b": 0})
        client = await join_page(house, Note) if is_page else await house.join(Note, "a")
        await cross(house, client, first={"a": 1, "b": 0}, theirs={"a": 0, "b": 5}, second={"a": 1, "b": 0})
        # Any other client has read what is theirs, and takes it back.
        assert await stored(house, Note) == {"a": 1, "b": 5 if is_page else 0}


@each_case("reads_both", [True, False])
async def test_a_page_has_one_base_again_when_it_has_answered_a_later_ping(*, reads_both: bool) -> None:
    async with open_house(Note) as house:
        await house.handle(Note).set_state({"a": 0, "b": 0})
        page = await join_page(house, Note)
        await cross(house, page, first={"a": 1, "b": 0}, theirs={"a": 0, "b": 5}, second={"a": 1, "b": 0, "c": 1})
        await stored(house, Note)
        if reads_both:
            page.transport.answer_ping()
        page.push({"a": 1, "b": 0, "c": 1})
        assert await stored(house, Note) == {"a": 1, "b": 0 if reads_both else 5, "c": 1}


async def test_comparing_a_write_with_two_states_counts_as_more_messages() -> None:
    async with open_house(Note, limits=Limits(messages_per_second=0.001, message_burst=200)) as house:
        text = "x" * 900_000
        await house.handle(Note).set_state({"text": text})
        page = await join_page(house, Note)
        # Each of its writes counts as 56 messages, and the second one as 110 more: without these, it could write again.
        await cross(
            house, page, first={"text": text, "a": 1}, theirs={"text": text, "b": 1}, second={"text": text, "a": 2}
        )
        page.push({"text": text, "c": 1})
        assert await stored(house, Note) == {"text": text, "a": 2, "b": 1}
        assert REJECTED in page.transport.take()


class Columns(Thread[dict[str, Any]]):
    kind = "room"
    initial_state = {"todo": [], "done": [], "log": []}  # noqa: RUF012
    list_keys = {"/todo": "slug", "/done": "slug"}  # noqa: RUF012


def slugs(*names: str) -> list[Any]:
    return [{"slug": name, "id": 0} for name in names]


async def test_an_element_that_two_clients_add_under_one_id_is_there_once_as_the_first_added_it() -> None:
    async with open_house(Columns) as house:
        a, b = await two(house, Columns)
        a.push({"todo": [], "done": [], "log": [{"id": 1, "by": "a"}]})
        b.push({"todo": [], "done": [], "log": [{"id": 2}, {"id": 1, "by": "b"}, {"id": 3}]})
        assert (await stored(house, Columns))["log"] == [{"id": 1, "by": "a"}, {"id": 2}, {"id": 3}]
        assert a.transport.take()[-1] == b.transport.take()[-1] == state(await stored(house, Columns))


async def test_the_member_that_identifies_the_elements_of_a_list_is_that_of_the_class() -> None:
    async with open_house(Columns) as house:
        a, b = await two(house, Columns)
        a.push({"todo": slugs("x"), "done": [], "log": []})
        b.push({"todo": slugs("y", "x"), "done": slugs("x", "y"), "log": []})
        assert await stored(house, Columns) == {"todo": slugs("x", "y"), "done": slugs("x", "y"), "log": []}


async def test_an_element_that_replaces_another_one_and_is_there_already_is_only_there_once() -> None:
    async with open_house(Columns) as house:
        await house.handle(Columns).set_state({"todo": [], "done": [], "log": ["old", "end"]})
        a, b = await two(house, Columns)
        a.push({"todo": [], "done": [], "log": ["old", "end", {"id": 1}]})
        b.push({"todo": [], "done": [], "log": [{"id": 1}, "end"]})
        assert (await stored(house, Columns))["log"] == ["end", {"id": 1}]


class Slug(msgspec.Struct):
    slug: str
    tags: list[Item] = []


class Table(msgspec.Struct):
    rows: list[Slug] = []


class Tables(Thread[Table]):
    kind = "room"
    initial_state = Table(rows=[Slug("old")])
    list_keys = {"/rows": "slug"}  # noqa: RUF012


async def test_elements_of_typed_lists_inside_of_others_are_there_once_too() -> None:
    async with open_house(Tables) as house:
        a, b = await two(house, Tables)
        tag = {"id": "t", "title": "", "color": "white"}
        a.push({"rows": [{"slug": "old", "tags": [tag]}, {"slug": "x", "tags": []}]})
        b.push({"rows": [{"slug": "x", "tags": []}, {"slug": "old", "tags": [tag, {**tag, "id": "u"}]}]})
        assert await stored(house, Tables) == {
            "rows": [{"slug": "old", "tags": [tag, {**tag, "id": "u"}]}, {"slug": "x", "tags": []}]
        }


async def test_a_client_that_cannot_be_pinged_shows_the_state_that_it_was_sent_last() -> None:
    async with open_house(Room) as house:
        a = await house.join(Room, "a", can_ping=False)
        for n in range(3):
            await house.handle(Room).set_state({"list": list(range(n))})
        a.push({"list": [0, 1, "mine"]})
        assert await stored(house) == {"list": [0, 1, "mine"]}


@each_case("count", [1_000, 100_001])
async def test_a_write_that_crosses_another_is_merged_in_a_state_with_as_many_lists_as_its_weight_allows(
    count: int,
) -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"lists": [[]] * count, "a": 0, "b": 0})
        a, b = await two(house)
        a.push({"lists": [[]] * count, "a": 1, "b": 0})
        b.push({"lists": [[]] * count, "a": 0, "b": 1})
        merged = await stored(house)
        assert (merged["a"], merged["b"]) == (1, 1)
        assert b.transport.take()[-1] == state(merged)
        b.transport.answer_ping()
        b.push({**merged, "b": 2})
        assert await stored(house) == {**merged, "b": 2}


async def test_a_write_that_is_the_state_in_another_form_changes_nothing_and_is_not_answered() -> None:
    async with open_house(Room) as house:
        a, _ = await two(house)
        a.push({"a": 1, "b": [1, 2]})
        await stored(house)
        a.transport.take()
        version = (await house.actor(Room)).state.current.version
        a.send('{"type":"cf_agent_state","state":{ "b":[1, 2],"a":1}}')
        await stored(house)
        assert a.transport.take() == []
        assert (await house.actor(Room)).state.current.version == version


@each_case(("digits", "is_accepted"), [(199, True), (200, False)])
async def test_a_write_with_too_many_long_integers_is_refused(digits: int, *, is_accepted: bool) -> None:
    long = [10 ** (digits - 1)] * 263
    async with open_house(Room) as house:
        a, _ = await two(house)
        a.push({"long": long, "a": 0, "b": 0})
        assert ("long" in await stored(house)) == is_accepted
        if not is_accepted:
            with pytest.raises(TooLarge, match="digits of an integer"):
                await house.handle(Room).set_state({"long": long})


@each_case(("theirs", "is_merged"), [(6, True), (7, False)])
async def test_a_write_that_crosses_another_is_refused_if_both_change_too_much(theirs: int, *, is_merged: bool) -> None:
    base = {f"k{at}": 0 for at in range(3_900)}
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"mine": base, "theirs": [0] * 10})
        a, b = await two(house)
        a.push({"mine": base, "theirs": [1] * theirs + [0] * (10 - theirs)})
        b.push({"mine": dict.fromkeys(base, 1), "theirs": [0] * 10})
        merged = await stored(house)
        assert merged["theirs"] == [1] * theirs + [0] * (10 - theirs)
        assert (merged["mine"] != base) == is_merged


def rows(*ids: object) -> dict[str, Any]:
    return {"list": [{"id": f"{id}"} for id in ids]}


@each_case(
    ("gone", "wrote", "merged"),
    [
        (rows(1, 3, 4), rows(1, 3, 2, 4, 9), rows(1, 3, 4, 9)),
        (rows(1, 3, 4), rows(2, 1, 3, 4, 9), rows(1, 3, 4, 9)),
        (rows(3), rows(4, 3, 2, 9, 1), rows(3, 9)),
        (rows(1, 2, 4, 8), rows(9, 2, 1, 3, 4), rows(9, 2, 1, 4, 8)),
        (rows(), rows(4, 3, 2, 1, 9), rows(9)),
    ],
)
async def test_a_write_that_moves_what_another_has_removed_keeps_the_rest(gone: Any, wrote: Any, merged: Any) -> None:
    async with open_house(Room) as house:
        a, b = await two(house)
        a.push(rows(1, 2, 3, 4))
        await stored(house)
        b.transport.answer_ping()
        a.push(gone)
        b.push(wrote)
        found = await stored(house)
        assert not [frame for frame in b.transport.take() if "error" in frame]
        assert found == merged
