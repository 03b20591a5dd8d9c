"""Events that clients emit to the others of their thread."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
import pytest
from tests.cases import each_case
from tests.server.rooms import Client as CloudflareClient
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined, put

from plait.actor.connection import Rights
from plait.actor.thread import Thread
from plait.limits import Limits


class At(msgspec.Struct):
    x: int
    y: int = 0


class Board(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    events: ClassVar[dict[str, Any]] = {"cursor": At, "wave": Any, "goal": str}
    clients_may_emit = ("cursor", "wave")


class Free(Board):
    """Has no types of events."""

    events: ClassVar[dict[str, Any]] = {}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Board, Free) as opened:
        yield opened


async def meet(house: House, cls: type[Thread[Any]] = Board) -> tuple[Guest, Guest]:
    """Return two clients of one thread."""
    actor = await house.actor(cls)
    return await joined(actor, "a"), await joined(actor, "b")


def refusal(code: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"type": "error", "code": code, "message": message, "refused": "emit", **fields}


@each_case("cls", [Board, Free])
async def test_an_event_of_a_client_reaches_the_others_with_its_connection(
    house: House, cls: type[Thread[Any]]
) -> None:
    ada, grace = await meet(house, cls)
    ada.send("emit", name="cursor", data={"x": 1, "y": 2})
    assert grace.frames == [
        {"type": "event", "name": "cursor", "data": {"x": 1, "y": 2}, "from": ada.connection.id},
    ]
    assert ada.frames == []


async def test_an_event_of_a_client_comes_after_the_changes_that_it_made_before(house: House) -> None:
    ada, grace = await meet(house)
    ada.push(put("/n", 1), base=0)
    ada.send("emit", name="wave", data=None)
    await ada.actor.wait_until_idle()
    assert [frame["type"] for frame in grace.frames] == ["change", "event"]


async def test_a_client_cannot_forge_an_event_of_the_server(house: House) -> None:
    ada, grace = await meet(house)
    ada.send("emit", name="goal", data="Ada")
    ada.send("emit", name="wave", data=1, **{"from": None})
    ada.actor.thread.emit("wave", 2)
    says = "clients may not emit 'goal': the class does not name it in `clients_may_emit`"
    assert ada.frames == [refusal("forbidden", says), {"type": "event", "name": "wave", "data": 2}]
    assert grace.frames == [
        {"type": "event", "name": "wave", "data": 1, "from": ada.connection.id},
        {"type": "event", "name": "wave", "data": 2},
    ]


async def test_an_event_that_is_not_of_its_type_is_refused(house: House) -> None:
    ada, grace = await meet(house)
    ada.send("emit", name="cursor", data={"x": "left"})
    assert ada.frames == [refusal("invalid_arguments", "cursor/x: Expected `int`, got `str`", path="/x")]
    # Members that the type does not have reach no one.
    ada.send("emit", name="cursor", data={"x": 1, "secret": 2})
    assert grace.frames == [
        {"type": "event", "name": "cursor", "data": {"x": 1, "y": 0}, "from": ada.connection.id},
    ]


async def test_a_client_that_may_not_send_messages_may_not_emit(house: House) -> None:
    ada, grace = await meet(house)
    ada.connection.rights = Rights(may_send=False)
    ada.send("emit", name="wave", data=1)
    assert ada.frames == [refusal("forbidden", "Forbidden")]
    assert grace.frames == []


@each_case("depth", [65, 100_000])
async def test_an_event_of_any_type_may_not_be_nested_deeper_than_the_limit(house: House, depth: int) -> None:
    ada, grace = await meet(house)
    ada.send_text('{"type":"emit","name":"wave","data":' + "[" * depth + "]" * depth + "}")
    (error,) = ada.frames
    assert (error["code"], error["refused"]) in (("invalid_arguments", "emit"), ("too_large", "emit"))
    ada.send_text('{"type":"emit","name":"wave","data":' + "[" * 64 + "]" * 64 + "}")
    assert [frame["name"] for frame in grace.frames] == ["wave"]
    assert ada.closed is None


async def test_an_event_with_half_of_a_surrogate_pair_is_refused(house: House) -> None:
    ada, grace = await meet(house)
    ada.send_text('{"type":"emit","name":"wave","data":"\\ud800"}')
    (error,) = ada.frames
    assert (error["code"], error["refused"]) == ("invalid_arguments", "emit")
    assert grace.frames == []


async def test_events_count_as_messages_and_are_not_sent_later() -> None:
    async with open_house(Board, limits=Limits(messages_per_second=0.001, message_burst=3)) as house:
        ada, grace = await meet(house)
        for n in range(5):
            ada.send("emit", name="wave", data=n)
        assert [frame["data"] for frame in grace.frames] == [0, 1, 2]
        refused = ada.frames
        assert [(frame["code"], frame["refused"]) for frame in refused] == [("rate_limited", "emit")] * 2
        assert "retry_after" not in refused[0]


async def test_a_client_of_the_cloudflare_protocol_gets_no_events(house: House) -> None:
    ada, _ = await meet(house)
    other = CloudflareClient(ada.actor, "c")
    other.open()
    await other.joined()
    ada.send("emit", name="wave", data=1)
    ada.actor.thread.broadcast("next")
    assert await other.transport.next() == "next"
