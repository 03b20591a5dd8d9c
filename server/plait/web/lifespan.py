"""The start of an app: its functions, a failure in one line, and a garbage collector that runs rarely from then on."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.author_code import call

__all__ = ["StartupFilter", "StartupFunctions", "collect_rarely", "run_lifespan"]

# The last line of a traceback begins like this for plait's own errors, whose messages say what to do.
_OWN: Final = ("plait.errors.", "plait.settings.")


# After this many new objects the collector checks the youngest, and after this many checks, each older generation. A
# check of 250,000 objects in the second generation holds the loop for about 20 ms.
_THRESHOLD: Final = (50_000, 5, 200)


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Make the garbage collector run rarely, and skip the objects that exist so far, until the end of the block.

    States are trees, which reference counting frees. With its default thresholds, the collector would walk every state
    in memory over and over. Higher thresholds that the process has set are kept.
    """
    former, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not 0 < former[0] < _THRESHOLD[0]:
        yield
        return
    gc.set_threshold(*_THRESHOLD)
    if not is_frozen:
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*former)
        if not is_frozen:
            gc.unfreeze()


async def run_lifespan(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an app's lifespan; if it cannot start, report the error to the server without a traceback."""

    async def tell(message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            message = {**message, "message": _shorten(message.get("message", ""))}
        await send(message)

    await app(scope, receive, tell)


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
        """Run the functions, one after the other. Raises their exceptions."""
        for function, once in self._functions:
            if is_first or not once:
                await call(function)


class StartupFilter(logging.Filter):
    """Shortens the traceback that a server logs for an app that cannot start."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith("Traceback "):
            record.msg = _shorten(record.msg)
        return True


def _shorten(traceback: str) -> str:
    lines = traceback.rstrip().splitlines() or [""]
    return lines[-1].partition(": ")[2] if lines[-1].startswith(_OWN) else traceback
