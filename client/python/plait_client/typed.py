"""Writes a changed state of its user's type back to the JSON that is shown.

Only the differences are written. Members for which the type has no field stay, and so does JSON that the type would
write in another form: a time, a set in another order, a default that was left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from plait_schemas.codec import decode_json, encode_whole
from plait_schemas.diff import diff
from plait_schemas.elements import Keys, id_of
from plait_schemas.encoding import encode_given
from plait_schemas.members import attributes
from plait_schemas.models import dump
from plait_schemas.patch import escape

__all__ = ["written"]

_canonical: Final = msgspec.json.Encoder(order="deterministic", enc_hook=dump).encode


def written(new: Any, old: Any, document: Any, keys: Keys | None = None, path: str = "") -> Any:
    """Return `document`, which is `old` by a type, with all differences of `new` from `old`. Raises ValueError.

    `keys` name the elements of lists, by the JSON pointers of the whole state, in which `document` is at `path`.
    """
    if new is old:
        return document
    if old is document:
        return _json(new)
    match _members(new), _members(old), document:
        case dict() as after, dict() as before, dict() if _is_one_type(new, old):
            return _object(after, before, document, keys, path)
        case list() | tuple() as after, list() | tuple() as before, list() if len(before) == len(document):
            return _array(after, before, document, keys, path)
        case set() | frozenset() as after, set() | frozenset() as before, list() if after != before:
            return _set(after, document)
    return _json(new) if diff(old, new) else document


def _json(value: Any) -> Any:
    return decode_json(encode_given(value, encode_whole))


def _members(value: Any) -> Any:
    """Return a Struct or dataclass as a dict, including members that its JSON leaves out as defaults."""
    names = attributes(value)
    if names is not None and not (isinstance(value, msgspec.Struct) and value.__struct_config__.array_like):
        fields = {key: getattr(value, attribute) for key, attribute in names.items()}
        return {key: field for key, field in fields.items() if field is not msgspec.UNSET}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else next(iter(_json({key: None}))): value[key] for key in value}
    return value


def _is_one_type(new: Any, old: Any) -> bool:
    """Tell whether the members of two objects may have the same meanings; those of two types of a union do not."""
    return type(new) is type(old) or isinstance(new, dict)


def _object(
    after: Mapping[str, Any], before: Mapping[str, Any], document: Mapping[str, Any], keys: Keys | None, path: str
) -> dict[str, Any]:
    members = {key: value for key, value in document.items() if key in after or key not in before}
    for key, value in after.items():
        if key in before and key in document:
            members[key] = written(value, before[key], document[key], keys, f"{path}/{escape(key)}")
        elif key not in before or diff(before[key], value):
            members[key] = _json(value)
    return members


def _set(after: set[Any] | frozenset[Any], document: Sequence[Any]) -> list[Any]:
    """Return the elements in the shown order; added elements take the places of removed ones, and then come last."""
    elements = {_canonical(element): element for element in _json(after)}
    shown = [_canonical(element) for element in document]
    added = sorted(elements.keys() - set(shown))
    keys = [key if key in elements else added.pop(0) for key in shown if key in elements or added]
    return [elements[key] for key in (*keys, *added)]


# Arrays


def _array(
    after: Sequence[Any], before: Sequence[Any], document: Sequence[Any], keys: Keys | None, path: str
) -> list[Any]:
    origins = _origins(after, before, None if keys is None else keys.at(path))
    return [
        _json(value) if index is None else written(value, before[index], document[index], keys, f"{path}/{at}")
        for at, (value, index) in enumerate(zip(after, origins, strict=True))
    ]


def _origins(after: Sequence[Any], before: Sequence[Any], key: str | None) -> list[int | None]:
    """Return the index in `before` at which each element was, None for a new one.

    Elements are known by their id, which `key` holds, or by their whole value; a changed one may be known by its place.
    """
    # Most elements are where they were, and need no search.
    origins = [at if at < len(before) and before[at] is value else None for at, value in enumerate(after)]
    places: dict[bytes, list[int]] = {}
    for index in sorted(set(range(len(before))).difference(origins), reverse=True):
        places.setdefault(_name(_members(before[index]), key), []).append(index)
    for at, value in enumerate(after):
        if origins[at] is None and places.get(known_by := _name(_members(value), key)):
            origins[at] = places[known_by].pop()
    taken = set(origins)
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        if origins[at] is None and at not in taken and _may_be_same(_members(old), _members(new), key):
            origins[at] = at
    return origins


def _may_be_same(old: Any, new: Any, key: str | None = None) -> bool:
    """Tell whether two elements in one place may be the same one, so that members without a field stay."""
    if isinstance(old, dict) and isinstance(new, dict):
        return id_of(old, key) == id_of(new, key)
    return (isinstance(old, list) and isinstance(new, list)) or not diff(old, new)


def _name(item: Any, key: str | None = None) -> bytes:
    """Return the value by which an element is known: its id, or the whole of it; `key` as in `id_of`."""
    id = id_of(item, key)
    return _canonical(item) if id is None else b"id" + _canonical(id)
