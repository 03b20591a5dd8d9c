"""The outcomes of queries, and the chunks that bring readers from the results that they have to these outcomes."""

from collections.abc import Hashable
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

import msgspec

from plait.errors import CallFailed, PlaitError, TooLarge
from plait.state.principal import Principal
from plait.state.reads import Noted
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.models import dump

__all__ = ["SHARED", "Failure", "Outcome", "Rows", "copy_principal", "find_whom", "make_rows"]

SHARED: Final = "shared"
"""Stands for all readers: the result of a query that has not asked for whom it runs."""

MOST_BYTES: Final = 1 << 20
"""The maximum bytes of a result."""

# Operations of a chunk, and bytes of results that are compared; otherwise the whole result is sent.
_MOST_OPS: Final = 1000
_MOST_COMPARED: Final = 128 * 1024

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def find_whom(principal: Principal | None) -> Hashable:
    """Return a key of the whole principal: code cannot tell two principals with the same key apart."""
    # Integers of more than 64 bits, and claims that are nested too deep, cannot be encoded.
    with suppress(OverflowError, RecursionError):
        if principal is None or (type(principal) is Principal and _is_plain(principal.claims)):
            return msgspec.msgpack.encode(principal)
    return _Only(principal)


def copy_principal(principal: Principal | None, whom: Hashable) -> Principal | None:
    """Return the principal with the key `whom` for code that may change the claims in place."""
    return msgspec.msgpack.decode(whom, type=Principal | None) if isinstance(whom, bytes) else principal


def _is_plain(value: object) -> bool:
    """Whether a value is all in its encoding; other objects may be encoded alike."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    return all(map(_is_plain, value)) if type(value) is list else type(value) in _PLAIN


class _Only:
    """A principal with claims that are not plain: only the same object is equal to it."""

    def __init__(self, principal: Principal | None) -> None:
        self._principal = principal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Only) and self._principal is other._principal

    def __hash__(self) -> int:
        return id(self._principal)


class Outcome:
    """The end of one run: for whom it was, and the version of the state that it saw."""

    def __init__(self, whom: Hashable, at: int) -> None:
        self.whom = whom
        self.at = at

    def is_like(self, other: "Outcome") -> bool:
        """Whether a reader that has one of them needs nothing for the other."""
        raise NotImplementedError

    def chunk(self, seen: "Rows | str") -> bytes:
        """Return the chunk for a reader with an earlier result, or with the tag of one; the tag may be empty."""
        raise NotImplementedError


class Rows(Outcome):
    """A result, as JSON."""

    def __init__(self, whom: Hashable, at: int, data: bytes) -> None:
        super().__init__(whom, at)
        self.data = data
        # The chunks by the tags of the earlier results.
        self._chunks: dict[str, bytes] = {}

    def is_like(self, other: Outcome) -> bool:
        return isinstance(other, Rows) and other.data == self.data

    def chunk(self, seen: "Rows | str") -> bytes:
        tag = seen.tag if isinstance(seen, Rows) else seen
        if tag == self.tag:
            return b"%b}" % self._head
        if not isinstance(seen, Rows) or max(len(seen.data), len(self.data)) > _MOST_COMPARED:
            return self._whole
        if (made := self._chunks.get(tag)) is None:
            ops = encode_json(diff(seen._value, self._value, most=_MOST_OPS))
            made = b'%b,"ops":%b}' % (self._head, ops) if len(ops) < len(self.data) else self._whole
            self._chunks[tag] = made
        return made

    @cached_property
    def tag(self) -> str:
        """The name of the result; most results are never named, as they are those before."""
        return blake2b(self.data, digest_size=12).hexdigest()

    @cached_property
    def _value(self) -> Any:
        return decode_json(self.data)

    @cached_property
    def _whole(self) -> bytes:
        return b'%b,"rows":%b}' % (self._head, self.data)

    @property
    def _head(self) -> bytes:
        return b'{"at":%d,"tag":"%b"' % (self.at, self.tag.encode())


class Failure(Outcome):
    """The error of a run. Its reader keeps the result before."""

    def __init__(self, whom: Hashable, at: int, error: PlaitError) -> None:
        super().__init__(whom, at)
        self.error = error

    def is_like(self, other: Outcome) -> bool:
        return isinstance(other, Failure) and other._describe() == self._describe()

    def chunk(self, seen: Rows | str) -> bytes:
        return b'{"at":%d,"error":%b}' % (self.at, encode_json(self._describe()))

    def _describe(self) -> dict[str, str]:
        path = {"path": self.error.path} if self.error.path else {}
        return {"code": self.error.code, "message": str(self.error), **path}


def make_rows(name: str, value: object, whom: Hashable, at: int) -> Rows:
    """Return what the query `name` has returned. Raises CallFailed and TooLarge."""
    try:
        data = encode_given(value, _encode)
    except EncodeError as error:
        raise CallFailed(f"the result of {name} is not JSON: {error}") from None
    if len(data) > MOST_BYTES:
        raise TooLarge(f"the result of {name} has {len(data)} bytes, the limit is {MOST_BYTES}", limit="query")
    return Rows(whom, at, data)


def _unwrap(value: object) -> Any:
    return value.whole() if isinstance(value, Noted) else dump(value)


_encode: Final = msgspec.json.Encoder(enc_hook=_unwrap).encode
