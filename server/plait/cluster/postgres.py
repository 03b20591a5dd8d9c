"""The directory of a cluster in PostgreSQL, in two tables beside those of the store."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from plait.cluster.directory import NO_VIEW, DirectoryView, NodeRecord, ShardRecord
from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.postgres.engine import DRIVER_ERRORS, TIMELINE, Db, Engine, explain, has_no_table
from plait.store.postgres.schema import Tables
from plait.store.postgres.url import PostgresUrl
from plait.store.shards import SHARDS

__all__ = ["PostgresDirectory"]

T = TypeVar("T")

_CREATE: Final = f"""
CREATE TABLE {{nodes}} (
    id text PRIMARY KEY, name text NOT NULL, address text NOT NULL, beats bigint NOT NULL DEFAULT 0,
    is_dead boolean NOT NULL DEFAULT false, versions jsonb NOT NULL, is_leaving boolean NOT NULL DEFAULT false,
    links jsonb NOT NULL DEFAULT '[]'
);
CREATE UNIQUE INDEX ON {{nodes}} (name) WHERE NOT is_dead;
CREATE TABLE {{shards}} (
    shard integer PRIMARY KEY, node text NOT NULL, epoch bigint NOT NULL, versions jsonb NOT NULL
) WITH (fillfactor = 50);
INSERT INTO {{shards}} SELECT n, '', 0, '{{}}' FROM generate_series(0, {SHARDS - 1}) AS n;
"""
_READ: Final = """
SELECT (SELECT coalesce(json_agg(json_build_object(
        'id', id, 'name', name, 'address', address, 'beats', beats, 'is_dead', is_dead, 'versions', versions,
        'is_leaving', is_leaving, 'links', links
    ) ORDER BY name), '[]')::text FROM {nodes}) AS nodes,
    (SELECT json_agg(json_build_array(node, epoch, versions) ORDER BY shard)::text FROM {shards}) AS shards
"""
_JOIN: Final = """
INSERT INTO {nodes} (id, name, address, versions) VALUES ($1, $2, $3, $4::jsonb)
ON CONFLICT DO NOTHING RETURNING 1
"""
_FIND: Final = "SELECT id, name, address, beats, is_dead, versions::text FROM {nodes} WHERE name = $1 AND NOT is_dead"
_BEAT: Final = """
UPDATE {nodes} SET beats = beats + 1, is_leaving = $2, links = $3::jsonb WHERE id = $1 AND NOT is_dead RETURNING 1
"""
_MARK: Final = "UPDATE {nodes} SET is_dead = true WHERE id = $1 AND beats = $2 AND NOT is_dead RETURNING 1"
_REMOVE: Final = "DELETE FROM {nodes} WHERE id = $1"
_FORGET: Final = """
DELETE FROM {nodes} n WHERE is_dead AND NOT EXISTS (SELECT 1 FROM {shards} s WHERE s.node = n.id)
"""
# The new epoch is above all former ones on any timeline: a failover may have lost the last ones.
_MOVE: Final = f"""
WITH owner AS (SELECT id FROM {{nodes}} WHERE id = $1 AND NOT is_dead FOR SHARE),
    giver AS (SELECT id FROM {{nodes}} WHERE id = $2 AND NOT is_dead FOR SHARE),
    wanted AS (SELECT s.shard FROM unnest($3::integer[], $4::bigint[]) AS w (shard, epoch)
        JOIN {{shards}} s ON s.shard = w.shard AND s.epoch = w.epoch
        WHERE CASE WHEN $5 THEN s.node NOT IN (SELECT id FROM {{nodes}} WHERE NOT is_dead) ELSE s.node = $2 END
        ORDER BY s.shard FOR UPDATE OF s)
UPDATE {{shards}} s SET node = $1, epoch = greatest(s.epoch, {TIMELINE} << 40) + 1
FROM wanted w, owner o, giver g WHERE s.shard = w.shard RETURNING s.shard, s.epoch
"""
_RECORD: Final = """
WITH wanted AS (SELECT key::integer AS shard, value AS versions FROM jsonb_each($2::jsonb))
UPDATE {shards} s SET versions = (
    SELECT jsonb_object_agg(kind, version) FROM (
        SELECT key AS kind, max(value::bigint) AS version
        FROM (SELECT * FROM jsonb_each_text(s.versions) UNION ALL SELECT * FROM jsonb_each_text(w.versions)) every
        GROUP BY key) highest)
FROM wanted w WHERE s.shard = w.shard AND s.node = $1 RETURNING s.shard
"""
# Seconds after which a call without an answer has failed; a node's beats must not wait for it.
_TIMEOUT: Final = 2.0


class PostgresDirectory:
    """Keeps the directory in the database of a store's URL, with a connection for beats and one for everything else."""

    def __init__(self, url: PostgresUrl, *, timeout: float = _TIMEOUT) -> None:
        self._tables = Tables(url)
        self._beats = _Line(url, timeout)
        self._line = _Line(url, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._beats.close()
        await self._line.close()

    async def read(self) -> DirectoryView:
        """Return the directory as it is at one moment of this call; an empty one before the first node has joined."""
        rows = await self._fetch(_READ, is_made=False)
        if not rows:
            return NO_VIEW
        row = rows[0]
        return DirectoryView(
            msgspec.json.decode(row["nodes"], type=list[NodeRecord]),
            msgspec.json.decode(row["shards"], type=list[ShardRecord]),
        )

    async def join(self, node: NodeRecord) -> NodeRecord | None:
        versions = msgspec.json.encode(node.versions).decode()
        await self._line.run(self._create)
        await self._fetch(_FORGET)
        await self._fetch(_JOIN, node.id, node.name, node.address, versions)
        found = await self._fetch(_FIND, node.name)
        if not found or found[0]["id"] == node.id:
            return None
        other = dict(found[0])
        return NodeRecord(**other | {"versions": msgspec.json.decode(other["versions"])})

    async def beat(self, id: str, *, is_leaving: bool = False, links: Sequence[str] = ()) -> bool:
        links_json = msgspec.json.encode(list(links)).decode()
        return bool(await self._fetch(_BEAT, id, is_leaving, links_json, line=self._beats))

    async def mark_dead(self, id: str, beats: int) -> bool:
        return bool(await self._fetch(_MARK, id, beats))

    async def remove(self, id: str) -> None:
        await self._fetch(_REMOVE, id)

    async def take(self, id: str, shards: Mapping[int, int]) -> dict[int, int]:
        return await self._move(id, shards, id, takes=True)

    async def give(self, id: str, shards: Mapping[int, int], to: str) -> dict[int, int]:
        return await self._move(to, shards, id, takes=False)

    async def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> list[int]:
        return [row["shard"] for row in await self._fetch(_RECORD, id, msgspec.json.encode(versions).decode())]

    # Inside

    async def _move(self, to: str, shards: Mapping[int, int], by: str, *, takes: bool) -> dict[int, int]:
        rows = await self._fetch(_MOVE, to, by, list(shards), list(shards.values()), takes)
        return {row["shard"]: row["epoch"] for row in rows}

    async def _fetch(self, sql: str, *values: Any, line: "_Line | None" = None, is_made: bool = True) -> list[Any]:
        """Return rows; unless the tables are known to be made, none if they are not."""

        async def fetch(db: Db) -> list[Any]:
            try:
                return list(await db.fetch(self._tables.fill(sql), *values))
            except DRIVER_ERRORS as error:
                if is_made or not has_no_table(error):
                    raise
                return []

        return await (line or self._line).run(fetch)

    async def _create(self, db: Db) -> None:
        if await self._is_there(db):
            return
        try:
            async with db.transaction():
                await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", self._tables.fill("{nodes}"))
                await db.execute(self._tables.fill(_CREATE))
        except DRIVER_ERRORS:
            if not await self._is_there(db):  # Otherwise another node was first.
                raise

    async def _is_there(self, db: Db) -> bool:
        return bool(await db.fetchval("SELECT to_regclass($1) IS NOT NULL", self._tables.fill("{shards}")))


class _Line:
    """A connection that is replaced when it is lost. It does one thing at a time."""

    def __init__(self, url: PostgresUrl, timeout: float) -> None:
        self._engine = Engine(url, lambda: None)
        self._timeout = timeout
        self._db: Db | None = None
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Do something with the connection. Raises StoreError; whether it is done is not known then."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout):
                    if self._db is None or self._db.is_closed():
                        self._db = await self._engine.connect()
                    return await work(self._db)
            except (*DRIVER_ERRORS, TimeoutError, Unreachable) as error:
                self._drop()
                what = "no answer in time" if isinstance(error, TimeoutError) else explain(error)
                raise StoreError(
                    f"the directory of the nodes in {self._engine.url} cannot be reached: {what}"
                ) from error
            except BaseException:
                self._drop()  # A statement may be under way.
                raise

    async def close(self) -> None:
        """Close the connection."""
        db, self._db = self._db, None
        if db is not None:
            try:
                await db.close(timeout=1.0)
            except (*DRIVER_ERRORS, TimeoutError):
                db.terminate()

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.terminate()
