"""Makes the changes of one thread: each is checked, validated, applied, appended and submitted, without an `await`.

Output of a thread waits for the changes made before it (an output gate): `after` calls back at once if everything is
durable, and otherwise when the last change made so far is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from plait.errors import Conflict, InvalidState, PlaitError, StoreError
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.limits import WEIGHT_PER_BYTE, Limits, check_weight
from plait.state.applying import apply_ops, apply_value, check_ops, measure_op, weigh_change
from plait.state.commit import Commit
from plait.state.commit_queue import CommitQueue
from plait.state.permissions import Rules, check_permitted
from plait.state.places import Places
from plait.state.principal import Principal
from plait.state.reads import ALL, STATE, QueryRun
from plait.state.revision import Revision
from plait.state.shown_states import ShownStates
from plait.state.source import Client, HasUser, Source
from plait.state.state_history import StateHistory
from plait.state.transaction import Transaction, find_transaction, innermost, refuse
from plait.state.types import MOST_MOVED, StateType, check_depth, check_size, parse_json_error
from plait.state.view import EVERYTHING, View
from plait.state.views import Views
from plait.store.protocol import Store
from plait.store.record_checks import check_record
from plait.store.thread_rows import ClientRow, Record
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.elements import Keys
from plait_schemas.patch import Op, PatchError, decode_ops, parse

__all__ = ["Pipeline"]

T = TypeVar("T")

_IS_NONE: Final = (
    "the next state is None: a function that is passed to `set_state` must return it, as in "
    '`lambda state: {**state, "n": 1}`'
)


class Pipeline(CommitQueue):
    """Makes the changes of one thread. They are stored in order, and sent when they are durable."""

    __slots__ = (
        "_is_deciding",
        "_limits",
        "_transaction",
        "_type",
        "query",
        "rules",
        "shown_states",
        "views",
    )

    def __init__(
        self,
        history: StateHistory,
        state_type: StateType,
        store: Store,
        limits: Limits,
        rules: Rules,
        *,
        on_commit: Callable[[Commit], None],
        on_lost: Callable[[StoreError], None],
        instruments: Instruments = NO_INSTRUMENTS,
    ) -> None:
        super().__init__(history, store, on_commit=on_commit, on_lost=on_lost, instruments=instruments)
        self._type = state_type
        self._limits = limits
        self.rules = rules
        # The views of clients; None without `can_read`.
        self.views = None if rules.readable is None else Views(rules.readable, history, self.ask)
        # Whether the author's code is deciding about a change. It must not make another change.
        self._is_deciding = False
        # The mutable states that the author's code has read, and could have changed in place.
        self.shown_states: ShownStates | None = None
        # The open outermost transaction, if there is one.
        self._transaction: Transaction | None = None
        # The run of a query, while its code runs.
        self.query: QueryRun | None = None

    @property
    def keys(self) -> Keys | None:
        """Which strings are texts, and which members identify the elements of lists."""
        return self._type.keys

    @property
    def current(self) -> Revision:
        """The current revision; inside of a transaction, the revision after its steps so far."""
        if self._transaction is None:
            return self.history.current
        transaction = self.find_own_transaction()
        return self.history.current if transaction is None else transaction.revision

    @property
    def shown(self) -> Revision:
        """The revision that the author's code may read: the current one, or the last durable one."""
        if self.query is not None:
            self.query.note(STATE, ALL)
        return self.history.durable if self.shows_durable else self.current

    def show(self, revision: Revision | None = None) -> Any:
        """Return the state of a revision, by default of `shown`, to the author's code.

        The code may change it in place by mistake.
        """
        reader = None if self.turns is None else self.turns.find_own_turn()
        if revision is None:
            sees_durable = self._pending and reader is not None and reader.sees_durable
            revision = self.history.durable if sees_durable else self.current
        if self._type.is_immutable:
            state = revision.state
        else:
            if (states := self.shown_states) is None:
                states = self.shown_states = ShownStates(self.history)
            state = states.show(revision, reader)
        return state if self.query is None else self.query.show(state)

    def start(self, value: object) -> None:
        """Make `value` the initial state of a new thread; it is stored with the first change."""
        self.history.start(*self._type.from_value(value, self._limits))

    async def store_thread(self, by: HasUser | str = "server") -> None:
        """Store a new thread for the user of `by`, unless it is stored; return when it is durable.

        Raises StoreError.
        """
        history = self.history
        if history.is_stored:
            return
        if not history.is_begun:
            self.check_open()
            self._submit(history.put((), by=by), "server")
        await self._pending[-1]

    def set(self, value: object, source: Source) -> Commit:
        """Set the state to `value`, or to its result for the current state if it is a function."""
        self.check_open()
        try:
            current, type_ = self.current, self._type
            if callable(value):
                if self.shown_states is not None:
                    self.shown_states.check(current, self.turns)
                value = self.ask(value, current.lend())
            if type_.is_immutable and (parts := apply_value(type_, current, value, self._limits)) is not None:
                return self._make_current(current, *parts, source)
            state, data = type_.from_value(value, self._limits)
            return self._set_whole(current, state, data, source)
        except BaseException as error:
            # The function may have changed the state in place: discard these edits, too.
            self.current.discard_edits()
            if value is None and isinstance(error, InvalidState):
                raise InvalidState(_IS_NONE) from error
            raise

    def put(self, data: bytes, source: Client) -> Commit:
        """Set the state to JSON that a client sent; unknown fields are refused."""
        if self.views is not None and (view := self.views.find_for_whole(source)) is not EVERYTHING:
            ops = self.compare(current := self._begin_change(), data, view)
            self.views.check(ops, source, current)
            return self.change(ops, source)
        current = self._begin_change()
        return self._set_whole(current, *self._type.from_json(data, self._limits), source)

    def replace(self, state: Any, data: bytes, source: Client) -> Commit:
        """Set the state to a client's, given as an object of the type and as JSON."""
        return self._set_whole(self._begin_change(), state, data, source)

    def compare(self, base: Revision, data: bytes, view: View) -> list[Op]:
        """Return the differences of a picture that a client sent as JSON from the picture of a revision.

        A client's state is never compared with what the client does not see: the answer would tell a right guess.
        Raises InvalidState and TooLarge.
        """
        check_depth(data, self._limits, "")
        check_weight("state", data, self._limits)
        try:
            sent = decode_json(data)
        except NOT_JSON as error:
            message, path = parse_json_error(error)
            raise InvalidState(message, path=path) from None
        return diff(view.picture(base.document), sent, self._type.keys, most=MOST_OPS)

    def change(
        self,
        ops: Sequence[Op],
        source: Source,
        *,
        accept: Callable[[], ClientRow] | None = None,
        name: str | None = None,
        by: Client | None = None,
        drops_unknown: bool = False,
    ) -> Commit:
        """Apply operations to the current state; their source in the log is `name`, or else `source`.

        The operations are checked against the permissions of `by`, or of the source if that is a client.
        `accept` is called when the operations can no longer be refused, and returns the client's row to store. Raises
        InvalidState, TooLarge, the error of `validate_state_change`, and Conflict if the operations do not fit.
        """
        before = self._begin_change()
        ops = check_ops(ops, self._limits)
        try:
            most_moved = None if isinstance(source, str) else MOST_MOVED
            after, ops = apply_ops(
                self._type, before, ops, self._limits, drops_unknown=drops_unknown, most_moved=most_moved
            )
        except PatchError as error:
            raise Conflict(str(error), path=ops[0].path if [op.op for op in ops] == ["splice"] else None) from None
        except InvalidState as error:
            if self.views is None or (bound := by or source) == "server":
                raise
            raise self.views.veil(error, bound) from None
        ops = [op for op in ops if op.op != "splice" or op.remove or op.insert]
        return self._make_current(before, after, ops, source, accept=accept, name=name, by=by)

    def store(self, records: Sequence[Record], *, undo: Callable[[], None] | None = None) -> Commit:
        """Store records after the changes made so far; they fail if these fail. Call `check_open` first.

        `undo` is called as soon as they are rolled back, before other code runs. Raises ValueError and TooLarge.
        """
        for record in records:
            check_record(record, self._limits)
        if (transaction := self.find_own_transaction()) is not None:
            commit = transaction.add(transaction.revision, (), records)
        else:
            commit = self._put(records, "server")
        commit.undo = undo
        return commit

    def check_open(self) -> None:
        """Raise if no change can be made: the thread has ended or lost its store, or decides about another change."""
        if self.query is not None:
            raise RuntimeError("a query only reads: write in an rpc")
        if innermost() is not self._transaction:  # Otherwise, the calling code is in its block, or in none.
            own = self.end_abandoned()
            if own is not None and own.is_open:
                own.check()
        if self._refusal is not None:
            kind, message = self._refusal
            raise kind(message)
        if self._has_lost and (loss := self.find_loss()) is not None:
            raise loss
        if self._is_deciding:
            raise RuntimeError(
                "the state cannot be changed while another change is being made: do it in on_state_changed, not in "
                "validate_state_change, resolve_conflict, can_read, can_write or a function that is passed to set_state"
            )

    def end_abandoned(self) -> Transaction | None:
        """Roll back a transaction whose block awaits, as other code runs; return the calling code's own."""
        own = None if innermost() is None else find_transaction(self)
        if self._transaction is not None and self._transaction is not own:
            self._transaction.break_()
        return own

    def ask(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function of the author that decides about a change, and must not make one itself."""
        self._is_deciding = True
        try:
            return function(*args)
        finally:
            self._is_deciding = False

    def validate(self, state: Any, source: Source, ops: Sequence[Op], before: Revision) -> None:
        """Ask the class whether the state, the result of `ops` on `before`, may be set.

        Raises the error with which the class refuses it, and TypeError if the class returns anything.
        """
        if (validate := self.rules.validate) is None:
            return
        more: dict[str, Any] = {}
        if "ops" in self.rules.validated:
            # Values of operations may be undecoded JSON, or objects that are a part of the state.
            more["ops"] = decode_ops(encode_json(ops))
        if "before" in self.rules.validated:
            more["before"] = before.copy()
        answer = self.ask(partial(validate, **more) if more else validate, state, source)
        if answer is not None:
            raise TypeError(
                f"validate_state_change returned {type(answer).__name__}: it must raise an error, for example "
                "Reject, to refuse a change, and return None to accept it"
            )

    def find_view(self, principal: Principal | None, revision: Revision | None = None) -> View:
        """Return the part of the state that a principal sees of a revision, by default of the durable one."""
        return EVERYTHING if self.views is None else self.views.find(principal, revision)

    @property
    def views_vary(self) -> bool:
        """Whether the view of a client may change with the state."""
        return self.views is not None and self.views.may_vary

    # Transactions

    def find_own_transaction(self) -> Transaction | None:
        """Return the open transaction if the calling code runs in its block."""
        found = self._transaction
        return found if found is None or found is innermost() or found is find_transaction(self) else None

    def begin(self, transaction: Transaction) -> None:
        """Make the calling code's changes steps of a transaction."""
        self.check_open()
        self._transaction = transaction

    def end(self, transaction: Transaction) -> None:
        """Make changes separate ones again."""
        if self._transaction is transaction:
            self._transaction = None

    def commit(self, transaction: Transaction, ops: Sequence[Op]) -> Commit:
        """Make the result of a transaction the current revision, and store it with the records of the transaction.

        The records are made when the change can no longer be refused.
        """
        self.check_open()
        if (revision := transaction.revision) is not (before := self.history.current):
            return self._make_current(before, revision, ops, "server", transaction=transaction)
        return self._put(transaction.make_records(), "server")

    def ops_since(self, revision: Revision) -> list[Op] | None:
        """Return the operations since a revision of the open transaction; None for any other revision."""
        transaction = self.find_own_transaction()
        ops = None if transaction is None else transaction.ops_since(revision)
        return decode_ops(encode_json(ops)) if ops else ops  # Large values may be undecoded JSON.

    def after(self, callback: Callable[[PlaitError | None], None]) -> None:
        """Call `callback` when every change made so far is durable: at once, if all are."""
        if self.query is not None:
            raise RuntimeError("a query only reads: send messages in an rpc")
        if self._has_lost and (loss := self.find_loss()) is not None:
            callback = refuse(callback, loss)
        if innermost() is not None and (own := find_transaction(self)) is not None and own.is_open:
            if own is self._transaction:
                own.after(callback)
                return
            callback = refuse(callback)  # The block is still running, but its transaction was rolled back.
        if self._pending:
            self._pending[-1].then(callback)
        else:
            callback(self.lost)

    # Inside

    def _begin_change(self) -> Revision:
        """Return the revision that operations or a client's state are about to replace."""
        self.check_open()
        current = self.current
        if self.shown_states is not None and self.shown_states.is_unchecked:
            self.shown_states.tell(current)
        return current

    def _set_whole(self, current: Revision, state: Any, data: bytes, source: Source) -> Commit:
        ops = self.history.diff(current, state, data, self._limits)
        return self._make_current(current, Revision(self._type, json=data, tree=state), ops, source)

    def _make_current(
        self,
        before: Revision,
        after: Revision,
        ops: Sequence[Op],
        source: Source,
        *,
        accept: Callable[[], ClientRow] | None = None,
        name: str | None = None,
        by: Client | None = None,
        transaction: Transaction | None = None,
    ) -> Commit:
        """Make `after` the current revision and store it, unless it is too large, refused, or unchanged."""
        # Edits in place may be part of `after`: hooks see them once they are stored. `before` may be durable, and
        # decide about rights.
        before.discard_edits()
        if not after.size:
            after.size = before.size + sum(map(measure_op, ops))
            if after.size * WEIGHT_PER_BYTE > self._limits.weight:  # States that came as JSON have been weighed.
                weigh_change(before, after, self._limits)
        if after.size > self._limits.state:
            check_size(after.require_json(), self._limits)
        if self._transaction is not None and (open_ := self.find_own_transaction()) is not None:
            if name is not None:
                raise RuntimeError("an undo is a change of its own: call it outside of the transaction")
            return open_.add(after, ops)
        if (bound := by or source) != "server":
            if self.views is not None:
                self.views.check_result(ops, bound, before)
            if (found := self.rules.permitted) is not None:
                places = found if isinstance(found, Places) else self.ask(found, before.copy(), bound.principal)
                check_permitted(places, ops, bound, before)
        if self.rules.validate is not None:
            self.validate(after.copy(), source, ops, before)
        records = () if transaction is None else transaction.make_records()
        if not ops:
            return self._put(records, source)
        client = accept() if accept is not None else None
        name = name or (source if isinstance(source, str) else source.id)
        commit = self._submit(self.history.append(ops, name, after, client, records, by=source), source)
        if self.on_touch is not None:
            self.on_touch(STATE, None if any(not op.path for op in ops) else {parse(op.path)[0] for op in ops})
        return commit

    def _put(self, records: Sequence[Record], source: Source) -> Commit:
        """Store records without a change of the state. Without records, the commit ends with the earlier commits."""
        if records:
            return self._submit(self.history.put(records, by=source), source)
        commit = Commit(self.history.current, source)
        if self._pending:
            commit.whole = self._pending[-1]
        self.after(commit.finish)
        return commit
