"""`Text`, a string in which changes are merged, and the places of a state that are such texts."""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import inspect

from plait_schemas.models import expand
from plait_schemas.patch import PatchError, escape, parse

__all__ = ["Text", "check_texts", "find_texts"]

_MARK: Final = "plait_text"

Text = Annotated[str, msgspec.Meta(extra={_MARK: True})]
"""A string that people write together: changes inside of the string are merged with the changes of others."""

_MOST: Final = 64
_DEEPEST: Final = 16
"""Maximum texts found in a type, and maximum parts of each place, as a type may contain itself."""

_Part = tuple[str, inspect.Type]
_Fields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
_ANY: Final = (inspect.AnyType, inspect.RawType, inspect.CustomType)


def find_texts(type_: Any) -> list[str]:
    """Return the places of the texts of a type as JSON pointers, in which `*` stands for any part.

    For a type that contains itself, the result has the first 64 places of at most 16 parts.
    """
    try:
        waiting = deque([("", inspect.type_info(type_))])
    except (TypeError, NameError, NotImplementedError):
        return []
    found: dict[str, None] = {}
    has_texts: dict[Any, bool] = {}
    while waiting and len(found) < _MOST:
        path, info = waiting.popleft()
        info = expand(info)
        if _is_text(info):
            found[path] = None
        elif path.count("/") < _DEEPEST and _has_text(info, has_texts):
            waiting += ((path + name, part) for name, part in _parts(info))
    return list(found)


def check_texts(name: str, texts: Any, type_: Any) -> list[str]:
    """Return the places that a class declares as texts. Raises TypeError for a place without a string."""
    if isinstance(texts, str) or not isinstance(texts, tuple | list | set | frozenset):
        raise TypeError(f'{name} must be a tuple of JSON pointers such as ("/note", "/cards/*/body"), not {texts!r}')
    for pointer in texts:
        try:
            if not isinstance(pointer, str):
                raise PatchError("not a string")
            parts = parse(pointer)
        except PatchError:
            raise TypeError(
                f"{name}: {pointer!r} must be the JSON pointer of a string, in which * is any part, "
                'such as "/cards/*/body"'
            ) from None
        if not _leads_to_string(inspect.type_info(type_), parts):
            raise TypeError(f"{name}: there is no string at {pointer!r} in a state of the class")
    return list(texts)


def _is_text(info: inspect.Type) -> bool:
    return isinstance(info, inspect.Metadata) and info.extra is not None and _MARK in info.extra


def _has_text(info: inspect.Type, known: dict[Any, bool]) -> bool:
    """Return whether a type has a text anywhere; `known` caches the answers for classes."""
    if _is_text(info := expand(info)):
        return True
    cls = getattr(info, "cls", None)
    if cls is None:
        return any(_has_text(part, known) for _, part in _parts(info))
    if cls not in known:
        seen: set[Any] = set()
        waiting = [info]
        found = False
        while waiting and not found:
            each = expand(waiting.pop())
            found = _is_text(each)
            inner = getattr(each, "cls", None)
            if inner is None or inner not in seen:
                seen.add(inner)
                waiting += (part for _, part in _parts(each))
        known[cls] = found
    return known[cls]


def _parts(info: inspect.Type) -> Iterator[_Part]:
    """Yield the types of the members of a value, each with its part of a JSON pointer."""
    match info:
        case inspect.Metadata(type=inner):
            yield "", inner
        case inspect.UnionType(types=types):
            for each in types:
                yield "", each
        case inspect.DictType(value_type=value):
            yield "/*", value
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield "/*", item
        case inspect.TupleType(item_types=types):
            for index, each in enumerate(types):
                yield f"/{index}", each
        case inspect.StructType(array_like=True) | inspect.NamedTupleType():
            start = getattr(info, "tag", None) is not None
            for index, field in enumerate(info.fields, start):
                yield f"/{index}", field.type
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            for field in info.fields:
                yield f"/{escape(field.encode_name)}", field.type
        case _:  # The elements of a set have no places.
            pass


def _leads_to_string(info: inspect.Type, parts: list[str]) -> bool:
    """Return whether there may be a string at a place of a type."""
    if isinstance(info := expand(info), _ANY):
        return True
    if not parts and isinstance(info, inspect.StrType):
        return True
    rest = parts[1:]
    return any(
        _leads_to_string(part, rest if name else parts)
        for name, part in _parts(info)
        if not name or (parts and (name == "/*" or parts[0] == "*" or name == f"/{escape(parts[0])}"))
    )
