"""Runs a statement that reads in an OS thread, on a connection of its own."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from math import inf
from threading import Event
from typing import Final, TypeVar, cast

import msgspec

from plait.errors import StoreError
from plait.parts.sql.database import Database, Row, make_error
from plait_schemas.codec import convert

__all__ = ["convert_rows", "pack", "read_rows", "unpack"]

T = TypeVar("T")

# Rows that are converted at once.
_AT_ONCE: Final = 1_000

# Arguments and rows on their way to another process.
pack: Final = msgspec.msgpack.encode
unpack: Final = msgspec.msgpack.decode


async def read_rows(
    path: str, statement: str, args: Sequence[object], *, into: type[T] | None = None, seconds: float = inf
) -> list[T]:
    """Return the rows of a statement, which is interrupted after `seconds`, or if this task is cancelled.

    Raises SqlError and StoreError.
    """
    stop = Event()
    work = partial(_read, path, statement, args, into, seconds=seconds, stop=stop)
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # Mark it as retrieved.
        raise


def convert_rows(rows: list[Row], into: type[T] | None, statement: str) -> list[T]:
    """Return rows as objects of a type, if one is given. Raises SqlError if a row does not fit."""
    if into is None:
        return cast(list[T], rows)
    try:
        # Rows are converted in steps, because other OS threads run between them.
        steps = (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE))
        return [*chain.from_iterable(convert(each, list[into], strict=False) for each in steps)]  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise make_error(f"the rows do not fit {into.__name__}: {error}", statement) from None


def _read(
    path: str, statement: str, args: Sequence[object], into: type[T] | None, *, seconds: float, stop: Event
) -> list[T]:
    try:
        with closing(Database(path, is_reader=True, stop=stop)) as database:
            return convert_rows(database.run(statement, args, seconds=seconds)[0], into, statement)
    except sqlite3.Error as error:
        raise StoreError("the local file of a thread's tables cannot be read", detail=str(error)) from error
