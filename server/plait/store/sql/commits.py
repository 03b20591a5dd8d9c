"""Writes batches, and finds out whether a batch is stored if its answer was lost."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.outcomes import Outcome, Unreachable, make_fenced, make_indeterminate, make_refusal
from plait.store.protocol import Write
from plait.store.sql.db import Db
from plait.store.sql.dialect import Dialect, WritePlain
from plait.store.sql.pool import Writer
from plait.store.sql.rows import QUESTION, ClaimedHead, Known, Rows, encode

__all__ = ["Commits"]

log = logging.getLogger("plait.store")

# How often a batch is written that was lost before it was stored.
_TRIES: Final = 2


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


class Commits:
    """The methods of a store that write batches, one at a time."""

    _dialect: Dialect
    # Those of the driver and of odd values.
    _errors: tuple[type[Exception], ...]
    _writer: Writer
    _known: Known

    # Inside

    async def _commit(self, batch: Sequence[WriteGroup]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        await self._send(dict(enumerate(batch)), outcomes)
        return [outcomes[index] for index in range(len(batch))]

    async def _send(self, groups: dict[int, WriteGroup], outcomes: dict[int, Outcome], tries: int = _TRIES) -> None:
        attempt, is_closed = _Attempt(groups), False
        try:
            async with self._writer.use() as db:
                # All claims have ended if the connection leads to another server, which may not have a later claim.
                for index in [index for index, each in groups.items() if each.writes[0].key not in self._known.heads]:
                    self._fence(index, groups.pop(index), outcomes)
                if not groups:
                    return
                try:
                    await self._try(db, attempt)
                finally:
                    is_closed = db.is_closed()
        except StoreError as error:  # There is no connection.
            outcomes.update((index, self._refuse(group, error)) for index, group in groups.items())
            return
        except self._errors as error:
            cause: Exception = error
        else:
            for index in groups:
                self._take(attempt, index, outcomes)
            return
        if self._dialect.is_lost(cause, is_closed=is_closed):
            await self._settle(attempt, outcomes, cause, tries)
        elif len(groups) > 1:
            for index, group in groups.items():
                await self._send({index: group}, outcomes)
        else:
            outcomes.update((index, self._refuse(group, cause)) for index, group in groups.items())

    async def _try(self, db: Db, attempt: _Attempt) -> None:
        write_plain = self._dialect.write_plain
        if write_plain is not None and self._plan(attempt):
            await self._write_plain(db, attempt, write_plain)
        else:
            await self._transact(db, attempt)

    def _plan(self, attempt: _Attempt) -> bool:
        """Whether all groups are changes of threads whose heads are known, and nothing else."""
        for index, group in attempt.groups.items():
            first, last = group.writes[0], group.writes[-1]
            head = self._known.heads.get(first.key)
            if head is None or head.fence != first.fence or not all(map(_is_plain, group.writes)):
                return False
            if group.count_following(head.stored)[1] is not None:
                return False
            attempt.outcomes[index] = len(group.writes), None
            attempt.before[index] = head
            attempt.after[index] = head._replace(version=last.version, writes=head.writes + 1)
        return True

    async def _write_plain(self, db: Db, attempt: _Attempt, write: WritePlain) -> None:
        before = attempt.before
        writes = [(before[index].id, write) for index, group in attempt.groups.items() for write in group.writes]
        attempt.may_be_stored = True
        stored = await write(
            db, list(before.values()), [group.writes[-1].version for group in attempt.groups.values()], writes
        )
        now = read_wall_clock()
        for index, group in attempt.groups.items():
            if (id := before[index].id) in stored:
                attempt.changed[id] = now
            else:
                self._fence(index, group, attempt.outcomes)

    async def _transact(self, db: Db, attempt: _Attempt) -> None:
        attempt.before, attempt.after, attempt.outcomes = {}, {}, {}
        keys = {index: encode(group.writes[0].key) for index, group in attempt.groups.items()}
        rows = {(row.kind, row.name): row for row in await self._dialect.lock(db, list(keys.values()))}
        accepted: dict[int, Sequence[Write]] = {}
        for index, group in attempt.groups.items():
            row = rows.get(keys[index])
            if row is None or row.fence != group.writes[0].fence:
                self._fence(index, group, attempt.outcomes)
                continue
            attempt.outcomes[index] = count, error = group.count_following(row.head.stored)
            if writes := coalesce(group.writes if error is None else group.writes[:count]):
                attempt.before[index], accepted[index] = row.head, writes
        deletions = sum(write.is_deletion for writes in accepted.values() for write in writes)
        new_ids = await self._dialect.make_ids(db, deletions) if deletions else []
        collected = Rows()
        for index, writes in accepted.items():
            attempt.after[index] = collected.add(rows[keys[index]], writes, new_ids).head
            if writes[0].is_deletion:
                new_ids.pop(0)
        attempt.changed, attempt.has_removed = collected.changed, collected.has_removed
        attempt.may_be_stored = True
        await self._dialect.write(db, collected)

    def _take(self, attempt: _Attempt, index: int, outcomes: dict[int, Outcome]) -> None:
        """Record the outcome of a group, and what was stored of it."""
        key, head = attempt.groups[index].writes[0].key, attempt.after.get(index)
        outcomes[index] = attempt.outcomes[index]
        if head is not None and key in self._known.heads:
            self._known.heads[key] = head
        if head is not None and head.id in attempt.changed:
            self._known.changed[head.id] = attempt.changed[head.id]
        self._known.has_removed |= attempt.has_removed

    def _fence(self, index: int, group: WriteGroup, outcomes: dict[int, Outcome]) -> None:
        """Refuse a group whose owner is not the last one."""
        self._known.heads.pop(group.writes[0].key, None)
        outcomes[index] = 0, make_fenced(group.writes[0].key)

    # Lost answers

    async def _settle(self, attempt: _Attempt, outcomes: dict[int, Outcome], cause: Exception, tries: int) -> None:
        """Find out which groups are stored, and write the others again."""
        lost = dict(attempt.groups)
        if attempt.may_be_stored and self._dialect.was_sent(cause):
            found = await self._ask(attempt)
            for index, head in attempt.before.items():
                key, now = attempt.groups[index].writes[0].key, found.get(index)
                if now is None:
                    self._known.heads.pop(key, None)
                    outcomes[index] = 0, make_indeterminate(key, cause, self._dialect.explain(cause))
                elif now.writes % QUESTION == head.writes % QUESTION:
                    if key in self._known.heads:
                        self._known.heads[key] = now
                    continue
                else:
                    attempt.after[index] = now
                    self._take(attempt, index, outcomes)
                del lost[index]
        if lost and tries > 1:
            await self._send(lost, outcomes, tries - 1)
        else:
            outcomes.update((index, self._refuse(group, cause)) for index, group in lost.items())

    async def _ask(self, attempt: _Attempt) -> dict[int, ClaimedHead]:
        """Return the heads of the groups whose thread still has the same owner.

        They are changed, so that a write that has not arrived yet will not fit. Returns nothing if there is no answer.
        """
        keys = {index: encode(attempt.groups[index].writes[0].key) for index in attempt.before}
        asked = {(*keys[index], head.fence) for index, head in attempt.before.items()}
        # One attempt more: its own answer may be lost, too.
        for _ in range(_TRIES):
            try:
                async with self._writer.use() as db:
                    # The rows are locked until an earlier transaction has ended.
                    rows, questions = await self._dialect.lock(db, list(keys.values())), Rows()
                    found = [questions.question(row) for row in rows if (row.kind, row.name, row.fence) in asked]
                    await self._dialect.write(db, questions)
            except StoreError:
                return {}
            except self._dialect.errors as error:
                log.warning("it is not known yet whether a write was stored: %s", self._dialect.explain(error))
                continue
            heads = {(row.kind, row.name): row.head for row in found}
            return {index: heads[key] for index, key in keys.items() if key in heads}
        return {}

    def _refuse(self, group: WriteGroup, cause: Exception) -> Outcome:
        """Return the outcome of a group that is known not to be stored."""
        is_unreachable = isinstance(cause, Unreachable) or self._dialect.is_lost(cause)
        why = self._dialect.explain(cause)
        return 0, make_refusal(group.writes[0].key, cause, why, is_unreachable=is_unreachable)


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
