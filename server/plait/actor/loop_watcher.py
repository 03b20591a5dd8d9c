"""Logs the turn that blocks the event loop, while it does."""

import asyncio
import gc
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from types import CodeType, FrameType
from typing import Final, NamedTuple

from plait.actor.logs import about
from plait.actor.turn import Turn
from plait.instruments.protocol import Instruments

__all__ = ["LoopWatcher"]

log = logging.getLogger("plait.thread")

# Seconds between two looks, and seconds after which the loop counts as blocked.
_EVERY: Final = 0.1
_LATE: Final = 0.25
# The folders of libraries, whose code is not the author's.
_LIBRARIES: Final = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# The function of Python that imports a module. Its outermost call imports the module that the code has asked for.
_IMPORTING: Final = "_find_and_load"
_INSTALLED: Final = ("<", *(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *_LIBRARIES)))


class _Running(NamedTuple):
    """The code that the loop runs: the frame that the loop has called, the turn, and a readable place."""

    called: FrameType
    turn: Turn | None
    place: str


# The watcher that logs the present block, by the id of the loop's OS thread, as several apps may watch one loop.
_logged: Final[dict[int, "LoopWatcher"]] = {}


class LoopWatcher:
    """An OS thread that sends the loop a beat every 0.1 s, and logs the running code if the loop does not answer.

    The watcher is silent if it was late itself: the process was stopped, or the machine is overloaded. The loop also
    calls `on_beat` at each beat.
    """

    def __init__(
        self,
        instruments: Instruments,
        on_beat: Callable[[], object] = lambda: None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._instruments = instruments
        self._on_beat = on_beat
        self._clock = clock
        self._is_ended = threading.Event()
        self._thread: threading.Thread | None = None
        # The time of the last beat, and whether the loop has answered it.
        self._sent = 0.0
        self._has_answered = False
        # The code of the loop that calls all other code; None before the first answer.
        self._caller: CodeType | None = None

    def start(self) -> None:
        """Begin to watch the running loop."""
        loop = asyncio.get_running_loop()
        self._is_ended.clear()
        self._sent, self._has_answered = self._clock(), False
        loop.call_soon(self._answer)
        watched = threading.get_ident()
        watch = partial(self._watch, loop, watched)
        self._thread = threading.Thread(target=watch, daemon=True, name=f"plait loop watcher of {watched}")
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # In the OS thread

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        # The id of the code that the loop ran at the last look; -1 without one, 0 after it was logged.
        seen, looked = -1, self._sent
        while not self._is_ended.wait(_EVERY):
            before, looked = looked, self._clock()
            try:
                if self._has_answered:
                    self._sent, self._has_answered, seen = looked, False, -1
                    loop.call_soon_threadsafe(self._answer)
                elif looked - before > 2 * _EVERY:
                    self._sent, seen = looked, -1
                elif seen:
                    seen = self._look(loop, watched, seen, is_late=looked - self._sent > _LATE)
            except RuntimeError:  # The loop was closed.
                return

    def _look(self, loop: asyncio.AbstractEventLoop, watched: int, seen: int, *, is_late: bool) -> int:
        """Log the running code if the loop is late, and return the next `seen`."""
        # Before Python 3.12, making the object of a frame may collect garbage, during which the loop may run: then
        # the frame may be gone, and reading it would crash the process.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            frame = sys._current_frames().get(watched)  # None if the loop's thread has ended.
            running = None if frame is None else _find_running(frame, self._caller)
        finally:
            if is_collecting:
                gc.enable()
        if running is None:
            return -1
        # A beat waits for one iteration of the loop: code that is seen twice is still at the same step.
        id_now = id(running.turn or running.called)
        if not is_late or id_now != seen or self._has_answered:
            return id_now
        turn = running.turn
        key = None if turn is None else turn.actor.key
        what = "code outside of turns" if turn is None else f"{turn.name} of {key}"
        if _logged.setdefault(watched, self) is self:
            log.warning("%s blocks the server at %s", what, running.place, extra=about(key))
        kind, name = ("", "") if turn is None else (turn.actor.key.kind, turn.name)
        loop.call_soon_threadsafe(self._end_block, kind, name, self._sent)
        return 0

    # In the loop

    def _answer(self) -> None:
        self._has_answered = True
        _logged.pop(threading.get_ident(), None)
        if self._caller is None and (caller := sys._getframe().f_back) is not None:
            self._caller = caller.f_code
        self._on_beat()

    def _end_block(self, kind: str, turn: str, since: float) -> None:
        self._instruments.loop_blocked(kind, turn, self._clock() - since)


def _find_running(innermost: FrameType, caller: CodeType | None) -> _Running | None:
    """Return the running code of a loop, by the stack of its OS thread and the loop's own code; None if it waits."""
    turn: Turn | None = None
    author: FrameType | None = None
    called: FrameType | None = None
    imported = ""
    each: FrameType | None = innermost
    while each is not None:
        code = each.f_code
        if code is caller:
            return None if called is None else _Running(called, turn, _describe(innermost, author, imported))
        if turn is None and code is Turn.run.__code__:
            turn = each.f_locals["self"]
        elif author is None and turn is None and not code.co_filename.startswith(_INSTALLED):
            author = each
        elif code.co_name == _IMPORTING and code.co_filename.startswith("<frozen importlib"):
            imported = each.f_locals["name"]
        called, each = each, each.f_back
    return None


def _describe(innermost: FrameType, author: FrameType | None, imported: str) -> str:
    """Return the place of the loop: the line of the author, or else the import, or the line of a library."""
    if author is None and imported:
        return f"the import of {imported}: import it when the server starts"
    place = author or innermost
    where = f"{_shorten(place.f_code.co_filename)}:{place.f_lineno}"
    return where if author is None else f"{where}: use asyncio.to_thread"


def _shorten(path: str) -> str:
    """Return a path relative to the working directory, if it is inside."""
    try:
        return path.removeprefix(f"{os.getcwd()}{os.sep}")
    except OSError:  # The directory was removed.
        return path
