"""Large values that are pushed to a plain state are not decoded, which clients cannot tell."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.rooms import open_house
from tests.server.session.guests import Guest, Room, add, joined, put, remove

from plait.actor.thread import Thread
from plait.limits import Limits
from plait_schemas import codec
from plait_schemas.codec import LARGE, NOT_JSON
from plait_schemas.frames import decode_client, decode_partly, encode
from plait_schemas.messages import Push
from plait_schemas.patch import decode_ops, read_ops

EVERYTHING, NOTHING = 2, 2**62
LIMITS = Limits(state=1000, depth=6)

# Places in the first state.
PLACES = ("/a", "/a/0", "/a/1", "/a/0/a", "/a/0/a/0", "/b", "/b/a", "/b/b", "/b/b/0", "/b/b/0/0")

keys = st.sampled_from("ab")
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.just(0.5) | st.sampled_from(["", "x", "y"])
rows = st.fixed_dictionaries({"id": st.integers(0, 2)}, optional={"a": scalars | st.lists(scalars, max_size=2)})
values = rows | st.recursive(
    scalars | rows, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2), max_leaves=8
)
parts = st.sampled_from(["a", "b", "0", "1", "-", "id"])
paths = st.sampled_from(PLACES) | st.lists(parts, max_size=3).map(lambda each: "".join(f"/{part}" for part in each))
ops = (
    st.builds(put, paths, values)
    | st.builds(add, paths, values)
    | st.builds(remove, paths)
    | st.builds(lambda path, at: {"op": "splice", "path": path, "at": at, "insert": "y"}, paths, st.integers(0, 1))
    | st.builds(lambda path, value: {**add(path, value), "moved": True}, paths, values)
)


class Sent(NamedTuple):
    """A push of one of two clients, which had seen all but the last few versions."""

    client: int
    lag: int
    ops: Sequence[Any]


sent = st.builds(Sent, st.integers(0, 1), st.integers(0, 3), st.lists(ops, min_size=1, max_size=2))


class Plain(Thread[dict[str, Any]]):
    initial_state = staticmethod(lambda: {"a": [{"id": 0, "a": [1, 2]}, {"id": 1}], "b": {"a": "xx", "b": [[1], [2]]}})


class Rejecting(Plain):
    conflict = "reject"


class Resolving(Plain):
    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        return [path, base, current, proposed]


@contextmanager
def large_from(size: int) -> Iterator[None]:
    """Leave objects and arrays from this size on undecoded."""
    codec.LARGE = size  # type: ignore[misc]
    try:
        yield
    finally:
        codec.LARGE = LARGE  # type: ignore[misc]


async def push_all(cls: type[Plain], pushes: Sequence[Sent]) -> Any:
    """Return everything that can be seen of some pushes."""
    async with open_house(cls, limits=LIMITS) as house:
        actor = await house.actor(cls)
        guests = [await joined(actor, name) for name in "xy"]
        frames = []
        for each in pushes:
            version = actor.state.history.current.version
            guests[each.client].push(*each.ops, base=max(0, version - each.lag))
            await actor.wait_until_idle()
            frames.append([guest.frames for guest in guests])
        history = actor.state.history
        names = {guest.connection.id: name for guest, name in zip(guests, "xy", strict=True)}
        rows = [(row.version, row.ops, names.get(row.source, row.source)) for row in history.recent(10_000)]
        told = json.dumps(frames)
        for id, name in names.items():
            told = told.replace(id, name)
        return told, rows, history.current.require_json(), history.current.document


@pytest.mark.parametrize("cls", [Plain, Rejecting, Resolving])
@settings(max_examples=40, deadline=None)
@given(pushes=st.lists(sent, min_size=1, max_size=6))
def test_pushes_do_the_same_if_their_values_stay_undecoded(cls: type[Plain], pushes: list[Sent]) -> None:
    with large_from(NOTHING):
        expected = asyncio.run(push_all(cls, pushes))
    with large_from(EVERYTHING):
        assert asyncio.run(push_all(cls, pushes)) == expected


@settings(deadline=None)
@given(st.lists(ops, max_size=5))
def test_operations_that_stay_undecoded_encode_to_the_same(found: list[Any]) -> None:
    data = codec.encode_json(found)
    with large_from(EVERYTHING):
        assert codec.encode_json(read_ops(data)) == codec.encode_json(decode_ops(data))


async def test_a_large_value_is_stored_as_it_was_sent_without_its_spaces() -> None:
    value = {"rows": [{"id": i, "text": 'a "quoted" text, with: spaces '} for i in range(1000)]}
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        pushing, reading = await joined(actor, "a"), await joined(actor, "b")
        pushing.push(add("/v", value), base=0)
        pushing.push(put("/v/rows/7/text", "x"), base=0)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in pushing.frames] == ["ack", "ack"]
        assert actor.state.history.recent(1)[0].ops == codec.encode_json([add("/v", value)])
        assert [frame["ops"] for frame in reading.frames] == [[add("/v", value)], [put("/v/rows/7/text", "x")]]
        value["rows"][7]["text"] = "x"
        assert actor.thread.state == {"n": 0, "v": value}


@each_case(
    ("value", "code"),
    [
        (b"[" * 100 + b"1," * LARGE + b"2" + b"]" * 100, "too_large"),
        (b'{"a":1,"a":[%b]}' % (b"1," * LARGE + b"2"), None),
        (b'["%b","\\ud800"]' % (b"x" * LARGE), "invalid_state"),
    ],
)
async def test_a_large_value_is_refused_for_what_a_small_one_is_refused(value: bytes, code: str | None) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        send(guest, value)
        await actor.wait_until_idle()
        assert guest.frames[0].get("code") == code


@each_case("value", [b"[%b1e999]", b"[%b01]", b"[%b", b"[%b1]]", b"[%b1],x"])
async def test_what_is_not_json_closes_the_socket_and_is_told_as_ever(value: bytes) -> None:
    text = value.replace(b"%b", b"1," * LARGE)
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        frame = send(guest, text)
        with pytest.raises(NOT_JSON) as found:
            decode_client(frame)
        assert guest.frames[0] == {"type": "error", "code": "bad_frame", "message": str(found.value)}
        assert guest.closed is not None


async def test_a_list_does_not_become_the_state_of_a_thread_of_dicts() -> None:
    async with open_house(Plain) as house:
        actor = await house.actor(Plain)
        guest = await joined(actor, "a")
        guest.push(put("", [1] * LARGE), base=0)
        guest.push(put("", {"a": [1] * LARGE}), base=0)
        await actor.wait_until_idle()
        refusal, accepted = guest.frames
        assert (refusal["code"], refusal["message"]) == ("invalid_state", "Expected `object`, got `array`")
        assert accepted["type"] == "ack"
        assert actor.thread.state == {"a": [1] * LARGE}


def test_only_large_objects_and_arrays_of_pushes_stay_undecoded() -> None:
    large = [1] * LARGE
    pushed = Push(1, ("e", 0), decode_ops(codec.encode_json([add("/a", large), add("/b", 1), add("/c", "x" * LARGE)])))
    found = decode_partly(encode(pushed))
    assert isinstance(found, Push)
    assert [type(op.value).__name__ for op in found.ops] == ["Raw", "int", "str"]
    assert encode(found) == encode(pushed)


def send(guest: Guest, value: bytes) -> bytes:
    """Push a value at `/v`; return the frame."""
    epoch = guest.actor.state.epoch.encode()
    ops = b'[{"op":"add","path":"/v","value":%b}]' % value
    frame = b'{"type":"push","ref":1,"base":["%b",0],"ops":%b}' % (epoch, ops)
    guest.send_bytes(frame, is_text=True)
    return frame
