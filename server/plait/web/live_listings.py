"""The listings of event streams: of a kind, read at most once a second, and of a user, read when a thread changes."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final

from plait.errors import PlaitError, operator_message
from plait.node.node import Node
from plait.state.principal import Principal
from plait.web.authentication import Identity
from plait.web.listing import Entry, Listing, PageQuery, People, make_page

__all__ = ["ListingReader", "LiveListings"]

log = logging.getLogger("plait.listing")

# Seconds between two listings of a kind.
_PAUSE: Final = 1.0
# Seconds between two listings of a user, whose threads tell of their changes, and those after which it is read anyway.
_SOON: Final = 0.05
_RARELY: Final = 10.0
# Seconds of silence after which a comment is sent, so that proxies keep the stream open.
_SILENCE: Final = 20.0
# A live listing shows rows only of this many threads: the ones that changed last.
_MOST: Final = 1000
# Readers that are told of a new listing before other tasks may run.
_AT_ONCE: Final = 20


class LiveListings:
    """The live listings of a node, by kind."""

    def __init__(self, node: Node, identity: Identity) -> None:
        self._node = node
        self._identity = identity
        self._live: dict[tuple[str, str | None], _LiveListing] = {}
        # By kind, for the listings of users.
        self._people: dict[str, People] = {}

    async def open(
        self, kind: str, principal: Principal | None, page: PageQuery, *, ended: Callable[[], None]
    ) -> "ListingReader":
        """Return a reader of the live listing of a kind or of a user; `ended` is called when it leaves.

        Raises StoreError.
        """
        if (live := self._live.get((kind, page.user))) is None:
            people = None if page.user is None else self._people.setdefault(kind, People(self._node, kind))
            live = self._live[kind, page.user] = _LiveListing(self._node, kind, page.user, self._live, people)
        reader = ListingReader(live, self._identity, principal, page.limit, ended=ended)
        await live.add(reader)
        return reader

    def close(self) -> None:
        """End all streams, as the server shuts down; their clients reconnect."""
        for live in tuple(self._live.values()):
            for reader in tuple(live.readers):
                reader.leave()


class _SharedListing(Listing):
    """The first threads of a listing. They are read when the first reader needs them, and shared by all readers."""

    def __init__(self, node: Node, kind: str, page: PageQuery, people: People | None) -> None:
        super().__init__(node, kind, page, people=people)
        # All threads of a user are read if `authorize` hides them.
        self._most = _MOST if page.user is None else sys.maxsize
        self._entries: list[Entry] = []
        self._reading = asyncio.Lock()
        # Pages that all readers may see, by their limit.
        self._pages: dict[int, bytes] = {}

    async def read_after(self, count: int) -> None:
        """Read the threads after the first `count`, unless another reader has. Raises StoreError and Unavailable."""
        async with self._reading:
            if len(self._entries) == count and not self._is_whole:
                self._entries += await self.read(self._most - count)

    async def entries(self) -> AsyncGenerator[Entry]:
        """Iterate over the threads, for each reader. Raises StoreError and Unavailable."""
        at = 0
        while True:
            while at < len(self._entries):
                yield self._entries[at]
                at += 1
            if self._is_whole:
                return
            await self.read_after(at)

    async def make_page(self, identity: Identity, principal: Principal | None, limit: int) -> bytes:
        """Return the first rows that a principal may see, as JSON. Raises the errors of `entries` and `authorize`."""
        if identity.has_rules:
            return await make_page(self, identity, principal, limit)
        if (page := self._pages.get(limit)) is None:
            page = self._pages[limit] = await make_page(self, identity, principal, limit)
        return page

    @property
    def people(self) -> Mapping[str, int]:
        """The people in each thread that was read, by its name."""
        return {entry.key.name: self._people.counts.get(entry.key.name, 0) for entry in self._entries}

    async def is_like(self, other: "_SharedListing") -> bool:
        """Whether this listing equals the part of `other` that was read. Raises the errors of `entries`."""
        while len(self._entries) < len(other._entries) and not self._is_whole:
            await self.read_after(len(self._entries))
        own, others = ([entry.json for entry in each._entries[: len(other._entries)]] for each in (self, other))
        # The other one was read to its end: more threads here mean that one was added.
        has_gained = other._is_whole and not (self._is_whole and len(self._entries) == len(other._entries))
        return own == others and self.silent == other.silent and not has_gained

    @property
    def is_cut(self) -> bool:
        return len(self._entries) >= self._most and not self.is_complete

    # Inside

    @property
    def _is_whole(self) -> bool:
        return self.is_complete or self.is_cut


class _LiveListing:
    """The live listing of one kind, or of a user in it. Its task runs while it has readers."""

    def __init__(
        self,
        node: Node,
        kind: str,
        user: str | None,
        all_live: "dict[tuple[str, str | None], _LiveListing]",
        people: People | None,
    ) -> None:
        self._node = node
        self._kind = kind
        self._user = user
        self._all_live = all_live
        self._people = people
        # Set when a change of a thread must be seen at once, and whether another one may have changed the order.
        self._woken = asyncio.Event()
        self._is_stale = False
        # The people in the threads that were listed last.
        self._here: Mapping[str, int] = {}
        if user is not None:
            node.watchers.add(kind, user, self._wake)
        self.readers: dict[ListingReader, None] = {}
        self.current: _SharedListing | None = None
        # Done when there is a first listing; has the error if there is none.
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"plait listing {kind}")
        self._task.add_done_callback(self._on_end)

    async def add(self, reader: "ListingReader") -> None:
        """Add a reader, and wait for a listing. Raises the error of the first one."""
        self.readers[reader] = None
        try:
            await asyncio.shield(self._first)
        except BaseException:
            reader.leave()
            raise

    def discard(self, reader: "ListingReader") -> None:
        """Remove a reader; stop when none is left."""
        if self.readers.pop(reader, self) is None and not self.readers:
            self._task.cancel()
            self._all_live.pop((self._kind, self._user), None)
            if self._user is not None:
                self._node.watchers.remove(self._kind, self._user)
            if not self._first.done():
                self._first.set_result(None)  # A reader that still waits gets an empty answer.

    # Inside

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began, pause, self._is_stale = loop.time(), _PAUSE, False
            self._woken.clear()
            try:
                await self._look()
                if self._user is not None:
                    while not await self._has_news(loop.time() - began):
                        pass
                    pause = _SOON
            except PlaitError as error:
                if not self._first.done():
                    raise
                log.warning("the threads of the kind %s cannot be listed: %s", self._kind, operator_message(error))
            await asyncio.sleep(max(began + pause - loop.time(), 0))

    def _wake(self, is_seen: bool) -> None:
        self._is_stale = True
        if is_seen:
            self._woken.set()

    async def _has_news(self, age: float) -> bool:
        """Wait a second for a change of the user's threads; return whether there may be one.

        Other nodes do not tell of theirs.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await self._woken.wait()
        if self._is_stale or age > _RARELY or not self._node.everywhere.nodes.owners.is_alone:
            return True
        return await self._count_here() != self._here

    async def _count_here(self) -> Mapping[str, int]:
        assert self._people is not None
        await self._people.count()
        return {name: self._people.counts.get(name, 0) for name in self._here}

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Pass on the error of the first listing; end the streams after any other failure."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not self._first.done():
            self._first.set_exception(error)
            self._first.exception()  # Mark the error as retrieved; there may be no reader.
            return
        log.error("the threads of the kind %s cannot be listed", self._kind, exc_info=error)
        for reader in tuple(self.readers):
            reader.leave()

    async def _look(self) -> None:
        """Read a listing, and tell the readers if it has changed."""
        page = PageQuery(max(reader.limit for reader in self.readers), None, self._user)
        new = _SharedListing(self._node, self._kind, page, self._people)
        await new.read_after(0)
        self._here = new.people
        if self.current is not None and await new.is_like(self.current):
            return
        self.current = new
        if not self._first.done():
            self._first.set_result(None)
        for number, reader in enumerate(tuple(self.readers), 1):
            reader.wake.set()
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)


class ListingReader:
    """The reader of one event stream: gets the newest listing after it has read the one before."""

    def __init__(
        self,
        live: _LiveListing,
        identity: Identity,
        principal: Principal | None,
        limit: int,
        *,
        ended: Callable[[], None],
    ) -> None:
        self._live = live
        self._identity = identity
        self._principal = principal
        self.limit = limit
        self._leave: Callable[[], None] | None = ended
        # Set when there is a new listing, or the stream ends.
        self.wake = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the pages as events until the stream ends. Raises StoreError, and the errors of `authorize`."""
        shown = b""
        while self._leave is not None:
            self.wake.clear()
            listing = self._live.current
            assert listing is not None
            page = await listing.make_page(self._identity, self._principal, self.limit)
            if page != shown:
                shown = page
                yield b"data: %b\n\n" % page
            while self._leave is not None and not self.wake.is_set():
                try:
                    async with asyncio.timeout(_SILENCE):
                        await self.wake.wait()
                except TimeoutError:
                    yield b": \n\n"

    def leave(self) -> None:
        """End the stream, as its client has disconnected, its rights have ended, or the server shuts down."""
        if (ended := self._leave) is not None:
            self._leave = None
            self._live.discard(self)
            self.wake.set()
            ended()
