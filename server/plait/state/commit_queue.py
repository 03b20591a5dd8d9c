"""The changes of one thread on their way to the store, in order.

When a change is lost, the thread goes back to its last durable state. The running turns are cancelled, as they may have
read the lost change. Cancelled turns can neither send nor change anything.
"""

import asyncio
from collections.abc import Callable, Collection
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Final

from msgspec.structs import replace

from plait.errors import Destroyed, Fenced, Indeterminate, PlaitError, StoreError, Unavailable
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.state.card import CARD, Card
from plait.state.commit import Commit
from plait.state.reads import WHOLE
from plait.state.revision import Revision
from plait.state.source import Source, StateTurn, Turns
from plait.state.state_history import StateHistory
from plait.state.timer import Timer
from plait.store.protocol import READ, Store, Write

__all__ = ["CommitQueue"]

# The parts whose records change the row of a thread in a listing of its user.
_SEEN: Final = frozenset({CARD[0], READ})


class CommitQueue:
    """Stores the changes of one thread; their commits call back when they are durable or lost."""

    __slots__ = (
        "_deletion",
        "_has_lost",
        "_instruments",
        "_on_commit",
        "_on_lost",
        "_pending",
        "_refusal",
        "_store",
        "card",
        "due",
        "history",
        "lost",
        "on_listed",
        "on_touch",
        "timer",
        "turns",
    )

    def __init__(
        self,
        history: StateHistory,
        store: Store,
        *,
        on_commit: Callable[[Commit], None],
        on_lost: Callable[[StoreError], None],
        instruments: Instruments = NO_INSTRUMENTS,
    ) -> None:
        self.history = history
        self._store = store
        # Called for each change that became durable, in order, before the callbacks that wait for it.
        self._on_commit = on_commit
        # Called when this instance no longer knows the thread's state, because another process has written to it, or
        # the outcome of a write is unknown. This callback must close the sockets before the waiting callbacks are
        # called.
        self._on_lost = on_lost
        # The reason why the thread's state is no longer known here; None while it is known.
        self.lost: StoreError | None = None
        self._instruments = instruments
        # Changes that are not durable yet, in order.
        self._pending: list[Commit] = []
        # The turns of the thread, if it has any, and whether a change was lost that they may have read.
        self.turns: Turns | None = None
        self._has_lost = False
        # The class and message of the error with which further changes are refused; None while they are accepted.
        self._refusal: tuple[type[PlaitError], str] | None = None
        # Tells when the thread must be awake.
        self.timer: Timer | None = None
        # The due time in the last write; None if it is not known.
        self.due: int | None = 0
        # Adds the card of the thread to its writes; None if it has none.
        self.card: Card | None = None
        # Called for each durable write of a listed thread, with whether a listing of its user shows more than its time.
        self.on_listed: Callable[[bool], None] | None = None
        # Called with a part and the names in it that a write changes, while the thread has queries; None for all.
        self.on_touch: Callable[[str | None, Collection[str] | None], None] | None = None
        # The last write of a thread that is being destroyed; it is already pending before it is submitted.
        self._deletion: Commit | None = None

    @property
    def epoch(self) -> str:
        """The id of the thread's history."""
        return self.history.epoch

    @property
    def durable(self) -> Revision:
        """The last durable state."""
        return self.history.durable

    @property
    def is_stored(self) -> bool:
        """Whether the thread is in the store: a new thread is stored with its first change, or by `store_thread`."""
        return self.history.is_stored

    @property
    def is_durable(self) -> bool:
        """Whether every change is durable."""
        return not self._pending

    def find_loss(self) -> PlaitError | None:
        """Return the error that cut the turn of the calling code short; None if the turn goes on."""
        return self.turns.find_loss() if self._has_lost and self.turns is not None else None

    async def wait_until_durable(self) -> None:
        """Wait until every change made so far is durable, or has failed."""
        if self._pending:
            await self._pending[-1].wait()

    async def wait_until_stored(self) -> None:
        """Wait until every change so far is durable or has failed; do not wait for the deletion of the thread."""
        if (commit := self.find_pending()) is not None:
            await commit.wait()

    def find_pending(self) -> Commit | None:
        """Return the last change that is not durable yet, besides the deletion of the thread; None if all are."""
        return next((commit for commit in reversed(self._pending) if commit is not self._deletion), None)

    async def wait_for_shown(self) -> None:
        """If the calling code may read only durable states, wait until all changes so far are durable."""
        if self.shows_durable:
            await self.wait_until_stored()

    @property
    def shows_durable(self) -> bool:
        """Whether the calling code may read only durable states, and not all changes are: `wait_for_shown` waits."""
        return len(self._pending) > 0 and (turn := self._find_own_turn()) is not None and turn.sees_durable

    def close(self) -> None:
        """Refuse further changes: the thread has been stopped, and another instance may have replaced it."""
        if self._refusal is None:
            self._refusal = (Unavailable, "the thread has been stopped: get it from the app again")

    def store_due(self) -> Commit | None:
        """Store the time at which the thread must be awake or expires, unless it is stored or the thread is not."""
        is_told = self.timer is None or self.timer.due in (None, self.due)
        if is_told or not self.history.is_begun or self._refusal is not None:
            return None
        return self._submit(self.history.put(()), "server")

    # Deletion

    def begin_deletion(self, turn: StateTurn) -> Commit | None:
        """Refuse further changes, and hold back all later output until `delete` has an outcome.

        Returns the last change so far; None if all changes are durable.
        """
        turn.expect_change()
        self._refusal = (Destroyed, f"{self.history.key} is being destroyed")
        before = self._pending[-1] if self._pending else None
        self._deletion = Commit(self.history.current, "server", turn)
        self._deletion.then(partial(self._tell_listed, True))
        self._pending.append(self._deletion)
        return before

    async def delete(self) -> None:
        """Delete the stored thread, after `begin_deletion`; return when the deletion is durable. Raises StoreError.

        If the deletion fails, this instance can no longer be used.
        """
        commit = self._deletion
        assert commit is not None
        if not commit.is_done:
            if (write := self.history.delete()) is None:
                self._pending.remove(commit)
                commit.decide(may_be_stored=False)
                commit.finish(None)
            else:
                commit.outcome = self._store.submit(write)
                commit.outcome.add_done_callback(partial(self._on_stored, commit), context=Context())
        await commit
        self._refusal = (Destroyed, f"{self.history.key} was destroyed")

    def abandon_deletion(self, error: PlaitError) -> None:
        """Fail a deletion that was not submitted, and all callbacks that wait for it."""
        commit, self._deletion = self._deletion, None
        if commit is not None and not commit.is_done and commit.outcome is None:
            self._pending.remove(commit)
            commit.decide(may_be_stored=False)
            commit.finish(error)

    # Inside

    def _find_own_turn(self) -> StateTurn | None:
        return None if self.turns is None else self.turns.find_own_turn()

    def _submit(self, write: Write, source: Source) -> Commit:
        if self.card is not None:
            write = self.card.add_to(write, self.history.current)
        # Clients make their changes outside of turns.
        maker = self.turns.find_turn() if source == "server" and self.turns is not None else None
        commit = Commit(self.history.current, source, maker)
        if self.on_listed is not None:
            is_seen = write.after is None or any(each.part in _SEEN for each in write.records)
            commit.then(partial(self._tell_listed, is_seen))
        if maker is not None:
            maker.expect_change()
        pending = self._pending
        # If the previous write has failed, this one fails with it: it is not submitted, as the store might accept it.
        has_failed = len(pending) > 0 and pending[-1].has_failed
        pending.append(commit)
        timer = self.timer
        if timer is not None and (timer.parts or timer.expires is not None):
            if write.records:
                timer.follow_write({record.part for record in write.records})
            if (due := timer.due) is not None and due != self.due:
                write, self.due = replace(write, due=due), due
        if self.on_touch is not None:
            for part in {record.part for record in write.records}:
                self.on_touch(part, (WHOLE,))
        if not has_failed:
            commit.outcome = self._store.submit(write)
            # The callbacks run outside of the context of the turn that has made the change.
            commit.outcome.add_done_callback(partial(self._on_stored, commit), context=Context())
        # Count only after submitting, so that nothing comes between `history.append` and the store.
        if write.changes and self._instruments is not NO_INSTRUMENTS:
            (kind, name), size = write.key, sum([len(row.ops) for row in write.changes])
            turns = self.turns
            parent = (turns and turns.find_trace()) if isinstance(source, str) else source.trace
            commit.trace, commit.began = self._instruments.change_made(kind, name, size, parent), perf_counter()
        return commit

    def _tell_listed(self, is_seen: bool, error: PlaitError | None) -> None:
        if error is None and self.on_listed is not None:
            self.on_listed(is_seen)

    def _on_stored(self, commit: Commit, outcome: asyncio.Future[int]) -> None:
        error = outcome.exception()
        if commit.is_done:
            return  # The change failed earlier, with the change that it was based on.
        if error is None:
            assert self._pending[0] is commit
            del self._pending[0]
            is_change = commit.revision is not self.history.durable
            self.history.mark_durable(commit.revision)
            if commit.began is not None:
                self._instruments.change_committed(commit.trace, perf_counter() - commit.began, outcome.result())
            if is_change:
                self._on_commit(commit)
            commit.decide(may_be_stored=True)
            commit.finish(None)
            return
        failure = error if isinstance(error, StoreError) else StoreError("the store failed", detail=str(error))
        if self._deletion is not None or isinstance(failure, Fenced | Indeterminate):
            # The right state is unknown, so nothing may be answered from this state.
            self.close()
            self.lost = failure
            self._on_lost(failure)
        else:
            self._roll_back()
            if self.turns is not None:
                self.turns.cut(failure, {task for each in self._pending for task in each.tasks})
        failed, self._pending = self._pending, []
        self._instruments.store_failed(failure.code)
        for each in failed:  # The outcome of all is decided before the first is answered.
            if each.began is not None:
                self._instruments.change_failed(each.trace, failure.code)
            each.decide(may_be_stored=isinstance(failure, Indeterminate))
        self.due = None
        if self.timer is not None:
            self.timer.arm()
        for each in failed:
            each.finish(failure)

    def _roll_back(self) -> None:
        """Go back to the last durable state."""
        self.history.rollback()
        for each in reversed(self._pending):
            each.roll_back()
        if self.card is not None:
            self.card.forget()
        if self.on_touch is not None:
            self.on_touch(None, None)
        self._has_lost = True
