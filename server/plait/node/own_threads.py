"""The interface of a node that local and remote calls use."""

from collections.abc import AsyncIterator
from typing import Protocol

from plait.actor.kind import Kind
from plait.node.local_thread import Waker
from plait.node.remote_requests import Listed, ListThreads
from plait.store.protocol import ThreadKey

__all__ = ["OwnThreads"]


class OwnThreads(Waker, Protocol):
    """The threads of this node, for server code here and at other nodes."""

    @property
    def may_begin(self) -> bool:
        """Whether the calling code may wake threads."""
        ...

    def may_serve(self, key: ThreadKey) -> bool:
        """Whether this node owns a thread, or still has it awake for the turns that have begun."""
        ...

    def find_any_kind(self, name: str) -> Kind:
        """Return a kind, even one that plait itself uses. Raises NotFound."""
        ...

    def list_own(self, query: ListThreads) -> AsyncIterator[Listed]:
        """Iterate over the stored threads of this node."""
        ...
