"""The type of a thread's state: it decodes and validates states."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from plait.errors import InvalidState, TooLarge
from plait.limits import Limits, check_weight
from plait.state.fields import check_fields, make_plan
from plait.state.texts import find_texts
from plait_schemas.codec import (
    NOT_JSON,
    check_json,
    convert,
    decode_json,
    decoded,
    encode_json,
    encode_whole,
    is_large,
    make_decoder,
    nests_deeper,
)
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.elements import Keys
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.members import is_frozen
from plait_schemas.models import ModelError, find_times
from plait_schemas.patch import Op, Owned, PatchError, apply, escape, find, parse
from plait_schemas.text_patch import TextDiff

__all__ = [
    "MOST_COMPARED",
    "MOST_MOVED",
    "SCALAR_TYPES",
    "TOO_MANY_MOVED",
    "UNDECODED",
    "StateType",
    "check_depth",
    "check_size",
    "count_moved",
    "decode_at",
    "encode_value",
    "explain_invalid_state",
    "is_immutable",
    "parse_json_error",
]

T = TypeVar("T")

UNDECODED: Final = object()
"""Stands for a state that exists only as JSON so far."""

MOST_COMPARED: Final = 16 * 1024
"""Maximum bytes of JSON of a state that is compared after each turn that has read it, to find changes in place."""

MOST_MOVED: Final = 100_000_000
"""Maximum elements of arrays that one change of a client may move; this takes less than a tenth of a second."""

TOO_MANY_MOVED: Final = "the change would move too many elements of arrays: replace the array instead"

SCALAR_TYPES: Final = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)
"""The msgspec types whose values have no members."""

# Operations that are applied before the moved elements are counted again.
_AT_ONCE: Final = 100
_LOCATION: Final = re.compile(r"^(?P<message>.*?)(?: - at `(?:key in )?\$(?P<where>.*)`)?$", re.DOTALL)
_PART: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def parse_json_error(error: Exception) -> tuple[str, str]:
    """Return the message of a msgspec error, and its place as a JSON pointer (`*` for an unnamed key)."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deep", ""
    match = _LOCATION.match(str(error))
    assert match is not None
    message = match["message"]
    parts = [(key or index).replace("...", "*") for key, index in _PART.findall(match["where"] or "")]
    if isinstance(cause := error.__cause__, ModelError):
        message, parts = cause.message, [*parts, *cause.parts]
    return message, "".join(f"/{escape(part)}" for part in parts)


def explain_invalid_state(error: BaseException) -> str:
    """Explain to the log why a value is not a valid state: msgspec's message, or the exception of the type's code."""
    if not isinstance(error, NOT_JSON):
        return f"{type(error).__name__}: {error}"
    message, where = parse_json_error(error)
    return f"{message}, at {where}" if where else message


class StateType:
    """Decodes and validates states of one type: a Struct, a dataclass, a TypedDict, or any other type of msgspec."""

    def __init__(self, type_: Any, list_keys: Mapping[str, str] | None = None, texts: Iterable[str] = ()) -> None:
        self.type = type_
        # The places of texts: of the type, and further ones.
        self.texts = list(dict.fromkeys((*find_texts(type_), *texts)))
        # The members that identify elements of lists, unless they are the usual ones, and the texts.
        self.keys = Keys(list_keys or {}, self.texts) if list_keys or self.texts else None
        self.decode = make_decoder(type_)
        # The weight of its JSON, as a multiple of the weight of JSON without a type.
        self.times = find_times(type_)
        # Whether a state cannot be changed in place, so that it may be shared and compared by identity.
        self.is_immutable = is_immutable(type_)
        # Maximum bytes of JSON of a state that is compared with the object shown to authors; more in development.
        self.most_compared: float = MOST_COMPARED
        # Whether any JSON value, or any object or array, is a valid state.
        self.is_plain = (info := _inspect(type_)) is not None and _is_plain(info)
        # Whether the tree of a state is dicts and lists, not an object of the type.
        self.is_document = self.is_plain
        self.decode_tree = self.decode
        # The first bytes of the JSON of a large plain state.
        self._openings = _find_openings(type_) if self.is_plain else ()
        # The fields of the type, to find unknown ones.
        self._fields = make_plan(type_)

    def from_json(self, data: bytes, limits: Limits, *, drops_unknown: bool = False) -> tuple[Any, bytes]:
        """Return the state that a client sent as JSON, and the JSON to store.

        A plain state is left UNDECODED; its new parts are checked when it is compared with the previous state. Unknown
        fields are refused, or dropped with `drops_unknown`. Raises InvalidState or TooLarge.
        """
        check_weight("state", data, limits, self.times)
        if self.is_plain:
            data = data.strip()
            if data[:1] not in self._openings:
                self.read(data, limits)  # The value may be an array although the type is an object.
            return UNDECODED, check_size(data, limits)
        try:
            state = self.read(data, limits)
        except InvalidState:
            if not drops_unknown:  # The error of the unknown field is more helpful than the one of the missing field.
                with suppress(*NOT_JSON):
                    check_fields(self._fields, decode_json(data))
            raise
        json = self.encode(state, data)
        if json != data and self._fields is not None and not drops_unknown:
            check_fields(self._fields, decode_json(data))
        return state, check_size(json, limits)

    def from_value(self, value: object, limits: Limits) -> tuple[Any, bytes]:
        """Return the state that server code set, and its JSON. Raises InvalidState or TooLarge."""
        state, data = self.from_json(encode_value("state", value, limits), limits)
        # Keep the author's own object if it is equal, so that unchanged parts stay identical.
        return (value if self.is_immutable and state == value else state), data

    def read(self, data: bytes, limits: Limits) -> Any:
        """Decode a state. Raises InvalidState or TooLarge."""
        return _read(self.decode, data, "", limits.depth)

    def read_new(self, data: bytes, limits: Limits) -> Any:
        """Decode the first state for the log, or check a plain state. Raises InvalidState or TooLarge."""
        return _read_part(limits.depth, data, "") if self.is_document else self.read(data, limits)

    def encode(self, state: Any, data: bytes) -> bytes:
        """Return the JSON of a state that was made of `data`."""
        return encode_json(state)

    def find_unknown(self, document: Any) -> list[str]:
        """Return the places of members in a stored document that the type lacks; `*` is any element or key."""
        return [] if self._fields is None else sorted(set(self._fields.find_all(document, "")))

    def apply(
        self, document: Any, ops: Sequence[Op], *, drops_unknown: bool = False, most_moved: int | None = None
    ) -> Any:
        """Return the document after `ops`, whose values are not checked yet.

        Large values of operations on a plain state, and the document itself, may still be JSON.

        Raises InvalidState for unknown fields, as `from_json` does, and PatchError if the operations do not fit, or
        would move more than `most_moved` elements of arrays.
        """
        document = apply(document, ops) if most_moved is None else _apply_bounded(document, ops, most_moved)
        if not drops_unknown:
            check_fields(self._fields, document)
        return document

    def check(self, document: Any, limits: Limits, before: bytes, *, is_whole: bool) -> tuple[Any, Any]:
        """Return the state and the document that the type makes of a document after operations.

        The state of a plain type is UNDECODED. `before` is the JSON of a model before the operations; `is_whole`
        says whether an operation has replaced the whole document.

        Raises InvalidState.
        """
        if self.is_plain and not is_whole:
            return UNDECODED, document
        if type(document) is msgspec.Raw and bytes(document)[:1] in self._openings:
            return UNDECODED, document
        document = decoded(document)
        state = decode_at(partial(convert, type_=self.type, str_keys=True), document)
        return (UNDECODED if self.is_plain else state), document

    def diff(
        self, old: tuple[Any, bytes], new: tuple[Any, bytes], limits: Limits, texts: TextDiff, most: int = MOST_OPS
    ) -> list[Op]:
        """Return the operations from one state to another; each is given as the state and its JSON.

        If there would be more than `most`, the result is one operation that replaces the whole.

        `texts` caches the comparison of a thread's plain states. Raises InvalidState or TooLarge when a plain state has
        a new part that is not JSON, or is nested too deep.
        """
        if old[1] == new[1]:
            return []
        if not self.is_document:
            return diff(old[0], new[0], self.keys, most=most)
        if old[1][:1] != new[1][:1]:
            return [Op("replace", "", self.read_new(new[1], limits))]
        try:
            return texts.diff(
                old[1],
                new[1],
                partial(_read_part, limits.depth),
                most=most,
            )
        except NOT_JSON as error:
            raise InvalidState(str(error), path="") from None


def count_moved(document: Any, ops: Iterable[Op]) -> int:
    """Return an upper bound of the number of elements that operations move in the growing arrays of a document."""
    at = Counter(op.path.rpartition("/")[0] for op in ops if op.op != "replace" and op.path[-1:].isdecimal())
    arrays = ((find(document, parse(path)), times) for path, times in at.items())
    return sum((len(array) + times // 2) * times for array, times in arrays if isinstance(array, list | tuple))


def _apply_bounded(document: Any, ops: Sequence[Op], most_moved: int) -> Any:
    if len(ops) <= _AT_ONCE:
        return apply(document, ops)
    owned: Owned = {}
    moved = 0
    for start in range(0, len(ops), _AT_ONCE):
        some = ops[start : start + _AT_ONCE]
        document = decoded(document)
        moved += count_moved(document, some)
        if moved > most_moved:
            raise PatchError(TOO_MANY_MOVED)
        document = apply(document, some, owned)
    return document


def encode_value(what: str, value: object, limits: Limits, path: str | None = None) -> bytes:
    """Encode a state, or a value for a path in a state. Raises InvalidState or TooLarge."""
    try:
        data = encode_given(value, encode_whole)
    except EncodeError as error:
        at = f"{path or ''}{error.path}" or path
        raise InvalidState(f"the {what} is not JSON: {error.message}", path=at) from None
    check_depth(data, limits, path or "")
    return data


def check_depth(data: bytes, limits: Limits, path: str) -> None:
    """Raise TooLarge if JSON is nested too deep for its place in a state."""
    if nests_deeper(data, limits.depth - path.count("/")):
        raise _make_depth_error(limits.depth, path)


def check_size(data: bytes, limits: Limits) -> bytes:
    """Return `data`, the JSON of a state, if it is within the limit. Raises TooLarge."""
    if len(data) > limits.state:
        raise TooLarge(f"the state has {len(data)} bytes of JSON, the limit is {limits.state}", limit="state")
    return data


def _read(decode: Callable[[bytes], Any], data: bytes, path: str, depth: int) -> Any:
    if nests_deeper(data, depth):
        raise _make_depth_error(depth + path.count("/"), path)
    return decode_at(decode, data, path)


def decode_at(decode: Callable[[T], Any], data: T, path: str = "") -> Any:
    """Decode a value for a path in a state with `decode`. Raises InvalidState."""
    try:
        return decode(data)
    except NOT_JSON as error:
        message, where = parse_json_error(error)
        raise InvalidState(message, path=path + where) from None


def _read_part(most: int, text: bytes, path: str) -> Any:
    """Decode a part of a plain state, which may be nested `most` deep, at a path.

    A large object or array is only checked, as it is stored undecoded.
    """
    if text[:1] not in (b"{", b"["):
        return decode_at(decode_json, text, path)
    depth = most - path.count("/")
    if not is_large(text):
        return _read(decode_json, text, path, depth)
    _read(check_json, text, path, depth)
    return msgspec.Raw(text)


def _make_depth_error(depth: int, path: str) -> TooLarge:
    return TooLarge(f"JSON is nested more than {depth} deep", path=path, limit="depth")


def is_immutable(type_: Any) -> bool:
    """Return whether the values of a type cannot be changed in place."""
    return (info := _inspect(type_)) is not None and _never_changes(info)


def _inspect(type_: Any) -> inspect.Type | None:
    """Return what msgspec knows of a type; None if it does not know the type."""
    try:
        return inspect.type_info(type_)
    except (TypeError, NotImplementedError):
        return None


def _is_plain(info: inspect.Type) -> bool:
    match info:
        case inspect.AnyType():
            return True
        case inspect.DictType(key_type=key, value_type=value):
            return isinstance(key, inspect.AnyType | inspect.StrType) and isinstance(value, inspect.AnyType)
        case inspect.ListType(item_type=item):
            return isinstance(item, inspect.AnyType)
        case _:
            return False


def _find_openings(type_: Any) -> tuple[bytes, ...]:
    match inspect.type_info(type_):
        case inspect.DictType():
            return (b"{",)
        case inspect.ListType():
            return (b"[",)
        case _:
            return (b"{", b"[")


def _never_changes(info: inspect.Type, seen: frozenset[type] = frozenset()) -> bool:
    match info:
        case inspect.StructType(cls=cls) | inspect.DataclassType(cls=cls):
            if cls in seen:
                return True
            return is_frozen(cls) and all(_never_changes(field.type, seen | {cls}) for field in info.fields)
        case inspect.TupleType(item_types=types) | inspect.UnionType(types=types):
            return all(_never_changes(each, seen) for each in types)
        case inspect.VarTupleType(item_type=item) | inspect.FrozenSetType(item_type=item) | inspect.Metadata(type=item):
            return _never_changes(item, seen)
        case _:
            return isinstance(info, SCALAR_TYPES)
