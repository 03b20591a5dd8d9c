"""Plays a table of cases in one test, where a test of each would mostly cost its own start."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from _pytest.mark import ParameterSet

__all__ = ["each_case"]


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have one test play many cases, for arguments that are given as to `parametrize`.

    All cases are played, and an error names its own. They share the fixtures of the test, so it uses none that a case
    changes.
    """
    named = [names] if isinstance(names, str) else list(names)
    rows = [dict(zip(named, _values(names, case), strict=True)) for case in cases]
    assert rows, "there is no case"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)

        @wraps(test)
        def play(**arguments: Any) -> None:
            errors: list[BaseException] = []
            for row in rows:
                with _collecting(errors, row):
                    test(**arguments, **row)
            _raise_all(errors, len(rows))

        @wraps(test)
        async def play_async(**arguments: Any) -> None:
            errors: list[BaseException] = []
            for row in rows:
                with _collecting(errors, row):
                    await test(**arguments, **row)
            _raise_all(errors, len(rows))

        played: Any = play_async if inspect.iscoroutinefunction(test) else play
        left = [each for name, each in signature.parameters.items() if name not in named]
        played.__signature__ = signature.replace(parameters=left)
        found: Callable[..., Any] = played
        return found

    return decorate


def _values(names: str | Sequence[str], case: Any) -> Sequence[Any]:
    if isinstance(case, ParameterSet):
        assert not case.marks, "a case has no marks of its own"
        return case.values
    return [case] if isinstance(names, str) else list(case)


@contextmanager
def _collecting(errors: list[BaseException], row: dict[str, Any]) -> Iterator[None]:
    """Keep an error of a case, with its arguments."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note("with " + ", ".join(f"{name}={value!r:.200}" for name, value in row.items()))
        errors.append(error)


def _raise_all(errors: list[BaseException], count: int) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {count} cases fail", errors)
