"""The frames of the Cloudflare Agents protocol, as its published clients send and accept them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from plait_schemas.codec import complete_pairs
from plait_schemas.models import dump

__all__ = [
    "MCP_SERVERS",
    "READONLY",
    "REJECTED",
    "Call",
    "ClientFrame",
    "Identity",
    "Reason",
    "Result",
    "StateError",
    "StatePush",
    "decode_broken",
    "decode_client",
    "decode_head",
    "encode",
    "encode_state",
]

Reason = Literal["Connection is readonly", "State update rejected"]
"""Why a state was refused."""

READONLY: Final = "Connection is readonly"
REJECTED: Final = "State update rejected"


class StatePush(msgspec.Struct, frozen=True):
    """A client's whole new state, as the text it sent."""

    state: bytes


class _Push(msgspec.Struct, frozen=True, tag_field="type", tag="cf_agent_state"):
    state: msgspec.Raw


class Call(msgspec.Struct, frozen=True, tag_field="type", tag="rpc"):
    """A client's call of an rpc; the arguments are left undecoded until their types are known."""

    id: str
    method: str
    args: list[msgspec.Raw]


ClientFrame = StatePush | Call


class Identity(msgspec.Struct, frozen=True, tag_field="type", tag="cf_agent_identity", omit_defaults=True):
    """The first frame on a socket; `state_follows` says that a state frame comes right after it."""

    name: str
    agent: str
    state_follows: bool = msgspec.field(default=False, name="stateFollows")


class StateError(msgspec.Struct, frozen=True, tag_field="type", tag="cf_agent_state_error"):
    """Tells the sender of a state frame that it was refused."""

    error: Reason


class Result(msgspec.Struct, frozen=True, tag_field="type", tag="rpc", omit_defaults=True):
    """The answer to a call, or one chunk of a streamed one."""

    id: str
    success: bool
    result: Any = msgspec.UNSET
    done: bool | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


MCP_SERVERS: Final = b'{"type":"cf_agent_mcp_servers","mcp":{"servers":{},"tools":[],"prompts":[],"resources":[]}}'


class _LargePush(msgspec.Struct, frozen=True):
    type: Literal["cf_agent_state"]
    state: msgspec.Raw


class _Head(msgspec.Struct, frozen=True):
    type: Literal["cf_agent_state", "rpc"]
    id: str = ""


# A frame of at least this many bytes is first decoded as a state. Clients send its type after the state, and decoding
# by type would first scan the whole frame for it.
_LARGE: Final = 1024

_decoder: msgspec.json.Decoder[_Push | Call] = msgspec.json.Decoder(_Push | Call)
_large_decoder: msgspec.json.Decoder[_LargePush] = msgspec.json.Decoder(_LargePush)
_head_decoder: msgspec.json.Decoder[_Head] = msgspec.json.Decoder(_Head)


def decode_client(data: bytes) -> ClientFrame | None:
    """Return the protocol frame in `data`, or None when it is an ordinary message.

    Raises RecursionError when JSON is nested too deep.
    """
    try:
        if len(data) >= _LARGE:
            with suppress(msgspec.ValidationError):
                return StatePush(bytes(_large_decoder.decode(data).state))
        frame = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return StatePush(bytes(frame.state)) if isinstance(frame, _Push) else frame


def decode_head(data: bytes) -> ClientFrame | None:
    """Return a frame that is too heavy to decode, without its content; None when it is an ordinary message."""
    try:
        head = _head_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return StatePush(b"null") if head.type == "cf_agent_state" else Call(head.id, "", [])


def decode_broken(data: bytes) -> ClientFrame | None:
    """Decode a frame that has half of a surrogate pair, with U+FFFD in its place.

    Returns None if the frame could not be decoded for another reason. Raises what `decode_client` raises.
    """
    completed = complete_pairs(data)
    return None if completed is None else decode_client(completed)


encode: Final[Callable[[Identity | StateError | Result], bytes]] = msgspec.json.Encoder(enc_hook=dump).encode
"""Returns the text of a server frame."""


def encode_state(state: bytes) -> bytes:
    """Return a state frame around `state`, which is JSON."""
    return b'{"type":"cf_agent_state","state":%b}' % state
