"""The links of a node: those that it has dialled, by node, and those that other nodes have."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Final

from plait.errors import Unavailable
from plait.web.relay.link import AWAY, Link, Opener

__all__ = ["HOLD", "Links"]

HOLD: Final = 8.0
"""Seconds that sockets, requests and calls wait for a node that is away."""

_PAUSE: Final = 0.05


class Links:
    """Dials the other nodes when their threads are used, and answers those that dial this one.

    Node `n` listens on the socket `<folder>/<n>.<app>.sock`; the folder belongs to the user that runs the nodes, and to
    nobody else. `openers` are the streams that the others may open here.
    """

    def __init__(self, node: int, folder: str | Path, openers: Mapping[int, Opener], *, hold: float = HOLD) -> None:
        self._node = node
        self._folder = Path(folder)
        # The number of the Plait among those of a server; each has links of its own.
        self.app = 0
        self._openers = openers
        self._hold = hold
        self._server: asyncio.Server | None = None
        self._dialled: dict[int, Link] = {}
        # Links to nodes that were away, and have come back.
        self._replaced: set[Link] = set()
        self._dials: dict[int, asyncio.Task[Link]] = {}
        self._answered: set[Link] = set()
        # Messages sent on links that have ended.
        self._sent = 0

    @property
    def sent(self) -> int:
        """The messages that were sent on all links."""
        return self._sent + sum(each.sent for each in (*self._dialled.values(), *self._replaced, *self._answered))

    async def start(self) -> None:
        """Listen for the other nodes; a former process of this node is replaced."""
        path = self._path(self._node)
        new = path.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        self._server = await asyncio.get_running_loop().create_unix_server(self._answer, str(new))
        new.rename(path)

    def go_away(self) -> None:
        """Tell the other nodes to open no further streams here, as this node is shutting down."""
        if self._server is not None:
            self._server.close()  # Who dials from now on waits for the next process of this node.
        for link in self._answered:
            link.put(AWAY, 0)

    async def stop(self) -> None:
        """Stop listening and close all links; their streams are lost."""
        dials, self._dials = list(self._dials.values()), {}
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.gather(*(link.close() for link in (*self._dialled.values(), *self._replaced, *self._answered)))

    def find(self, node: int, *, may_be_away: bool = False) -> Link | None:
        """Return the link to a node if it is there and takes streams, or, if it `may_be_away`, is shutting down."""
        link = self._dialled.get(node)
        return None if link is None or (link.is_away and not may_be_away) or link.is_closed else link

    async def link(self, node: int, *, may_be_away: bool = False) -> Link:
        """Return the link to a node, dialling it if needed. Raises Unavailable if it is away for too long."""
        if (link := self.find(node, may_be_away=may_be_away)) is not None:
            return link
        if (dial := self._dials.get(node)) is None:
            # The link keeps no variables of the code that needs it first.
            dial = asyncio.create_task(self._dial(node), name=f"plait link to {node}", context=Context())
            self._dials[node] = dial
            dial.add_done_callback(lambda _: self._dials.pop(node, None))
        return await asyncio.shield(dial)

    # Inside

    def _path(self, node: int) -> Path:
        return self._folder / f"{node}.{self.app}.sock"

    async def _dial(self, node: int) -> Link:
        loop, path = asyncio.get_running_loop(), self._path(node)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._hold):
                while True:
                    with suppress(OSError):
                        _, link = await loop.create_unix_connection(lambda: Link({}, self._end), str(path))
                        if (former := self._dialled.get(node)) is not None:
                            self._replaced.add(former)
                        self._dialled[node] = link
                        return link
                    await asyncio.sleep(_PAUSE)
        raise Unavailable(f"worker {node} is not running; try again later")

    def _answer(self) -> Link:
        link = Link(self._openers, self._end)
        self._answered.add(link)
        return link

    def _end(self, link: Link) -> None:
        self._sent += link.sent
        self._answered.discard(link)
        self._replaced.discard(link)
        self._dialled = {node: each for node, each in self._dialled.items() if each is not link}
