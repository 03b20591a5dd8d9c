"""Sends requests to other nodes, with the chain of the calling code."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from plait.actor.turn import Turn, current_turn, wait_for_birth
from plait.cluster.owners import NodeId, Owners
from plait.errors import PlaitError, Unavailable
from plait.node.remote_chain import Chains
from plait.node.remote_requests import Listed, ListThreads, ReadMetrics, Request, encode_envelope
from plait.store.thread_rows import ThreadKey

__all__ = ["Ask", "Peers", "RemoteNodes", "Settle", "To"]

_REPORT_TIMEOUT: Final = 2.0
# The number of threads that are listed at once.
_PAGE: Final = 1000

_decode_listed: Final = msgspec.msgpack.Decoder(list[Listed]).decode

Settle = Callable[[bool], None]
"""Called once, when it is known whether a call may have stored something."""


To = ThreadKey | NodeId
"""The receiver of a request: a node, or the node that owns a thread."""


class Ask(NamedTuple):
    """A request for a node."""

    to: To
    request: bytes
    # Called when it is known whether the request may have stored something, even if its caller has left.
    settle: Settle
    # Whether the request may be repeated, as it only reads.
    reads: bool
    # Whether a turn waits for the answer: a node that is shutting down still answers the calls of turns.
    is_of_turn: bool
    # The body that follows the request; it is read once the node has begun to handle the request.
    upload: AsyncIterable[bytes] | None = None


class Peers(Protocol):
    """Carries requests to other nodes."""

    async def call(self, ask: Ask) -> bytes:
        """Return the answer of a node, or raise the exception in the answer.

        Raises Unavailable if the node is away for too long, and Indeterminate if it was lost with a request that must
        not be repeated.
        """
        ...

    def stream(self, ask: Ask) -> AsyncGenerator[bytes]:
        """Iterate over the chunks of a node, at the reader's speed. Raises the errors of `call`."""
        ...


class RemoteNodes:
    """Sends requests to the other nodes; `owners` finds the node of a thread. `peers` is set if there are others."""

    def __init__(self, owners: Owners, chains: Chains) -> None:
        self.owners = owners
        self.chains = chains
        self.peers: Peers | None = None

    async def ask(
        self,
        to: To,
        request: Request,
        *,
        reads: bool = False,
        upload: AsyncIterable[bytes] | None = None,
    ) -> bytes:
        """Return the answer to a request. A request that only `reads` is repeated if the node is lost."""
        peers = self._find_peers()
        if isinstance(to, ThreadKey):
            await wait_for_birth(to)
        return await peers.call(self._make(to, request, reads=reads)._replace(upload=upload))

    async def ask_others(self, request: Request) -> list[bytes]:
        """Return the answers of all other nodes to a request that may be repeated.

        Raises StoreError, and Unavailable if a node that is not dead does not answer.
        """
        others = await self.owners.find_others()
        asked = [self.ask(node, request, reads=True) for node in others]
        found = dict(zip(others, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        if failed := {node: error for node, error in found.items() if isinstance(error, BaseException)}:
            for node in failed.keys() & await self.owners.find_others():
                raise failed[node]
        return [answer for answer in found.values() if isinstance(answer, bytes)]

    def stream(self, to: To, request: Request, *, reads: bool = False) -> AsyncGenerator[bytes]:
        """Iterate over the chunks that answer a request."""
        return self._find_peers().stream(self._make(to, request, reads=reads))

    async def read_metrics(self) -> dict[int, bytes | None]:
        """Return the metrics of this server's other workers; None for a dead worker, or one that is silent for 2 s."""
        others = {number: node for number, node in self.owners.server.items() if node != self.owners.node}
        found = await asyncio.gather(*(self._ask_report(node, ReadMetrics()) for node in others.values()))
        return dict(zip(others, found, strict=True))

    async def ask_each(self, request: Request) -> dict[NodeId, bytes | None]:
        """Return the reports of all other nodes; None for a node that is silent for 2 seconds. Raises StoreError."""
        others = await self.owners.find_others()
        found = await asyncio.gather(*(self._ask_report(node, request) for node in others))
        return dict(zip(others, found, strict=True))

    async def list(self, node: NodeId, query: ListThreads) -> AsyncIterator[Listed]:
        """Iterate over the threads of a node, a page at a time."""
        left = query.limit
        while left is None or left > 0:
            limit = _PAGE if left is None else min(left, _PAGE)
            found = _decode_listed(await self.ask(node, replace(query, limit=limit), reads=True))
            for listed in found:
                yield listed
            if len(found) < limit:
                return
            query = replace(query, after=found[-1].row)
            left = None if left is None else left - limit

    async def _ask_report(self, node: NodeId | None, request: Request) -> bytes | None:
        if node is None:
            return None
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT):
                return await self.ask(node, request, reads=True)
        except (PlaitError, TimeoutError):
            return None

    def _make(self, to: To, request: Request, *, reads: bool) -> Ask:
        turn, data = current_turn(), encode_envelope(self.chains.make(), request)
        if turn is None:
            return Ask(to, data, lambda _: None, reads=reads, is_of_turn=False)
        # The waiting turns count the call as undecided until it is known whether it may have stored something.
        turn.expect_change()
        settle = partial(_settle, turn)
        return Ask(to, data, settle, reads=reads, is_of_turn=True)

    def _find_peers(self) -> Peers:
        if self.peers is None:
            raise Unavailable("the other processes cannot be asked, as the app is not running")
        return self.peers


def _settle(turn: Turn, may_have_stored: bool) -> None:
    turn.decide_change(may_be_stored=may_have_stored)
