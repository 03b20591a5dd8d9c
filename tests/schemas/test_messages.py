"""The frames of the native protocol, as they are on the wire."""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from tests.cases import each_case

from plait_schemas import frames
from plait_schemas.codec import LARGE, NOT_JSON
from plait_schemas.conversation import Item
from plait_schemas.frames import decode_client, decode_partly, decode_server, encode
from plait_schemas.messages import (
    Ack,
    Auth,
    AuthExpiring,
    Call,
    Cancel,
    Change,
    Changes,
    ClientMessage,
    Close,
    Emit,
    Error,
    Event,
    Join,
    Joined,
    Made,
    Message,
    Nack,
    Open,
    Page,
    Part,
    Ping,
    Pong,
    Presence,
    PresenceDiff,
    Push,
    Result,
    Send,
    Sent,
    ServerMessage,
    Snapshot,
    Unopened,
    Unsent,
)
from plait_schemas.patch import Op

RAW = msgspec.Raw(b'{"a":[1,null]}')
NULL = msgspec.Raw(b"null")
OPS = [Op("add", "/a/-", {"b": [1.5, None]}), Op("remove", "/b"), Op("replace", "", "é")]

ITEM = Item(
    id="m2",
    role="assistant",
    content="Hel",
    name="bot",
    tool_calls=[{"id": "t1"}],
    tool_call_id="t0",
    subagent_id="cook/soup",
    created_at=7,
    parent_id="m1",
    depth=1,
    metadata={"key": "k1"},
    attachments=[{"url": "/a"}],
    position=4,
    status="streaming",
    taken=["m1"],
)

# Each frame with all its fields, and with as few as it may have.
CLIENT: list[Any] = [
    Join("me", ("epoch", 3), "5c4e", "secret"),
    Join("me"),
    Push(1, ("epoch", 3), OPS, ("epoch", 1), 0),
    Push(1, ("epoch", 0), []),
    Call(1, "move", (RAW, NULL), {"to": RAW}),
    Call(-1, "move"),
    Cancel(1),
    Message(RAW),
    Message(NULL),
    Emit("cursor", RAW),
    Presence(RAW),
    Presence(NULL),
    Auth("secret"),
    Ping(),
    Open("messages", 7, 12, 20),
    Open("messages"),
    Close("messages"),
    Send(1, "messages", "hi", "k1", [{"url": "/a"}]),
    Send(2, "messages", "", "k2"),
]
SERVER: list[Any] = [
    Joined("c1", "room/one", "epoch", 3, 2, True, RAW, OPS, 1_048_576),
    Joined("c1", "room/one", "epoch", 0),
    Joined("c1", "room/one", "epoch", 0, state=NULL),
    Change(4, OPS, "server"),
    Change(4, (), ""),
    Changes(4, 9, OPS),
    Snapshot("epoch", 9, RAW),
    Snapshot("epoch", 9, NULL),
    Ack(1, 4, True, OPS),
    Ack(1, 4),
    Ack(1, 4, ops=[]),
    Nack(1, "gap", "a gap", 4, "/a", 1.5, 3),
    Nack(1, "rejected", "no", 4),
    Result(1, True, RAW),
    Result(1, False, NULL),
    Made(1, 2),
    Result(1, True),
    Error("not_found", "no", 1, "/a"),
    Error("bad_frame", "no"),
    Event("goal", RAW),
    Event("cursor", RAW, "c1"),
    Message(RAW),
    PresenceDiff({"c1": RAW}, {"c2": RAW}, {"c3": NULL}, ["c4"]),
    PresenceDiff({}),
    PresenceDiff(),
    AuthExpiring(29.5),
    Pong(),
    Page("messages", 7, [ITEM], reset=True, more=True, before=12, removed=["m1"]),
    Page("messages", 0, []),
    Part("messages", 8, "insert", ITEM),
    Part("messages", 8, "chunk", id="m2", at=3, text="lo"),
    Part("messages", 9, "take", taken={"m1": 5}),
    Part("messages", 10, "end", id="m2", status="failed"),
    Part("messages", 10, "missed"),
    Unopened("messages", "rate_limited", "later", 12, 1.5),
    Unopened("messages", "not_found", "no"),
    Sent(1, "m1"),
    Unsent(1, "rate_limited", "later", "/a", 1.5),
    Unsent(1, "forbidden", "no"),
]
FRAMES = [(decode_client, frame) for frame in CLIENT] + [(decode_server, frame) for frame in SERVER]
each_frame = each_case(("decode", "frame"), FRAMES)

Decode = Callable[[bytes], Any]


def fields(frame: Any) -> dict[str, Any]:
    """Return the fields of a frame as they are on the wire."""
    found: dict[str, Any] = json.loads(encode(frame))
    return found


def wire(frame: object) -> bytes:
    """Return JSON without spaces, as Raw keeps its own."""
    return json.dumps(frame, separators=(",", ":")).encode()


def test_there_is_an_example_of_every_frame() -> None:
    assert {type(frame) for frame in CLIENT} == set(get_args(ClientMessage))
    assert {type(frame) for frame in SERVER} == set(get_args(ServerMessage))


@each_frame
def test_a_frame_survives_the_wire(decode: Decode, frame: Any) -> None:
    found = decode(encode(frame))
    assert type(found) is type(frame)
    assert encode(found) == encode(frame)
    for name in frame.__struct_fields__:
        value, expected = getattr(found, name), getattr(frame, name)
        assert value == (list(expected) if isinstance(expected, tuple) and isinstance(value, list) else expected), name


@each_frame
def test_fields_that_are_not_known_are_ignored(decode: Decode, frame: Any) -> None:
    assert encode(decode(wire({"further": [1], **fields(frame), "and_more": None}))) == encode(frame)


@each_frame
def test_a_field_at_its_default_is_not_sent_and_may_be(decode: Decode, frame: Any) -> None:
    sent = fields(frame)
    for field in msgspec.structs.fields(frame):
        if field.required:
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if getattr(frame, field.name) == default:
            assert field.encode_name not in sent
            if default is not msgspec.UNSET:
                assert encode(decode(wire({**sent, field.encode_name: default}))) == encode(frame)


@each_frame
def test_a_frame_without_a_field_that_it_needs_is_an_error(decode: Decode, frame: Any) -> None:
    needed = ["type", *(field.encode_name for field in msgspec.structs.fields(frame) if field.required)]
    for name in needed:
        sent = fields(frame)
        del sent[name]
        with pytest.raises(msgspec.ValidationError, match=name):
            decode(wire(sent))


@each_frame
def test_a_field_of_another_type_is_an_error(decode: Decode, frame: Any) -> None:
    types = msgspec.inspect.type_info(type(frame))
    assert isinstance(types, msgspec.inspect.StructType)
    for field in types.fields:
        if isinstance(field.type, msgspec.inspect.RawType):
            continue
        other = "true" if isinstance(field.type, msgspec.inspect.BoolType) else True
        with pytest.raises(msgspec.ValidationError, match=field.encode_name):
            decode(wire({**fields(frame), field.encode_name: other}))


@each_case(
    ("decode", "other"),
    [
        (decode_client, Pong()),
        (decode_client, Ack(1, 2)),
        (decode_client, Joined("c1", "room/one", "epoch", 0)),
        (decode_server, Ping()),
        (decode_server, Join("me")),
        (decode_server, Push(1, ("epoch", 1), [])),
    ],
)
def test_the_frames_of_the_one_side_are_none_of_the_other(decode: Decode, other: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="type"):
        decode(encode(other))


@each_case("decode", [decode_client, decode_server])
@each_case(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'"ping"',
        b'{"type":"pushy"}',
        b'{"type":null}',
        b'{"type":1}',
        b'{"type":["ping"]}',
        b'{"type":"Ping"}',
        b'{"type":"message","data":01}',
        b'{"type":"message","data":{}}{}',
        b'{"type":"\xff"}',
        b'{"type":"message","more":' + b"[" * 100_000,
    ],
)
def test_what_is_no_frame_is_an_error_of_one_of_three_kinds(decode: Decode, data: bytes) -> None:
    with pytest.raises(NOT_JSON):
        decode(data)


@each_case(
    "op",
    [
        {"op": "move", "path": "/a", "from": "/b"},
        {"op": "add", "value": 1},
        {"path": "/a", "value": 1},
        {"op": "remove", "path": ["a"]},
        ["remove", "/a"],
    ],
)
def test_an_operation_that_is_none_is_an_error_with_its_place(op: Any) -> None:
    good = {"op": "remove", "path": "/a"}
    with pytest.raises(msgspec.ValidationError, match=r"\$\.ops\[1\]"):
        decode_client(wire({"type": "push", "ref": 1, "base": ["e", 1], "ops": [good, op]}))


@each_case("base", [["e"], ["e", 1, 2], [1, "e"], ["e", 1.5], "e", {"epoch": "e", "version": 1}])
def test_a_version_is_an_epoch_and_a_number(base: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="base"):
        decode_client(wire({"type": "push", "ref": 1, "base": base, "ops": []}))


def test_a_push_of_a_whole_state_is_an_error_that_names_the_operations_that_it_has_not() -> None:
    with pytest.raises(msgspec.ValidationError, match="`ops`"):
        decode_client(wire({"type": "push", "ref": 1, "base": ["e", 1], "state": {"n": 1}}))


def test_what_passes_through_keeps_its_own_bytes() -> None:
    text = b' {"b" : 1.0, "a":[ ]}'
    message = decode_client(b'{"type":"message","data":' + text + b"}")
    assert isinstance(message, Message)
    assert bytes(message.data) == text.strip()
    assert encode(message) == b'{"type":"message","data":' + text.strip() + b"}"


def test_a_frame_is_read_from_text_too() -> None:
    assert decode_client('{"type":"ping"}') == Ping()
    assert decode_server('{"type":"pong"}') == Pong()


def test_an_operation_without_a_value_is_told_from_one_with_null() -> None:
    found = decode_client(b'{"type":"push","ref":1,"base":["e",1],"ops":[{"op":"add","path":"/a","value":null},'
                          b'{"op":"remove","path":"/a"}]}')  # fmt: skip
    assert isinstance(found, Push)
    assert isinstance(found.ops, list)
    assert [op.value for op in found.ops] == [None, msgspec.UNSET]
    assert b'{"op":"remove","path":"/a"}' in encode(found)


def test_a_push_whose_values_stay_json_has_every_field_of_a_push() -> None:
    fields, undecoded = (
        [(each.name, each.default) for each in msgspec.structs.fields(type_)] for type_ in (Push, frames._UndecodedPush)
    )
    assert fields == undecoded
    push = Push(7, ("e", 3), [Op("add", "/a", "x" * LARGE)], ("e", 2), 5)
    assert decode_partly(encode(push)) == push
