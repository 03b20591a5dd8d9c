"""The rules of a thread's class: what clients see of the state, what they may change, and which changes are made."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from plait.author_code import call_now
from plait.errors import Forbidden, InvalidState
from plait.state.conflicts import Policy, Resolve
from plait.state.places import FindPlaces, Node, Places, step
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.source import Client, Source, Turns
from plait.state.view import EVERYTHING, NOTHING, View, find_view
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, decode_ops, parse

__all__ = ["Rules", "veil"]

T = TypeVar("T")

_HIDDEN_FAULT: Final = "the change would make a part of the state invalid that this client does not see"


class Rules:
    """Asks the class of one thread. By default, clients see everything, and every change is accepted."""

    __slots__ = ("_validate", "_validated", "is_deciding", "permitted", "policy", "readable", "turns")

    def __init__(
        self,
        validate: Callable[..., object] | None = None,
        validated: Collection[str] = (),
        permitted: Places | FindPlaces | None = None,
        readable: Places | FindPlaces | None = None,
        policy: Policy | Resolve = "last-writer",
    ) -> None:
        # Raises to refuse a change, and must return None.
        self._validate = validate
        # Further arguments of `validate`: "ops", the operations, and "before", the state that they change.
        self._validated = validated
        # The places that clients may change, and those that they see, or functions that find them; None for everything.
        self.permitted = permitted
        self.readable = readable
        # The policy for a push to a place that others have changed since the push was made.
        self.policy = policy
        # Whether the author's code is deciding about a change. It must not make another change.
        self.is_deciding = False
        # Reports errors of `can_read`; None if the thread has no turns.
        self.turns: Turns | None = None

    def ask(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function of the author that decides about a change, and must not make one itself."""
        self.is_deciding = True
        try:
            return function(*args)
        finally:
            self.is_deciding = False

    # Changes

    @property
    def validates(self) -> bool:
        """Whether the class is asked about each change."""
        return self._validate is not None

    def validate(self, state: Any, source: Source, ops: Sequence[Op], before: Revision) -> None:
        """Ask the class whether the state, the result of `ops` on `before`, may be set.

        Raises the error with which the class refuses it, and TypeError if the class returns anything.
        """
        if self._validate is None:
            return
        more: dict[str, Any] = {}
        if "ops" in self._validated:
            # Values of operations may be undecoded JSON, or objects that are a part of the state.
            more["ops"] = decode_ops(encode_json(ops))
        if "before" in self._validated:
            more["before"] = before.copy()
        answer = self.ask(partial(self._validate, **more) if more else self._validate, state, source)
        if answer is not None:
            raise TypeError(
                f"validate_state_change returned {type(answer).__name__}: it must raise an error, for example "
                "Reject, to refuse a change, and return None to accept it"
            )

    def check_permitted(self, ops: Sequence[Op], client: Client, before: Revision) -> None:
        """Raise Forbidden if a client may not change the places of operations on the revision `before`."""
        if (places := self.permitted) is None:
            return
        if not isinstance(places, Places):
            places = self.ask(places, before.copy(), client.principal)
        for op in ops:
            if not _has(places, parse(op.path), client.user, before):
                raise Forbidden("this client may not change this place", path=op.path)

    # Readers

    @property
    def views_vary(self) -> bool:
        """Whether the view of a client may change with the state."""
        return not isinstance(self.readable, Places | None)

    def find_view(self, principal: Principal | None, revision: Revision) -> View:
        """Return the view of a principal on a revision.

        If a method `can_read` raises an exception or returns no patterns, the exception is reported, and the principal
        sees nothing.
        """
        readable, user = self.readable, None if principal is None else principal.id
        if readable is None:
            return EVERYTHING
        if isinstance(readable, Places):
            return find_view(readable, user)
        if not revision.has_state:
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

    def find_hidden(self, ops: Sequence[Op], client: Client, before: Revision, durable: Revision) -> str | None:
        """Return the first place of operations on the revision `before` that a client does not see whole.

        The client must see the place in the last durable revision, and in `before`. Returns None without such a place.
        """
        if self.readable is None:
            return None
        path = self.find_view(client.principal, durable).find_hidden(ops, before)
        if path is None and self.views_vary and before is not durable:
            path = self.find_view(client.principal, before).find_hidden(ops, before)
        return path


def veil(error: InvalidState, view: View) -> InvalidState:
    """Return the error about an invalid state for a client with a view, without parts that the client does not see."""
    return error if view.sees(error.path or "") else InvalidState(_HIDDEN_FAULT)


def _has(places: Places, parts: Sequence[str], user: str | None, before: Revision) -> bool:
    nodes: Sequence[Node] = places.roots
    for at, part in enumerate(parts):
        if any(node.has_rest for node in nodes):
            return True
        nodes = step(nodes, part, user, partial(before.has_array, parts[:at]))
    return any(node.is_end for node in nodes)
