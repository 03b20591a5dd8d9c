"""The functions that an app runs when it starts."""

from collections.abc import Callable
from typing import Any

from plait.author_code import call

__all__ = ["StartupFunctions"]


class StartupFunctions:
    """Functions without arguments, sync or async, in the order in which they were added."""

    def __init__(self) -> None:
        self._functions: list[tuple[Callable[[], Any], bool]] = []

    def add(self, function: Callable[[], Any], *, once: bool) -> None:
        """Add a function; with `once`, only the first process of several workers runs it."""
        if not callable(function):
            raise TypeError(f"on_startup takes a function, not {function!r}")
        self._functions.append((function, once))

    async def run(self, *, is_first: bool) -> None:
        """Run the functions, one after the other. Raises what they raise."""
        for function, once in self._functions:
            if is_first or not once:
                await call(function)
