"""The states that a program reads: each is made once from the shown JSON values, and belongs to the program."""

import logging
from collections.abc import Iterable
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

from plait_schemas.codec import convert
from plait_schemas.members import attributes, is_frozen
from plait_schemas.models import check_type
from plait_schemas.patch import escape

__all__ = ["View"]

S = TypeVar("S")

logger = logging.getLogger(__name__)

_MISSING: Final = object()


class View(Generic[S]):
    """Converts JSON values to a client's type, once for the same object.

    A returned state shares no mutable object with these values.
    """

    def __init__(self, state_type: Any) -> None:
        check_type(state_type)
        self._type = state_type
        # The document that was read last, and its state, which the program has and may have changed.
        self._document: Any = None
        self._state: Any = None
        # The document that was checked last, and its state, which no program has.
        self._checked: tuple[Any, Any] = (None, None)

    def __call__(self, document: Any) -> S:
        """Return the state of `document` to a program. Raises msgspec.ValidationError."""
        if self._document is not document:
            state = self._check(document) if self._is_immutable else self.convert(document)
            self.follow(document)
            self._document, self._state = document, state
        return cast(S, self._state)

    def follow(self, document: Any) -> None:
        """Forget the state that was read, if `document` has replaced it, and log the changes made in it."""
        if self._document is not document:
            changed = self._find_change()
            self.forget()
            if changed is not None:
                logger.warning("%r was changed in place in a state that was read, and is not sent: see edit", changed)
        if self._checked[0] is not document:
            self._checked = (None, None)

    def forget(self) -> None:
        """Forget the state that was read, whatever was changed in it."""
        self._document = self._state = None

    def convert(self, document: Any) -> S:
        """Return the state of `document`, a new object each time. Raises msgspec.ValidationError."""
        if document is None:
            return cast(S, None)
        own = document if self._is_immutable else msgspec.to_builtins(document)
        return cast(S, own if self._type is Any else convert(own, self._type, str_keys=True))

    def check(self, document: Any) -> None:
        """Raise msgspec.ValidationError if `document` is not a state of the type."""
        if self._type is not Any and document is not self._document:
            self._check(document)

    def takes(self, document: Any) -> bool:
        """Return whether `document` is a state of the type."""
        try:
            self.check(document)
        except msgspec.ValidationError:
            return False
        return True

    def _check(self, document: Any) -> S:
        """Return the state of `document`, for the view itself. Raises msgspec.ValidationError."""
        if self._checked[0] is not document:
            self._checked = (document, self.convert(document))
        return cast(S, self._checked[1])

    @cached_property
    def _is_immutable(self) -> bool:
        """Whether a state contains no mutable value."""
        return self._type is not Any and _are_immutable((inspect.type_info(self._type),), set())

    # Changing the state

    def lend(self, document: Any) -> S:
        """Return the state of `document` to a function that may change it in place."""
        return self._check(document) if self._is_immutable else self.convert(document)

    def base(self, document: Any, lent: S | None = None) -> Any:
        """Return the state of `document` for a comparison with a state that a program has made.

        This is the state that was lent or read, unless it was changed in place; or `document`, if it is not of the
        type.
        """
        if self._type is Any or not self.takes(document):
            return document
        known = self._state if lent is None and document is self._document else lent
        original = self._check(document)
        return known if known == original else original

    def is_read(self, state: Any) -> bool:
        """Return whether `state` is the one that was read last."""
        return state is not None and state is self._state

    def _find_change(self) -> str | None:
        """Return the pointer of the first change in the state that was read; None if there is none."""
        if self._document is None or self._is_immutable:
            return None
        original = self._document if self._type is Any else self.convert(self._document)
        return None if original == self._state else _find_difference(original, self._state, "")


def _find_difference(old: Any, new: Any, path: str) -> str | None:
    if type(old) is not type(new):
        return path
    for name, before, after in _pair_members(old, new):
        found = _find_difference(before, after, f"{path}/{escape(str(name))}")
        if found is not None:
            return found
    return None if isinstance(old, dict | list | tuple) or attributes(old) is not None or old == new else path


def _pair_members(old: Any, new: Any) -> Iterable[tuple[object, Any, Any]]:
    names = attributes(old)
    if names is not None:
        return [(key, getattr(old, name, _MISSING), getattr(new, name, _MISSING)) for key, name in names.items()]
    if isinstance(old, dict):
        return [(key, old.get(key, _MISSING), new.get(key, _MISSING)) for key in (*old, *(set(new) - set(old)))]
    if isinstance(old, list | tuple):
        return [(at, *pair) for at, pair in enumerate(zip_longest(old, tuple(new), fillvalue=_MISSING))]
    return ()


# Types whose values cannot be changed

_IMMUTABLE: Final = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.FloatType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.RawType,
    inspect.StrType,
    inspect.TimeDeltaType,
    inspect.TimeType,
    inspect.UUIDType,
)


def _are_immutable(types: Iterable[inspect.Type], seen: set[Any]) -> bool:
    """Return whether no value of the types is mutable; `seen` are the classes that were checked."""
    return all(_is_immutable(each, seen) for each in types)


def _is_immutable(each: inspect.Type, seen: set[Any]) -> bool:
    match each:
        case inspect.StructType(cls=cls, fields=fields) | inspect.DataclassType(cls=cls, fields=fields):
            if cls in seen:
                return True
            seen.add(cls)
            return is_frozen(cls) and _are_immutable((field.type for field in fields), seen)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            return _are_immutable(types, seen)
        case inspect.VarTupleType(item_type=item) | inspect.FrozenSetType(item_type=item) | inspect.Metadata(type=item):
            return _are_immutable((item,), seen)
    return isinstance(each, _IMMUTABLE)
