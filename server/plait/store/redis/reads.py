"""The methods that read a store in Redis. Each script sees one moment."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec

from plait.errors import CorruptThread, StoreError
from plait.store.base import EngineStore
from plait.store.outcomes import Unreachable
from plait.store.page import take_page
from plait.store.protocol import StoredThread, ThreadHeader, ThreadKey, ThreadView
from plait.store.redis.engine import DRIVER_ERRORS, Engine, explain, is_lost
from plait.store.redis.layout import Keys, decode, join, split, to_change, to_client
from plait.store.redis.line import Command
from plait.store.redis.planning import Log
from plait.store.redis.scripts import CHANGES, LOAD, RECORDS
from plait.store.spool import RecordSpool
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Prune, Record, RecordRange

__all__ = ["ERRORS", "Reads", "read_thread", "telling"]

ERRORS: Final = (*DRIVER_ERRORS, OverflowError, TypeError, ValueError)
"""The errors of reading and planning, beside StoreError."""

# After all text in UTF-8.
_END: Final = b"\xff"
_ALL: Final = 2**52
# Changes that are read at once, if they are bounded by their size.
_CHANGES: Final = 64
# The rows and bytes of one page of a log or a view.
_ROWS: Final = 1000
_BYTES: Final = 1024 * 1024
# How often a view begins again.
_TRIES: Final = 20


class Reads(EngineStore):
    """The methods of a store that read its threads."""

    engine: Engine
    _keys: Keys
    # Waits until the server can be reached; None if nothing does.
    _recover: Callable[[], Awaitable[object]] | None

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        with telling(key):
            (found,) = await self._run(self._make_load(key, version, records))
        return read_thread(key, found, version, records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        with telling(key):
            (head,) = await self._run(("HMGET", *self._keys.thread(key, "h"), "e", "v", "cr", "u", "due", "ch"))
        epoch, version, created_at, user, due, changed_at = head
        if created_at is None:
            return None
        return ThreadHeader(epoch.decode(), int(version), int(created_at), decode(user), int(due), int(changed_at))

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        with telling(key):
            (row,) = await self._run(("HGET", *self._keys.thread(key, "l"), client.encode()))
        return None if row is None else to_client(client, row)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        (found,) = await self.record_of_each([key], part, name)
        return found

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        with telling(key):
            ((_, found),) = await self._run(("EVAL", RECORDS, 3, *self._keys.thread(key, "hro"), *_range(wanted)))
        return _read_records(found)

    async def record_of_each(self, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
        with telling(keys[0] if len(keys) == 1 else "records"):
            record = join(part, name)
            return await self._run(*(("HGET", *self._keys.thread(key, "r"), record) for key in keys))

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        """All records are read on entering, in pages; it begins again if one of them is written in between."""
        with RecordSpool() as spool:
            stored = await self._fill(key, spool)
            yield None if stored is None else ThreadView(stored, spool.read)

    # Inside

    async def _run(self, *commands: Command) -> list[Any]:
        """Run commands that may run twice. Raises StoreError, and what the driver raises."""
        if not commands:
            return []
        try:
            return await self.engine.run(*commands)
        except (Unreachable, *DRIVER_ERRORS) as error:
            if self._recover is None or not (isinstance(error, Unreachable) or is_lost(error)):
                raise
        await self._recover()
        return await self.engine.run(*commands)

    async def _list_snapshots(self, key: ThreadKey) -> list[int]:
        with telling(key):
            (versions,) = await self._run(("HKEYS", *self._keys.thread(key, "s")))
        return [int(each) for each in versions]

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        with telling(key):
            (rows,) = await self._run(("HGETALL", *self._keys.thread(key, "l")))
        found = sorted(zip(rows[::2], rows[1::2], strict=True))
        return [to_client(name.decode(), row) for name, row in found if name > after.encode()][:limit]

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        return (await self._read_page(key, after, limit, size))[1]

    def _make_load(self, key: ThreadKey, version: int | None, ranges: Sequence[RecordRange]) -> Command:
        """Return the command that loads a thread. Raises UnicodeEncodeError."""
        values = [value for each in ranges for value in _range(each)]
        keys = self._keys.thread(key, "hcslro")
        return "EVAL", LOAD, len(keys), *keys, "" if version is None else version, KNOWN_CLIENTS, *values

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        found: list[ChangeRow] = []
        total = 0
        with telling(key):
            keys = self._keys.thread(key, "hc")
            while len(found) < limit and (size is None or total < size or not found):
                count = limit if size is None else min(limit - len(found), _CHANGES)
                (rows,) = await self._run(("EVAL", CHANGES, 2, *keys, version, count, int(is_reverse)))
                page = [to_change(row) for row in (reversed(rows) if is_reverse else rows)]
                found += page
                if len(page) < count:
                    break
                total += sum(len(row.ops) for row in page)
                version = page[-1].version
        return take_page(found, lambda row: len(row.ops), size)

    async def _load_log(self, key: ThreadKey, prune: Prune, now: int) -> Log:
        """Return the log of a thread, as far as it must be known to prune it."""
        head, snapshots, clients = self._keys.thread(key, "hsl")
        base, versions, pushed = await self._run(("HGET", head, "b"), ("HKEYS", snapshots), ("HGETALL", clients))
        changes: dict[int, ChangeRow] = {}
        if prune.bytes is not None:
            rows = await self.changes_before(key, _ALL, limit=_ALL, size=prune.bytes + 1)
            changes = {row.version: row for row in rows}
        after = int(base or 0)
        while prune.at > 0 and (page := await self.changes(key, after=after, limit=_ROWS, size=_BYTES)):
            changes |= {row.version: row for row in page}
            if any(prune.at <= row.at <= now for row in page):
                break
            after = page[-1].version
        times = {name.decode(): to_client("", row).at for name, row in zip(pushed[::2], pushed[1::2], strict=True)}
        return Log(int(base or 0), [changes[at] for at in sorted(changes)], [int(each) for each in versions], times)

    async def _fill(self, key: ThreadKey, spool: RecordSpool) -> StoredThread | None:
        """Put the records of a thread into a spool, and return the thread at the same moment."""
        for _ in range(_TRIES):
            spool.clear()
            with telling(key):
                (found,) = await self._run(self._make_load(key, None, ()))
            if (stored := read_thread(key, found, None, ())) is None:
                return None
            mark, after = found[0][-1], ("", "")
            while True:
                now, page = await self._read_page(key, after, _ROWS, _BYTES)
                if now != mark:
                    break
                if not page:
                    return stored
                with telling(key):
                    spool.add(page)
                after = page[-1].part, page[-1].key
        raise StoreError(f"{key} cannot be read: its records are written too often to be read at one moment")

    async def _read_page(
        self, key: ThreadKey, after: tuple[str, str], limit: int, size: int
    ) -> tuple[bytes | None, list[Record]]:
        """Return the mark of the last write of records, and records of all parts after a part and a key."""
        with telling(key):
            keys = self._keys.thread(key, "hro")
            first = b"(" + join(*after)
            command = ("EVAL", RECORDS, 3, *keys, "ZRANGEBYLEX", first, b"+", limit, size)
            ((mark, found),) = await self._run(command)
        return mark, _read_records(found)


@contextmanager
def telling(what: object, failure: str = "cannot be read") -> Iterator[None]:
    """Make other errors StoreErrors that say what has failed."""
    try:
        yield
    except (StoreError, *ERRORS) as error:
        kind = type(error) if isinstance(error, Unreachable) else Unreachable if is_lost(error) else StoreError
        raise kind(f"{what} {failure}: {explain(error)}") from error


def _range(wanted: RecordRange) -> Command:
    """Return the arguments of a script for a range: the command, its bounds, the limit and the size."""
    part, prefix = wanted.part, wanted.prefix
    first, end = join(part, max(prefix, f"{wanted.after}\0") if wanted.after else prefix), prefix.encode() + _END
    if wanted.before is not None:
        end = min(end, wanted.before.encode())
    bounds = b"[" + first, b"(" + join(part, "") + end
    size = _ALL if wanted.size is None else max(wanted.size, 1)
    if wanted.reverse:
        return "ZREVRANGEBYLEX", *reversed(bounds), wanted.limit, size
    return "ZRANGEBYLEX", *bounds, wanted.limit, size


def _read_records(found: Sequence[bytes]) -> list[Record]:
    return [Record(*split(name), value) for name, value in zip(found[::2], found[1::2], strict=True)]


def read_thread(key: ThreadKey, found: Any, version: int | None, ranges: Sequence[RecordRange]) -> StoredThread | None:
    """Return the thread of the answer of `LOAD`. Raises CorruptThread."""
    if found is None:
        return None
    head, to, since, snapshot, rows, clients, records = found
    created_at, epoch, _, _, state_version, secret, is_stateless, due, user, _ = head
    try:
        changes = [to_change(row) for row in rows]
    except msgspec.DecodeError as error:
        raise CorruptThread(f"{key} cannot be read: a change is damaged: {error}") from error
    if snapshot is None and not changes and not (is_stateless == b"1" and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if [row.version for row in changes] != list(range(since + 1, to + 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    ids = None if clients is None or version is not None else frozenset(each.decode() for each in clients)
    return StoredThread(
        *(epoch.decode(), to, snapshot, changes, int(state_version), secret, ids, int(due), int(created_at)),
        decode(user),
        tuple(_read_records(each) for each in records),
    )
