"""The decisions of a thread's class about changes, and the check of the places that clients may change."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from plait.errors import Forbidden
from plait.state.conflicts import Policy, Resolve
from plait.state.places import FindPlaces, Node, Places, step
from plait.state.revision import Revision
from plait.state.source import Client
from plait_schemas.patch import Op, parse

__all__ = ["Rules", "check_permitted"]


class Rules(NamedTuple):
    """The decisions of a thread's class. By default, clients see everything, and every change is accepted."""

    # Raises to refuse a change, and must return None.
    validate: Callable[..., object] | None = None
    # Further arguments of `validate`: "ops", the operations, and "before", the state that they change.
    validated: Collection[str] = ()
    # The places that clients may change, and those that they see, or functions that find them; None for everything.
    permitted: Places | FindPlaces | None = None
    readable: Places | FindPlaces | None = None
    # The policy for a push to a place that others have changed since the push was made.
    policy: Policy | Resolve = "last-writer"


def check_permitted(places: Places, ops: Sequence[Op], client: Client, before: Revision) -> None:
    """Raise Forbidden if an operation of a client is at another place; `before` is the revision before."""
    for op in ops:
        if not _has(places, parse(op.path), client.user, before):
            raise Forbidden("this client may not change this place", path=op.path)


def _has(places: Places, parts: Sequence[str], user: str | None, before: Revision) -> bool:
    nodes: Sequence[Node] = places.roots
    for at, part in enumerate(parts):
        if any(node.has_rest for node in nodes):
            return True
        nodes = step(nodes, part, user, partial(before.has_array, parts[:at]))
    return any(node.is_end for node in nodes)
