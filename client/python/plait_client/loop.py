"""An event loop in a thread of its own, for code without one."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from plait_client.errors import Closed, close_message

__all__ = ["LoopThread"]

T = TypeVar("T")

_CLOSED: Final = 1000
_PATIENCE: Final = 1.0


class LoopThread:
    """Runs functions in a thread of its own, while the caller waits."""

    def __init__(self) -> None:
        # Held while work is handed to the loop, so that none is handed over when the loop ends. A finalizer may want
        # the lock at any time, even in a thread that holds it.
        self._lock = threading.RLock()
        self._is_closing = False
        self._outstanding: set[concurrent.futures.Future[Any]] = set()
        # The SystemExit or KeyboardInterrupt with which a callback has ended the loop.
        self._ending: BaseException | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plait client", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._is_ready.set()
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                with self._lock:
                    self._is_closing, self._ending = True, error
        for future in tuple(self._outstanding):
            future.cancel()

    def wait(self, function: Callable[[], Awaitable[T]], timeout: float | None, missing: str = "no answer") -> T:
        """Call a function in the loop, and return the result of its awaitable. Raises Closed after the end.

        Raises TimeoutError, whose message names what is `missing`, and the SystemExit of a callback. An interrupt, such
        as Ctrl-C, cancels the call.
        """
        self._check_thread()
        try:
            return _result(self._submit(lambda: _within(function, timeout, missing)))
        except Closed:
            self._check_ending()
            raise

    def _check_ending(self) -> None:
        if self._ending is not None:
            raise self._ending

    def _submit(self, function: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._is_closing:
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(function(), self._loop)
            self._outstanding.add(future)
        future.add_done_callback(self._outstanding.discard)
        return future

    def do(self, function: Callable[[], T]) -> T:
        """Call a function in the loop, and return its result. Callbacks may also call this method.

        After the end, the function is called in the calling thread: no other code runs that it could conflict with.
        """

        async def call() -> T:
            return function()

        if threading.current_thread() is self._thread:
            return function()
        try:
            future = self._submit(call)
        except Closed:
            self._thread.join()
            return function()
        return _result(future)

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Wait for `last`, and end the loop and its thread when all waiting tasks have been told.

        Raises the SystemExit of a callback that has ended them before.
        """
        self._check_thread()
        self.begin_close(last)
        self._thread.join()
        self._check_ending()

    def begin_close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Do the same as `close`, but without waiting."""
        with self._lock:
            if not self._is_closing:
                self._is_closing = True
                self._outstanding.add(asyncio.run_coroutine_threadsafe(self._end(last), self._loop))

    async def _end(self, last: Callable[[], Awaitable[None]] | None) -> None:
        try:
            if last is not None:
                await last()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=_PATIENCE)
        finally:
            if self._ending is None:
                self._loop.stop()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback must not wait for the client that calls it")


def _result(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise _closed() from None
    finally:
        future.cancel()


def _closed() -> Closed:
    return Closed(_CLOSED, close_message(_CLOSED, ""))


async def _within(function: Callable[[], Awaitable[T]], timeout: float | None, missing: str) -> T:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await function()
    except TimeoutError:
        # The awaited function may raise a TimeoutError of its own.
        if not limit.expired():
            raise
        raise TimeoutError(f"{missing} within {timeout:g} seconds") from None
