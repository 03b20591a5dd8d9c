"""`sql = Sql()`: SQLite tables that a thread keeps besides its state, written together with it."""

from collections.abc import Sequence
from typing import ClassVar

from plait.actor.actor import Actor
from plait.actor.thread import ThreadActor
from plait.parts.part import Part
from plait.parts.sql.thread_sql import Tables, ThreadSql, make_range
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Sql"]


class Sql(Part["ThreadSql"]):
    """Declares tables: `sql = Sql(migrations=[…])` in a Thread class gives each thread a `ThreadSql` of that name.

    Each migration is a script of SQL. A thread runs those that it has not run yet when it wakes, before `on_start`; so
    only append to the list. A statement of `read` may take `read_timeout` seconds of processor time.
    """

    reading: ClassVar = frozenset({"read", "read_packed"})

    def __init__(self, *, migrations: Sequence[str] = (), read_timeout: float = 10.0) -> None:
        super().__init__()
        if isinstance(migrations, str) or not all(isinstance(each, str) for each in migrations):
            raise TypeError("migrations must be a list of str, each a script of SQL")
        if not read_timeout > 0:
            raise ValueError(f"read_timeout must be a positive number of seconds, not {read_timeout!r}")
        self._tables = Tables(tuple(migrations), read_timeout)

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        self._tables.part = name

    def bind(self, actor: ThreadActor) -> ThreadSql:
        assert isinstance(actor, Actor)
        return ThreadSql(actor, self._tables)

    def ranges(self) -> list[RecordRange]:
        return [make_range(self.name)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        await self.of(actor)._load(records[0])

    def unload(self, actor: ThreadActor) -> None:
        self.of(actor)._unload()
