"""Rows in Redis: one connection writes batches, and a few read and claim. Each step of a read sees one moment."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from redis.exceptions import OutOfMemoryError, RedisError

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.outcomes import Unreachable
from plait.store.reconnecting import Reconnector
from plait.store.redis.engine import DRIVER_ERRORS, ERRORS, TOO_FEW, Engine, explain, is_lost, telling
from plait.store.redis.layout import OWNERS, decode_rows, encode_change, encode_span, head_name, needs_room, owner_name
from plait.store.redis.line import Command, Line
from plait.store.redis.scripts import CLAIM, COMMIT, COMMIT_ALWAYS, FORMAT, READ
from plait.store.redis.url import RedisUrl
from plait.store.rows.engine import Owner, Reader, ReadPlan, Row, Span
from plait.store.rows.parts import OWN
from plait.store.rows.running import await_reads
from plait.store.rows.server import Failure, Guarded, ServerEngine
from plait.store.spool import RecordSpool
from plait.store.thread_rows import Record, ThreadKey

__all__ = ["RedisRows"]

log = logging.getLogger("plait.store")

T = TypeVar("T")

# How often reads begin again.
_READS: Final = 20
# The rows and bytes of one page of a view.
_ROWS: Final = 1000
_BYTES: Final = 1024 * 1024

# The errors of a script before its first write, beside that of a full memory. After another one, some may be stored.
_REFUSALS: Final = ("MISCONF", "NOREPLICAS", "BUSY")


class RedisRows(ServerEngine[Line]):
    """The rows of a store in the database of a URL."""

    errors: tuple[type[Exception], ...] = ERRORS

    def __init__(self, url: RedisUrl, *, readonly: bool) -> None:
        self.connector: Engine = Engine(url, readonly=readonly)
        self._url = url
        self._readonly = readonly
        self._begin()

    def _begin(self) -> None:
        """Create the objects that live from open to close."""
        self._line = Reconnector(self.connector.connect, Line.close, lambda line: line.is_lost, server="Redis")
        self._turn = asyncio.Lock()

    @property
    def title(self) -> str:
        return f"the store {self._url}"

    @property
    def durability(self) -> str:
        weakness, replicas = self.connector.weakness, self._url.replicas
        if weakness:
            return (
                "changes survive a crash of the process; a crash of Redis loses the last ones, or all "
                f"(durable=no, and {weakness})"
            )
        if not replicas:
            text = "changes survive crashes of the processes and machines, but a failover, also a planned one"
            return f"{text}, may lose the last ones{', of a few seconds' if self._url.service else ''}"
        where = "on their disks" if self.connector.can_wait_for_disks else "in memory"
        return (
            "changes survive crashes of the processes and machines, and a failover to one of the replicas that have "
            f"them {where} (replicas={replicas})"
        )

    @property
    def origin(self) -> str:
        return self.connector.origin

    async def open(self) -> bool:
        self._begin()
        self.connector.open()
        line = await self.connector.connect()
        self._line.open(line)
        (found,) = await line.run(("GET", self.connector.format_key))
        if found is None:
            raise StoreError(f"there is no store with the prefix {self._url.prefix}; start a server with it first")
        check_format(int(found), FORMAT)
        if not self._readonly and (self.connector.weakness or (self._url.service and not self._url.replicas)):
            log.warning("the store %s is less durable than plait's default: %s", self._url, self.durability)
        return False

    async def close(self) -> None:
        await self._line.close()
        await self.connector.close()

    async def probe(self, *, writes: bool) -> None:
        with telling("the store", "cannot be written"):
            await self._line.wait()
            if writes:
                await self.connector.run_durably(("SET", self.connector.tag + b"check", 1))
            else:
                await self._run(("PING",))

    def explain(self, error: BaseException) -> str | None:
        return explain(error) if isinstance(error, ERRORS) else None

    def is_trouble(self, cause: BaseException) -> bool:
        return isinstance(cause, StoreError | RedisError) or is_lost(cause)

    def may_have_lost(self, origin: str) -> bool:
        return origin != self.origin

    async def claim(self, key: ThreadKey, owner: Owner) -> None:
        with telling():
            keys = *self.connector.timeline_keys, self.connector.tag + OWNERS
            claim = "EVAL", CLAIM, len(keys), *keys, owner_name(key)
            (origin,) = await self._try(lambda: [(*claim, owner.ask())])
        self.connector.note_claim(origin)

    # Reading

    async def read(self, plan: ReadPlan[T], /) -> T:
        return await self._read_at_one_moment(plan)

    async def read_owned(self, plan: ReadPlan[T], /) -> T:
        return await await_reads(plan, self._fetch_owned)

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Reader]:
        """All records are read with the first reads."""
        with RecordSpool() as spool:
            is_filled = False

            async def read(plan: ReadPlan[T], /) -> T:
                nonlocal is_filled
                if is_filled:
                    return await await_reads(plan, partial(_read_kept, spool))
                found = await self._read_at_one_moment(plan, spool)
                is_filled = True
                return found

            yield read

    async def fetch(
        self, spans: Sequence[Span], threads: Sequence[ThreadKey]
    ) -> tuple[Sequence[bytes], list[list[Row]]]:
        """Return the mark of each of the threads, and the rows of each span. Raises StoreError."""
        with telling():
            arguments: list[object] = [
                len(threads),
                *(value for key in threads for value in (owner_name(key), head_name(key))),
            ]
            for span in spans:
                arguments += encode_span(span)
            ((marks, found),) = await self._run(("EVAL", READ, 1, self.connector.tag, *arguments))
        return marks, [decode_rows(span, rows) for span, rows in zip(spans, found, strict=True)]

    # Inside

    async def _read_at_one_moment(self, plan: ReadPlan[T], spool: RecordSpool | None = None) -> T:
        """Return the result of reads; with a spool, keep the records of their thread. Raises StoreError."""
        for _ in range(_READS):
            moment = _Moment(self)
            with suppress(_Changed):
                found = await await_reads(plan, moment.read)
                if spool is not None:
                    await moment.keep(spool)
                return found
        raise StoreError("it is written too often to be read at one moment")

    async def _fetch_owned(self, spans: Sequence[Span]) -> list[list[Row]]:
        return (await self.fetch(spans, ()))[1] if spans else []

    async def _run(self, *commands: Command) -> list[Any]:
        """Run commands that may run twice. Raises StoreError, and what the driver raises."""
        return await self._try(lambda: commands)

    async def _try(self, make: Callable[[], Sequence[Command]]) -> list[Any]:
        """Do what `_run` does with commands that are made for each attempt."""
        try:
            return await self.connector.run(*make())
        except (Unreachable, *DRIVER_ERRORS) as error:
            if self._readonly or not (isinstance(error, Unreachable) or is_lost(error)):
                raise
        await self._line.wait()
        return await self.connector.run(*make())

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Line]:
        async with self._turn:
            yield await self._line.wait()

    async def _commit(self, line: Line, changes: Sequence[Guarded]) -> Sequence[bool | StoreError]:
        connector = self.connector
        script = COMMIT if any(map(needs_room, changes)) else COMMIT_ALWAYS
        arguments = [value for change in changes for value in encode_change(connector.tag, change)]
        command = "EVAL", script, 1, connector.tag, *arguments
        made, *waited = await line.run(*connector.add_wait(command))
        if connector.has_replicas(waited):
            return [bool(each) for each in made]
        return [bool(each) and StoreError(TOO_FEW) for each in made]

    def _judge(self, error: Exception, line: Line) -> Failure:
        if is_lost(error):
            return "lost"
        is_refused = isinstance(error, OutOfMemoryError) or str(error).startswith(_REFUSALS)
        return "refused" if is_refused or not isinstance(error, RedisError) else "doubtful"

    def _is_lost(self, error: Exception) -> bool:
        return is_lost(error)


class _Moment:
    """Fetches spans in steps. Changes and clients may be added in between to the threads of the first one."""

    def __init__(self, rows: RedisRows) -> None:
        self._rows = rows
        # Known after the first step.
        self.threads: list[ThreadKey] | None = None
        self._marks: Sequence[bytes] = ()

    async def read(self, spans: Sequence[Span]) -> list[list[Row]]:
        """Return the rows of each span. Raises StoreError, and an error that begins the reads again."""
        if not spans:
            return []
        is_first = self.threads is None
        if self.threads is None:
            self.threads = list({span.space: None for span in spans if isinstance(span.space, ThreadKey)})
        marks, found = await self._rows.fetch(spans, self.threads)
        if is_first:
            self._marks = marks
        elif marks != self._marks:
            raise _Changed
        return found

    async def keep(self, spool: RecordSpool) -> None:
        """Add the records of the thread to a spool."""
        spool.clear()
        assert self.threads is not None
        everything = Span(self.threads[0], ("",), (OWN,), limit=_ROWS, size=_BYTES)
        while rows := (await self.read([everything]))[0]:
            spool.add([Record(part, str(name), value) for part, name, value in rows])
            part, name, _ = rows[-1]
            everything = everything._replace(start=(part, f"{name}\0"))


async def _read_kept(spool: RecordSpool, spans: Sequence[Span]) -> list[list[Row]]:
    return [await _read_span(spool, span) for span in spans]


async def _read_span(spool: RecordSpool, span: Span) -> list[Row]:
    assert span.end == (OWN,), span
    assert span.size is not None
    after = (span.start[0], str(span.start[1]).removesuffix("\0")) if len(span.start) == 2 else ("", "")
    found = await spool.read(after, span.limit, span.size)
    return [(record.part, record.key, record.value) for record in found]


class _Changed(Exception):
    """Rows of a thread have been replaced or removed since the first step."""
