"""The listeners of events: callbacks, and the followers of the confirmed state."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from plait_client.events import Changed
from plait_schemas.codec import encode_json
from plait_schemas.diff import diff
from plait_schemas.patch import Op, decode_ops

__all__ = ["Change", "Changes", "Listeners", "Remove"]

S = TypeVar("S")

logger = logging.getLogger(__name__)

Remove = Callable[[], None]
"""Ends that a callback is called."""

_WAITING: Final = 1000
"""The maximum number of changes that wait for a reader; a slower one gets them as one."""


class Listeners:
    """Callbacks by what they wait for. One that raises is logged, and the others are still called.

    SystemExit and KeyboardInterrupt end the loop.
    """

    def __init__(self) -> None:
        # By what they wait for, and then by their registration: a callback may be there more than once.
        self._callbacks: dict[Hashable, dict[object, Callable[[Any], object]]] = {}

    def add(self, what: Hashable, callback: Callable[[Any], object]) -> Remove:
        """Call `callback` from here on; return a function that ends that. Raises TypeError for an `async def`."""
        if inspect.iscoroutinefunction(callback):
            raise TypeError("a callback is a plain function: what an `async def` returns would not be awaited")
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


# Followers


class Change(Generic[S]):
    """The confirmed state has got the version `version`.

    `source` is the connection whose change it was, "server", "migration", or for a change that takes back version 7 of
    `c81e` "undo 7 c81e"; None where several changes came as one.
    """

    __slots__ = ("_changed", "_convert", "_ops", "_state")

    def __init__(self, changed: Changed, convert: Callable[[Any], S]) -> None:
        self._changed = changed
        self._convert = convert
        self._state: tuple[S] | None = None
        self._ops: list[Op] | None = None

    def __repr__(self) -> str:
        return f"Change(version={self.version}, ops={self.ops}, source={self.source!r})"

    @property
    def epoch(self) -> str:
        return self._changed.epoch

    @property
    def version(self) -> int:
        return self._changed.version

    @property
    def source(self) -> str | None:
        return self._changed.source

    @property
    def state(self) -> S:
        """The confirmed state as this change has made it, a copy as that of the room is."""
        if self._state is None:
            self._state = (self._convert(self._changed.after),)
        return self._state[0]

    @property
    def ops(self) -> list[Op]:
        """The operations from the change before to this one; compared on first use if the server sent none."""
        if self._ops is None:
            changed = self._changed
            ops = diff(changed.before, changed.after, changed.keys) if changed.ops is None else changed.ops
            # Their values are in the state of the client, too.
            self._ops = decode_ops(encode_json(ops))
        return self._ops


class Changes(Generic[S]):
    """The changes since this was made, as an async iterator. It ends when the client is closed by itself."""

    def __init__(self, convert: Callable[[Any], S], ending: Callable[[], BaseException | None]) -> None:
        self._convert = convert
        # Why there will be no more, None as long as there may be.
        self._ending = ending
        self._waiting: deque[Changed] = deque()
        self._news = asyncio.Event()

    def __aiter__(self) -> "Changes[S]":
        return self

    async def __anext__(self) -> Change[S]:
        while not self._waiting:
            ending = self._ending()
            if ending is not None:
                raise ending
            self._news.clear()
            await self._news.wait()
        return Change(self._waiting.popleft(), self._convert)

    def put(self, changed: Changed) -> None:
        """Give the reader a change."""
        self._waiting.append(changed)
        if len(self._waiting) > _WAITING:
            before = self._waiting[0].before
            self._waiting.clear()
            self._waiting.append(changed._replace(before=before, ops=None, source=None))
        self._news.set()

    def wake(self) -> None:
        """Wake the reader, to look whether there will be more."""
        self._news.set()
