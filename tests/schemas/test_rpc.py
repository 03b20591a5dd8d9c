"""What is read of the function of an rpc."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from plait_schemas.rpc import Rpc, read_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from fractions import Fraction


def count(self: Any, start: Fraction) -> int:
    """Has a parameter whose type is known to type checkers only."""
    return int(start)


def halve(self: Any, whole: int) -> Fraction:
    """Has a result whose type is known to type checkers only."""
    raise NotImplementedError


async def stream(self: Any, start: Fraction) -> AsyncIterator[int]:
    """Streams chunks whose type is known to type checkers only."""
    yield 1


@wraps(count)
def wrapped(*args: Any) -> Any:
    """Has the annotations of another function."""


def test_the_result_is_read_even_if_only_type_checkers_know_the_parameters() -> None:
    assert read_rpc(count) == Rpc("count", int)
    assert read_rpc(wrapped) == Rpc("count", int)


def test_a_result_whose_type_only_type_checkers_know_is_any() -> None:
    assert read_rpc(halve) == Rpc("halve", Any)
    assert read_rpc(stream) == Rpc("stream", Any, is_stream=True)
