"""Keeps the writes of a run to the parts of its thread until they are committed."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from plait.actor.begun import Begun, keep_begun
from plait.actor.thread import ThreadActor
from plait.actor.turn import begin_write
from plait.parts.written import Draft
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = [
    "ItemsDraft",
    "LastBlock",
    "Stage",
    "begin_staged",
    "do_nothing",
    "find_draft",
    "find_stage",
    "use_draft",
]

T = TypeVar("T")
D = TypeVar("D", bound=Draft)

_BROKEN: Final = (
    "the transaction of a step was rolled back, because the step awaited something in its block or after it: "
    "await before the block"
)

_innermost: Final[ContextVar["Stage | None"]] = ContextVar("plait_stage", default=None)


def begin_staged(actor: ThreadActor, work: Coroutine[Any, Any, T]) -> Begun[T]:
    """Begin a write to a part that must read first: the run stores it, or without a run the turn waits for it."""
    if actor.state.find_own_transaction() is not None:
        work.close()
        raise RuntimeError("what must be read first cannot be written in a transaction: read it before the block")
    if (stage := find_stage(actor)) is None:
        return begin_write(work)
    try:
        stage.check()
    except BaseException:
        work.close()
        raise
    begun = Begun(work)
    stage.begun = keep_begun(stage.begun, begun)
    return begun


def find_stage(actor: ThreadActor) -> "Stage | None":
    """Return the open stage of a thread that the calling code uses; None outside of the thread's runs."""
    stage = _innermost.get()
    while stage is not None and (stage.actor is not actor or stage.is_closed):
        stage = stage.around
    return stage


def find_draft(actor: ThreadActor, part: object, cls: type[D]) -> D | None:
    """Return the draft of a part in the run of the calling code; None if the run has none, or outside of runs."""
    stage = find_stage(actor)
    draft = None if stage is None else stage.drafts.get(part)
    assert draft is None or isinstance(draft, cls)
    return draft


def use_draft(actor: ThreadActor, part: object, cls: type[D], make: "Callable[[Stage], D]") -> D | None:
    """Return the draft of a part for the calling run, which `make` makes on first use; None outside of runs.

    Raises the error of the stage's `check`.
    """
    if (stage := find_stage(actor)) is None:
        return None
    stage.check()
    draft = stage.drafts.get(part)
    if draft is None:
        draft = stage.drafts[part] = make(stage)
    assert isinstance(draft, cls)
    return draft


class ItemsDraft(Draft, Generic[T]):
    """Items in order, which `store` stores in an open transaction."""

    def __init__(self, actor: ThreadActor, store: Callable[[Sequence[T]], object]) -> None:
        self._actor = actor
        self._store = store
        self.items: list[T] = []

    def add(self, item: T) -> None:
        """Stage an item after the others."""
        self.items.append(item)

    # For the stage

    @property
    def is_dirty(self) -> bool:
        return bool(self.items)

    def write(self) -> None:
        items = self.items
        self._actor.records.write([], undo=lambda: self._stage_again(items))
        self.drop()
        self._store(items)

    def drop(self) -> None:
        self.items = []

    # Inside

    def _stage_again(self, items: Sequence[T]) -> None:
        later = self.items
        self.drop()
        for item in (*items, *later):
            self.add(item)


class Stage:
    """Collects writes to the parts of a thread, to store them as one. Call `enter` in the task that makes them."""

    def __init__(self, actor: ThreadActor, check: Callable[[], None]) -> None:
        self.actor = actor
        # Called at each use of a part; raises an error if nothing may be staged, or to interrupt the run.
        self.check = check
        self.drafts: dict[Any, Draft] = {}
        # Writes that read first.
        self.begun: list[Begun[Any]] = []
        # Whether later writes are stored at once instead of staged.
        self.is_closed = False
        # The last write.
        self._commit: Commit | None = None
        # The transaction of the next commit, if a block of `open` has begun it.
        self._transaction: Transaction | None = None
        self.around = _innermost.get()

    @property
    def may_be_dirty(self) -> bool:
        """Whether there are writes to store, or changes that cannot be stored."""
        try:
            return bool(self.begun) or any(draft.is_dirty for draft in self.drafts.values())
        except (TypeError, ValueError):  # A value was changed in place, and is not JSON.
            return True

    @property
    def is_open(self) -> bool:
        """Whether a block of `open` has begun the next commit."""
        return self._transaction is not None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make this the stage of a block; if the block raises, uncommitted writes are dropped."""
        self.enter()
        try:
            yield
        except BaseException:
            self.drop()
            raise
        finally:
            self.leave()

    def enter(self) -> None:
        """Make this the stage of the calling task, and of the tasks that it starts."""
        _innermost.set(self)

    def leave(self) -> None:
        """Close this stage; the outer stage is again the stage of the calling task."""
        self.close()
        _innermost.set(self.around)

    async def commit(
        self,
        *,
        is_last: bool = False,
        end: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Store the staged writes as one, after the writes of `end`; return when they are durable.

        With `is_last`, the stage closes when the commit begins: later writes are stored at once. If there are writes,
        those of `then` come after them. Raises StoreError, TooLarge, TypeError for a `push` to a value that is not a
        list, and the error of the function of an `update`; then nothing is stored, and the writes stay staged until
        they are dropped.
        """
        drafts = await self.prepare() if self._transaction is None else self._find_dirty()
        if is_last:
            self.close()
        if self._transaction is None and not drafts and end is None:
            return
        transaction, self._transaction = self._transaction, None
        with ExitStack() as leaving:
            if transaction is None:
                transaction = leaving.enter_context(Transaction(self.actor.state, self.actor.key))
            else:
                leaving.push(transaction)
            if end is not None:
                end()
            for draft in drafts:
                draft.write()
            if then is not None:
                then()
        assert transaction.commit is not None
        self._commit = transaction.commit
        await transaction.commit

    async def prepare(self) -> list[Draft]:
        """Finish the writes that read first, read the records that the others need, and return the drafts to write."""
        while True:
            while self.begun:
                await self.begun.pop(0).finish()
            if self._commit is not None and not self._commit.is_done:
                # The writes of that commit must be stored first, or be staged again if it fails.
                await self._commit.wait()
                continue
            drafts = self._find_dirty()
            waiting = [draft for draft in drafts if not draft.is_ready]
            if not waiting:
                return drafts
            for draft in waiting:
                await draft.prepare()

    def open(self) -> "LastBlock":
        """Return a block whose changes the next commit stores, before which the calling task must not await.

        The staged writes come before the block's. If the block raises, it changes nothing. If the task awaits before
        the commit, that raises RuntimeError, and nothing is stored. `async with` reads first what the writes need.
        """
        return LastBlock(self)

    @contextmanager
    def enter_last(self) -> Iterator[None]:
        """Enter the block of `open`."""
        if self._transaction is not None:
            with Transaction(self.actor.state, self.actor.key):
                yield
            return
        if self.actor.state.find_own_transaction() is not None:
            raise RuntimeError("the transaction of a step cannot begin in the block of another transaction")
        if not all(begun.is_over for begun in self.begun):
            raise RuntimeError("await each write of this step before the block of its transaction")
        self._transaction = Transaction(self.actor.state, self.actor.key, broken=_BROKEN)
        try:
            with ExitStack() as leaving:
                leaving.enter_context(self._transaction)
                for draft in self._find_dirty():
                    draft.write()
                yield
                self._transaction.check()
                leaving.pop_all()  # The commit leaves the block.
        except BaseException:
            self._transaction = None
            raise

    async def has_committed(self) -> bool:
        """Wait for the write that is being stored, if there is one; return whether all writes are durable."""
        if self._commit is None or self.may_be_dirty:
            return False
        await self._commit.wait()
        return not self._commit.has_failed

    def drop(self) -> None:
        """Forget the writes that are not committed."""
        while self.begun:
            self.begun.pop().cancel()
        if self._transaction is not None:
            error = asyncio.CancelledError()
            self._transaction.__exit__(type(error), error, None)
            self._transaction = None
        for draft in self.drafts.values():
            draft.drop()
        self.drafts.clear()

    def close(self) -> None:
        """Stop staging; later writes are stored at once."""
        self.is_closed = True
        self.check = do_nothing  # Breaks a reference cycle.

    def _find_dirty(self) -> list[Draft]:
        return [draft for draft in self.drafts.values() if draft.is_dirty]


class LastBlock:
    """A block that begins the last write of a stage: see `Stage.open`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._block = stage.enter_last()

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._block.__exit__(*raised)

    async def __aenter__(self) -> None:
        await self._stage.prepare()
        self._block.__enter__()

    async def __aexit__(self, *raised: Any) -> None:
        self._block.__exit__(*raised)


def do_nothing() -> None:
    """Check nothing, because the user of the stage cannot be interrupted."""
