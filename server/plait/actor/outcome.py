"""The outcomes of hooks and turns, and the callbacks that receive them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from plait.errors import TurnTimeout

__all__ = ["Done", "RunningCall", "limit_time", "make_resolver", "wait_for_durable"]

T = TypeVar("T")

Done = Callable[[Any, BaseException | None], None]
"""Called with the result of a turn, or with the exception that it raised."""


class RunningCall(Protocol):
    """A call of an rpc, or a request, that has not ended yet."""

    def abandon(self, *, is_closed: bool = False) -> None:
        """Skip the call if it has not begun; cancel it if it runs concurrently with other turns.

        `is_closed` means that the caller's socket was closed.
        """
        ...

    def cancel(self) -> None:
        """Cancel the call if it is running; skip it if it has not begun."""
        ...

    def skip(self) -> None:
        """Skip the call if it has not begun."""
        ...

    def on_end(self, callback: Done) -> None:
        """Call `callback` when the call has ended or was skipped."""
        ...


def make_resolver(future: asyncio.Future[Any]) -> Done:
    """Return a Done that sets the outcome of `future`, unless that is already done."""
    return partial(_resolve, future)


def _resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if error is None and not future.done():
        future.set_result(result)
    elif error is not None and not future.done():
        future.set_exception(error)


async def wait_for_durable(value: T, after: Callable[[Callable[[BaseException | None], None]], None]) -> T:
    """Return a value that was read from a thread, once all changes that it shows are durable.

    `after` is `Pipeline.after` of the thread.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    after(partial(make_resolver(future), value))
    return await future


@asynccontextmanager
async def limit_time(seconds: float | None, why: str = "") -> AsyncIterator[None]:
    """Cancel a block after the time that an author has set; None means never. Raises TurnTimeout, with `why`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise TurnTimeout(why or f"it has taken longer than {seconds} s") from None
        raise
