"""`with thread.transaction():` makes one change of all changes in its block, or none if the block raises."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from plait.errors import PlaitError, RolledBack
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.timer import Timer
from plait.store.thread_rows import Record, ThreadKey
from plait_schemas.patch import Op, compact, is_index

__all__ = ["Transaction", "find_transaction", "innermost", "refuse"]

log = logging.getLogger("plait.thread")

_innermost: Final[ContextVar["Transaction | None"]] = ContextVar("plait_transaction", default=None)

innermost: Final = _innermost.get
"""Returns the innermost transaction, of any thread, in whose block the calling code runs; None outside of all."""

_BROKEN: Final = (
    "a transaction was rolled back, because its block awaited something or was never left: await before or after it"
)
_LATE: Final = "a transaction was left after its outer transaction, which has made its changes"

Callback = Callable[[PlaitError | None], None]
MakeRecords = Callable[[], Sequence[Record]]


class TransactionOwner(Protocol):
    """The pipeline, as far as its transactions know it."""

    timer: Timer | None

    @property
    def current(self) -> Revision: ...

    def begin(self, transaction: "Transaction") -> None: ...

    def end(self, transaction: "Transaction") -> None: ...

    def commit(self, transaction: "Transaction", ops: Sequence[Op]) -> Commit: ...

    def after(self, callback: Callback) -> None: ...


def find_transaction(owner: TransactionOwner) -> "Transaction | None":
    """Return the thread's transaction in whose block the calling code runs; it may have been rolled back."""
    found = _innermost.get()
    while found is not None and found.owner is not owner:
        found = found.around
    return found


class _Step(NamedTuple):
    """A change inside of a transaction."""

    revision: Revision
    ops: Sequence[Op]
    records: Sequence[Record]
    commit: Commit


class Transaction:
    """Turns all changes that a block makes to the state of a thread into one change, or into none if the block raises.

    A transaction inside of another one joins it. If the inner block raises, its changes are undone; otherwise they
    share the fate of the outer changes. A block must not await, as others could change the state in between. If it
    does, it is rolled back, and leaving it raises RuntimeError. Otherwise leaving the block raises the errors of
    `set_state`. `validate_state_change` is called once, at the end. With `async with`, leaving the outermost block
    waits until the change is durable and sent.
    """

    __slots__ = (
        "_broken",
        "_callbacks",
        "_failure",
        "_key",
        "_outer",
        "_start",
        "_steps",
        "_timer",
        "_token",
        "around",
        "commit",
        "leaving",
        "owner",
    )

    def __init__(self, owner: TransactionOwner, key: ThreadKey, *, broken: str = _BROKEN) -> None:
        self.owner = owner
        self._key = key
        # The message of the error that is raised if the loop continues before the block is left.
        self._broken = broken
        self._outer: Transaction | None = None
        # The revision at the beginning, and the number of steps and callbacks that the outer transaction had.
        self._start: tuple[Revision, int, int] | None = None
        self._steps: list[_Step] = []
        # Called when the change is durable, or has failed.
        self._callbacks: list[Callback] = []
        # Breaks the transaction if the loop continues before the block is left.
        self._timer: asyncio.Handle | None = None
        self._token: Token[Transaction | None] | None = None
        # The reason why the transaction was broken, if it was.
        self._failure: Exception | None = None
        # The transaction of another thread whose block contains this one.
        self.around: Transaction | None = None
        # The change, after the block.
        self.commit: Commit | None = None
        # Called when the outermost block is left and its change was not refused. They return records for the write. If
        # one raises, the block is undone; a step with an undo reverts their own effects.
        self.leaving: list[MakeRecords] = []

    # The block

    def __enter__(self) -> Self:
        if self._start is not None:
            raise RuntimeError("this transaction was already used for a block: call `transaction()` for each block")
        outer = find_transaction(self.owner)
        if outer is not None and outer.is_open:
            outer.check()
            self._outer = outer
            self._start = outer.revision, len(outer._steps), len(outer._callbacks)
            return self
        loop = asyncio.get_running_loop()
        self.owner.begin(self)
        self._start = self.owner.current, 0, 0
        self.around = _innermost.get()
        self._token = _innermost.set(self)
        self._timer = loop.call_soon(self.break_)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            self._leave_inner(self._outer, error)
            return
        assert self._timer is not None
        assert self._token is not None
        self._timer.cancel()
        self._timer = None
        _innermost.reset(self._token)
        if self._failure is not None:
            self._raise_failure(self._failure, error)
            return
        self.owner.end(self)
        if error is not None:
            self._undo()
            return
        ops = [op for step in self._steps for op in step.ops]
        try:
            self.commit = self.owner.commit(self, _drop_overwritten(ops))
        except BaseException:
            self._undo()
            raise
        self.commit.undo = partial(_roll_back, [step.commit for step in self._steps])
        for step in self._steps:
            step.commit.revision, step.commit.whole = self.commit.revision, self.commit.whole or self.commit
            self.commit.then(step.commit.finish)
        for callback in self._callbacks:
            self.commit.then(callback)
        # Tasks that were begun in the block keep the transaction alive.
        self._steps, self._callbacks, self.leaving = [], [], []

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
        if self.commit is not None and self._outer is None:
            await self.commit

    # For the pipeline

    @property
    def is_open(self) -> bool:
        """Whether its block was entered and not left; even then, it may have been rolled back."""
        return self._timer is not None

    @property
    def is_empty(self) -> bool:
        """Whether its block has changed nothing so far."""
        return not self._steps

    @property
    def revision(self) -> Revision:
        """The state at this point of the block."""
        assert self._start is not None
        return self._steps[-1].revision if self._steps else self._start[0]

    def add(self, revision: Revision, ops: Sequence[Op], records: Sequence[Record] = ()) -> Commit:
        """Add a step: operations on the last revision with the resulting revision, or records."""
        assert self._start is not None
        revision.version = self._start[0].version
        commit = Commit(revision, "server")
        self._steps.append(_Step(revision, ops, records, commit))
        return commit

    def after(self, callback: Callback) -> None:
        """Call `callback` when the change is durable, or with an error if there is no change."""
        self._callbacks.append(callback)

    def ops_since(self, revision: Revision) -> list[Op] | None:
        """Return the operations of the block since a revision; None if the revision does not belong to the block."""
        assert self._start is not None
        found: list[Op] | None = [] if revision is self._start[0] else None
        for step in self._steps:
            if found is not None:
                found += step.ops
            elif step.revision is revision:
                found = []
        return found

    def make_records(self) -> Sequence[Record]:
        """Return the records of the write: only the last record of each key."""
        records = {(record.part, record.key): record for step in self._steps for record in step.records}
        for make in self.leaving:
            records.update({(record.part, record.key): record for record in make()})
        return list(records.values())

    def check(self) -> None:
        """Raise an error if the transaction was broken."""
        if self._failure is not None:
            raise self._failure

    def break_(self, failure: Exception | None = None) -> None:
        """Undo the block, as other code runs before its end, or because of a failure, which is raised at its end."""
        if self._failure is None:
            if failure is None:
                failure = RuntimeError(self._broken)
                log.error(self._broken, extra={"plait_thread": str(self._key)})
            self._failure = failure
            self.owner.end(self)
            self._undo()

    # Inside

    def _leave_inner(self, outer: "Transaction", error: BaseException | None) -> None:
        assert self._start is not None
        if outer._failure is not None:
            self._raise_failure(outer._failure, error)
        elif not outer.is_open:
            self._raise_failure(RuntimeError(_LATE), error)
        elif error is not None:
            revision, steps, callbacks = self._start
            revision.discard_edits()
            outer._undo(steps, callbacks)
        else:
            self.commit = outer.add(outer.revision, ())

    def _raise_failure(self, failure: Exception, error: BaseException | None) -> None:
        """Raise the error that broke the transaction, unless the block raises it itself or was cancelled."""
        if error is None or (isinstance(error, Exception) and error is not failure):
            raise failure from error

    def _undo(self, steps: int = 0, callbacks: int = 0) -> None:
        """Undo all but the first steps, and pass an error to their callbacks, after the earlier changes are durable."""
        assert self._start is not None
        self._start[0].discard_edits()
        _roll_back([step.commit for step in self._steps[steps:]])
        if self.owner.timer is not None:
            self.owner.timer.arm()
        waiting = [*(step.commit.finish for step in self._steps[steps:]), *self._callbacks[callbacks:]]
        del self._steps[steps:], self._callbacks[callbacks:]
        for callback in waiting:
            self.owner.after(refuse(callback))


def _roll_back(commits: Sequence[Commit]) -> None:
    for commit in reversed(commits):
        commit.roll_back()


def refuse(callback: Callback, error: PlaitError | None = None) -> Callback:
    """Return a callback that always passes on an error, by default RolledBack."""
    return lambda _: callback(error or RolledBack("the transaction was rolled back"))


def _drop_overwritten(ops: Iterable[Op]) -> list[Op]:
    """Return the operations without the ones that the next operation overwrites, as when a counter is set in a loop.

    Consecutive splices of one text are joined.
    """
    found: list[Op] = []
    for op in ops:
        if found and _overwrites(op, found[-1]):
            found[-1] = Op(found[-1].op, op.path, op.value)
        else:
            found.append(op)
    return compact(found)


def _overwrites(op: Op, last: Op) -> bool:
    if op.path != last.path or not {"remove", "splice"}.isdisjoint((op.op, last.op)):
        return False
    part = op.path.rpartition("/")[2]
    # In a list, a second `add` inserts another element.
    return op.op == last.op == "replace" or not (part == "-" or is_index(part))
