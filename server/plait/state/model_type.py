"""The type of states that contain Pydantic models."""

from collections.abc import Iterable, Mapping
from typing import Any

from plait.errors import InvalidState, TooLarge
from plait.limits import Limits, check_weight
from plait.state.types import UNDECODED, StateType, decode_at, parse_json_error
from plait_schemas.codec import NOT_JSON, UNENCODABLE, decode_json, decoded, encode_json, weigh
from plait_schemas.encoding import encode_given

__all__ = ["ModelType"]


class ModelType(StateType):
    """States that are kept and compared as JSON, like plain states, and validated as a whole after each change.

    Authors get the result of validating the JSON. Models themselves are not compared, as Pydantic and msgspec write
    bytes and dates differently.
    """

    def __init__(self, type_: Any, list_keys: Mapping[str, str] | None = None, texts: Iterable[str] = ()) -> None:
        super().__init__(type_, list_keys, texts)
        self.is_document = True
        self.decode_tree = decode_json

    def from_json(self, data: bytes, limits: Limits, *, drops_unknown: bool = False) -> tuple[Any, bytes]:
        return UNDECODED, super().from_json(data, limits, drops_unknown=drops_unknown)[1]

    def check(self, document: Any, limits: Limits, before: bytes, *, is_whole: bool) -> tuple[Any, Any]:
        """Return the state, which shares nothing with the document, and the document."""
        data = encode_json(document)
        try:
            check_weight("state", data, limits, self.times)
        except TooLarge:  # A state that was too heavy before may become lighter.
            if weigh(before, limits.weight) <= weigh(data, limits.weight):
                raise
        state, json = self._write(decode_at(self.decode, data), data)
        return state, decoded(document) if json == data else decode_json(json)

    def encode(self, state: Any, data: bytes) -> bytes:
        return self._write(state, data)[1]

    def _write(self, state: Any, data: bytes) -> tuple[Any, bytes]:
        """Return a state that was made of `data`, as it is when it is read again, and its JSON."""
        try:
            if encode_json(state) == data:
                return state, data
            json = encode_given(state)
        except UNENCODABLE as error:
            raise InvalidState(f"the result of validation is not JSON: {error}", path="") from None
        try:
            return self.decode(json), json
        except NOT_JSON as error:
            message, where = parse_json_error(error)
            raise InvalidState(f"the type cannot read what it writes: {message}", path=where) from None
