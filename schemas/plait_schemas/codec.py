"""Encodes and decodes JSON, and finds what JSON text must not contain."""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final

import msgspec

from plait_schemas import models

__all__ = [
    "HALF_PAIR",
    "LARGE",
    "NOT_JSON",
    "UNENCODABLE",
    "check_json",
    "complete_pairs",
    "convert",
    "decode_json",
    "decoded",
    "encode_json",
    "encode_whole",
    "find_decoder",
    "is_large",
    "make_decoder",
    "nests_deeper",
    "printable",
    "read_large",
    "read_parts",
    "read_value",
    "to_builtins",
    "weigh",
]

encode_json = msgspec.json.Encoder(enc_hook=models.dump).encode
encode_whole = msgspec.json.Encoder(enc_hook=partial(models.dump, is_whole=True)).encode
decode_json = msgspec.json.Decoder().decode

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding bytes that are not JSON, or not of the type."""

UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""The errors of encoding values that JSON does not have, and of decoding `msgspec.Raw` that is not JSON."""

HALF_PAIR: Final = "a text in it has half a surrogate pair, as when an emoji is cut in two"
"""Why the server refuses a frame that JavaScript accepts as JSON."""

LARGE: Final = 16 * 1024
"""Objects and arrays with at least this many bytes of JSON stay JSON, as msgspec.Raw, until they are looked into."""

# An escaped backslash or a whole surrogate pair, which are kept, or else half a pair.
_PAIR: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_BRACKETS: Final = bytes.maketrans(b"[]{}", b"()()")
_OPENING: Final = ord("(")
_RUNS: Final = re.compile(rb"\(+|\)+")
_PEELED: Final = 4
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'{}[]"'))

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# An object with more members is decoded at once, as decoding them one by one would take longer.
_MOST_MEMBERS: Final = 1_000
# Digits as 0, E as e, anything else as a space.
_DIGITS: Final = bytes(ord("0") if 48 <= at < 58 else ord("e") if at in b"eE" else ord(" ") for at in range(256))
_LONG_EXPONENT: Final = b"0e000"
_LONG_NUMBER: Final = b"0" * 200
# The weight of a long number in JSON text that may have enough of them to matter.
_LONG_NUMBER_WEIGHT: Final = 2_000
_LONG_TEXT: Final = 16 * 1024
_COLONS: Final = bytes.maketrans(b":", b",")
_AROUND_SCALARS: Final = b"[]{} \t\r\n"


def check_json(data: bytes) -> None:
    """Raise one of NOT_JSON if `data` is not valid JSON. Makes no values, so it is much faster than decoding."""
    _skip(data)  # Checks all but the characters and the range of numbers.
    str(data, "utf-8")
    digits = data.translate(_DIGITS, b"+")
    if _LONG_EXPONENT in digits or _LONG_NUMBER in digits:
        try:
            decode_json(b"[%b]" % _without_structure(data))
        except msgspec.ValidationError as error:  # The place of the error is in another text: leave it out.
            raise msgspec.ValidationError(str(error).partition(" - at ")[0]) from None


def make_decoder(type_: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Return a function that decodes JSON as a type, and validates Pydantic models. Raises TypeError for some types."""
    models.check_type(type_)
    return (
        partial(_decode_model, type_) if models.is_model(type_) else msgspec.json.Decoder(type_, dec_hook=_read).decode
    )


find_decoder: Final[Callable[[Any], Callable[[bytes | msgspec.Raw], Any]]] = lru_cache(1024)(make_decoder)
"""Returns what `make_decoder` makes, once for each type."""


def convert(value: Any, type_: Any, *, str_keys: bool = False, strict: bool = True) -> Any:
    """Convert a value to a type, as msgspec does; Pydantic models are validated."""
    return msgspec.convert(value, type_, str_keys=str_keys, strict=strict, dec_hook=_read)


def to_builtins(value: Any) -> Any:
    """Convert a value to JSON's types, as msgspec does; Pydantic models, too."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=lambda each: decode_json(models.dump(each)))


def _decode_model(model: Any, data: bytes | msgspec.Raw) -> Any:
    check_json(data := bytes(data))  # Pydantic would read NaN, and numbers that are too large.
    try:
        return models.validate(model, data)
    except models.ModelError as error:
        raise msgspec.ValidationError(str(error)) from error


def _read(type_: Any, value: Any) -> Any:
    """Return a value as a type that msgspec does not know."""
    return models.validate(type_, encode_json(value)) if models.is_model(type_) else value


def is_large(text: bytes | msgspec.Raw) -> bool:
    """Tell whether JSON text holds a large object or array."""
    return len(text) >= LARGE and bytes(memoryview(text)[:1]) in (b"{", b"[")


def decoded(value: Any) -> Any:
    """Return a value that may be undecoded as dicts and lists."""
    return decode_json(value) if type(value) is msgspec.Raw else value


def read_value(text: msgspec.Raw) -> Any:
    """Decode a part of valid JSON, unless it is large: then return a copy, which keeps only this part in memory."""
    return text.copy() if is_large(text) else decode_json(text)


def read_parts(data: bytes) -> Any:
    """Decode valid JSON; large parts of a large object with few members stay undecoded."""
    if is_large(data) and data[:1] == b"{":
        members = _members(data)
        if len(members) <= _MOST_MEMBERS:
            return {name: read_value(text) for name, text in members.items()}
    return decode_json(data)


def read_large(text: msgspec.Raw) -> Any:
    """Decode a part of JSON that a client sent; if it is large, only check it, and remove the spaces in it.

    Raises one of NOT_JSON.
    """
    if not is_large(text):
        return decode_json(text)
    compact = msgspec.json.format(bytes(text), indent=-1)
    check_json(compact)
    return msgspec.Raw(compact)


def _without_structure(data: bytes) -> bytes:
    """Return the numbers and literals of JSON text, with commas in between."""
    scalars = _without_strings(data).translate(_COLONS, _AROUND_SCALARS)
    while b",," in scalars:
        scalars = scalars.replace(b",,", b",")
    return scalars.strip(b",")


def _without_strings(data: bytes) -> bytes:
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(data.split(b'"')[::2])


def weigh(data: bytes, most: int) -> int:
    """Return the weight of JSON text: 1 for each comma, 2 for each list, 6 for each object and 2,000 for 200 digits.

    It tells what the decoded value costs, in time and in memory: for long integers, the square of their length. If the
    weight would exceed `most`, the content of strings is left out, which takes longer.
    """
    weight = _count_weight(data)
    return weight if weight <= most else _count_weight(_without_strings(data))


def _count_weight(data: bytes) -> int:
    long = 0
    if len(data) > _LONG_TEXT and _LONG_NUMBER in data.translate(_DIGITS):  # The digits may be only in strings.
        long = _without_strings(data).translate(_DIGITS).count(_LONG_NUMBER)
    return data.count(b",") + 2 * data.count(b"[") + 6 * data.count(b"{") + _LONG_NUMBER_WEIGHT * long


def nests_deeper(data: bytes, limit: int) -> bool:
    """Tell whether the JSON text `data` nests objects and arrays more than `limit` deep.

    Does not recurse, so it is safe on hostile input: it removes strings, then a few levels of brackets from the inside
    out, by operations on the whole text. Few runs of brackets are left, whose depths are added up.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = data.translate(_BRACKETS, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    peeled = min(limit, _PEELED)
    for _ in range(peeled):
        if not brackets:
            return False
        brackets = brackets.replace(b"()", b"")
    lengths = (len(run) if run[0] == _OPENING else -len(run) for run in _RUNS.findall(brackets))
    return max(accumulate(lengths), default=0) > limit - peeled


def complete_pairs(data: bytes) -> bytes | None:
    """Return JSON text with U+FFFD for each half of a surrogate pair, None if it has none.

    JavaScript writes and reads such halves as escapes. UTF-8 cannot encode them, so msgspec refuses them.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return None
    completed = _PAIR.sub(lambda match: match[1] or rb"\ufffd", data)
    return None if completed == data else completed


def printable(text: str) -> str:
    """Return text with each half of a surrogate pair escaped, as neither sockets nor most logs can encode it."""
    return text.encode(errors="backslashreplace").decode()
