"""Finds the part of a state that each client of a thread sees, and refuses changes of other parts by the client."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from plait.author_code import Interrupted, call_now
from plait.errors import Forbidden, InvalidState
from plait.state.places import FindPlaces, Places
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.source import Client, Turns
from plait.state.state_history import StateHistory
from plait.state.view import NOTHING, View, find_view
from plait_schemas.patch import Op

__all__ = ["Views"]

_FAULT: Final = "the change would make the state invalid"


class Views:
    """Finds the views of clients, by the patterns of the thread's class or by its method `can_read`."""

    __slots__ = ("_ask", "_history", "_readable", "_reported", "turns")

    def __init__(self, readable: Places | FindPlaces, history: StateHistory, ask: Callable[..., Any]) -> None:
        self._readable = readable
        self._history = history
        # Calls code of the author, which must make no change.
        self._ask = ask
        # Reports exceptions of `can_read`, the first one of each revision; None if the thread has no turns.
        self.turns: Turns | None = None
        self._reported: Revision | None = None

    @property
    def may_vary(self) -> bool:
        """Whether the view of a client may change with the state."""
        return not isinstance(self._readable, Places)

    def find(self, principal: Principal | None, revision: Revision | None = None) -> View:
        """Return the view of a principal on a revision, by default on the durable one.

        If `can_read` raises an exception or returns no patterns, the exception is reported, and the principal sees
        nothing.
        """
        readable, user = self._readable, None if principal is None else principal.id
        if isinstance(readable, Places):
            return find_view(readable, user)
        revision = revision or self._history.durable
        try:
            # A version from before a migration may be no state of the type.
            return find_view(self._ask(call_now, readable, revision.for_readers, principal), user)
        except (Exception, Interrupted) as error:  # The author's code may raise any exception.
            if self.turns is not None and revision is not self._reported:
                self._reported = revision
                # Later, as a change may be on its way to its readers.
                report = partial(self.turns.report, error, None)
                asyncio.get_running_loop().call_soon(report, context=Context())
            return NOTHING

    def find_for_whole(self, client: Client) -> View:
        """Return the view of a client that writes whole states.

        Raises Forbidden if the view may vary, as the client may have made its state from another picture.
        """
        if self.may_vary:
            raise Forbidden("this client may write operations, but no whole state, as its view of this thread may vary")
        return self.find(client.principal)

    def check(self, ops: Sequence[Op], client: Client, before: Revision) -> None:
        """Raise Forbidden if an operation of a client on the revision `before` is at a place that is not seen whole.

        Other errors of the operations may tell what is there: this is checked first.
        """
        if (path := self._find_hidden(ops, client, before)) is not None:
            raise Forbidden("this client may not change what it does not see", path=path)

    def check_result(self, ops: Sequence[Op], client: Client, before: Revision) -> None:
        """Check the operations that are stored for a client. Raises Forbidden.

        The type of the state may have changed other places than the client, which are not named.
        """
        if self._find_hidden(ops, client, before) is not None:
            raise Forbidden("the change would change a part of the state that this client does not see")

    def veil(self, error: InvalidState, client: Client) -> InvalidState:
        """Return an error about an invalid state, without parts of the state that a client does not see."""
        return error if self.find(client.principal).sees(error.path or "") else InvalidState(_FAULT)

    # Inside

    def _find_hidden(self, ops: Sequence[Op], client: Client, before: Revision) -> str | None:
        """Return the first place that a client does not see whole in the durable revision and in `before`, or None."""
        path = self.find(client.principal).find_hidden(ops, before)
        if path is None and self.may_vary and before is not self._history.durable:
            path = self.find(client.principal, before).find_hidden(ops, before)
        return path
