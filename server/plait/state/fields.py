"""Finds fields in JSON values that their type does not have: they are probably misspelt."""

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from itertools import count
from typing import Any, Final

from msgspec import inspect

from plait.errors import InvalidState
from plait_schemas.models import allows_extra, expand, find_input_names, is_model
from plait_schemas.patch import escape

__all__ = ["FieldPlan", "check_fields", "make_plan", "make_unknown_field_error"]

# Longer names are not compared and are cut in messages; a message lists at most this many names.
_LONG: Final = 64
_MOST: Final = 12


def make_unknown_field_error(name: str, fields: Iterable[str], place: str = "") -> InvalidState:
    """Return the error for an unknown field of the object at `place`; it names the most similar field."""
    if len(name) > _LONG:
        return InvalidState(f"there is no field {name[:_LONG]!r}…", path=place)
    names = tuple(fields)
    if near := get_close_matches(name, names, n=1):
        advice = f"; did you mean {place}/{escape(near[0])}?"
    elif names:
        advice = f"; the fields are {', '.join(names[:_MOST])}{', …' if len(names) > _MOST else ''}"
    else:
        advice = ""
    return InvalidState(f"there is no field {name!r}{advice}", path=f"{place}/{escape(name)}")


class Unknown:
    """An unknown field; `parts` is the path of its object, the last part first."""

    __slots__ = ("fields", "name", "parts")

    def __init__(self, name: str, fields: Iterable[str]) -> None:
        self.name = name
        self.fields = fields
        self.parts: list[str] = []


def check_fields(plan: "FieldPlan | None", value: Any, path: str = "") -> None:
    """Raise InvalidState when the JSON value at a path has an unknown field."""
    try:
        found = None if plan is None else plan.find(value)
    except RecursionError:
        raise InvalidState("JSON is nested too deep", path=path) from None
    if found is not None:
        place = "".join(f"/{escape(part)}" for part in reversed(found.parts))
        raise make_unknown_field_error(found.name, found.fields, path + place)


class _Object:
    """A Struct, a dataclass, or a TypedDict."""

    __slots__ = ("_fields", "_keys", "_members", "_tag", "_tag_field")

    def __init__(
        self, fields: Iterable[str], tag_field: str | None, tag: str | int | None, also: Iterable[str] = ()
    ) -> None:
        self._fields = tuple(fields)
        # The names of the members; a type may also accept other names for some fields.
        self._keys = frozenset(self._fields if tag_field is None else (*self._fields, tag_field)) | {*also}
        self._tag_field = tag_field
        self._tag = tag
        # The plans of those fields that have one.
        self._members: list[tuple[str, FieldPlan]] = []

    def add(self, field: str, plan: "FieldPlan | None") -> None:
        """Set the plan of a field."""
        if plan is not None:
            self._members.append((field, plan))

    def matches(self, value: object) -> bool:
        """Whether a JSON value belongs to this member of a union."""
        return isinstance(value, dict) and (self._tag_field is None or value.get(self._tag_field) == self._tag)

    def find(self, value: Any) -> Unknown | None:
        """Return the first unknown field in a JSON value; None if all are known."""
        if not isinstance(value, dict):
            return None  # An object of the type, from server code, or a value that is refused elsewhere.
        if not value.keys() <= self._keys:
            return Unknown(str(next(key for key in value if key not in self._keys)), self._fields)
        for field, plan in self._members:
            if field in value and (found := plan.find(value[field])) is not None:
                found.parts.append(field)
                return found
        return None

    def knows_all(self, values: Collection[Any]) -> bool:
        """Whether all values are objects without unknown fields; False is uncertain. Fast for many of them."""
        return not self._members and {*map(type, values)} == {dict} and self._keys.issuperset(set().union(*values))

    def find_all(self, value: Any, place: str) -> Iterator[str]:
        """Yield the place of each unknown field in a JSON value at a place; `*` stands for any element or key."""
        if isinstance(value, dict):
            for key in value.keys() - self._keys:
                yield f"{place}/{escape(key)}"
            for field, plan in self._members:
                if field in value:
                    yield from plan.find_all(value[field], f"{place}/{escape(field)}")


class _Tuple:
    """A tuple of fixed length, a named tuple, or a Struct that is an array in JSON, whose first element is the tag."""

    __slots__ = ("_has_end", "_members", "_tag")

    def __init__(self, members: "list[FieldPlan | None]", *, has_end: bool, tag: str | int | None) -> None:
        self._members = members
        # Whether msgspec drops elements after the last one.
        self._has_end = has_end
        self._tag = tag

    def matches(self, value: object) -> bool:
        return isinstance(value, list | tuple) and (self._tag is None or list(value[:1]) == [self._tag])

    def find(self, value: Any) -> Unknown | None:
        if not isinstance(value, list | tuple):
            return None
        members = self._members
        if self._has_end and len(value) > len(members):
            return Unknown(str(len(members)), ())
        for index, (plan, member) in enumerate(zip(members, value, strict=False)):
            if plan is not None and (found := plan.find(member)) is not None:
                found.parts.append(str(index))
                return found
        return None

    def find_all(self, value: Any, place: str) -> Iterator[str]:
        if isinstance(value, list):
            if self._has_end and len(value) > len(self._members):
                yield f"{place}/{len(self._members)}"
            for index, (plan, member) in enumerate(zip(self._members, value, strict=False)):
                if plan is not None:
                    yield from plan.find_all(member, f"{place}/{index}")


class _Each:
    """A dict with any keys, or an array of any length; `types` are the JSON types of such a value."""

    __slots__ = ("_plan", "_types")

    def __init__(self, plan: "FieldPlan", *types: type) -> None:
        self._plan = plan
        self._types = types

    def matches(self, value: object) -> bool:
        return isinstance(value, self._types)

    def find(self, value: Any) -> Unknown | None:
        if self.matches(value):
            members = value.values() if isinstance(value, dict) else value
            if isinstance(self._plan, _Object) and self._plan.knows_all(members):
                return None
            for key, member in zip(value if isinstance(value, dict) else count(), members, strict=False):
                if (found := self._plan.find(member)) is not None:
                    found.parts.append(str(key))
                    return found
        return None

    def find_all(self, value: Any, place: str) -> Iterator[str]:
        if self.matches(value):
            for member in value.values() if isinstance(value, dict) else value:
                yield from self._plan.find_all(member, f"{place}/*")


class _Union:
    """A union. Its members differ by their tags, or by being an object or an array; Pydantic models in any way."""

    __slots__ = ("_plans",)

    def __init__(self, plans: "list[FieldPlan]") -> None:
        self._plans = plans

    def matches(self, value: object) -> bool:
        return any(plan.matches(value) for plan in self._plans)

    def find(self, value: Any) -> Unknown | None:
        # The value may match several models, so the field must be unknown to all of them.
        found = [plan.find(value) for plan in self._plans if plan.matches(value)]
        return found[0] if found and None not in found else None

    def find_all(self, value: Any, place: str) -> Iterator[str]:
        found = [[*plan.find_all(value, place)] for plan in self._plans if plan.matches(value)]
        return iter(found[0] if found and [] not in found else ())


FieldPlan = _Object | _Tuple | _Each | _Union
"""The places of a type's fields. A type without fields, or with arbitrary fields, has no plan."""


@lru_cache(maxsize=1024)
def make_plan(type_: Any) -> FieldPlan | None:
    """Return the plan of a type; None if it has no fields to check."""
    try:
        return _make_type_plan(inspect.type_info(type_), {})
    except (TypeError, NotImplementedError, NameError):
        return None


def _make_type_plan(info: inspect.Type, known: dict[int, FieldPlan]) -> FieldPlan | None:
    """Return the plan of a type; `known` has the plans of the enclosing types, for recursive types."""
    match info:
        case inspect.Metadata(type=type_):
            return _make_type_plan(type_, known)
        case inspect.CustomType(cls=cls) if is_model(cls):
            return None if allows_extra(cls) else _make_type_plan(expand(info), known)
        case inspect.UnionType(types=types):
            plans = [plan for each in types if (plan := _make_type_plan(each, known)) is not None]
            return _Union(plans) if len(plans) > 1 else next(iter(plans), None)
        case inspect.DictType(value_type=type_):
            return None if (plan := _make_type_plan(type_, known)) is None else _Each(plan, dict)
        case inspect.CollectionType(item_type=type_):  # A list, a set, a tuple of any length.
            return None if (plan := _make_type_plan(type_, known)) is None else _Each(plan, list, tuple)
        case inspect.TupleType(item_types=types):
            members = [_make_type_plan(each, known) for each in types]
            return _Tuple(members, has_end=False, tag=None) if any(members) else None
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return known[id(info)] if id(info) in known else _make_field_plan(info, known)
        case _:
            return None


def _make_field_plan(
    info: inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType,
    known: dict[int, FieldPlan],
) -> FieldPlan:
    tag_field, tag = (info.tag_field, info.tag) if isinstance(info, inspect.StructType) else (None, None)
    if isinstance(info, inspect.NamedTupleType) or (isinstance(info, inspect.StructType) and info.array_like):
        members: list[FieldPlan | None] = [] if tag is None else [None]
        plan: FieldPlan = _Tuple(members, has_end=isinstance(info, inspect.StructType), tag=tag)
        known[id(info)] = plan
        members += (_make_type_plan(field.type, known) for field in info.fields)
    else:
        also = find_input_names(info.cls) if is_model(info.cls) else ()
        names = (field.encode_name for field in info.fields)
        plan = known[id(info)] = each = _Object(names, tag_field, tag, also=also)
        for field in info.fields:
            each.add(field.encode_name, _make_type_plan(field.type, known))
    return plan
