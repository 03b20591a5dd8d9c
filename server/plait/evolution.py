"""`@migrate`: how a class brings states of an earlier version of itself up to date."""

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["migrate", "migrations"]

_MARK: Final = "__plait_migrate__"

F = TypeVar("F", bound=Callable[..., Any])


def migrate(*, from_: int) -> Callable[[F], F]:
    """Mark a function in a Thread class that makes of the JSON of a state of version `from_` one of the next.

    It takes the state as dicts, lists and scalars, may change it in place, and returns it. There is no `self`.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, from_)
        return function

    return mark


def migrations(cls: type, state_version: int) -> dict[int, Callable[[Any], Any]]:
    """Return the migrations of a class, by the version that they begin with. Raises TypeError."""
    if type(state_version) is not int or state_version < 1:
        raise TypeError(f"{cls.__name__}.state_version is a number from 1 on, not {state_version!r}")
    found: dict[int, Callable[[Any], Any]] = {}
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        marks = [
            getattr(each, _MARK) for each in (function, getattr(function, "__func__", None)) if hasattr(each, _MARK)
        ]
        if not marks:
            continue
        function, from_ = getattr(function, "__func__", function), marks[0]
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{cls.__name__}.{attribute} must be a plain function")
        if type(from_) is not int or not 1 <= from_ < state_version:
            raise TypeError(f"{cls.__name__}.{attribute}: @migrate(from_={from_!r}) does not lead to state_version")
        if from_ in found:
            raise TypeError(f"{cls.__name__} has two migrations from {from_}")
        found[from_] = function
    return found
