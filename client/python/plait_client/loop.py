"""An event loop in a thread of its own, for those who have none."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")

_PATIENCE: Final = 1.0


class LoopThread:
    """Runs what it is given in its thread, while the caller waits."""

    def __init__(self) -> None:
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plait client", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._is_ready.set()
            self._loop.run_forever()

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self, function: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        """Call a function in the loop, and return what its awaitable gives. Raises TimeoutError.

        Interrupting this, as with Ctrl-C, cancels what is under way.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback must not wait for the client that calls it")
        if self.is_closed:
            raise RuntimeError("the client was closed")
        future = asyncio.run_coroutine_threadsafe(_within(function, timeout), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def do(self, function: Callable[[], T]) -> T:
        """Call a function in the loop, and return what it returns. Callbacks may do this too."""
        if threading.current_thread() is self._thread:
            return function()

        async def call() -> T:
            return function()

        return self.wait(call, None)

    def close(self) -> None:
        """End the loop and its thread, as soon as those who still wait for something have been told."""
        self.wait(_others_end, None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _others_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_PATIENCE)


async def _within(function: Callable[[], Awaitable[T]], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await function()
