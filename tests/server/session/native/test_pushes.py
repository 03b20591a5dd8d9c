"""Pushes of the native protocol: answered in order, refused with a reason, applied once, rebased over others."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.rooms import House, open_house
from tests.server.session.guests import (
    Guest,
    Room,
    SlowReads,
    add,
    change,
    joined,
    opening,
    put,
    remove,
    until,
)
from tests.told import check_internal

from plait.actor.thread import Thread
from plait.errors import Conflict, Gap, Indeterminate, PlaitError, TooMany, Unanswerable
from plait.limits import UNLIMITED, Limits
from plait.state.retention import Retention
from plait_schemas.patch import find, parse


@pytest.fixture
async def house() -> AsyncIterator[House]:
    kinds = (Room, Lists, Odd, Rejecting, Resolving, Typed, Slugs, TypedSlugs)
    async with open_house(*kinds, limits=Limits(state=2000, depth=8)) as house:
        yield house


class Lists(Thread[Any]):
    """Begins with a list."""

    initial_state = {"list": ["a", "b", "c"], "n": 0}  # noqa: RUF012


class Odd(Thread[Any]):
    """Begins with names that mean something else in JavaScript."""

    initial_state = staticmethod(
        lambda: {"__proto__": {"x": 0}, "constructor": {"prototype": 0}, "a": {"__proto__": 0}}
    )


class Rejecting(Lists):
    conflict = "reject"


class Resolving(Lists):
    """Tells what it is asked, and says `both`; what is to go goes."""

    def on_start(self) -> None:
        self.asked: list[tuple[Any, Any, Any, str]] = []

    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        self.asked.append((base, current, proposed, path))
        if proposed == "fail":
            raise ZeroDivisionError("secret")
        if proposed == "change":
            self.set_state({"list": ["changed"], "n": 1})
        if proposed == "refuse":
            raise Conflict("not this one", path=path)
        return proposed and [current, proposed]


class Point(msgspec.Struct, frozen=True):
    x: float = 0
    tags: tuple[str, ...] = ()


class Typed(Thread[Point]):
    initial_state = Point()


def nack(guest: Guest) -> dict[str, Any]:
    """Return the next frame, which must be a nack, without its type and message."""
    frame = guest.frames[0]
    assert frame.pop("type") == "nack"
    assert frame.pop("message")
    return dict(frame)


async def answered(guest: Guest, ref: int) -> None:
    """Wait until a guest has got the answer to a push."""
    await until(lambda: guest.transport.sent[-1].get("ref") == ref)


# Answers


async def test_an_ack_tells_the_operations_where_others_have_moved_the_place(house: House) -> None:
    actor = await house.actor(Lists)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    a.push(add("/list/0", "first"), base=0)
    b.push(put("/list/2", "C"), base=0)
    b.push(put("/n", 1), base=0)
    await actor.wait_until_idle()
    assert [f for f in b.frames if f["type"] == "ack"] == [
        {"type": "ack", "ref": 1, "version": 2, "rebased": True, "ops": [put("/list/3", "C")]},
        {"type": "ack", "ref": 2, "version": 3, "rebased": True},
    ]
    assert actor.thread.state == {"list": ["first", "a", "b", "C"], "n": 1}


async def test_an_ack_tells_the_operations_where_the_states_type_has_made_others_of_them(house: House) -> None:
    actor = await house.actor(Typed)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    a.push(put("/x", 1), put("/tags", ["t"]), base=0)
    a.push(put("/x", 2.5), base=0)
    await actor.wait_until_idle()
    told = b.frames[0]["ops"]
    assert told[0] == put("/x", 1.0)
    assert told[1]["path"].startswith("/tags")
    assert a.frames == [
        {"type": "ack", "ref": 1, "version": 1, "ops": told},
        {"type": "ack", "ref": 2, "version": 2},
    ]
    assert actor.thread.state == Point(2.5, ("t",))


@pytest.mark.parametrize(
    ("op", "code", "path"),
    [
        (put("/n", "forbidden"), "rejected", "/n"),
        (put("/n", "broken"), "rejected", None),
        (put("", []), "rejected", None),
        (put("/list/9", 1), "conflict", None),
        (add("/n/deep", 1), "conflict", None),
        (put("n", 1), "conflict", None),
        (remove(""), "conflict", None),
        ({"op": "add", "path": "/n"}, "conflict", None),
        (add("/deep", [[[[[[[[]]]]]]]]), "too_large", "/deep"),
        (add("/large", "x" * 2000), "too_large", None),
    ],
)
async def test_a_push_that_is_refused_says_why_and_changes_nothing(
    house: House, op: dict[str, Any], code: str, path: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    actor = await house.actor(Room)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    guest.push(add("/list", []), base=0)
    guest.push(op, base=0)
    guest.push(put("/n", 1), base=0)
    await actor.wait_until_idle()
    first, refusal, last = guest.frames
    assert (first["type"], last["type"], last["version"]) == ("ack", "ack", 2)
    assert (refusal["type"], refusal["ref"], refusal["version"]) == ("nack", 2, 1)
    assert (refusal["code"], refusal.get("path")) == (code, path)
    assert "secret" not in refusal["message"]
    assert [frame["version"] for frame in other.frames] == [1, 2]
    assert actor.thread.state == {"n": 1, "list": []}
    assert ("secret" in caplog.text) == (op == put("/n", "broken"))


async def test_a_push_of_too_many_operations_is_refused_before_it_is_applied(house: House) -> None:
    actor = await house.actor(Resolving)
    actor.thread.set_state({"list": [], "n": 1})
    guest = await joined(actor, "a")
    guest.push(*[put("/n", n) for n in range(4_001)], base=1)
    await answered(guest, 1)
    refused = guest.frames[-1]
    guest.push(*[put("/n", n) for n in range(4_000)], base=1)
    await answered(guest, 2)
    taken = guest.frames[-1]
    assert (refused["type"], refused["code"]) == ("nack", "too_large")
    assert "the push has 4001 operations, the limit is 4000" in refused["message"]
    assert taken["type"] == "ack"
    assert actor.thread.state["n"] == 3_999


async def test_what_two_push_into_one_text_stays_and_is_told_as_splices(house: House) -> None:
    actor = await house.actor(Lists)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    b.push({"op": "splice", "path": "/list/1", "at": 0, "insert": "🔑"}, base=0)
    a.push({"op": "splice", "path": "/list/1", "at": 0, "remove": 1, "insert": "x"}, base=0)
    await actor.wait_until_idle()
    moved = {"op": "splice", "path": "/list/1", "at": 1, "remove": 1, "insert": "x"}
    assert actor.thread.state["list"][1] == "🔑x"
    assert a.frames[-1] == {"type": "ack", "ref": 1, "version": 2, "rebased": True, "ops": [moved]}
    assert b.frames[-1]["ops"] == [moved]


@pytest.mark.parametrize(
    ("op", "code"),
    [
        ({"path": "/list/1", "at": 2, "insert": "x"}, "conflict"),
        ({"path": "/list/1", "at": -1, "insert": "x"}, "conflict"),
        ({"path": "/list/1", "insert": "x"}, "conflict"),
        ({"path": "/n", "at": 0, "insert": "x"}, "conflict"),
        ({"path": "/list/1", "at": 1, "insert": "x" * 2000}, "too_large"),
    ],
)
async def test_a_splice_that_does_not_fit_is_refused_and_the_client_goes_on(
    house: House, op: dict[str, Any], code: str
) -> None:
    actor = await house.actor(Lists)
    guest = await joined(actor, "a")
    guest.push({"op": "splice", **op}, base=0)
    guest.push({"op": "splice", "path": "/list/1", "at": 1, "insert": "x"}, base=0)
    await actor.wait_until_idle()
    refusal, *_ = guest.frames
    assert (refusal["type"], refusal["ref"], refusal["code"]) == ("nack", 1, code)
    assert actor.thread.state["list"] == ["a", "bx", "c"]


@pytest.mark.parametrize("path", ["/__proto__/x", "/constructor/prototype", "/a/__proto__"])
async def test_a_key_that_means_something_else_in_javascript_is_a_key_like_any_other(house: House, path: str) -> None:
    actor = await house.actor(Odd)
    guest = await joined(actor, "a")
    guest.push(put(path, 1), base=0)
    guest.push(remove(path), base=0)
    guest.push(add(path, 2), base=0)
    await actor.wait_until_idle()
    assert [(frame["type"], frame["version"]) for frame in guest.frames] == [("ack", 1), ("ack", 2), ("ack", 3)]
    assert find(actor.thread.state, parse(path)) == 2


async def test_whole_states_may_have_keys_that_mean_something_else_in_javascript(house: House) -> None:
    actor = await house.actor(Odd)
    state = json.loads('{"__proto__": {"x": 1}, "prototype": {"constructor": [1]}}')
    guest = await joined(actor, "a")
    guest.push(put("", state), base=0)
    await actor.wait_until_idle()
    assert guest.frames[-1]["type"] == "ack"
    assert actor.thread.state == state
    await actor.thread.set_state(json.loads('{"__proto__": 7}'))
    assert actor.thread.state == {"__proto__": 7}


async def test_a_state_that_is_not_of_the_type_is_refused_with_its_place(house: House) -> None:
    actor = await house.actor(Typed)
    guest = await joined(actor, "a")
    guest.push(put("/x", "one"), base=0)
    assert nack(guest) == {"ref": 1, "code": "invalid_state", "path": "/x", "version": 0}
    guest.push(add("/tags/-", 1), base=0)
    assert nack(guest) == {"ref": 2, "code": "invalid_state", "path": "/tags/-", "version": 0}


@pytest.mark.parametrize(("epoch", "version"), [("another", 0), (None, 1), (None, -1), (None, 2**70)])
async def test_a_base_that_is_no_version_is_refused(house: House, epoch: str | None, version: int) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    base = [epoch or actor.state.history.epoch, version]
    guest.send("push", ref=1, base=base, ops=[put("/n", 1)])
    assert nack(guest) == {"ref": 1, "code": "conflict", "version": 0}


# Refs


async def test_a_ref_that_is_not_the_next_is_a_gap_and_says_which_is(house: House) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    guest.push(put("/n", 1), base=0, ref=7)
    guest.push(put("/n", 2), base=0, ref=9)
    await actor.wait_until_idle()
    ack, gap = guest.frames
    assert ack == {"type": "ack", "ref": 7, "version": 1}
    assert (gap["type"], gap["code"], gap["ref"], gap["expected"], gap["version"]) == ("nack", "gap", 9, 8, 1)
    guest.push(put("/n", 2), base=1, ref=8)
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": 8, "version": 2}]


LAST_REF = 2**53 - 1


@pytest.mark.parametrize(
    ("ref", "nearest"),
    [(0, 1), (-1, 1), (-(2**70), 1), (2**53, LAST_REF), (2**63, LAST_REF), (2**70, LAST_REF)],
)
async def test_refs_are_from_1_to_the_last_that_every_store_can_hold(house: House, ref: int, nearest: int) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    guest.push(put("/n", 1), base=0, ref=ref)
    await actor.wait_until_idle()
    assert nack(guest)["code"] == "unanswerable"
    guest.push(put("/n", 2), base=0, ref=nearest)
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": nearest, "version": 1}]
    assert actor.thread.state == {"n": 2}


async def test_a_push_that_comes_again_is_answered_as_before_and_not_applied(house: House) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    guest.push(put("/n", 1), base=0)
    guest.push(put("/n", "forbidden"), base=0)
    await actor.wait_until_idle()
    _, refusal = guest.frames
    await change(actor, 5)
    assert guest.frames
    guest.push(put("/n", 9), base=0, ref=1)
    guest.push(put("/n", 9), base=0, ref=2)
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": 1, "version": 2}, {**refusal, "version": 2}]
    assert actor.thread.state == {"n": 5}


async def test_a_push_that_comes_again_while_it_is_on_its_way_is_answered_when_it_is_durable(house: House) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    house.store.is_held = True
    guest.push(put("/n", 1), base=0, ref=1)
    guest.push(put("/n", 1), base=0, ref=1)
    assert guest.frames == []
    house.store.resume()
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": 1, "version": 1}] * 2
    assert len([write for write in house.store.submitted if write.clients]) == 1


async def test_what_became_of_a_push_is_known_from_the_store_up_to_the_last_that_was_accepted() -> None:
    store = TroubledStore()
    async with open_house(Room, store=store) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for n in (1, "forbidden", 3):
            guest.push(put("/n", n), base=0)
        await actor.wait_until_idle()
        _, refusal, _ = guest.frames
        guest.leave()
        await actor.wait_until_idle()
        guest, frame = await opening(actor, "a")
        assert frame["last_ref"] == 3
        for ref in (1, 2, 3):
            guest.push(put("/n", 9), base=2, ref=ref)
        await actor.wait_until_idle()
        assert guest.frames == [
            {"type": "ack", "ref": 1, "version": 2},
            {**refusal, "version": 2},
            {"type": "ack", "ref": 3, "version": 2},
        ]


async def test_after_64_more_pushes_it_is_not_known_any_more_what_became_of_one(house: House) -> None:
    actor = await house.actor(Room)
    guest = await joined(actor, "a")
    for n in range(65):
        guest.push(put("/n", n), base=0)
    await actor.wait_until_idle()
    assert len(guest.frames) == 65
    guest.push(put("/n", 9), base=0, ref=1)
    assert nack(guest) == {"ref": 1, "code": "unanswerable", "version": 65}
    guest.push(put("/n", 9), base=0, ref=2)
    assert guest.frames == [{"type": "ack", "ref": 2, "version": 65}]


# A disk in trouble


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_push_in_doubt_has_no_answer_and_its_client_learns_what_became_of_it_when_it_joins_again(
    house: House, is_stored: bool
) -> None:
    actor = await house.actor(Room)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    house.store.is_held = True
    guest.push(put("/n", 1), base=0)
    guest.push(put("/n", 2), base=0)
    guest.push(put("/n", "forbidden"), base=0)
    handle = house.handle(Room)
    call = asyncio.ensure_future(handle.set_state(lambda state: state))
    await asyncio.sleep(0)
    if is_stored:
        await house.store.store(house.store.submitted[-2])
    house.store.fail_next(Indeterminate("room/one: it is not known whether the change was stored"))
    house.store.resume()
    await until(lambda: guest.closed is not None)
    with pytest.raises(Indeterminate, match="not known whether the change was stored"):
        await call
    assert (guest.frames, other.frames) == ([None], [None])
    assert (guest.closed, other.closed) == (1013, 1013)
    # The thread is loaded again.
    again = await house.actor(Room)
    assert again is not actor
    assert again.thread.state["n"] == (1 if is_stored else 0)
    _, frame = await opening(again, "a", have=(actor.state.history.epoch, 0))
    assert frame.get("last_ref", 0) == (1 if is_stored else 0)


async def test_a_push_that_could_not_be_stored_is_taken_back_and_later_ones_are_taken(house: House) -> None:
    actor = await house.actor(Room)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    house.store.is_held = True
    guest.push(put("/n", 1), base=0)
    guest.push(put("/n", 2), base=0)
    guest.push(put("/n", "forbidden"), base=0)
    house.store.fail_next()
    house.store.resume()
    await actor.wait_until_idle()
    assert [(f["type"], f["ref"], f["code"], f["version"]) for f in guest.frames] == [
        ("nack", 1, "store_error", 0),
        ("nack", 2, "store_error", 0),
        ("nack", 3, "rejected", 0),
    ]
    assert other.frames == []
    guest.push(put("/n", 3), base=0, ref=1)
    assert nack(guest)["code"] == "store_error"
    guest.push(put("/n", 4), base=0, ref=4)
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": 4, "version": 1}]
    assert actor.thread.state == {"n": 4}


async def test_after_a_push_that_could_not_be_stored_the_next_is_rebased_over_what_took_its_version(
    house: House,
) -> None:
    actor = await house.actor(Lists)
    guest = await joined(actor, "a")
    house.store.fail_next()
    guest.push(put("/n", 1), base=0)
    await actor.wait_until_idle()
    assert nack(guest)["code"] == "store_error"
    actor.thread.set_state({"list": ["new", "a", "b", "c"], "n": 0})
    guest.push(put("/list/0", "A"), base=0)
    await actor.wait_until_idle()
    assert actor.thread.state["list"] == ["new", "A", "b", "c"]


async def test_after_a_push_that_could_not_be_stored_what_came_before_it_still_does(house: House) -> None:
    actor = await house.actor(Lists)
    guest = await joined(actor, "a")
    actor.thread.set_state({"list": ["new", "a", "b", "c"], "n": 0})
    await actor.wait_until_idle()
    guest.push(put("/n", 1), base=0)
    await actor.wait_until_idle()
    house.store.fail_next()
    guest.push(put("/n", 2), base=0)
    guest.push(remove("/list/0"), base=0)
    await actor.wait_until_idle()
    guest.push(put("/list/0", "A"), base=0)
    await actor.wait_until_idle()
    assert actor.thread.state == {"list": ["new", "A", "b", "c"], "n": 1}


# Small states


async def test_a_push_hits_its_element_though_the_others_change_is_longer_than_the_state(house: House) -> None:
    actor = await house.actor(Room)
    actor.thread.set_state({"list": [{"id": n} for n in range(12)]})
    guest = await joined(actor, "a")
    with actor.thread.edit() as draft:
        for index in (10, 8, 6, 4, 2, 0):
            del draft["list"][index]
    guest.push(add("/list/3/mark", True), base=1)
    guest.push(add("/list/7/mark", True), base=1)
    await actor.wait_until_idle()
    assert [item["id"] for item in actor.thread.state["list"] if "mark" in item] == [3, 7]


# Where others have changed the same


async def test_the_last_writer_wins_unless_the_class_says_otherwise(house: House) -> None:
    for cls, n, code in ((Lists, 2, None), (Rejecting, 1, "conflict")):
        actor = await house.actor(cls)
        guest = await joined(actor, "a")
        actor.thread.set_state({**actor.thread.state, "n": 1})
        guest.push(put("/n", 2), base=0)
        guest.push(put("/list/0", "A"), base=0)
        await actor.wait_until_idle()
        answers = guest.frames[1:]
        assert answers[0].get("code") == code
        assert (answers[0].get("path"), answers[1]["type"]) == (code and "/n", "ack")
        assert actor.thread.state == {"list": ["A", "b", "c"], "n": n}


@pytest.mark.parametrize("cls", [Lists, Rejecting, Resolving])
async def test_a_push_into_what_is_gone_is_refused_whatever_the_class_says(
    house: House, cls: type[Thread[Any]]
) -> None:
    actor = await house.actor(cls)
    await actor.thread.set_state({"list": [{"deep": 1}], "n": {"deep": 1}})
    guest = await joined(actor, "a")
    actor.thread.set_state({"list": [], "n": 0})
    guest.push(put("/list/0/deep", 2), base=1)
    guest.push(put("/n/deep", 2), base=1)
    await actor.wait_until_idle()
    assert [frame["code"] for frame in guest.frames[1:]] == ["conflict", "conflict"]
    assert actor.thread.state == {"list": [], "n": 0}


async def test_a_place_that_others_changed_since_the_push_was_made_is_contested_though_its_base_is_newer(
    house: House,
) -> None:
    for cls, n in ((Lists, 2), (Rejecting, 1), (Resolving, [1, 2])):
        actor = await house.actor(cls)
        guest = await joined(actor, "a")
        actor.thread.set_state({**actor.thread.state, "n": 1})
        await actor.wait_until_idle()
        guest.push(put("/n", 2), base=1, made=0)
        guest.push(put("/list/0", "A"), base=1, made=0)
        await answered(guest, 2)
        assert actor.thread.state == {"list": ["A", "b", "c"], "n": n}


async def test_elements_that_others_have_moved_since_are_contested_by_what_was_done_to_them(house: House) -> None:
    for cls in (Rejecting, Resolving):
        actor = await house.actor(cls)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(put("/list/0", "A"), add("/list/0", "0"), base=0)
        other.push(remove("/list/3"), base=1)
        await actor.wait_until_idle()
        guest.push(put("/list/1", "mine"), base=2, made=0)
        guest.push(put("/list/2", "B"), base=2, made=0)
        guest.push(add("/list/0", "first"), base=2, made=0)
        await answered(guest, 3)
        if cls is Rejecting:
            assert [frame["type"] for frame in guest.frames if "ref" in frame] == ["nack", "ack", "ack"]
            assert actor.thread.state["list"] == ["first", "0", "A", "B"]
        else:
            assert actor.thread.asked == [("a", "A", "mine", "/list/1")]  # type: ignore[attr-defined]
            assert actor.thread.state["list"] == ["first", "0", ["A", "mine"], "B"]


def move(start: int, end: int, value: Any) -> list[dict[str, Any]]:
    return [remove(f"/list/{start}"), {**add(f"/list/{end}", value), "moved": True}]


async def test_an_element_that_is_moved_while_others_change_it_is_there_once(house: House) -> None:
    for cls in (Lists, Rejecting, Resolving):
        actor = await house.actor(cls)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(put("/list", [{"id": 1, "t": ""}, {"id": 2, "t": ""}]), base=0)
        other.push(put("/list/0/t", "new"), base=1)
        await actor.wait_until_idle()
        guest.push(*move(0, 1, {"id": 1, "t": ""}), base=1)
        guest.push(put("/n", 1), base=1)
        await answered(guest, 2)
        assert actor.thread.state["list"] == [{"id": 2, "t": ""}, {"id": 1, "t": "new"}]


@pytest.mark.parametrize("made", [0, 1])
async def test_an_element_that_both_move_is_contested(house: House, made: int) -> None:
    for cls in (Lists, Rejecting, Resolving):
        actor = await house.actor(cls)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(*move(0, 2, "a"), base=0)
        await actor.wait_until_idle()
        guest.push(*(move(0, 1, "a") if made == 0 else move(2, 1, "a")), base=made, made=0)
        guest.push(put("/n", 1), base=made)
        await answered(guest, 2)
        (first,) = [frame for frame in guest.frames if frame.get("ref") == 1]
        assert first["type"] == ("nack" if cls is Rejecting else "ack")
        assert actor.thread.state["list"] == (["b", "c", "a"] if cls is Rejecting else ["b", "a", "c"])


async def test_what_is_put_in_has_not_moved_from_where_an_earlier_change_has_taken_something_out(house: House) -> None:
    actor = await house.actor(Lists)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push(remove("/list/0"), base=0)
    other.push(*move(0, 1, "another")[1:], base=1)
    guest.push(put("/list/0", "A"), base=0)
    await until(lambda: guest.transport.sent[-1]["type"] == "nack")
    assert actor.thread.state["list"] == ["b", "another", "c"]


async def test_what_a_client_changed_itself_since_it_made_a_push_does_not_contest_it(house: House) -> None:
    actor = await house.actor(Rejecting)
    guest = await joined(actor, "a")
    guest.push(put("/n", 1), base=0)
    await actor.wait_until_idle()
    guest.push(put("/n", 2), base=1, made=0)
    await actor.wait_until_idle()
    assert [frame["type"] for frame in guest.frames] == ["ack", "ack"]


@pytest.mark.parametrize("made", [-1, -(2**70), 2])
async def test_a_push_that_says_it_was_made_on_no_version_is_refused(house: House, made: int) -> None:
    actor = await house.actor(Rejecting)
    guest = await joined(actor, "a")
    await actor.thread.set_state({"list": [], "n": 1})
    guest.push(put("/n", 2), base=1, made=made)
    guest.push(put("/n", 3), base=1)
    await actor.wait_until_idle()
    refusal, ack = guest.frames[1:]
    assert (refusal["code"], ack["type"]) == ("conflict", "ack")


async def test_a_class_may_make_one_of_both_values(house: House) -> None:
    actor = await house.actor(Resolving)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    await actor.thread.set_state({**actor.thread.state, "text": "x" * 500})
    other.push(add("/list/0", "0"), put("/list/2", "B"), put("/n", 1), base=1)
    guest.push(put("/n", 2), put("/list/1", "bb"), add("/new", 3), base=1)
    await until(lambda: guest.transport.sent[-1]["type"] == "ack")
    ack = guest.frames[-1]
    assert actor.thread.asked == [(0, 1, 2, "/n"), ("b", "B", "bb", "/list/2")]  # type: ignore[attr-defined]
    assert ack["ops"] == [put("/n", [1, 2]), put("/list/2", ["B", "bb"]), add("/new", 3)]
    assert actor.thread.state["list"] == ["0", "a", ["B", "bb"], "c"]


async def test_a_class_that_has_nothing_for_a_place_that_is_to_go_lets_it_go(house: House) -> None:
    actor = await house.actor(Resolving)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push(put("/list/2", "C"), put("/n", 1), base=0)
    guest.push(remove("/n"), base=0)
    await until(lambda: guest.transport.sent[-1]["type"] == "ack")
    assert actor.thread.asked == [(0, 1, None, "/n")]  # type: ignore[attr-defined]
    assert actor.thread.state == {"list": ["a", "b", "C"]}


async def test_an_element_that_was_replaced_is_not_removed_as_it_may_be_another(house: House) -> None:
    actor = await house.actor(Lists)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push(put("/list/2", "C"), base=0)
    guest.push(remove("/list/2"), base=0)
    await until(lambda: guest.transport.sent[-1]["type"] == "nack")
    assert guest.frames[-1]["code"] == "conflict"
    assert actor.thread.state["list"] == ["a", "b", "C"]


async def test_a_class_whose_resolve_conflict_raises_refuses_the_push(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    actor = await house.actor(Resolving)
    guest = await joined(actor, "a")
    actor.thread.set_state({"list": [], "n": 1})
    guest.push(put("/n", "fail"), base=0)
    guest.push(put("/n", "refuse"), base=0)
    await until(lambda: len(guest.transport.sent) == 4)
    failed, refused = guest.frames[1:]
    assert failed["code"] == "rejected"
    check_internal(failed["message"], caplog, "secret")
    assert (refused["code"], refused["message"], refused["path"]) == ("conflict", "not this one", "/n")


async def test_what_a_class_makes_of_both_values_stays_what_it_was_when_the_class_goes_on_with_it() -> None:
    kept: list[str] = []

    class Keeping(Lists):
        def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
            kept.append("both")
            return kept if proposed != "nan" else float("nan")

    async with open_house(Keeping) as house:
        actor = await house.actor(Keeping)
        guest = await joined(actor, "a")
        actor.thread.set_state({"list": [], "n": 1})
        guest.push(put("/n", 2), base=0)
        await actor.wait_until_idle()
        kept.append("later")
        assert actor.thread.state["n"] == actor.state.history.current.document["n"] == ["both"]
        other = await joined(actor, "b")
        other.push(put("/n", "nan"), base=0)
        await answered(other, 1)
        assert other.frames[-1]["code"] == "invalid_state"


@each_case("error", [TooMany, Gap, Unanswerable])
async def test_what_an_author_refuses_with_is_not_taken_for_an_answer_of_the_protocol(error: type[PlaitError]) -> None:
    class Busy(Lists):
        def validate_state_change(self, next_state: Any, source: Any) -> None:
            raise error("not that many", path="/n")

    async with open_house(Busy) as house:
        guest = await joined(await house.actor(Busy), "a")
        guest.push(put("/n", 2), base=0)
        assert nack(guest) == {"ref": 1, "code": "rejected", "path": "/n", "version": 0}


async def test_a_class_whose_resolve_conflict_changes_the_state_refuses_the_push_and_loses_nothing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    actor = await house.actor(Resolving)
    guest = await joined(actor, "a")
    actor.thread.set_state({"list": [], "n": 1})
    guest.push(put("/n", "change"), base=0)
    await until(lambda: len(guest.transport.sent) == 3)
    assert guest.frames[-1]["code"] == "rejected"
    assert actor.thread.state == {"list": [], "n": 1}
    assert "resolve_conflict" in caplog.text


async def test_a_push_made_long_ago_on_another_version_than_its_base_is_judged_by_both() -> None:
    async with open_house(Resolving, Rejecting, store=(store := SlowReads())) as house:
        for cls, state in ((Resolving, [400, "mine"]), (Rejecting, 400)):
            actor = await house.actor(cls)
            text = "x" * 100_000
            await actor.thread.set_state({"n": 0, "text": text, "m": 0})
            guest = await joined(actor, "a")
            await change(actor, *range(1, 401))
            await actor.thread.set_state({**actor.thread.state, "m": 1})
            guest.transport.take()
            reads = store.reads
            guest.push(put("/n", "mine"), base=400, made=1)
            await answered(guest, 1)
            assert actor.thread.state == {"n": state, "text": text, "m": 1}
            assert 0 < store.reads - reads < 10
            if cls is Resolving:
                assert actor.thread.asked == [(0, 400, "mine", "/n")]  # type: ignore[attr-defined]


async def test_what_a_push_was_made_on_is_read_only_where_others_may_have_changed_the_same() -> None:
    class Counting(TroubledStore):
        reads = 0

        async def load(self, *args: Any, **kwargs: Any) -> Any:
            self.reads += 1
            return await super().load(*args, **kwargs)

    async with open_house(Resolving, store=(store := Counting())) as house:
        actor = await house.actor(Resolving)
        guest = await joined(actor, "a")
        await change(actor, 1)
        reads = store.reads
        guest.push(put("/list/0", "A"), base=0)
        await answered(guest, 1)
        assert store.reads == reads
        guest.push(put("/n", 2), base=1, made=0)
        await answered(guest, 2)
        assert store.reads == reads + 1
        assert actor.thread.state["n"] == [1, 2]


# Bases that have left the memory


async def test_a_base_that_is_only_in_the_store_is_read_and_the_pushes_after_it_keep_their_order() -> None:
    async with open_house(Lists, store=(store := SlowReads())) as house:
        actor = await house.actor(Lists)
        await actor.thread.set_state({**actor.thread.state, "text": "x" * 10_000})
        guest = await joined(actor, "a")
        actor.thread.set_state({**actor.thread.state, "list": ["0", "a", "b", "c"]})
        await change(actor, *range(1, 401))
        guest.transport.take()
        store.may_read.clear()
        guest.push(put("/list/0", "A"), base=1)
        guest.push(put("/list/1", "B"), base=1)
        guest.push(put("/nowhere/to", "go"), base=1)
        guest.push(put("/list/2", "C"), base=1)
        guest.push(put("/list/2", "C"), base=1, ref=1)
        await until(lambda: store.reads)
        assert guest.frames == []
        await change(actor, 1000)
        guest.transport.take()
        taken = len(guest.transport.sent)
        store.may_read.set()
        await until(lambda: len(guest.transport.sent) == taken + 5)
        assert [(f["type"], f["ref"]) for f in guest.frames] == [
            ("ack", 1),
            ("ack", 2),
            ("nack", 3),
            ("ack", 4),
            ("ack", 1),
        ]
        assert actor.thread.state["list"] == ["0", "A", "B", "C"]
        assert actor.thread.state["n"] == 1000


async def test_what_comes_after_a_push_for_which_the_past_is_read_is_carried_out_after_it() -> None:
    async with open_house(Lists, store=(store := SlowReads())) as house:
        actor = await house.actor(Lists)
        guest = await joined(actor, "a")
        await change(actor, *range(1, 401))
        guest.transport.take()
        store.may_read.clear()
        guest.push(put("/list/0", "A"), base=1)
        for _ in range(64):
            assert not guest.transport.is_paused
            guest.send("ping")
        assert guest.transport.is_paused
        store.may_read.set()
        await until(lambda: not guest.transport.is_paused)
        await actor.wait_until_idle()
        types = [frame["type"] for frame in guest.frames]
        assert sorted(types) == ["ack", *["pong"] * 64]
        guest.send("ping")
        assert [frame["type"] for frame in guest.frames] == ["pong"]


async def test_a_past_that_a_store_fails_to_read_refuses_the_push_and_the_next_ones_are_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Own(TroubledStore):
        async def changes(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError("the secret of the store")

    async with open_house(Room, store=Own()) as house:
        actor = await house.actor(Room)
        for n in range(300):
            actor.thread.set_state({"n": n, "x": "x" * 1000})
        guest = await joined(actor, "a")
        guest.push(put("/n", 1), base=1)
        guest.push(put("/n", 2), base=300)
        await until(lambda: len(guest.transport.sent) == 3)
        first, second = guest.frames
        assert (first["code"], "secret" in first["message"]) == ("store_error", False)
        assert second["type"] == "ack"
        assert "secret" in caplog.text


# What it costs


async def test_a_push_that_has_to_be_compared_with_much_counts_as_many_messages() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=10)) as house:
        actor = await house.actor(Room)
        await change(actor, "x" * 10_000)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(*(add("/m", n) for n in range(100)), base=1)
        guest.push(*(add("/m", n) for n in range(6)), base=1)
        guest.push(add("/m", 1), base=1)
        await actor.wait_until_idle()
        ack, nack = (frame for frame in guest.frames if frame["type"] != "change")
        assert (ack["type"], nack["code"]) == ("ack", "rate_limited")


async def test_a_push_that_moves_many_elements_counts_as_many_messages_and_one_that_moves_too_many_is_refused() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=1000)) as house:
        actor = await house.actor(Room)
        actor.thread.set_state({"list": [0] * 400_000})
        guest, greedy = await joined(actor, "a"), await joined(actor, "b")
        for _ in range(3):
            guest.push(*[add("/list/0", 0)] * 200, base=1)
        for _ in range(2):
            greedy.push(*[add("/list/0", 0)] * 2_000, base=3)
        await actor.wait_until_idle()
        assert [(frame["type"], frame.get("code")) for frame in guest.frames] == [
            ("ack", None),
            ("ack", None),
            ("nack", "rate_limited"),
        ]
        assert [frame["code"] for frame in greedy.frames if frame["type"] == "nack"] == ["conflict", "rate_limited"]


async def test_a_push_that_would_hold_up_everybody_is_refused_and_counts_as_what_it_would_have_cost() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=500)) as house:
        actor = await house.actor(Room)
        await change(actor, "x" * 10_000)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(*(add("/m", n) for n in range(251)), base=1)
        guest.push(*(add("/m", n) for n in range(100)), base=1)
        guest.push(add("/m", 1), base=1)
        await actor.wait_until_idle()
        refused, next_one = (frame for frame in guest.frames if frame["type"] != "change")
        assert (refused["type"], refused["code"]) == ("nack", "conflict")
        assert "too many changes" in refused["message"]
        assert next_one["code"] == "rate_limited"


@each_case(("removed", "answer"), [(1, "ack"), (1_000, "nack")])
async def test_splices_that_would_be_done_in_many_places_each_may_meet_fewer_of_others(
    removed: int, answer: str
) -> None:
    async with open_house(Room, limits=UNLIMITED) as house:
        actor = await house.actor(Room)
        await actor.thread.set_state({"text": "x" * 40_000})
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        splice = {"op": "splice", "path": "/text"}
        other.push(*({**splice, "at": 40 * n, "insert": "y"} for n in range(900)), base=1)
        guest.push(*({**splice, "at": 500 * n, "remove": removed} for n in range(25)), base=1)
        await actor.wait_until_idle()
        (answered,) = [frame for frame in guest.frames if frame["type"] != "change"]
        assert answered["type"] == answer
        assert answer == "ack" or "too many changes" in answered["message"]


@each_case("kind", [Room, Rejecting])
@each_case(("count", "answer"), [(120, "ack"), (130, "nack")])
async def test_a_push_may_meet_as_many_changes_whatever_its_class_does_with_conflicts(
    kind: type[Thread[Any]], count: int, answer: str
) -> None:
    async with open_house(kind, limits=UNLIMITED) as house:
        actor = await house.actor(kind)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(*(add(f"/others-{n}", n) for n in range(200)), base=0)
        guest.push(*(add(f"/own-{n}", n) for n in range(count)), base=0)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in guest.frames if frame["type"] != "change"] == [answer]


async def test_elements_that_a_push_puts_into_the_array_itself_count_among_those_that_it_moves() -> None:
    async with open_house(Lists) as house:
        actor = await house.actor(Lists)
        await actor.thread.set_state({"list": [0] * 24_000, "n": 0})
        guest = await joined(actor, "a")
        guest.push(*[add("/list/0", 0)] * 4_000, base=1)
        await actor.wait_until_idle()
        (nack,) = guest.frames
        assert nack["code"] == "conflict"
        assert "too many elements" in nack["message"]


async def test_elements_of_an_array_that_a_push_has_brought_itself_are_counted_too() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.push(add("/list", [0] * 100_000), *[add("/list/0", 0)] * 2_000, base=0)
        await actor.wait_until_idle()
        (nack,) = guest.frames
        assert nack["code"] == "conflict"
        assert "too many elements" in nack["message"]


async def test_many_keys_that_look_like_indices_are_no_elements() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        await actor.thread.set_state({f"k{n}": 0 for n in range(24_000)})
        guest = await joined(actor, "a")
        guest.push(*(add(f"/{n}", 0) for n in range(4_000)), base=1)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in guest.frames] == ["ack"]


async def test_many_elements_are_put_into_a_list_also_where_conflicts_are_refused() -> None:
    async with open_house(Rejecting) as house:
        actor = await house.actor(Rejecting)
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        guest.push(*[add("/list/-", 0)] * 4_000, base=0)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in guest.frames] == ["ack"]
        other.push(*[add("/list/0", 0)] * 1_000, base=0)
        await actor.wait_until_idle()
        assert "too many changes" in other.frames[-1]["message"]


@each_case(
    ("ops", "second"),
    [
        ([put("/n", "x" * 1_000_000)], "rate_limited"),
        ([add("/m", n) for n in range(3_000)], "rate_limited"),
        ([put("/n", "x" * 10_000)], None),
    ],
)
async def test_a_large_push_counts_as_several_messages(ops: list[Any], second: str | None) -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=50)) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        for version in range(2):
            guest.push(*ops, base=version)
        await actor.wait_until_idle()
        assert [frame.get("code") for frame in guest.frames] == [None, second]


async def test_a_base_from_before_the_join_is_rebased_over_what_came_since() -> None:
    async with open_house(Lists) as house:
        actor = await house.actor(Lists)
        await actor.thread.set_state({"list": ["0", "a", "b", "c"], "n": 0})
        guest = await joined(actor, "a")
        guest.push(put("/list/0", "A"), base=0)
        await actor.wait_until_idle()
        assert actor.thread.state["list"] == ["0", "A", "b", "c"]


async def test_a_base_that_is_kept_nowhere_is_a_conflict_and_one_that_cannot_be_read_a_store_error() -> None:
    class Forgetful(Lists):
        kind = "lists"
        retention = Retention(changes=1)

    async with open_house(Forgetful, store=(store := SlowReads())) as house:
        actor = await house.actor(Forgetful)
        guest = await joined(actor, "a")
        actor.thread.set_state({"n": 0, "text": "x" * 3000})
        await change(actor, *range(400))
        guest.transport.take()
        guest.push(put("/n", "mine"), base=0)
        await until(lambda: guest.transport.sent[-1]["type"] == "nack")
        assert nack(guest)["code"] == "conflict"
        store.is_broken = True
        guest.push(put("/n", "mine"), base=0)
        await until(lambda: guest.transport.sent[-1].get("ref") == 2)
        assert nack(guest)["code"] == "store_error"
        guest.push(put("/n", "mine"), base=400)
        await actor.wait_until_idle()
        assert guest.frames[-1]["type"] == "ack"


@each_case("epoch", [None, "gone"])
async def test_what_was_made_after_a_push_that_was_lost_on_a_base_that_is_gone_is_taken(epoch: str | None) -> None:
    class Forgetful(Lists):
        kind = "lists"
        retention = Retention(changes=1)

    async with open_house(Forgetful) as house:
        actor = await house.actor(Forgetful)
        actor.thread.set_state({"n": 0, "text": "x" * 3000})
        await change(actor, *range(400))
        guest = await joined(actor, "a")
        guest.send("push", ref=1, base=[epoch or actor.state.history.epoch, 0], ops=[put("/list/0", "A")])
        guest.push(put("/n", "mine"), base=400, answered=0, ref=2)
        await until(lambda: guest.transport.sent[-1].get("ref") == 2)
        assert [frame["code"] for frame in guest.frames] == ["conflict", "gap"]
        guest.push(put("/n", "mine"), base=400, answered=1, ref=2)
        await actor.wait_until_idle()
        assert [(frame["type"], frame["ref"]) for frame in guest.frames] == [("ack", 2)]


async def test_a_client_that_is_gone_while_the_past_is_read_for_it_changes_nothing() -> None:
    async with open_house(Lists, store=(store := SlowReads())) as house:
        actor = await house.actor(Lists)
        guest = await joined(actor, "a")
        await change(actor, *range(400))
        store.may_read.clear()
        guest.push(put("/n", "mine"), base=0)
        guest.push(put("/n", "mine"), base=0)
        await until(lambda: store.reads)
        guest.leave()
        store.may_read.set()
        await actor.wait_until_idle()
        await until(lambda: "a" not in actor.state.clients)
        assert actor.thread.state["n"] == 399


# Lists that the server rebuilds


class Slugs(Thread[dict[str, Any]]):
    """A list whose elements are known by another member than usual."""

    initial_state = {"columns": [{"cards": [{"slug": slug, "n": 0} for slug in "abc"]}]}  # noqa: RUF012
    list_keys = {"/columns/*/cards": "slug"}  # noqa: RUF012


class Slug(msgspec.Struct, frozen=True):
    slug: str
    n: int = 0


class SlugColumn(msgspec.Struct, frozen=True):
    cards: tuple[Slug, ...]


class SlugColumns(msgspec.Struct, frozen=True):
    columns: tuple[SlugColumn, ...]


class TypedSlugs(Thread[SlugColumns]):
    """The same, typed."""

    initial_state = SlugColumns((SlugColumn((Slug("a"), Slug("b"), Slug("c"))),))
    list_keys = {"/columns/*/cards": "slug"}  # noqa: RUF012


@pytest.mark.parametrize("kind", [Slugs, TypedSlugs])
@pytest.mark.parametrize("order", ["bcd", "cba", "dabc", "b"])
async def test_a_push_hits_its_element_in_a_list_that_was_built_anew(
    house: House, kind: type[Thread[Any]], order: str
) -> None:
    actor = await house.actor(kind)
    guest = await joined(actor, "a")
    new = {"columns": [{"cards": [{"slug": slug, "n": 1} for slug in order]}]}
    actor.thread.set_state(msgspec.convert(new, SlugColumns) if kind is TypedSlugs else new)
    guest.push(put("/columns/0/cards/1/n", 7), base=0)
    await until(lambda: guest.transport.sent[-1]["type"] == "ack")
    state = json.loads(msgspec.json.encode(actor.thread.state))
    assert state == {"columns": [{"cards": [{"slug": slug, "n": 7 if slug == "b" else 1} for slug in order]}]}


@pytest.mark.parametrize("kind", [Slugs, TypedSlugs])
async def test_a_push_into_an_element_that_the_server_has_left_out_is_refused(
    house: House, kind: type[Thread[Any]]
) -> None:
    actor = await house.actor(kind)
    guest = await joined(actor, "a")
    new = {"columns": [{"cards": [{"slug": slug, "n": 1} for slug in "acd"]}]}
    actor.thread.set_state(msgspec.convert(new, SlugColumns) if kind is TypedSlugs else new)
    guest.push(put("/columns/0/cards/1/n", 7), base=0)
    await until(lambda: guest.transport.sent[-1]["type"] == "nack")
    assert guest.frames[-1]["code"] == "conflict"
    assert json.loads(msgspec.json.encode(actor.thread.state)) == new
