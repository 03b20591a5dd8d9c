"""Callbacks of a client's author."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Listeners"]

logger = logging.getLogger(__name__)


class Listeners:
    """Callbacks by what they wait for. One that raises is logged, and the others are called all the same.

    SystemExit and KeyboardInterrupt end the loop.
    """

    def __init__(self) -> None:
        # By what they wait for, and then by their registration: a callback may be there more than once.
        self._callbacks: dict[Hashable, dict[object, Callable[[Any], object]]] = {}

    def add(self, what: Hashable, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call `callback` from here on; return a function that ends that. Raises TypeError for an `async def`."""
        if inspect.iscoroutinefunction(callback):
            raise TypeError("a callback is a plain function: nobody would await what an `async def` returns")
        callbacks = self._callbacks.setdefault(what, {})
        registration = object()
        callbacks[registration] = callback

        def remove() -> None:
            callbacks.pop(registration, None)

        return remove

    def call(self, what: Hashable, value: Any) -> None:
        """Call all that wait for it, in the order in which they came."""
        for callback in tuple(self._callbacks.get(what, {}).values()):
            try:
                callback(value)
            except (SystemExit, KeyboardInterrupt) as ending:
                # Out of the loop itself: the task that calls this may be cancelled before it has ended by it.
                asyncio.get_running_loop().call_soon(_raise, ending)
            except BaseException:
                # Also a CancelledError, of a future that it looked at: the task that calls it cannot be cancelled here.
                logger.exception("a callback for %s failed", what)


def _raise(error: BaseException) -> None:
    raise error
