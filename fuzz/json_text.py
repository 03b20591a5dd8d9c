"""JSON of clients: each reader of it takes or refuses it as the standard library does, and raises nothing else."""

import json
from contextlib import suppress
from math import isfinite
from random import Random
from typing import Any, Final

from fuzz.running import Fuzzer, mutate
from plait_schemas import cloudflare
from plait_schemas.codec import NOT_JSON, check_json, decode_json, encode_json, nests_deeper, weigh
from plait_schemas.frames import decode_broken, decode_client, decode_head, decode_partly

__all__ = ["JSON"]

_TEXTS: Final = ("", "a", "é", "😀", "\ud83d", '"', "\\", "\n", "\x00", "[{", "x" * 300)
_NUMBERS: Final = (0, -1, 1 << 53, 10**400, 0.1, -1.5e300, 1e-320)
_WORDS: Final = [
    each.encode()
    for each in ("[", "]", "{", "}", ",", ":", '"', "\\", "\\u", "\\ud83d", "1e999", "-", "0" * 250, "NaN", " ", "null")
]
_HEADS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "join", "client": "c"},
    {"type": "push", "ref": 1, "base": 0, "ops": [{"op": "replace", "path": "/a", "value": 1}]},
    {"type": "call", "ref": 2, "method": "m", "args": []},
    {"type": "rpc", "id": "1", "method": "m", "args": []},
    {"type": "cf_agent_state", "state": {}},
)
# The depth that both readers bear.
_DEEPEST: Final = 500


def make(chance: Random) -> bytes:
    """Return JSON text, that of a frame or of any value, often damaged."""
    value: Any = _make_value(chance, 4)
    if chance.random() < 0.5:
        value = {**chance.choice(_HEADS), chance.choice(("value", "args", "ops", "state", "ref", "type")): value}
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1)))
    return mutate(chance, text.encode(errors="surrogatepass"), words=_WORDS)


def check(data: bytes, chance: Random) -> None:
    """Compare what is read with what the standard library reads, and read the bytes as each frame."""
    for decode in (decode_client, decode_partly, decode_broken, decode_head):
        with suppress(*NOT_JSON):
            decode(data)
    for decode_other in (cloudflare.decode_client, cloudflare.decode_head, cloudflare.decode_broken):
        with suppress(RecursionError):
            decode_other(data)
    if nests_deeper(data, _DEEPEST):
        return
    is_json, value = _read(data)
    try:
        found = decode_json(data)
    except NOT_JSON:
        assert not is_json, "valid JSON is refused"
        return
    check_json(data)
    assert is_json, "what is not JSON is read"
    assert repr(found) == repr(value), "another value is read"
    assert decode_json(encode_json(found)) == found
    assert weigh(data, 0) == _weigh(json.loads(data, object_pairs_hook=_Members)), "another weight is found"


def _read(data: bytes) -> tuple[bool, Any]:
    """Return whether bytes are JSON with finite numbers and whole characters, and the value."""
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=_refuse, parse_float=_read_finite)
        # Raises if there is half a surrogate pair, also in what a repeated name has replaced.
        json.dumps(json.loads(text, object_pairs_hook=_Members), ensure_ascii=False).encode()
        return not text.startswith("\ufeff"), value
    except (ValueError, RecursionError):
        return False, None


def _refuse(name: str) -> float:
    raise ValueError(name)


def _read_finite(text: str) -> float:
    return number if isfinite(number := float(text)) else _refuse(text)


class _Members(list[tuple[str, Any]]):
    """The members of an object, with those whose names are repeated."""


def _weigh(value: Any) -> int:
    match value:
        case _Members():
            return 6 + max(len(value) - 1, 0) + sum(_weigh(member) for _, member in value)
        case list():
            return 2 + max(len(value) - 1, 0) + sum(map(_weigh, value))
        case _:
            return 0


def _make_value(chance: Random, depth: int) -> Any:
    match chance.randrange(8 if depth else 5):
        case 0 | 1:
            return chance.choice(_TEXTS) + chance.choice(_TEXTS)
        case 2 | 3:
            return chance.choice(_NUMBERS)
        case 4:
            return chance.choice((None, True, False))
        case 5:
            return [_make_value(chance, depth - 1) for _ in range(chance.randrange(5))]
        case _:
            return {chance.choice(_TEXTS): _make_value(chance, depth - 1) for _ in range(chance.randrange(5))}


JSON: Final = Fuzzer(make, check)
