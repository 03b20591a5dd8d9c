"""Asks Sentinels which server is the primary."""

import asyncio
from collections import Counter
from typing import Final

from redis.asyncio import Connection
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError

from plait.store.redis.line import Line
from plait.store.redis.url import RedisUrl

__all__ = ["find_primary"]

# Seconds: the directory of a cluster gives up after 2.
_TIMEOUT: Final = 1.0


async def find_primary(url: RedisUrl) -> tuple[str, int]:
    """Return the server that a majority of the Sentinels of a URL names. Raises LostError.

    A single one may be late, or cut off from the others, which promote another server.
    """
    named, tasks = Counter[tuple[str, int]](), [asyncio.create_task(_ask(url, *each)) for each in url.addresses]
    try:
        for answer in asyncio.as_completed(tasks):
            if (primary := await answer) is not None:
                named[primary] += 1
                if 2 * named[primary] > len(tasks):
                    return primary
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not named:
        raise LostError(f"No master found for {url.service!r} by any of the Sentinels")
    names = ", ".join(f"{host}:{port} by {count}" for (host, port), count in named.items())
    raise LostError(f"no majority of the {len(tasks)} Sentinels names a primary: {names}")


async def _ask(url: RedisUrl, host: str, port: int) -> tuple[str, int] | None:
    """Return the server that a Sentinel names; None if it names none, or does not answer."""
    try:
        line = await Line.open(Connection, host, port, timeout=_TIMEOUT)
        try:
            (found,) = await line.run(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.service or ""))
        finally:
            line.terminate()
    except RedisError:
        return None
    return None if found is None else (found[0].decode(), int(found[1]))
