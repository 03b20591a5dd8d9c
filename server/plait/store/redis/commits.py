"""Writes batches, and finds out whether a batch is stored if its answer was lost."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from redis.exceptions import OutOfMemoryError

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.outcomes import Outcome, Unreachable, make_fenced, make_indeterminate, make_refusal
from plait.store.protocol import ThreadKey, Write
from plait.store.reconnecting import Reconnector
from plait.store.redis.engine import DRIVER_ERRORS, TOO_FEW, explain, is_lost
from plait.store.redis.layout import Heads, RedisHead
from plait.store.redis.line import Line
from plait.store.redis.planning import Log, Plan
from plait.store.redis.reads import Reads
from plait.store.redis.scripts import ASK, COMMIT, QUESTION

__all__ = ["Commits"]

log = logging.getLogger("plait.store")

# How often a batch is written that was lost before it was stored.
_TRIES: Final = 2
# The errors of a script before its first write, beside that of a full memory. After another one, some may be stored.
_REFUSALS: Final = ("MISCONF", "NOREPLICAS", "BUSY")


class Commits(Reads):
    """The methods of a store that write batches, one at a time."""

    _line: Reconnector[Line]
    # Of the threads that the store has claimed.
    _heads: Heads
    # The epochs of threads that have changed, and when, unless it is stored.
    _changed: dict[ThreadKey, tuple[str, int]]

    # Inside

    async def _commit(self, batch: Sequence[WriteGroup]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        plans: dict[int, Plan] = {}
        for index, group in enumerate(batch):
            key = group.writes[0].key
            head = self._heads.get(key)
            if head is None or head.fence != group.writes[0].fence:
                outcomes[index] = 0, make_fenced(key)
                continue
            outcomes[index] = count, error = group.count_following(head.stored)
            if writes := coalesce(group.writes if error is None else group.writes[:count]):
                try:
                    plans[index] = await self._plan(head, writes)
                except (StoreError, *DRIVER_ERRORS, OverflowError, TypeError, ValueError) as failure:
                    outcomes[index] = _refuse(key, failure)
        if plans:
            await self._send(plans, outcomes)
        return [outcomes[index] for index in range(len(batch))]

    async def _plan(self, head: RedisHead, writes: Sequence[Write]) -> Plan:
        prune, log = writes[-1].prune, Log()
        if prune is not None and writes[-1].after is not None:
            log = await self._load_log(writes[-1].key, prune, read_wall_clock())
        return Plan(self._keys, head, writes, log)

    async def _send(self, plans: dict[int, Plan], outcomes: dict[int, Outcome], tries: int = _TRIES) -> None:
        try:
            line = await self._line.wait()
        except StoreError as error:
            outcomes.update((index, _refuse(plan.key, error)) for index, plan in plans.items())
            return
        # All claims have ended if the connection is one to another server, which may not have a later claim.
        for index in [index for index, plan in plans.items() if plan.key not in self._heads]:
            outcomes[index] = 0, make_fenced(plans.pop(index).key)
        if not plans:
            return
        arguments: list[object] = []
        for plan in plans.values():
            arguments += (plan.head_key, plan.before.guard, len(plan.commands))
            for command in plan.commands:
                arguments.append(len(command))
                arguments += command
        try:
            done, *waited = await line.run(*self.engine.add_wait(("EVAL", COMMIT, 0, *arguments)))
        except DRIVER_ERRORS as error:
            if is_lost(error):
                await self._settle(plans, outcomes, error, tries)
            else:
                await self._fail(plans, outcomes, error)
            return
        for (index, plan), is_stored in zip(plans.items(), done, strict=True):
            if not is_stored:
                self._heads.pop(plan.key, None)
                outcomes[index] = 0, make_fenced(plan.key)
            elif not self.engine.has_replicas(waited):
                outcomes[index] = self._doubt(plan, StoreError(TOO_FEW))
            else:
                self._take(plan, plan.after)

    def _take(self, plan: Plan, head: RedisHead) -> None:
        """Record what was stored of a thread."""
        key = plan.key
        if key in self._heads:
            self._heads[key] = head
        if plan.writes[0].is_deletion:
            self._changed.pop(key, None)
        if plan.changed_at is not None and head.epoch is not None:
            self._changed[key] = head.epoch, plan.changed_at

    def _doubt(self, plan: Plan, cause: Exception) -> Outcome:
        self._heads.pop(plan.key, None)
        return 0, make_indeterminate(plan.key, cause, explain(cause))

    async def _fail(self, plans: Mapping[int, Plan], outcomes: dict[int, Outcome], cause: Exception) -> None:
        """Note the outcomes of writes that the server has refused. A script does not roll back."""
        if isinstance(cause, OutOfMemoryError) and len(plans) > 1:  # Deletions among them need none.
            for index, plan in plans.items():
                await self._send({index: plan}, outcomes)
            return
        is_refused = isinstance(cause, OutOfMemoryError) or str(cause).startswith(_REFUSALS)
        for index, plan in plans.items():
            outcomes[index] = _refuse(plan.key, cause) if is_refused else self._doubt(plan, cause)

    # Lost answers

    async def _settle(
        self, plans: Mapping[int, Plan], outcomes: dict[int, Outcome], cause: Exception, tries: int
    ) -> None:
        """Find out which threads' writes are stored, and make the others again."""
        found, is_replicated = await self._ask(list(plans.values()))
        again: dict[int, Plan] = {}
        for (index, plan), now in zip(plans.items(), found, strict=True):
            before, after = plan.before, plan.after
            if now is None or now.fence != before.fence:
                outcomes[index] = self._doubt(plan, cause)
            elif now.writes % QUESTION == after.writes % QUESTION:
                if is_replicated:
                    self._take(plan, after._replace(writes=now.writes))
                else:
                    outcomes[index] = self._doubt(plan, StoreError(TOO_FEW))
            elif now.writes % QUESTION != before.writes % QUESTION:  # A failover has lost earlier ones.
                outcomes[index] = self._doubt(plan, cause)
            else:
                if plan.key in self._heads:
                    self._heads[plan.key] = now
                if tries > 1:
                    again[index] = Plan(self._keys, now, plan.writes, plan.log)
                else:
                    outcomes[index] = _refuse(plan.key, cause)
        if again:
            await self._send(again, outcomes, tries - 1)

    async def _ask(self, plans: Sequence[Plan]) -> tuple[Sequence[RedisHead | None], bool]:
        """Return the heads of threads; those with the same owner are changed. Returns None if there is no answer."""
        keys = [plan.head_key for plan in plans]
        # One attempt more: its own answer may be lost, too.
        for _ in range(_TRIES):
            try:
                line = await self._line.wait()
                question = ("EVAL", ASK, len(keys), *keys, *(plan.before.fence for plan in plans))
                rows, *waited = await line.run(*self.engine.add_wait(question))
            except StoreError:
                break
            except DRIVER_ERRORS as error:
                log.warning("it is not known yet whether a write was stored: %s", explain(error))
                continue
            return [RedisHead.read(row) for row in rows], self.engine.has_replicas(waited)
        return [None] * len(plans), False


def _refuse(key: ThreadKey, cause: Exception) -> Outcome:
    """Return the outcome of writes that are known not to be stored."""
    is_unreachable = isinstance(cause, Unreachable) or is_lost(cause)
    return 0, make_refusal(key, cause, explain(cause), is_unreachable=is_unreachable)
