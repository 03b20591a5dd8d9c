"""Connects to one of several servers, even if some do not answer."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from plait.store.outcomes import Unreachable
from plait.store.sql.db import Db

__all__ = ["connect_first"]

T = TypeVar("T")
D = TypeVar("D", bound=Db)

# Seconds after which the next server is tried beside those that have not answered. A machine that was lost does not
# refuse connections, and the directory of a cluster waits for 2 seconds only.
_PATIENCE: Final = 0.5
# Seconds after which an attempt has failed.
_CONNECT_TIMEOUT: Final = 5.0


async def connect_first(
    hosts: Iterable[T],
    connect: Callable[[T], Coroutine[Any, Any, D]],
    *,
    errors: tuple[type[Exception], ...],
    explain: Callable[[BaseException], str],
) -> D:
    """Return the first connection to one of the hosts, which are tried in their order. Raises Unreachable.

    `connect` raises Unreachable, or one of `errors`.
    """
    expected: tuple[type[Exception], ...] = (Unreachable, *errors)
    failures, tasks, left = list[str](), set[asyncio.Task[D]](), iter(hosts)
    try:
        while True:
            if (host := next(left, None)) is not None:
                tasks.add(asyncio.create_task(_try(connect, host)))
            elif not tasks:
                raise Unreachable("; ".join(failures))
            done, _ = await asyncio.wait(tasks, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                tasks.discard(task)
                try:
                    return task.result()
                except TimeoutError:
                    failures.append(f"the server does not answer within {_CONNECT_TIMEOUT:g} seconds")
                except expected as error:
                    failures.append(explain(error))
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(_close)
        if tasks:
            await asyncio.wait(tasks)


async def _try(connect: Callable[[T], Coroutine[Any, Any, D]], host: T) -> D:
    async with asyncio.timeout(_CONNECT_TIMEOUT):
        return await connect(host)


def _close(task: asyncio.Task[D]) -> None:
    """Close a connection that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()
