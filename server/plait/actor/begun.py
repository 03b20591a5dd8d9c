"""Writes that must first read, or ask another thread: they begin when they are called."""

import asyncio
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["Begun", "keep_begun"]

T = TypeVar("T")


class Begun(Generic[T]):
    """Work that has begun in a task. It is finished even if the code that awaits it is cancelled."""

    __slots__ = ("_is_awaited", "_task")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.Task(work, loop=asyncio.get_running_loop())
        # Whether other code waits for the work, and gets its error.
        self._is_awaited = False

    def __await__(self) -> Generator[Any, None, T]:
        return (yield from self.take_over().__await__())

    def take_over(self) -> asyncio.Future[T]:
        """Return the result for other code, which waits for it from now on."""
        self._is_awaited = True
        self._task.add_done_callback(_retrieve_error)
        return asyncio.shield(self._task)

    @property
    def is_over(self) -> bool:
        """Whether the work has ended, and other code gets its outcome."""
        return self._is_awaited and self._task.done()

    async def finish(self) -> None:
        """Wait for the work, and raise its error, unless other code does."""
        if not self._is_awaited:
            await self

    def cancel(self) -> None:
        """Cancel the work."""
        self._task.cancel()


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging the error of work if the code that awaits it was cancelled."""
    if not task.cancelled():
        task.exception()


def keep_begun(kept: Iterable[Begun[Any]], begun: Begun[Any]) -> list[Begun[Any]]:
    """Return the kept works that are not over, and a further one."""
    return [*(each for each in kept if not each.is_over), begun]
