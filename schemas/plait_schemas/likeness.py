"""Tells whether two values have the same JSON, and whether two elements look like one that was changed."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

import msgspec

from plait_schemas.codec import encode_json, to_builtins
from plait_schemas.elements import ids_of
from plait_schemas.members import attributes
from plait_schemas.models import dump

__all__ = ["NUMBERS", "SCALARS", "canonical", "is_same_element", "is_same_json", "members_of", "outline", "shares_ids"]

canonical: Final = msgspec.json.Encoder(order="deterministic", enc_hook=dump).encode
"""Return the JSON of a value, with the members of its objects in one order."""

NUMBERS: Final = frozenset({int, float, bool, type(None)})
SCALARS: Final = NUMBERS | {str}


def is_same_element(old: Any, new: Any) -> bool:
    """Tell whether two elements without ids at one place of a list look like one element that was changed.

    Objects look so if their own values are the same, so that only deeper values have changed. Rows look so if they have
    most of their values, or an element with an id, in common.
    """
    match members_of(old), members_of(new):
        case dict() as before, dict() as after:
            if before.keys() != after.keys() or _has_other_scalar(before, after):
                return False
            return outline(before) == outline(after)
        case list() | tuple() as before, list() | tuple() as after:
            is_alike = len(before) == len(after) and 2 * sum(map(is_same_json, before, after)) > len(before)
            return is_alike or _share_ids(before, after)
        case _:
            return False


def _has_other_scalar(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    """Tell whether two objects with the same keys have different scalars, and so different outlines."""
    for key, value in old.items():
        other = new[key]
        if type(value) in SCALARS and type(other) in SCALARS and (type(value) is not type(other) or value != other):
            return True
    return False


def outline(element: Any) -> bytes | None:
    """Return the JSON of an object, with its lists emptied and, if it has a non-empty string, its objects, too.

    Returns None for a value that is not an object.
    """
    members = members_of(element)
    if not isinstance(members, dict):
        return None
    has_text = any(isinstance(value, str) and value for value in members.values())
    return canonical({key: _outline(value, has_text) for key, value in members.items()})


def _outline(value: Any, has_text: bool) -> Any:
    if type(value) in SCALARS:
        return value
    match members_of(value):
        case list() | tuple():
            return []
        case dict() as members:
            return {} if has_text else {key: _outline(each, False) for key, each in members.items()}
        case scalar:
            return scalar


def shares_ids(old: Any, new: Any) -> bool:
    """Tell whether two objects have, at the same key, lists that contain elements with the same id."""
    match members_of(old), members_of(new):
        case dict() as before, dict() as after:
            lists = ((each, after[key]) for key, each in before.items() if key in after)
            return any(
                isinstance(mine, list | tuple) and isinstance(other, list | tuple) and _share_ids(mine, other)
                for mine, other in lists
            )
        case _:
            return False


def _share_ids(old: Sequence[Any], new: Sequence[Any]) -> bool:
    ids = {id for id in ids_of(old) if id is not None}
    return bool(ids) and not ids.isdisjoint(ids_of(new))


def is_same_json(old: Any, new: Any) -> bool:
    """Tell whether both encode to the same JSON; may return False for objects whose keys are in another order."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new) or old != new:
        return False
    if kind is set or kind is frozenset:
        return True
    # In Python True == 1 == 1.0, in JSON not: values that are equal in Python may still have different JSON.
    return kind in SCALARS or encode_json(old) == encode_json(new)


def members_of(value: Any) -> Any:
    """Convert the top level of `value` to JSON's types: return a dict, a list, a tuple, or a scalar unchanged."""
    if isinstance(value, (dict, list, tuple)):
        return value
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        if not (config.omit_defaults or config.array_like or config.tag):
            fields = attributes(value) or {}
            return {key: item for key, name in fields.items() if (item := getattr(value, name)) is not msgspec.UNSET}
    # The elements of a set have no places, so it changes as a whole.
    if type(value) in SCALARS or isinstance(value, (set, frozenset)):
        return value
    names = attributes(value)
    if is_dataclass(value) and names is not None and getattr(value, "__dict__", {}).keys() == names.keys():
        return {key: item for key, item in vars(value).items() if item is not msgspec.UNSET}
    members = to_builtins(value)
    # Keep the members as they are: a set, above all, as a list would give it an arbitrary order.
    if names is None:
        return members
    if isinstance(members, list):
        own = [getattr(value, name) for name in names.values()]
        return [*members[: len(members) - len(own)], *own]
    return {key: getattr(value, names[key]) if key in names else each for key, each in members.items()}
