"""`sql = Sql()`: SQLite tables that a thread keeps besides its state, written together with it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from plait.actor.actor import Actor
from plait.actor.thread import ThreadActor
from plait.parts.part import Part
from plait.parts.remote import RemotePart
from plait.parts.sql.database import read_arguments
from plait.parts.sql.reading import convert_rows, pack, unpack
from plait.parts.sql.thread_sql import Tables, ThreadSql, make_range
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Sql"]


class Sql(Part["ThreadSql"]):
    """Declares tables: `sql = Sql(migrations=[…])` in a Thread class gives each thread a `ThreadSql` of that name.

    Each migration is a script of SQL. A thread runs those that it has not run yet when it wakes, before `on_start`; so
    only append to the list. A statement of `read` may take `read_timeout` seconds of processor time.
    """

    loads_none: ClassVar = True
    notes_reads: ClassVar = True
    reading: ClassVar = frozenset({"read", "read_packed"})

    def __init__(self, *, migrations: Sequence[str] = (), read_timeout: float = 10.0) -> None:
        super().__init__()
        if isinstance(migrations, str) or not all(isinstance(each, str) for each in migrations):
            raise TypeError("migrations must be a list of str, each a script of SQL")
        if not read_timeout > 0:
            raise ValueError(f"read_timeout must be a positive number of seconds, not {read_timeout!r}")
        self._tables = Tables(tuple(migrations), read_timeout)

    def bind(self, actor: ThreadActor) -> ThreadSql:
        assert isinstance(actor, Actor)
        return ThreadSql(actor, self.name, self._tables)

    def bind_remote(self, remote: RemotePart) -> "RemoteSql":
        return RemoteSql(remote)

    def ranges(self) -> list[RecordRange]:
        return [make_range(self.name)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        await self.of(actor)._load(records[0])

    def unload(self, actor: ThreadActor) -> None:
        self.of(actor)._unload()


class RemoteSql:
    """The statements of tables of another process, whose rows become objects of `into` here."""

    def __init__(self, remote: RemotePart) -> None:
        self._remote = remote

    def __call__(self, statement: str, *args: object, into: type[Any] | None = None) -> Coroutine[Any, Any, Any]:
        return self._run("run_packed", statement, args, into)

    def read(self, statement: str, *args: object, into: type[Any] | None = None) -> Coroutine[Any, Any, Any]:
        return self._run("read_packed", statement, args, into)

    async def _run(self, method: str, statement: str, args: Sequence[object], into: type[Any] | None) -> list[Any]:
        rows = await self._remote.call(method, statement, pack(read_arguments(args, statement)))
        return await asyncio.to_thread(lambda: convert_rows(unpack(rows), into, statement))
