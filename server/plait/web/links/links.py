"""The links of a node: the ones that it dialled, by node, and the ones that other nodes dialled."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Collection
from contextlib import suppress
from contextvars import Context
from typing import Final, Literal, Protocol, get_args
from weakref import WeakSet

from plait.cluster.owners import NodeId, Owners
from plait.errors import Unavailable
from plait.store.thread_rows import ThreadKey
from plait.web.links.link import AWAY, Answer, Link, Opener

__all__ = ["HOLD", "RETRY", "Attempts", "Links", "Network"]

HOLD: Final = 8.0
"""Seconds that sockets, requests and calls wait for a node that is away, or for a lost owner."""

RETRY: Final = 0.05
"""Seconds before the next attempt to ask or to dial a node."""

_Counted = Literal["sent", "bytes_sent", "bytes_received"]

# Seconds to wait for a connection before checking whether the owner has changed.
_GLANCE: Final = 0.25


class Network(Protocol):
    """Connects this node with the others."""

    async def listen(self, answer: Answer) -> asyncio.Server:
        """Listen for other nodes; `answer` makes the link to a node that dials. Raises OSError."""
        ...

    async def dial(self, node: NodeId, link: Link) -> None:
        """Connect a link with a node. Raises OSError if the node does not answer, or another node does."""
        ...


class Links:
    """Dials the other nodes when their threads are used, and answers nodes that dial this one."""

    def __init__(self, owners: Owners, network: Network | None, *, hold: float = HOLD) -> None:
        self._owners = owners
        self._network = network
        # The streams that other nodes may open here, by the kind of their first message.
        self.openers: dict[int, Opener] = {}
        # Seconds for which sockets, requests and calls are held while their owner is away.
        self.hold = hold
        self._server: asyncio.Server | None = None
        self._dialled: dict[NodeId, Link] = {}
        # Old links to nodes that were away and have come back.
        self._replaced: set[Link] = set()
        self._dials: dict[NodeId, asyncio.Task[Link | None]] = {}
        self._answered: set[Link] = set()
        # The totals of links that have ended.
        self._carried = Counter[str]()
        # The number of sockets, requests and calls that wait for a node.
        self.held = 0
        _made.add(self)

    def count(self, what: _Counted) -> int:
        """Return the number of messages or bytes that all links have carried."""
        now: int = sum(getattr(each, what) for each in self._all())
        return self._carried[what] + now

    @property
    def linked(self) -> set[NodeId]:
        """The nodes to which there are links."""
        return {each.node for each in self._all() if each.node is not None and not each.is_closed}

    async def start(self) -> None:
        """Listen for the other nodes. Raises OSError."""
        if self._network is not None:
            self._server = await self._network.listen(self._answer)

    def go_away(self) -> None:
        """Accept no further links and streams, as this node is shutting down; a new process takes its place."""
        self._stop_listening()
        for link in self._answered:
            link.put(AWAY, 0)

    async def stop(self) -> None:
        """Stop listening and close all links; their streams are lost."""
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        self._stop_listening()
        await asyncio.gather(*(link.close() for link in self._all()))

    def close_others(self, nodes: Collection[NodeId]) -> None:
        """Close the links to all nodes but these: the others are dead."""
        for link in self._all():
            if link.node is not None and link.node not in nodes:
                link.abort()

    def drop(self) -> None:
        """Close all links and drop their unsent messages, as the other nodes took this one for dead."""
        for link in self._all():
            link.abort()

    def find(self, node: NodeId, *, may_be_away: bool = False) -> Link | None:
        """Return the link to a node; None without one, or if the node is shutting down, unless it `may_be_away`."""
        link = self._dialled.get(node)
        return None if link is None or (link.is_away and not may_be_away) or link.is_closed else link

    def begin_hold(self) -> float:
        """Return the time of the loop at which a wait that begins now has to end."""
        return asyncio.get_running_loop().time() + self.hold

    async def reach(self, to: ThreadKey | NodeId, until: float, *, may_be_away: bool = False) -> Link:
        """Return the link to a node, or to the owner of a thread, which may be this node; wait while there is no link.

        The link to a node that is shutting down is returned only if the node `may_be_away`. Raises Unavailable if the
        time of the loop has reached `until`, even if there is a link: callers try again when a node has refused a
        request.
        """
        while asyncio.get_running_loop().time() < until:
            node = self._owners.find(to) if isinstance(to, ThreadKey) else to
            if node is not None:
                link = self.find(node, may_be_away=may_be_away) or await self._dial(node)
                if link is not None:
                    return link
            await self._pause(until)
        raise _make_away()

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        """Remember the owner of a thread, as told by a node that refused it; None if that node does not know."""
        self._owners.correct(key, owner)

    async def find_link(self, key: ThreadKey) -> Link | None:
        """Return the link to the owner of a thread, as `reach` does; None if this node owns it, now or later."""
        owners = self._owners
        if (node := owners.find(key)) == owners.node:
            return None
        until = self.begin_hold()
        while node != owners.node:
            if node is not None and (link := self.find(node) or await self._dial(node)) is not None:
                return link
            await self._pause(until)
            node = owners.find(key)
        return None

    def leave_to_parent(self) -> None:
        """Close the sockets in a forked child: they would make this node look alive after its end."""
        sockets = () if self._server is None else self._server.sockets
        numbers = [*(each.fileno() for each in sockets), *(link.descriptor for link in self._all())]
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)  # The child's copy of the loop may close the number, too.
        os.close(nothing)

    # Inside

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _all(self) -> tuple[Link, ...]:
        return (*self._dialled.values(), *self._replaced, *self._answered)

    async def _dial(self, node: NodeId) -> Link | None:
        """Return a new link; None if the connection takes too long."""
        if (dial := self._dials.get(node)) is None:
            # The link must not keep the context variables of its first user.
            work = self._connect(node)
            dial = asyncio.create_task(work, name=f"plait link to {node}", context=Context())
            self._dials[node] = dial
            dial.add_done_callback(lambda _: self._dials.pop(node))
        await self._wait(asyncio.wait([dial], timeout=_GLANCE))
        return dial.result() if dial.done() and not dial.cancelled() else None

    async def _pause(self, until: float) -> None:
        """Wait before the next attempt. Raises Unavailable at the deadline."""
        if asyncio.get_running_loop().time() + RETRY >= until:
            raise _make_away()
        await self._wait(asyncio.sleep(RETRY))

    async def _wait(self, work: Awaitable[object]) -> None:
        self.held += 1
        try:
            await work
        finally:
            self.held -= 1

    async def _connect(self, node: NodeId) -> Link | None:
        assert self._network is not None
        with suppress(OSError):
            link = Link({}, self._end, gate=self._owners.gate, node=node)
            await self._network.dial(node, link)
            if link.is_closed:
                return None
            if (former := self._dialled.get(node)) is not None:
                self._replaced.add(former)
            self._dialled[node] = link
            return link
        return None

    def _answer(self, node: NodeId | None) -> Link:
        link = Link(self.openers, self._end, gate=self._owners.gate, node=node)
        self._answered.add(link)
        return link

    def _end(self, link: Link) -> None:
        self._carried.update({each: getattr(link, each) for each in get_args(_Counted)})
        self._answered.discard(link)
        self._replaced.discard(link)
        self._dialled = {node: each for node, each in self._dialled.items() if each is not link}


class Attempts:
    """Finds the node for a request; again after each refusal, until the deadline.

    A node that is shutting down may still answer the calls of turns, unless it refuses them.
    """

    def __init__(self, links: Links, to: ThreadKey | NodeId, *, is_of_turn: bool = False) -> None:
        self._links = links
        self._to = to
        self._may_be_away = is_of_turn
        self._until = links.begin_hold()

    async def reach(self) -> Link:
        """Return the link to the node. Raises Unavailable if there is no link by the deadline."""
        return await self._links.reach(self._to, self._until, may_be_away=self._may_be_away)

    def correct(self, owner: NodeId | None) -> None:
        """Remember that a node has refused the request, and the owner that it named."""
        self._may_be_away = False
        if isinstance(self._to, ThreadKey):
            self._links.correct(self._to, owner)

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(RETRY)


def _make_away() -> Unavailable:
    return Unavailable("the process that owns this thread is not running; try again later")


_made: Final[WeakSet[Links]] = WeakSet()


def _leave_to_parent() -> None:
    for links in tuple(_made):
        links.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
