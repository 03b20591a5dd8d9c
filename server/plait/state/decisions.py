"""Asks the class of a thread what its clients may change, what each of them sees, and whether a change may be made."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from plait.author_code import call_now
from plait.errors import Forbidden, InvalidState, StoreError
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.state.commit import Commit
from plait.state.commit_queue import CommitQueue
from plait.state.permissions import Rules, check_permitted
from plait.state.places import Places
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.source import Client, Source
from plait.state.state_history import StateHistory
from plait.state.view import EVERYTHING, NOTHING, View, find_view
from plait.store.protocol import Store
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, decode_ops

__all__ = ["Decisions"]

T = TypeVar("T")

_HIDDEN_FAULT: Final = "the change would make a part of the state invalid that this client does not see"


class Decisions(CommitQueue):
    """Asks the rules of a thread's class about changes and readers."""

    __slots__ = ("_is_deciding", "rules")

    def __init__(
        self,
        history: StateHistory,
        store: Store,
        rules: Rules,
        *,
        on_commit: Callable[[Commit], None],
        on_lost: Callable[[StoreError], None],
        instruments: Instruments = NO_INSTRUMENTS,
    ) -> None:
        super().__init__(history, store, on_commit=on_commit, on_lost=on_lost, instruments=instruments)
        self.rules = rules
        # Whether the author's code is deciding about a change. It must not make another change.
        self._is_deciding = False

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

    # What clients see

    @property
    def views_vary(self) -> bool:
        """Whether the view of a client may change with the state."""
        return not isinstance(self.rules.readable, Places | None)

    def find_view(self, principal: Principal | None, revision: Revision | None = None) -> View:
        """Return what a principal sees of a revision, by default of the durable one.

        If a method `can_read` raises an exception or returns no patterns, the exception is reported, and the principal
        sees nothing.
        """
        readable, user = self.rules.readable, None if principal is None else principal.id
        if readable is None:
            return EVERYTHING
        if isinstance(readable, Places):
            return find_view(readable, user)
        if not (revision := revision or self.durable).has_state:
            return NOTHING
        try:
            # A version from before a migration may be no state of the type.
            return find_view(self.ask(call_now, readable, revision.for_readers, principal), user)
        except Exception as error:  # The author's code may raise any exception.
            if self.turns is not None:
                # Later, as a change may be on its way to its readers.
                report = partial(self.turns.report, error, None)
                asyncio.get_running_loop().call_soon(report, context=Context())
            return NOTHING

    def view_of(self, client: Client) -> View:
        """Return what a client sees of the durable state."""
        return EVERYTHING if self.rules.readable is None else self.find_view(client.principal)

    def view_for_whole(self, client: Client) -> View:
        """Return what a client sees that writes whole states.

        Raises Forbidden if its view may vary: then it is unknown of which picture the client has made its state.
        """
        if self.views_vary:
            raise Forbidden("what a client sees of this thread may change: it may write operations, but no whole state")
        return self.view_of(client)

    def check_seen(self, ops: Sequence[Op], client: Client, before: Revision) -> None:
        """Raise Forbidden if an operation of a client on the revision `before` is at a place that is not seen whole.

        Other errors of the operations may tell what is there: this is checked first.
        """
        if (path := self._find_hidden(ops, client, before)) is not None:
            raise Forbidden("this client may not change what it does not see", path=path)

    # Inside

    def _check_permitted(self, ops: Sequence[Op], client: Client, before: Revision) -> None:
        """Raise Forbidden if a client may not make the operations on the revision `before`."""
        if self._find_hidden(ops, client, before) is not None:  # The type has changed this place, not the client.
            raise Forbidden("the change would change a part of the state that this client does not see")
        if (found := self.rules.permitted) is not None:
            if not isinstance(found, Places):
                found = self.ask(found, before.copy(), client.principal)
            check_permitted(found, ops, client, before)

    def _find_hidden(self, ops: Sequence[Op], client: Client, before: Revision) -> str | None:
        if self.rules.readable is None:
            return None
        path = self.view_of(client).find_hidden(ops, before)
        if path is None and self.views_vary and before is not self.durable:
            path = self.find_view(client.principal, before).find_hidden(ops, before)
        return path

    def _veil(self, error: InvalidState, client: Client) -> InvalidState:
        """Return the error about an invalid state, without what the client does not see."""
        view = self.view_of(client)
        return error if view.sees(error.path or "") else InvalidState(_HIDDEN_FAULT)
