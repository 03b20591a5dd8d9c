"""The path of a change: validated, applied, made durable, then sent. No I/O except through the store.

Output of a thread waits for the changes made before it (an output gate): `after` calls back at once if everything is
durable, and otherwise when the last change made so far is. When a change is lost, the thread goes back to its last
durable state and the turns that are under way are cut short, as they may have seen it: they can send and change
nothing more.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from plait.errors import Conflict, Destroyed, Fenced, Indeterminate, PlaitError, StoreError, Unavailable
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.limits import Limits
from plait.state.applying import apply_ops, apply_value, drop_unpaired_moves, measure_op
from plait.state.commit import Commit, Maker
from plait.state.history import History
from plait.state.revision import Revision
from plait.state.source import Client, Source
from plait.state.transaction import Transaction, find_transaction, innermost, refuse
from plait.state.types import MOST_MOVED, UNDECODED, StateType, check_op, check_size, encode_value
from plait.store.protocol import ClientRow, Record, Store, Write
from plait.store.records import check_record
from plait_schemas.align import Keys
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import replace
from plait_schemas.patch import Op, PatchError, decode_ops, find, parse, splice

__all__ = ["Pipeline"]

T = TypeVar("T")


class Turns(Protocol):
    """The turns of a thread, whose code makes changes and sees them before they are durable."""

    def find_turn(self) -> Maker | None:
        """Return the turn in which the calling code runs, of any thread; None outside of turns."""
        ...

    def sees_durable(self) -> bool:
        """Whether the calling code decides what a client may do, and so is shown only what is durable."""
        ...

    def find_loss(self) -> PlaitError | None:
        """Return why the turn of the calling code was cut short, if it is one of this thread."""
        ...

    def cut(self, failure: PlaitError, told: Collection[asyncio.Task[Any]]) -> None:
        """Cut the turns short whose code is under way, except those whose own tasks are told the error themselves."""


class Pipeline:
    """Applies the changes of one thread, stores them, and publishes them when they are durable."""

    __slots__ = (
        "_deletion",
        "_find_trace",
        "_has_lost",
        "_instruments",
        "_is_deciding",
        "_limits",
        "_on_commit",
        "_on_lost",
        "_pending",
        "_refusal",
        "_store",
        "_transaction",
        "_type",
        "_validate",
        "history",
        "lost",
        "on_submit",
        "turns",
    )

    def __init__(
        self,
        history: History,
        state_type: StateType,
        store: Store,
        limits: Limits,
        *,
        validate: Callable[[Any, Any], object] | None,
        on_commit: Callable[[Commit], None],
        on_lost: Callable[[StoreError], None],
        instruments: Instruments = NO_INSTRUMENTS,
        find_trace: Callable[[Instruments, Source], Any] = lambda *_: None,
    ) -> None:
        self.history = history
        self._type = state_type
        self._store = store
        self._limits = limits
        # Raises to refuse a change, and must return None; None if the class does not validate changes.
        self._validate = validate
        # Called for each change that became durable, in order, before the callbacks that wait for it.
        self._on_commit = on_commit
        # Called when this instance can no longer tell the thread's state: another process has written the thread, or
        # it is not known what became of a write. The sockets must be closed before those who wait are told.
        self._on_lost = on_lost
        # Why the thread's state is no longer known here; None while it is.
        self.lost: StoreError | None = None
        self._instruments = instruments
        # Returns the trace of what causes a change of this source.
        self._find_trace = find_trace
        # Changes that are not durable yet, in order, and how many there have been.
        self._pending: list[Commit] = []
        # The turns of the thread, if it has any, and whether a change was lost that they may have seen.
        self.turns: Turns | None = None
        self._has_lost = False
        # Called at each change, before it is stored.
        self.on_submit: Callable[[], None] | None = None
        # The class and message of the error with which further changes are refused; None while they are made.
        self._refusal: tuple[type[PlaitError], str] | None = None
        # The last write of a thread that is being destroyed; it is pending before it is submitted.
        self._deletion: Commit | None = None
        # Whether the author's code is deciding about a change; it must not make another one.
        self._is_deciding = False
        # The open transaction, outermost, if there is one.
        self._transaction: Transaction | None = None

    @property
    def is_durable(self) -> bool:
        """Whether every change is durable."""
        return not self._pending

    @property
    def keys(self) -> Keys | None:
        """Which strings are texts, and which members identify the elements of lists."""
        return self._type.keys

    @property
    def state(self) -> Any:
        """The current state, None when there is none."""
        return self.current.state

    @property
    def current(self) -> Revision:
        """The current revision; inside of a transaction, what it has made of it so far."""
        if self._transaction is None:
            return self.history.current
        transaction = self._own_transaction()
        return self.history.current if transaction is None else transaction.revision

    @property
    def shown(self) -> Revision:
        """The revision that the author's code is shown: the current one, or only what is durable."""
        return self.history.durable if self._shows_durable() else self.current

    async def wait_for_shown(self) -> None:
        """Wait until what the calling code is about to be shown is durable, if it may not see what is not."""
        if self._shows_durable():
            await self.wait_until_stored()

    def _shows_durable(self) -> bool:
        return len(self._pending) > 0 and self.turns is not None and self.turns.sees_durable()

    def find_loss(self) -> PlaitError | None:
        """Return why the turn of the calling code was cut short; None if it was not."""
        return self.turns.find_loss() if self._has_lost and self.turns is not None else None

    def start(self, value: object) -> None:
        """Make `value` the initial state of a thread that is not stored; it is stored with the first change."""
        self.history.start(*self._type.from_value(value, self._limits))

    async def store_thread(self) -> None:
        """Store a new thread, if that has not been done; return when it is durable. Raises StoreError."""
        history = self.history
        if history.is_stored:
            return
        if not history.is_begun:
            self.check_open()
            self._submit(history.put(()), "server")
        await self._pending[-1]

    def set(self, value: object, source: Source) -> Commit:
        """Set the state to `value`, or, if that is a function, to its result for the current state."""
        self.check_open()
        try:
            current, type_ = self.current, self._type
            if callable(value):
                value = self.ask(value, current.state)
            if type_.is_immutable and (parts := apply_value(type_, current, value, self._limits)) is not None:
                return self._make_current(*parts, source)
            return self._set_whole(current, *type_.from_value(value, self._limits), source)
        except BaseException:
            # The function may have changed the state in place: discard that, too.
            self.current.discard_edits()
            raise

    def push(self, data: bytes, source: Client) -> Commit:
        """Set the state to JSON that a client sent; unknown fields are refused."""
        self.check_open()
        return self._set_whole(self.current, *self._type.from_json(data, self._limits), source)

    def replace(self, state: Any, data: bytes, source: Client) -> Commit:
        """Set the state to a client's, given as decoded by the type and as encoded from that."""
        self.check_open()
        return self._set_whole(self.current, state, data, source)

    def change(
        self,
        ops: Sequence[Op],
        source: Source,
        *,
        accept: Callable[[], ClientRow] | None = None,
        name: str | None = None,
        drops_unknown: bool = False,
    ) -> Commit:
        """Apply operations to the current state; the log names `name` as their source, or else `source`.

        `accept` is called when the operations can no longer be refused, and returns the client's row to store. Raises
        InvalidState, TooLarge, what `validate_state_change` raises, and Conflict when the operations do not fit.
        """
        self.check_open()
        for op in ops:
            check_op(op, self._limits)
        ops = drop_unpaired_moves(ops)
        try:
            most_moved = None if isinstance(source, str) else MOST_MOVED
            after, ops = apply_ops(self._type, self.current, ops, drops_unknown=drops_unknown, most_moved=most_moved)
        except PatchError as error:
            raise Conflict(str(error), path=ops[0].path if [op.op for op in ops] == ["splice"] else None) from None
        ops = [op for op in ops if op.op != "splice" or op.remove or op.insert]
        return self._make_current(after, ops, source, accept=accept, name=name)

    def update(self, pointer: str, value: object) -> Commit:
        """Set the value at a JSON pointer, as a change of the server."""
        try:
            parts = parse(pointer)
        except PatchError as error:
            raise Conflict(str(error), path=pointer) from None
        plain = decode_json(encode_value("value", value, self._limits, pointer))
        keys = self._type.keys
        if isinstance(plain, str) and keys is not None and keys.has_text(pointer):
            text = self._find_text(pointer)
            if text is not None:
                return self.change(replace(text, plain, pointer, keys), "server")
        is_in_list = bool(parts) and isinstance(find(self.current.tree, parts[:-1]), list | tuple)
        return self.change([Op("replace" if is_in_list and parts[-1] != "-" else "add", pointer, plain)], "server")

    def splice(self, pointer: str, at: int | None, remove: int = 0, insert: str = "") -> Commit:
        """Remove and insert characters of the text at a JSON pointer, at its end without a place.

        It is a change of the server.
        """
        if at is None:
            at = len(self._find_text(pointer) or "")
        return self.change([splice(pointer, at, remove, insert)], "server")

    def store(self, records: Sequence[Record]) -> Commit:
        """Store records after the changes made so far; they fail with these. Raises ValueError and TooLarge."""
        self.check_open()
        for record in records:
            check_record(record, self._limits)
        if (transaction := self._own_transaction()) is not None:
            return transaction.add(transaction.revision, (), records)
        return self._submit(self.history.put(records), "server")

    def check_open(self) -> None:
        """Raise what refuses any change now: the thread has ended or lost its store, or another change is decided."""
        own = None if innermost() is None else find_transaction(self)
        if self._transaction is not None and self._transaction is not own:
            self._transaction.break_()
        if own is not None and own.is_open:
            own.check()
        if self._refusal is not None:
            kind, message = self._refusal
            raise kind(message)
        if (loss := self.find_loss()) is not None:
            raise loss
        if self._is_deciding:
            raise RuntimeError(
                "the state cannot be changed while another change is being made: do it in on_state_changed, not in "
                "validate_state_change, resolve_conflict or a function that is passed to set_state"
            )

    def ask(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function of the author that decides about a change, and that must not make a change itself."""
        self._is_deciding = True
        try:
            return function(*args)
        finally:
            self._is_deciding = False

    # Transactions

    def begin(self, transaction: Transaction) -> None:
        """Let the calling code's changes be steps of a transaction from now on."""
        self.check_open()
        self._transaction = transaction

    def end(self, transaction: Transaction) -> None:
        """Let changes be made by themselves again."""
        if self._transaction is transaction:
            self._transaction = None

    def commit(self, revision: Revision, ops: Sequence[Op], records: Sequence[Record]) -> Commit:
        """Make the result of a transaction the current revision, and store it with records."""
        self.check_open()
        if revision is not self.history.current:
            return self._make_current(revision, ops, "server", records=records)
        return self._submit(self.history.put(records), "server") if records else self._commit_unchanged("server")

    def ops_since(self, revision: Revision) -> list[Op] | None:
        """Return the operations since a revision of the open transaction, None if it is not one."""
        transaction = self._own_transaction()
        ops = None if transaction is None else transaction.ops_since(revision)
        # A large part of a plain state is a text, which is not looked into.
        return decode_ops(encode_json(ops)) if ops and self._type.is_plain else ops

    # Ending

    def close(self) -> None:
        """Refuse further changes: the thread has been stopped, and another instance may have replaced it."""
        if self._refusal is None:
            self._refusal = (Unavailable, _STOPPED)

    def begin_deletion(self, turn: Maker) -> Commit | None:
        """Refuse further changes, and hold back what is sent from now on until `delete` has an outcome.

        Returns the last change so far, None if all are durable.
        """
        turn.expect_change()
        self._refusal = (Destroyed, f"{self.history.key} is being destroyed")
        before = self._pending[-1] if self._pending else None
        self._deletion = Commit(self.history.current, "server", turn)
        self._pending.append(self._deletion)
        return before

    async def delete(self) -> None:
        """Delete what is stored of the thread, after `begin_deletion`; return when that is durable. Raises StoreError.

        If it fails, this instance can no longer be used.
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
        """Fail what was held back for a deletion that was not submitted; what is sent later is not held back."""
        commit, self._deletion = self._deletion, None
        if commit is not None and not commit.is_done and commit.outcome is None:
            self._pending.remove(commit)
            commit.decide(may_be_stored=False)
            commit.finish(error)

    def after(self, callback: Callable[[PlaitError | None], None]) -> None:
        """Call `callback` when every change made so far is durable: at once, if all are."""
        if (loss := self.find_loss()) is not None:
            callback = partial(_fail, callback, loss)
        if innermost() is not None and (own := find_transaction(self)) is not None and own.is_open:
            if own is self._transaction:
                own.after(callback)
                return
            callback = refuse(callback)  # The block is still running, but was rolled back.
        if self._pending:
            self._pending[-1].then(callback)
        else:
            callback(self.lost)

    async def wait_until_durable(self) -> None:
        """Wait until every change made so far is durable, or has failed."""
        if self._pending:
            await self._pending[-1].wait()

    async def wait_until_stored(self) -> None:
        """Wait until every change made so far is durable, or has failed, but not for the deletion of the thread."""
        waiting = [commit for commit in self._pending if commit is not self._deletion]
        if waiting:
            await waiting[-1].wait()

    def _find_text(self, pointer: str) -> str | None:
        """Return the string at a JSON pointer, None where there is none. Raises Conflict."""
        try:
            parts = parse(pointer)
        except PatchError as error:
            raise Conflict(str(error), path=pointer) from None
        current = self.current
        text = find(current.tree, parts)
        if not isinstance(text, str) and current.base is not UNDECODED:
            text = find(current.document, parts)  # In JSON it may be one, or inside of an array.
        return text if isinstance(text, str) else None

    def _set_whole(self, current: Revision, state: Any, data: bytes, source: Source) -> Commit:
        ops = self.history.diff(current, state, data, self._limits)
        return self._make_current(Revision(self._type, json=data, state=state), ops, source)

    def _make_current(
        self,
        after: Revision,
        ops: Sequence[Op],
        source: Source,
        *,
        accept: Callable[[], ClientRow] | None = None,
        name: str | None = None,
        records: Sequence[Record] = (),
    ) -> Commit:
        """Make `after` the current revision and store it, unless it is too large, is refused, or changes nothing."""
        if not after.size:
            after.size = self.current.size + sum(map(measure_op, ops))
        if after.size > self._limits.state:
            check_size(after.require_json(), self._limits)
        if self._transaction is not None and (transaction := self._own_transaction()) is not None:
            if name is not None:
                raise RuntimeError("an undo is a change of its own: call it outside of the transaction")
            return transaction.add(after, ops)
        if self._validate is not None:
            answer = self.ask(self._validate, after.copy(), source)
            if answer is not None:
                raise TypeError(
                    f"validate_state_change returned {type(answer).__name__}: it must raise to refuse a change, for "
                    "example Reject, and return None to accept it"
                )
        if not ops:
            return self._submit(self.history.put(records), source) if records else self._commit_unchanged(source)
        client = accept() if accept is not None else None
        return self._submit(self.history.append(ops, name or _name(source), after, client, records), source)

    def _own_transaction(self) -> Transaction | None:
        """Return the open transaction if the calling code runs in its block."""
        found = self._transaction
        return found if found is not None and found is find_transaction(self) else None

    def _commit_unchanged(self, source: Source) -> Commit:
        commit = Commit(self.history.current, source)
        if self._pending:
            commit.whole = self._pending[-1]
        self.after(commit.finish)
        return commit

    def _submit(self, write: Write, source: Source) -> Commit:
        maker = None if self.turns is None else self.turns.find_turn()
        commit = Commit(self.history.current, source, maker)
        if maker is not None:
            maker.expect_change()
        if self.on_submit is not None:
            self.on_submit()
        pending = self._pending
        # It fails with the one before, in this iteration of the loop. The store might accept it.
        has_failed = len(pending) > 0 and pending[-1].has_failed
        pending.append(commit)
        if not has_failed:
            commit.outcome = self._store.submit(write)
            # What follows is not done for the turn that has made the change.
            commit.outcome.add_done_callback(partial(self._on_stored, commit), context=Context())
        # Nothing comes between `history.append` and the store.
        if write.changes:
            (kind, name), size = write.key, sum([len(row.ops) for row in write.changes])
            parent = self._find_trace(self._instruments, source)
            commit.trace, commit.began = self._instruments.change_made(kind, name, size, parent), perf_counter()
        return commit

    def _on_stored(self, commit: Commit, outcome: asyncio.Future[int]) -> None:
        error = outcome.exception()
        if commit.is_done:
            return  # It failed with an earlier change that it was made on.
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
            # Nothing may be answered from this state, and it is not known which one is right.
            self.close()
            self.lost = failure
            self._on_lost(failure)
        else:
            self.history.rollback()
            self._has_lost = True
            if self.turns is not None:
                self.turns.cut(failure, {task for each in self._pending for task in each.tasks})
        failed, self._pending = self._pending, []
        self._instruments.store_failed(failure.code)
        for each in failed:  # Before any of them is answered.
            if each.began is not None:
                self._instruments.change_failed(each.trace, failure.code)
            each.decide(may_be_stored=isinstance(failure, Indeterminate))
        for each in failed:
            each.finish(failure)


def _fail(callback: Callable[[PlaitError | None], None], loss: PlaitError, _: PlaitError | None) -> None:
    callback(loss)


_STOPPED: Final = "the thread has been stopped: get it from the app again"


def _name(source: Source) -> str:
    return source if isinstance(source, str) else source.id
