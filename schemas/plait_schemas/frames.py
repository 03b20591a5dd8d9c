"""Encodes and decodes the frames of the native protocol, also those that are large, broken or too heavy."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from plait_schemas import codec
from plait_schemas.codec import NOT_JSON, complete_pairs, read_large
from plait_schemas.messages import Call, ClientMessage, Emit, Message, Push, Send, ServerMessage, Version
from plait_schemas.models import dump
from plait_schemas.patch import read_op

__all__ = ["decode_broken", "decode_client", "decode_head", "decode_partly", "decode_server", "encode"]


class _UndecodedPush(msgspec.Struct, frozen=True, tag_field="type", tag="push"):
    """A push with operations that are still JSON."""

    ref: int
    base: Version
    ops: Sequence[msgspec.Raw]
    made: Version | None = None
    answered: int | None = None


_client: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_push: msgspec.json.Decoder[_UndecodedPush] = msgspec.json.Decoder(_UndecodedPush)
_server: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)
_encoder = msgspec.json.Encoder(enc_hook=dump)
_HEAD: Final = re.compile(
    rb'\s*\{\s*"type"\s*:\s*"(?:(push|call|send)"\s*,\s*"ref"\s*:\s*([1-9]\d{0,15})\s*,|(message)"\s*,\s*"data"\s*:|(emit)"\s*,)'
)


def decode_client(data: bytes | str) -> ClientMessage:
    """Decode a frame of a client. Raises one of NOT_JSON."""
    return _client.decode(data)


def decode_partly(data: bytes) -> ClientMessage:
    """Decode a frame of a client; large values in the operations of a push stay JSON. Raises one of NOT_JSON."""
    if len(data) < codec.LARGE:
        return _client.decode(data)
    try:
        push = _push.decode(data)
        if max(map(len, push.ops), default=0) >= codec.LARGE:
            ops = [read_op(text, read_large) for text in push.ops]
            return Push(push.ref, push.base, ops, push.made, push.answered)
    except NOT_JSON:
        pass  # This is another message, or the decoder of all messages raises the error.
    return _client.decode(data)


def decode_broken(data: bytes) -> ClientMessage | None:
    """Decode a client's frame that has half of a surrogate pair, with U+FFFD in its place.

    Returns None if the frame could not be decoded for another reason.
    """
    completed = complete_pairs(data)
    try:
        return None if completed is None else _client.decode(completed)
    except NOT_JSON:
        return None


def decode_head(data: bytes) -> ClientMessage | None:
    """Return the push, call, send, message or emit of a frame too deep or too heavy to decode, without its content.

    Returns None for any other frame, and for one that does not begin with its type, and then its number or data.
    """
    found = _HEAD.match(data)
    if found is None:
        return None
    if found[1] is None:
        nothing = msgspec.Raw(b"null")
        return Message(nothing) if found[3] else Emit("", nothing)
    ref = int(found[2])
    match found[1]:
        case b"push":
            return Push(ref, ("", 0), ())
        case b"call":
            return Call(ref, "")
        case _:
            return Send(ref, "", "", "")


def decode_server(data: bytes | str) -> ServerMessage:
    """Decode a frame of a server. Raises one of NOT_JSON."""
    return _server.decode(data)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """Return the text of a frame."""
    return _encoder.encode(message)
