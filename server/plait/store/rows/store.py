"""A store over the rows of an engine: plans writes into rows, and reads threads from them."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import msgspec

from plait.clock import read_wall_clock
from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.base import EngineStore
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.outcomes import Outcome
from plait.store.protocol import ALL_THREADS, READ, DueThread, ThreadQuery, ThreadRow, Write
from plait.store.rows import listing
from plait.store.rows.engine import INDEX, LOST, Change, Engine, Key, Known, Log, Range, ReadPlan, Reads
from plait.store.rows.layout import check_formats, only, span_of
from plait.store.rows.parts import CHANGE, CLIENT, FORMAT, OWN, REMOVED, SCHEMA, SNAPSHOT
from plait.store.rows.planning import (
    Pruned,
    RowsToWrite,
    add_head,
    clear,
    count_new,
    find_pruned,
    follow,
    make_head,
    plan_head,
    refuse,
)
from plait.store.rows.reads import RowReader, find, find_strays, renew_epochs
from plait.store.rows.spaces import Spaces, put_rows, read_spans
from plait.store.thread_rows import ChangeRow, ClientRow, ThreadKey

__all__ = ["RowStore"]

# The name of a listing in errors.
_LIST: Final = "the list of threads"
# Seconds after a change until the row of its thread is updated, and microseconds after which a change itself updates
# it, if the thread was never idle since.
_SAVE_AFTER: Final = 1.0
_SAVE_WITH: Final = 1_000_000
# The threads whose rows are saved at once, while writes wait.
_STEP: Final = 200

# The sources of changes are few: clients and "server".
_encode_source: Final = lru_cache(1024)(msgspec.json.Encoder().encode)


class RowStore(RowReader, EngineStore):
    """Stores threads in the rows of an engine.

    The row of a thread is not written with each change, but about a second later: its last change tells the version,
    and only listings need the time.
    """

    _make_spaces: type[Spaces] = Spaces

    def __init__(self, engine: Engine, *, readonly: bool = False) -> None:
        self._engine = engine
        self._readonly = readonly
        self._saving: asyncio.TimerHandle | None = None
        self._begin()
        super().__init__(title=engine.title)

    def _begin(self) -> None:
        """Create what lives from open to close."""
        # The threads that were written, while they have an owner.
        self._known: dict[ThreadKey, Known] = {}
        # Those that were written, or have lost their owner, since rows were last saved.
        self._stale: dict[ThreadKey, None] = {}
        # The last batch, whose outcomes are not taken yet, and whether it deletes threads.
        self._made: tuple[Sequence[Change], bool, asyncio.Future[Sequence[Outcome]]] | None = None
        # Done when the last batch has its outcome. No rows are saved before.
        self._batch: asyncio.Future[Sequence[Outcome]] | None = None
        # The task that saves the rows of some threads. No plan is made before its end.
        self._step: asyncio.Task[None] | None = None
        self._spaces = self._make_spaces(self._engine)

    @property
    def durability(self) -> str:
        return self._engine.durability

    async def _open(self) -> None:
        self._begin()
        has_lost = await self._engine.open()
        spans = span_of(INDEX, FORMAT), span_of(INDEX, REMOVED)._replace(limit=1)
        rows, removed = await self._engine.read(ReadPlan(read_spans, *spans))
        new = check_formats(rows)
        if self._readonly:
            return
        if new:
            await put_rows(self._engine, new)
        if has_lost:
            # No client may resume from a version that is not stored. The formats are written, too, so that even a store
            # without threads has a last write again.
            await put_rows(self._engine, [*check_formats(()), *await self._engine.read(ReadPlan(renew_epochs))])
        self._accept_writes()
        if removed:
            self._spaces.begin_removal()

    async def _close(self) -> None:
        self._take_outcomes()
        await self._spaces.close()
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        await self._save()
        await self._engine.close()

    async def _probe(self, *, writes: bool) -> None:
        await self._engine.probe(writes=writes)

    def _is_trouble(self, cause: BaseException) -> bool:
        return self._engine.is_trouble(cause)

    def _explain(self, error: BaseException) -> str | None:
        return self._engine.explain(error) or super()._explain(error)

    def release(self, key: ThreadKey, fence: int) -> None:
        super().release(key, fence)
        self._stale[key] = None
        self._save_later()

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        with suppress(StoreError):  # Writing tells the reason.
            if await self.schema(kind, hash) is not None:
                return
        await put_rows(self._engine, [(INDEX, SCHEMA + kind, hash, schema)], what="a schema")

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        if self._is_open:
            await self._save()  # The times of the last changes may be a second old.
        if listing.is_sorted_here(query):
            return await listing.list_sorted(query, partial(self._read, _LIST))
        return await self._read(_LIST, ReadPlan(listing.list_threads, query))

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        return await self._read("the list of due threads", ReadPlan(listing.list_due, until, after, limit))

    # Writing

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        """Plan a batch, and pass it to the engine. If something must be read for the plan, a task does that first."""
        if self._made is not None:
            self._take_outcomes()
        if self._step is None and (self._spaces.left >= len(batch) or self._spaces.left >= count_new(batch)):
            try:
                next(self._plan_all(batch))
            except StopIteration as end:
                self._batch = self._make(*end.value)
                return self._batch
        self._batch = asyncio.get_running_loop().create_task(self._commit(batch, self._step), context=Context())
        return self._batch

    async def _commit(self, batch: Sequence[WriteGroup], step: asyncio.Task[None] | None) -> Sequence[Outcome]:
        if step is not None:
            await asyncio.wait([step])
        if self._spaces.left < (count := count_new(batch)):
            await self._spaces.reserve(count)
        try:
            planned = await self._engine.read(ReadPlan(self._plan_all, batch))
        except StoreError as error:
            return [(0, refuse(group.writes[0].key, error)) for group in batch]
        return await self._make(*planned)

    def _plan_all(self, batch: Sequence[WriteGroup]) -> Reads[tuple[list[Change], bool]]:
        """Return a change for each group, and whether threads are deleted."""
        now, known, has_deletion = read_wall_clock(), self._known, False
        changes: list[Change] = []
        for group in batch:
            key = group.writes[0].key
            try:
                before, fence = known.get(key), group.writes[0].fence
                if before is None or (before.owner is not None and before.owner.fence != fence):
                    before = yield from self._find_known(key, fence)
                if before.head is LOST and not group.writes[0].is_deletion:
                    raise CorruptThread("its row is damaged")
                head = before.head
                count, error = group.count_following(None if head is None else (head.epoch, before.version))
                writes: Sequence[Write] = group.writes if error is None else group.writes[:count]
                if len(writes) != 1 or writes[0].is_deletion:
                    writes = coalesce(writes)
                    has_deletion |= any(write.is_deletion for write in writes)
                if writes:
                    pruned, last = None, writes[-1]
                    if last.prune is not None:
                        pruned = yield from find_pruned(before, last, last.prune, now)
                    change = _plan_thread(before, writes, (count, error), now=now, pruned=pruned, spaces=self._spaces)
                    changes.append(change if head is not LOST else clear(change, (yield from find_strays(key))))
                    continue
            except Fenced as failure:
                count, error = 0, failure
            except (StoreError, TypeError, ValueError, OverflowError) as failure:
                count, error = 0, refuse(key, failure)
            changes.append(Change(key, (), (), (count, error)))
        return changes, has_deletion

    def _find_known(self, key: ThreadKey, fence: int) -> Reads[Known]:
        """Return a thread as it is stored. Raises Fenced if this is not the number of its owner."""
        found = yield from find(key)
        return Known() if found is None else Known(*found, found[0].changed_at)

    def _make(self, changes: Sequence[Change], has_deletion: bool) -> asyncio.Future[Sequence[Outcome]]:
        work = self._engine.write(changes)
        self._made = changes, has_deletion, work
        if self._saving is None:
            self._save_later()
        return work

    def _take_outcomes(self) -> None:
        """Remember the threads as the last batch has left them, which is not done before something needs it."""
        if self._made is None or not self._made[2].done():
            return
        (changes, has_deletion, work), self._made = self._made, None
        self._spaces.has_removed |= has_deletion
        outcomes = _read_outcomes(changes, work)
        known, stale = self._known, self._stale
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome is not change.outcome:
                known.pop(change.key, None)  # It is not known what is stored.
            elif change.after is not None:
                known[change.key] = change.after
                stale[change.key] = None

    # The rows of threads

    def _save_later(self) -> None:
        if self._saving is None and self._is_open:
            self._saving = asyncio.get_running_loop().call_later(_SAVE_AFTER, self._begin_saving)

    def _begin_saving(self) -> None:
        self._saving = None
        self._take_outcomes()
        if self._step is not None:  # Threads may have become stale since it has begun.
            self._save_later()
        self._start_step(len(self._stale))
        if self._spaces.has_removed and self._is_open:
            self._spaces.begin_removal()
        if self._spaces.has_removed or self._made is not None:
            self._save_later()

    async def _save(self) -> None:
        """Store the versions and times of threads in their rows."""
        self._take_outcomes()
        steps = -(-len(self._stale) // _STEP) + (self._step is not None)
        for _ in range(steps):
            self._start_step(1)
            if self._step is not None:
                await asyncio.shield(self._step)

    def _start_step(self, count: int) -> None:
        """Begin to save the rows of so many threads, some in each step, unless a step is under way."""
        if count > 0 and self._step is None and self._stale:
            step = self._save_some(count, self._batch)
            self._step = asyncio.get_running_loop().create_task(step, context=Context())

    async def _save_some(self, count: int, batch: asyncio.Future[Sequence[Outcome]] | None) -> None:
        """Store the versions and times of some threads after a batch, and forget those that have no owner."""
        try:
            if batch is not None:
                await asyncio.wait([batch])
            self._take_outcomes()
            changes: list[Change] = []
            for key in list(islice(self._stale, _STEP)):
                del self._stale[key]
                if (known := self._known.get(key)) is not None and known.is_stale:
                    changes.append(plan_head(key, known))
                elif self._has_writes(key):
                    self._stale[key] = None  # Those of an owner that has released it are still made.
                elif not self._has_owner(key):
                    changes += self._forget(key)
            if changes:
                work = self._engine.write(changes)
                await asyncio.wait([work])
                self._take_saved(changes, work)
        finally:
            self._step = None
        self._start_step(count - _STEP)

    def _take_saved(self, changes: Sequence[Change], work: asyncio.Future[Sequence[Outcome]]) -> None:
        for change, outcome in zip(changes, _read_outcomes(changes, work), strict=True):
            has_writes = self._has_writes(change.key)
            if has_writes:
                self._stale[change.key] = None
            if not has_writes and not self._has_owner(change.key):
                list(self._forget(change.key))
            elif outcome is change.outcome and change.after is not None:
                self._known[change.key] = change.after
            else:  # The row is read again, and is saved after the next change.
                self._known.pop(change.key, None)

    def _forget(self, key: ThreadKey) -> Iterable[Change]:
        """Forget a thread without an owner, and return what is to be written then."""
        self._known.pop(key, None)
        return ()


def _plan_thread(
    known: Known,
    writes: Sequence[Write],
    outcome: Outcome,
    *,
    now: int,
    pruned: Pruned | None,
    spaces: Spaces,
) -> Change:
    """Return the change that writes make of a thread that they follow.

    `pruned` is what the last of them prunes, if it does.
    """
    before, version, changed_at, log, owner = known.head, known.version, known.changed_at, known.log, known.owner
    # Not `list[Range]()`, which takes far longer.
    rows: RowsToWrite = []
    gone: list[Range] = []
    head = before
    for write in writes:
        if write.is_deletion:
            assert head is not None
            rows.append((INDEX, REMOVED, head.space, b""))
            head, log = None, None
            continue
        if head is None:
            origin = "" if owner is None else owner.origin
            head, log, changed_at = make_head(write, spaces.take_number(), now, origin), Log(()), now
        elif write.state_version is not None or (write.due is not None and write.due != head.due):
            due, state_version = head.due if write.due is None else write.due, write.state_version or head.state_version
            head = msgspec.structs.replace(head, due=due, state_version=state_version)
        version = write.version
        if write.changed_at is not None:
            changed_at = write.changed_at
        elif write.changes or any(each.part != READ for each in write.records):
            changed_at = now
        space = head.space
        for change in write.changes:
            rows.append(_encode_change(space, change))
        if write.clients or write.snapshots or write.records:
            _add_others(space, write, rows, gone)
        if write.prune is not None and pruned is not None:
            log = pruned.log
            gone += [(space, part, start, end) for _, part, start, end in pruned.gone]
        elif log is not None and (write.snapshots or log.size >= 0):
            log = follow(log, write)
    if head is before and (head is None or changed_at - head.changed_at < _SAVE_WITH):
        return Change(writes[0].key, rows, gone, outcome, Known(head, version, changed_at, log, owner), owner=owner)
    if head is not None:
        head = msgspec.structs.replace(head, version=version, changed_at=changed_at)
    add_head(writes[0].key, before, head, rows, gone)
    return Change(writes[0].key, rows, gone, outcome, Known(head, version, changed_at, log, owner), owner=owner)


def _add_others(space: int, write: Write, rows: RowsToWrite, gone: list[Range]) -> None:
    """Add the rows of a write beside its changes."""
    for client in write.clients:
        rows.append(_encode_client(space, client))
    for snapshot in write.snapshots:
        rows.append((space, SNAPSHOT, snapshot.version, _check_bytes(snapshot.state)))
    records = write.records
    if len(records) > 1 and None in [record.value for record in records]:
        # What is written and removed by one write would be removed: the last record of a key is stored.
        records = list({(record.part, record.key): record for record in records}.values())
    for record in records:
        part, value = record.part, record.value
        if part >= OWN:
            raise ValueError(f"a record cannot be of the part {part!r}")
        if value is None:
            gone.append(only(space, part, record.key))
        else:
            rows.append((space, part, record.key, _check_bytes(value)))


def _check_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"a value must be bytes, not {type(value).__name__}")
    return value


def _encode_change(space: int, row: ChangeRow) -> tuple[int, str, Key, bytes]:
    """Return the row of a change."""
    return space, CHANGE, row.version, b'{"at":%d,"source":%b,"ops":%b}' % (row.at, _encode_source(row.source), row.ops)


def _encode_client(space: int, row: ClientRow) -> tuple[int, str, Key, bytes]:
    """Return the row of a client."""
    return space, CLIENT, row.client, b'{"ref":%d,"at":%d,"refused":%b}' % (row.ref, row.at, row.refused)


def _read_outcomes(changes: Sequence[Change], work: asyncio.Future[Sequence[Outcome]]) -> Sequence[Outcome | None]:
    """Return the outcomes of changes; None for each if they are not known."""
    return [None] * len(changes) if work.exception() is not None else work.result()
