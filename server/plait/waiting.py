"""Hooks may be plain functions or coroutines; this is where that stops to matter."""

import inspect
from collections.abc import Awaitable
from typing import TypeVar, cast

__all__ = ["outcome"]

T = TypeVar("T")


async def outcome(value: Awaitable[T] | T) -> T:
    """Return what a hook returned, after waiting for it if that is needed."""
    if inspect.isawaitable(value):
        return cast(T, await value)
    return value
