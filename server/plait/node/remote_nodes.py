"""Asks other nodes, with the chain of the calling code."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Final, Protocol

from plait.actor.turn import current_turn
from plait.cluster.owners import Owners
from plait.errors import Unavailable
from plait.node.remote_chain import Chains
from plait.node.remote_requests import Request, encode_envelope

__all__ = ["HOLD", "Peers", "RemoteNodes", "Settle", "Upload"]

Settle = Callable[[bool], None]
"""Called once, when it is known whether a call has stored something or may have."""


Upload = Callable[[], AsyncIterable[bytes]]
"""Returns the pieces that follow a request, each time that it is sent."""

HOLD: Final = 8.0
"""Seconds that calls wait for a node that is away."""


class Peers(Protocol):
    """Carries requests to other nodes."""

    async def call(
        self,
        node: int,
        request: bytes,
        settle: Settle,
        *,
        may_repeat: bool,
        upload: Upload | None = None,
        patience: float = HOLD,
    ) -> bytes:
        """Return the answer of a node, or raise the exception that it has sent.

        Raises Unavailable if the node is away for longer than `patience` seconds, and
        Indeterminate if it was lost after it had the request, unless that may be repeated.
        """
        ...

    def stream(self, node: int, request: bytes, settle: Settle, *, may_repeat: bool) -> AsyncGenerator[bytes]:
        """Iterate over what a node sends, which waits for the reader."""
        ...


class RemoteNodes:
    """Asks the other nodes, which `owners` knows by thread. `peers` is set when there are others."""

    def __init__(self, owners: Owners, chains: Chains) -> None:
        self.owners = owners
        self.chains = chains
        self.peers: Peers | None = None

    def is_elsewhere(self, node: int) -> bool:
        """Whether a node is another one."""
        return node != self.owners.node

    async def ask(
        self,
        node: int,
        request: Request,
        *,
        reads: bool = False,
        upload: Upload | None = None,
        patience: float = HOLD,
    ) -> bytes:
        """Return the answer of a node to a request; one that only `reads` is repeated if the node is lost."""
        data = encode_envelope(self.chains.make(), request)
        return await self._find_peers().call(
            node, data, _expect_change(), may_repeat=reads, upload=upload, patience=patience
        )

    def stream(self, node: int, request: Request, *, reads: bool = False) -> AsyncGenerator[bytes]:
        """Iterate over what a node sends for a request."""
        data = encode_envelope(self.chains.make(), request)
        return self._find_peers().stream(node, data, _expect_change(), may_repeat=reads)

    def _find_peers(self) -> Peers:
        if self.peers is None:
            raise Unavailable("the other processes cannot be asked, as the app is not running")
        return self.peers


def _expect_change() -> Settle:
    """Count a call in the turns that wait for it, until it is known whether it has stored something."""
    turn = current_turn()
    if turn is None:
        return lambda _: None
    turn.expect_change()
    return lambda is_stored: turn.decide_change(may_be_stored=is_stored)
