"""What hooks and turns return, and how it is handed on."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

__all__ = ["Done", "make_resolver", "maybe_await", "wait_for_durable"]

T = TypeVar("T")

Done = Callable[[Any, BaseException | None], None]
"""Called with the result of a turn, or with what it raised."""


def make_resolver(future: asyncio.Future[Any]) -> Done:
    """Return a Done that sets the outcome of `future`, unless it is done already."""

    def done(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return done


async def wait_for_durable(value: T, after: Callable[[Callable[[BaseException | None], None]], None]) -> T:
    """Return a value that was read from a thread when all that it tells is durable; `after` is the thread's."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    after(partial(make_resolver(future), value))
    return await future


async def maybe_await(value: Awaitable[T] | T) -> T:
    """Return the result of a hook, which may be awaitable."""
    if inspect.isawaitable(value):
        return cast(T, await value)
    return value
