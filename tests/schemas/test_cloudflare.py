"""The frames of the Cloudflare Agents protocol, as they are on the wire."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.cloudflare import (
    MCP_SERVERS,
    READONLY,
    REJECTED,
    Call,
    Identity,
    Result,
    StateError,
    StatePush,
    decode_client,
    encode,
    encode_state,
)

# What is more than 64 bits is a float to msgspec.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=10,
)


def frame(**fields: object) -> bytes:
    return json.dumps(fields).encode()


# What clients send


# A large frame is decoded in another way.
SIZES = pytest.mark.parametrize("more", ["", "x" * 5000], ids=["small", "large"])


@SIZES
@given(VALUES)
def test_a_state_frame_carries_any_json_value(more: str, state: Any) -> None:
    found = decode_client(frame(state=state, type="cf_agent_state", more=more, id=1, args="none"))
    assert isinstance(found, StatePush)
    assert json.loads(bytes(found.state)) == state


@SIZES
def test_a_call_carries_its_arguments_as_json(more: str) -> None:
    found = decode_client(frame(type="rpc", id="1", method="move", args=[{"x": 1}, None], state=1, more=more))
    assert isinstance(found, Call)
    assert (found.id, found.method) == ("1", "move")
    assert [json.loads(bytes(each)) for each in found.args] == [{"x": 1}, None]


@each_case(
    "data",
    [
        b"",
        b"hello",
        b"{",
        b"null",
        b"[]",
        b'"cf_agent_state"',
        b"{}",
        frame(type="cf_agent_state"),
        frame(type="chat", state=1),
        frame(type=1, state=1),
        frame(state=1),
        frame(type="rpc", id=1, method="m", args=[]),
        frame(type="rpc", id="1", method=None, args=[]),
        frame(type="rpc", id="1", method="m", args={}),
        frame(type="rpc", id="1", method="m"),
        frame(type="rpc", method="m", args=[]),
        frame(type="cf_agent_state", state=1) + b"x",
        b'{"type":"cf_agent_state","state":01}',
        b'{"type":"cf_agent_state","state":NaN}',
        b'{"type":"rpc","state":1,"type":"cf_agent_state"}',
        b'{"type":"cf_agent_state","state":1,"type":"rpc"}',
    ],
)
def test_anything_else_is_an_ordinary_message(data: bytes) -> None:
    assert decode_client(data) is None
    assert decode_client(data + b" " * 5000) is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"rpc","id":"1","method":"m","args":' + b"[" * 100_000,
        b'{"type":"cf_agent_state","state":' + b'{"a":' * 100_000,
    ],
    ids=["call", "push"],
)
def test_what_is_nested_too_deep_to_be_read_is_told_apart(data: bytes) -> None:
    with pytest.raises(RecursionError):
        decode_client(data)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_makes_the_decoder_raise(text: str) -> None:
    decode_client(text.encode())


# What the server sends


def test_the_identity_says_that_a_state_follows_only_if_one_does() -> None:
    assert json.loads(encode(Identity("room 1", "game-room", True))) == {
        "type": "cf_agent_identity",
        "name": "room 1",
        "agent": "game-room",
        "stateFollows": True,
    }
    assert "stateFollows" not in json.loads(encode(Identity("room", "game-room")))


@given(VALUES)
def test_a_state_frame_has_the_state_as_it_is(state: Any) -> None:
    assert json.loads(encode_state(json.dumps(state).encode())) == {"type": "cf_agent_state", "state": state}


def test_a_state_error_has_one_of_two_texts() -> None:
    assert json.loads(encode(StateError(READONLY))) == {
        "type": "cf_agent_state_error",
        "error": "Connection is readonly",
    }
    assert json.loads(encode(StateError(REJECTED))) == {
        "type": "cf_agent_state_error",
        "error": "State update rejected",
    }


@each_case(
    ("result", "fields"),
    [
        (Result("1", True, 5, done=True), {"success": True, "result": 5, "done": True}),
        (Result("1", True, None, done=True), {"success": True, "result": None, "done": True}),
        (Result("1", True, done=True), {"success": True, "done": True}),
        (Result("1", True, "chunk", done=False), {"success": True, "result": "chunk", "done": False}),
        (Result("1", False, error="no"), {"success": False, "error": "no"}),
    ],
)
def test_a_result_has_only_the_fields_that_were_given(result: Result, fields: dict[str, Any]) -> None:
    assert json.loads(encode(result)) == {"type": "rpc", "id": "1", **fields}


def test_the_frame_of_mcp_servers_lists_none() -> None:
    assert json.loads(MCP_SERVERS) == {
        "type": "cf_agent_mcp_servers",
        "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []},
    }


def test_a_state_frame_keeps_the_clients_own_bytes() -> None:
    found = decode_client(b'{"type":"cf_agent_state","state": {"a" : 1.0} }')
    assert isinstance(found, StatePush)
    assert found.state == b'{"a" : 1.0}'
