"""Writes batches, and finds out whether a batch is stored if its answer was lost."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from plait.clock import read_wall_clock
from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.outcomes import Outcome, Unreachable, make_fenced, make_indeterminate, make_refusal
from plait.store.postgres.engine import DRIVER_ERRORS, Db, Engine, explain, is_lost, was_sent
from plait.store.postgres.heads import ClaimedHead, Heads
from plait.store.postgres.pool import Writer
from plait.store.postgres.schema import Tables
from plait.store.postgres.writes import PLAIN, Rows, change_columns, client_columns, columns
from plait.store.protocol import ThreadKey, Write

__all__ = ["BatchCommitter"]

log = logging.getLogger("plait.store")

# The count of writes is in the lower bits of `ClaimedHead.writes`, the count of questions in the others.
_QUESTION: Final = 1 << 40
_LOCK: Final = """
SELECT t.id, t.epoch, t.version, t.fence, t.writes, t.kind, t.name FROM {threads} t
JOIN unnest($1::bytea[], $2::bytea[]) k (kind, name) ON t.kind = k.kind AND t.name = k.name
ORDER BY t.id FOR UPDATE OF t
"""
_ASK: Final = f"""
UPDATE {{threads}} t SET writes = t.writes + {_QUESTION} FROM (
    SELECT t.id FROM {{threads}} t JOIN unnest($1::bytea[], $2::bytea[], $3::bigint[]) k (kind, name, fence)
    ON t.kind = k.kind AND t.name = k.name AND t.fence = k.fence ORDER BY t.id FOR UPDATE OF t
) locked WHERE t.id = locked.id
RETURNING t.id, t.epoch, t.version, t.fence, t.writes, t.kind, t.name
"""
# A connection that is lost must not keep its locks for as long as the server takes to notice that.
_BEGIN: Final = "BEGIN; SET LOCAL {}; SET LOCAL idle_in_transaction_session_timeout TO '3s'"
# How often a batch is written that was lost before it was stored.
_TRIES: Final = 2
_NEXT_IDS: Final = "SELECT nextval('{ids}') FROM generate_series(1, $1)"


class _Attempt:
    """The writes of one transaction, and the outcomes of its groups if it is stored."""

    def __init__(self, groups: Mapping[int, WriteGroup]) -> None:
        # By number in the batch.
        self.groups = groups
        self.outcomes: dict[int, Outcome] = {}
        # The heads before and after it, of the groups that write something.
        self.before: dict[int, ClaimedHead] = {}
        self.after: dict[int, ClaimedHead] = {}
        # By id: when threads have changed.
        self.changed: dict[int, int] = {}
        self.has_removed = False
        # Whether it may be stored although the connection is lost.
        self.may_be_stored = False


class BatchCommitter:
    """Writes the batches of a store, one at a time."""

    def __init__(self, engine: Engine, writer: Writer, tables: Tables) -> None:
        self._engine = engine
        self._writer = writer
        self._tables = tables
        # Of the threads that this store has claimed.
        self.heads: Heads = {}
        # By id: when threads have changed, unless it is stored.
        self.changed: dict[int, int] = {}
        # Whether deleted threads have rows left.
        self.has_removed = False

    async def commit(self, batch: Sequence[WriteGroup]) -> list[Outcome]:
        """Write a batch and return the outcome of each group."""
        outcomes: dict[int, Outcome] = {}
        await self._write(dict(enumerate(batch)), outcomes)
        return [outcomes[index] for index in range(len(batch))]

    # Inside

    async def _write(self, groups: Mapping[int, WriteGroup], outcomes: dict[int, Outcome], tries: int = _TRIES) -> None:
        attempt, is_closed = _Attempt(groups), False
        try:
            async with self._writer.use() as db:
                try:
                    await self._try(db, attempt)
                finally:
                    is_closed = db.is_closed()
        except StoreError as error:  # There is no connection.
            outcomes.update((index, _refuse(group, error)) for index, group in groups.items())
            return
        except (*DRIVER_ERRORS, OverflowError, TypeError, ValueError) as error:
            cause: Exception = error
        else:
            for index in groups:
                self._take(attempt, index, outcomes)
            return
        if is_lost(cause, is_closed=is_closed):
            await self._settle(attempt, outcomes, cause, tries)
        elif len(groups) > 1:
            for index, group in groups.items():
                await self._write({index: group}, outcomes)
        else:
            outcomes.update((index, _refuse(group, cause)) for index, group in groups.items())

    async def _try(self, db: Db, attempt: _Attempt) -> None:
        if self._engine.url.has_session and self._plan(attempt):
            await self._write_plain(db, attempt)
            return
        await db.execute(_BEGIN.format(self._engine.commit_setting))
        try:
            if self._plan(attempt):
                await self._write_plain(db, attempt)
            else:
                await self._transact(db, attempt)
            attempt.may_be_stored = True
            ended = await db.execute("COMMIT")
            assert ended == "COMMIT", ended
        except BaseException:
            if not db.is_closed() and db.is_in_transaction():
                await db.execute("ROLLBACK")
            raise

    def _plan(self, attempt: _Attempt) -> bool:
        """Whether all groups are changes of threads whose heads are known, and nothing else."""
        for index, group in attempt.groups.items():
            first, last = group.writes[0], group.writes[-1]
            head = self.heads.get(first.key)
            if head is None or head.fence != first.fence or not all(map(_is_plain, group.writes)):
                return False
            if group.count_following(head.stored)[1] is not None:
                return False
            attempt.outcomes[index] = len(group.writes), None
            attempt.before[index] = head
            attempt.after[index] = head._replace(version=last.version, writes=head.writes + 1)
        return True

    async def _write_plain(self, db: Db, attempt: _Attempt) -> None:
        before = attempt.before
        heads = [
            (each.id, (each.epoch or "").encode(), each.version, each.fence, each.writes) for each in before.values()
        ]
        writes = [(before[index].id, write) for index, group in attempt.groups.items() for write in group.writes]
        values = (
            *columns(heads, 5),
            [each.version for each in attempt.after.values()],
            *change_columns(writes),
            *client_columns(writes),
        )
        attempt.may_be_stored = self._engine.url.has_session
        stored = {id for (id,) in await db.fetch(self._tables.fill(PLAIN), *values)}
        now = read_wall_clock()
        for index, group in attempt.groups.items():
            if (id := before[index].id) in stored:
                attempt.changed[id] = now
            else:
                attempt.outcomes[index] = 0, make_fenced(group.writes[0].key)

    async def _transact(self, db: Db, attempt: _Attempt) -> None:
        attempt.before, attempt.after, attempt.outcomes = {}, {}, {}
        keys = {index: _encode(group) for index, group in attempt.groups.items()}
        rows = await db.fetch(self._tables.fill(_LOCK), *columns(list(keys.values()), 2))
        heads = {(row["kind"], row["name"]): ClaimedHead.read(row) for row in rows}
        accepted: dict[int, Sequence[Write]] = {}
        for index, group in attempt.groups.items():
            head = heads.get(keys[index])
            if head is None or head.fence != group.writes[0].fence:
                attempt.outcomes[index] = 0, make_fenced(group.writes[0].key)
                continue
            attempt.outcomes[index] = count, error = group.count_following(head.stored)
            if writes := coalesce(group.writes if error is None else group.writes[:count]):
                attempt.before[index], accepted[index] = head, writes
        deletions = sum(write.is_deletion for writes in accepted.values() for write in writes)
        new_ids = [id for (id,) in await db.fetch(self._tables.fill(_NEXT_IDS), deletions)] if deletions else []
        collected = Rows()
        for index, writes in accepted.items():
            attempt.after[index] = collected.add(attempt.before[index], writes, new_ids)
            if writes[0].is_deletion:
                new_ids.pop(0)
        await collected.store(db, self._tables)
        attempt.changed, attempt.has_removed = collected.changed, collected.has_removed

    def _take(self, attempt: _Attempt, index: int, outcomes: dict[int, Outcome]) -> None:
        """Record the outcome of a group, and what was stored of it."""
        key, head = attempt.groups[index].writes[0].key, attempt.after.get(index)
        outcomes[index] = stored, error = attempt.outcomes[index]
        if isinstance(error, Fenced) and not stored:
            self.heads.pop(key, None)
        elif head is not None:
            self.heads[key] = head
            if head.id in attempt.changed:
                self.changed[head.id] = attempt.changed[head.id]
        self.has_removed |= attempt.has_removed

    # Lost answers

    async def _settle(self, attempt: _Attempt, outcomes: dict[int, Outcome], cause: Exception, tries: int) -> None:
        """Find out which groups are stored, and write the others again."""
        lost = dict(attempt.groups)
        if attempt.may_be_stored and was_sent(cause):
            found = await self._ask(attempt)
            for index, head in attempt.before.items():
                key, now = attempt.groups[index].writes[0].key, found.get(index)
                if now is None:
                    self.heads.pop(key, None)
                    outcomes[index] = 0, _make_indeterminate(key, cause)
                elif now.writes % _QUESTION == head.writes % _QUESTION:
                    self.heads[key] = now
                    continue
                else:
                    self._take(attempt, index, outcomes)
                    self.heads[key] = now
                del lost[index]
        if lost and tries > 1:
            await self._write(lost, outcomes, tries - 1)
        else:
            outcomes.update((index, _refuse(group, cause)) for index, group in lost.items())

    async def _ask(self, attempt: _Attempt) -> dict[int, ClaimedHead]:
        """Return the heads of the groups whose thread still has the same owner.

        They are changed, so that a write that has not arrived yet will not fit. Returns nothing if there is no answer.
        """
        keys = {index: _encode(attempt.groups[index]) for index in attempt.before}
        values = [(*keys[index], head.fence) for index, head in attempt.before.items()]
        # One attempt more: its own answer may be lost, too.
        for _ in range(_TRIES):
            try:
                async with self._writer.use() as db:
                    rows = await db.fetch(self._tables.fill(_ASK), *columns(values, 3))
            except StoreError:
                return {}
            except DRIVER_ERRORS as error:
                log.warning("it is not known yet whether a write was stored: %s", explain(error))
                continue
            heads = {(row["kind"], row["name"]): ClaimedHead.read(row) for row in rows}
            return {index: heads[key] for index, key in keys.items() if key in heads}
        return {}


def _is_plain(write: Write) -> bool:
    """Whether a write is changes to an existing thread, and nothing else."""
    return not (
        write.after is None
        or write.is_deletion
        or write.snapshots
        or write.records
        or write.prune is not None
        or write.state_version is not None
        or write.due is not None
        or write.changed_at is not None
    )


def _encode(group: WriteGroup) -> tuple[bytes, bytes]:
    key = group.writes[0].key
    return key.kind.encode(), key.name.encode()


def _make_indeterminate(key: ThreadKey, cause: Exception) -> Indeterminate:
    return make_indeterminate(key, cause, explain(cause))


def _refuse(group: WriteGroup, cause: Exception) -> Outcome:
    """Return the outcome of a group that is known not to be stored."""
    is_unreachable = isinstance(cause, Unreachable) or is_lost(cause)
    return 0, make_refusal(group.writes[0].key, cause, explain(cause), is_unreachable=is_unreachable)
