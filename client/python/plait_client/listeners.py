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
"""A function that removes a callback."""

_WAITING: Final = 1000
"""The maximum number of changes that wait for a reader; a slower one gets them as one."""


class Listeners:
    """Callbacks by their events. A callback that raises is logged, and the others are still called.

    SystemExit and KeyboardInterrupt end the loop.
    """

    def __init__(self) -> None:
        # By the event, and then by the registration: a callback may be registered more than once.
        self._callbacks: dict[Hashable, dict[object, Callable[[Any], object]]] = {}

    def add(self, what: Hashable, callback: Callable[[Any], object]) -> Remove:
        """Call `callback` from now on; return a function that ends this. Raises TypeError for an `async def`."""
        _check_plain(callback)
        callbacks = self._callbacks.setdefault(what, {})
        registration = object()
        callbacks[registration] = callback

        def remove() -> None:
            callbacks.pop(registration, None)

        return remove

    def add_event(self, name: str, callback: Callable[..., object]) -> Remove:
        """Call `callback` with the data of each event of a name, and also its sender if it has a parameter for that."""
        takes_sender = _count_required(callback) > 1
        _check_plain(callback)
        return self.add(("event", name), lambda event: callback(*event) if takes_sender else callback(event[0]))

    def call(self, what: Hashable, value: Any) -> None:
        """Call all callbacks for an event, in order of registration."""
        for callback in tuple(self._callbacks.get(what, {}).values()):
            try:
                callback(value)
            except (SystemExit, KeyboardInterrupt) as ending:
                # Raise it in the loop itself: the task that calls this may be cancelled before the error has ended it.
                asyncio.get_running_loop().call_soon(_raise, ending)
            except BaseException:
                # This includes the CancelledError of a future that the callback used: the calling task cannot be
                # cancelled here.
                logger.exception("a callback for %s failed", what)


def _raise(error: BaseException) -> None:
    raise error


def _check_plain(callback: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(callback):
        raise TypeError("a callback is a plain function: what an `async def` returns would not be awaited")


def _count_required(function: Callable[..., object]) -> int:
    """Return how many arguments a function needs by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_place and each.default is each.empty for each in parameters)


# Followers


class Change(Generic[S]):
    """The confirmed state has reached the version `version`.

    `source` is the connection that made the change, "server", "migration", or "undo 7 c81e" for a change that takes
    back version 7 of `c81e`; None if several changes came as one.
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
        """The confirmed state after this change: a copy, as that of the room is."""
        if self._state is None:
            self._state = (self._convert(self._changed.after),)
        return self._state[0]

    @property
    def ops(self) -> list[Op]:
        """The operations since the change before; if the server sent none, the states are compared on first use."""
        if self._ops is None:
            changed = self._changed
            ops = diff(changed.before, changed.after, changed.keys) if changed.ops is None else changed.ops
            # Their values are also in the state of the client.
            self._ops = decode_ops(encode_json(ops))
        return self._ops


class Changes(Generic[S]):
    """The changes from now on, as an async iterator. The iterator ends when the client itself is closed."""

    def __init__(self, convert: Callable[[Any], S], ending: Callable[[], BaseException | None]) -> None:
        self._convert = convert
        # The reason why there will be no more changes; None while there may be.
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
        """Wake the reader, which checks whether there will be more changes."""
        self._news.set()
