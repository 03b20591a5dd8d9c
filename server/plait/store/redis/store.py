"""A store in Redis: one connection that writes batches, and a few that read and claim.

`batches.py` decides which writes share a batch. It is one script: of each thread it compares the head with the one that
this store holds, and runs or skips the commands that were planned from it. If its answer is lost, the store asks
whether it is stored.
"""

import logging
import secrets
from collections.abc import Sequence

from redis.exceptions import RedisError

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.protocol import ALL_THREADS, DueThread, StoredThread, ThreadKey, ThreadQuery, ThreadRow
from plait.store.reconnecting import Reconnector
from plait.store.redis.commits import Commits
from plait.store.redis.engine import Engine, explain, is_lost
from plait.store.redis.layout import Heads, Keys, RedisHead, join, split
from plait.store.redis.line import Line
from plait.store.redis.listing import list_due, list_threads
from plait.store.redis.reads import ERRORS, read_thread, telling
from plait.store.redis.scripts import CLAIM, FORMAT
from plait.store.redis.upkeep import RedisUpkeep
from plait.store.redis.url import RedisUrl
from plait.store.remote import RemoteStore
from plait.store.thread_rows import RecordRange
from plait.store.whole import StoredSchema

__all__ = ["RedisStore"]

log = logging.getLogger("plait.store")


class RedisStore(Commits, RemoteStore[RedisHead]):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    def __init__(self, url: RedisUrl, *, readonly: bool = False) -> None:
        super().__init__(url, readonly=readonly)
        self._keys = Keys(url.prefix)
        self.engine = Engine(url, self._on_loss, readonly=readonly)
        self._heads: Heads = {}
        self._begin()

    def _begin(self) -> None:
        """Create the objects that live from open to close."""
        self._line = Reconnector(self.engine.connect, Line.close, lambda line: line.is_lost, server="Redis")
        self._recover = None if self._readonly else self._line.wait
        self._changed = {}
        self._upkeep = RedisUpkeep(self._run, self._keys, self._heads, self._changed, self._batches.has_writes)

    @property
    def durability(self) -> str:
        if self.engine.weakness:
            return (
                "changes survive a crash of the process; a crash of Redis loses the last ones, or all "
                f"(durable=no, and {self.engine.weakness})"
            )
        if not (replicas := self.url.replicas):
            text = "changes survive crashes of the processes and machines, but a failover, also a planned one"
            return f"{text}, may lose the last ones{', of a few seconds' if self.url.service else ''}"
        where = "on their disks" if self.engine.can_wait_for_disks else "in memory"
        return (
            "changes survive crashes of the processes and machines, and a failover to one of the replicas that have "
            f"them {where} (replicas={replicas})"
        )

    async def _open(self) -> None:
        self._begin()
        self.engine.open()
        line = await self.engine.connect()
        self._line.open(line)
        (found,) = await line.run(("GET", self._keys("format")))
        if found is None:
            raise StoreError(f"there is no store with the prefix {self.url.prefix}; start a server with it first")
        check_format(int(found), FORMAT)
        if not self._readonly:
            self._upkeep.start()
            self._batches.open()
            if self.engine.weakness or (self.url.service and not self.url.replicas):
                log.warning("the store %s is less durable than plait's default: %s", self.url, self.durability)

    def _explain(self, error: BaseException) -> str | None:
        return explain(error) if isinstance(error, ERRORS) else super()._explain(error)

    async def schema(self, kind: str, hash: str) -> bytes | None:
        with telling("a schema"):
            found: list[bytes | None] = await self._run(("HGET", self._keys("schemas"), join(kind, hash)))
        return found[0]

    async def schemas(self) -> list[StoredSchema]:
        with telling("the schemas"):
            (found,) = await self._run(("HGETALL", self._keys("schemas")))
        return sorted((*split(name), value) for name, value in zip(found[::2], found[1::2], strict=True))

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        with telling("a schema", "could not be written"):
            await self.engine.run_durably(("HSETNX", self._keys("schemas"), join(kind, hash), schema))

    async def _probe(self, *, writes: bool) -> None:
        with telling("the store", "cannot be written"):
            await self._line.wait()
            await (self.engine.run_durably(("SET", self._keys("check"), 1)) if writes else self._run(("PING",)))

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        with telling("the list of threads"):
            await self._upkeep.save()
            return await list_threads(self._run, self._keys, query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        with telling("the list of due threads"):
            return await list_due(self._run, self._keys, until=until, after=after, limit=limit)

    # Inside

    def _is_trouble(self, cause: BaseException) -> bool:
        return isinstance(cause, StoreError | RedisError) or is_lost(cause)

    async def _claim_head(
        self, key: ThreadKey, ranges: Sequence[RecordRange] | None
    ) -> tuple[RedisHead, StoredThread | None]:
        with telling(key, "cannot be claimed"):
            keys = *self.engine.timeline_keys, *self._keys.thread(key, "h")
            claim = "EVAL", CLAIM, len(keys), *keys, secrets.token_hex(8)
            load = [] if ranges is None else [self._make_load(key, None, ranges)]
            (origin, row), *found = await self._run(claim, *load)
        self.engine.note_claim(origin)
        return RedisHead.read(row), read_thread(key, found[0], None, ranges or ()) if found else None

    async def _close(self) -> None:
        await self._upkeep.stop()
        await self._line.close()
        await self.engine.close()
