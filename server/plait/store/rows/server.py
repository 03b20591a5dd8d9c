"""Writes to an engine on a server: each change is guarded by the row of its owner, and lost answers are settled.

The row of an owner counts its writes. If the answer to a write is lost, the store asks by a write of its own, which
expects the row as it was before, or as it is afterwards: only one of them fits, and the lost write does not fit later.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from plait.errors import StoreError
from plait.store.outcomes import Outcome, make_fenced, make_indeterminate, make_refusal
from plait.store.rows.engine import INDEX, Change, Engine, Key, Owner, Range, ReadPlan
from plait.store.rows.layout import only
from plait.store.rows.parts import OWNER
from plait.store.thread_rows import ThreadKey

__all__ = ["Failure", "Guarded", "ServerEngine", "owner_row"]

log = logging.getLogger("plait.store")

L = TypeVar("L")
T = TypeVar("T")

# How often a change is written that was lost before it was stored, and how often the store asks for it.
_TRIES: Final = 2

Failure = Literal["unsent", "lost", "refused", "doubtful"]
"""The meaning of an error of a commit: it was not sent; its answer was lost; nothing is stored; some may be stored."""


class Guarded(NamedTuple):
    """The rows to write, and those to remove afterwards, unless the row of the owner has another value."""

    rows: Sequence[tuple[int, str, Key, bytes]]
    gone: Sequence[Range]
    # The spaces whose rows are all removed.
    spaces: Sequence[int]
    # The part, the key and the value of the row in the index; None if there is no owner.
    guard: tuple[str, str, bytes] | None


def owner_row(key: ThreadKey, value: bytes) -> tuple[int, str, Key, bytes]:
    """Return the row of the owner of a thread."""
    return INDEX, OWNER + key.kind, key.name, value


class ServerEngine(Engine, Generic[L]):
    """An engine that several processes have open: its writes. A subclass connects, reads and commits."""

    # What `_commit` raises beside StoreError.
    errors: tuple[type[Exception], ...]
    # What connects to the server, for the cells of the store.
    connector: Any

    @property
    def origin(self) -> str:
        """A name of the engine: one with another name may have lost durable writes."""
        raise NotImplementedError

    async def claim(self, key: ThreadKey, owner: Owner) -> None:
        """Replace the row of the owner of a thread, after writes of the earlier owner that are under way.

        Each attempt asks once more, so that one that arrives late gives the thread to no owner. When it returns,
        `origin` is that of the server that has the row. Raises StoreError.
        """
        raise NotImplementedError

    def may_have_lost(self, origin: str) -> bool:
        """Whether the engine may lack durable writes to the one with this origin."""
        raise NotImplementedError

    async def read_owned(self, plan: ReadPlan[T], /) -> T:
        """Do what `read` does, of what nothing else writes."""
        raise NotImplementedError

    def write(self, changes: Sequence[Change], /) -> "asyncio.Future[Sequence[Outcome]]":
        """Make changes, and return their outcomes. A change that fails does not prevent the others."""
        return asyncio.get_running_loop().create_task(self._write(changes), context=Context())

    # For subclasses

    def _use(self) -> AbstractAsyncContextManager[L]:
        """Lend the connection that writes to one caller at a time. Raises StoreError if there is none."""
        raise NotImplementedError

    async def _commit(self, line: L, changes: Sequence[Guarded]) -> Sequence[bool | StoreError]:
        """Make changes, and tell of each whether it was made, or why it may be lost by a failover although it was."""
        raise NotImplementedError

    def _judge(self, error: Exception, line: L) -> Failure:
        """Return the meaning of an error of `_commit`."""
        raise NotImplementedError

    # Inside

    async def _write(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        outcomes: dict[int, Outcome] = {}
        empty = {index: change.outcome for index, change in enumerate(changes) if not (change.rows or change.gone)}
        outcomes |= empty
        await self._send({index: change for index, change in enumerate(changes) if index not in empty}, outcomes)
        return [outcomes[index] for index in range(len(changes))]

    async def _send(self, changes: dict[int, Change], outcomes: dict[int, Outcome], tries: int = _TRIES) -> None:
        failure: Failure = "unsent"
        try:
            async with self._use() as line:
                # All ownerships have ended if the connection leads to another server, which may not have a later one.
                for index in [index for index, change in changes.items() if change.owner and change.owner.is_lost]:
                    outcomes[index] = 0, make_fenced(changes.pop(index).key)
                try:
                    made = await self._commit(line, list(map(_guard, changes.values()))) if changes else ()
                except self.errors as error:
                    failure = self._judge(error, line)
                    raise  # The connection is rolled back, or closed.
        except StoreError as error:  # There is no connection.
            outcomes.update((index, self._refuse(change, error)) for index, change in changes.items())
            return
        except self.errors as error:
            cause: Exception = error
        else:
            self._take(changes, made, outcomes)
            return
        if failure == "refused" and len(changes) > 1:
            for index, change in changes.items():
                await self._send({index: change}, outcomes)
        elif failure == "refused":
            outcomes.update((index, self._refuse(change, cause)) for index, change in changes.items())
        elif failure == "doubtful":
            outcomes.update((index, self._doubt(change, cause)) for index, change in changes.items())
        else:
            await self._settle(changes, outcomes, cause, tries, was_sent=failure == "lost")

    def _take(
        self, changes: Mapping[int, Change], made: Sequence[bool | StoreError], outcomes: dict[int, Outcome]
    ) -> None:
        for (index, change), is_made in zip(changes.items(), made, strict=True):
            if is_made is True:
                if change.owner is not None:
                    change.owner.writes += 1
                outcomes[index] = change.outcome
            elif is_made is False:
                _lose(change)
                outcomes[index] = 0, make_fenced(change.key)
            else:
                outcomes[index] = self._doubt(change, is_made)

    async def _settle(
        self,
        changes: Mapping[int, Change],
        outcomes: dict[int, Outcome],
        cause: Exception,
        tries: int,
        *,
        was_sent: bool,
    ) -> None:
        """Find out which changes are made, and make the others again. Those without an owner can be made twice."""
        again = {index: change for index, change in changes.items() if change.owner is None or not was_sent}
        asked = {index: change for index, change in changes.items() if index not in again}
        found = await self._ask(asked) if asked else {}
        for index, change in asked.items():
            if (is_made := found.get(index)) is None:
                outcomes[index] = self._doubt(change, cause)
            elif is_made:
                outcomes[index] = change.outcome
            else:
                again[index] = change
        if again and tries > 1:
            await self._send(again, outcomes, tries - 1)
        else:
            outcomes.update((index, self._refuse(change, cause)) for index, change in again.items())

    async def _ask(self, changes: Mapping[int, Change]) -> dict[int, bool]:
        """Return which changes are made, of those that still have the same owner."""
        left, found = dict(changes), dict[int, bool]()
        # One attempt more: the answer to a question may be lost, too, so that its count is one of several.
        for attempt in range(_TRIES):
            try:
                async with self._use() as line:
                    for asked in range(attempt + 1):
                        for writes in (0, 1):
                            await self._question(line, left, found, writes=writes, before=asked, after=attempt + 1)
            except StoreError:
                break
            except self.errors as error:
                log.warning("it is not known yet whether a write was stored: %s", self.explain(error))
                continue
            break
        return found

    async def _question(
        self, line: L, left: dict[int, Change], found: dict[int, bool], *, writes: int, before: int, after: int
    ) -> None:
        """Find the changes whose owners have so many writes and questions more than is known."""
        questions: list[Guarded] = []
        for change in left.values():
            assert change.owner is not None
            row = owner_row(change.key, change.owner.encode(writes=writes, asked=after))
            guard = row[1], change.key.name, change.owner.encode(writes=writes, asked=before)
            questions.append(Guarded([row], (), (), guard))
        made = await self._commit(line, questions) if questions else ()
        for (index, change), is_made in zip(list(left.items()), made, strict=True):
            if is_made is not False:
                del left[index]
            if is_made is True and change.owner is not None:
                change.owner.writes += writes
                change.owner.asked += after
                found[index] = bool(writes)

    def _doubt(self, change: Change, cause: Exception) -> Outcome:
        if change.owner is None:  # It can be made again.
            return self._refuse(change, cause)
        change.owner.is_lost = True
        return 0, make_indeterminate(change.key, cause, self.explain(cause) or str(cause))

    def _refuse(self, change: Change, cause: Exception) -> Outcome:
        why = self.explain(cause) or str(cause)
        return 0, make_refusal(change.key, cause, why, is_unreachable=self._is_lost(cause))

    def _is_lost(self, error: Exception) -> bool:
        """Whether an error means that the engine cannot be reached."""
        return False


def _guard(change: Change) -> Guarded:
    """Return a change with the row of its owner, who has one write more."""
    owner, key = change.owner, change.key
    if owner is None:
        return Guarded(change.rows, change.gone, change.spaces, None)
    guard = OWNER + key.kind, key.name, owner.encode()
    if only(INDEX, OWNER + key.kind, key.name) in change.gone:
        return Guarded(change.rows, change.gone, change.spaces, guard)
    rows = [*change.rows, owner_row(key, owner.encode(writes=1))]
    return Guarded(rows, change.gone, change.spaces, guard)


def _lose(change: Change) -> None:
    if change.owner is not None:
        change.owner.is_lost = True
