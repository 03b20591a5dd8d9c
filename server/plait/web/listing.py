"""The listed threads of a kind, as clients see them: a page of those that a principal may see."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, NamedTuple, Self

import msgspec

from plait.actor.connection import Principal
from plait.cluster.owners import NodeId
from plait.errors import InvalidArguments
from plait.node.awake import count_people
from plait.node.node import Node
from plait.node.remote_requests import Listed, ListThreads, ReadPeople
from plait.store.protocol import ThreadKey, ThreadRow
from plait.web.authentication import Identity
from plait_schemas.codec import encode_json

__all__ = ["Listing", "PageQuery", "make_page"]

# The rows of a page, unless the client asks for another number, and the most that it gets.
_ROWS: Final = 50
_MOST_ROWS: Final = 200
# The threads that are read at once, if many of those before were not shown.
_MOST_READ: Final = 1000
# Rows that are checked before other tasks may run.
_AT_ONCE: Final = 100
# No time has more digits.
_MOST_DIGITS: Final = 18

_decode_people: Final = msgspec.msgpack.Decoder(dict[str, int]).decode


class PageQuery(NamedTuple):
    """The number of rows that a client wants, and the last row before them."""

    limit: int
    after: ThreadRow | None

    @classmethod
    def read(cls, kind: str, query: Mapping[str, str]) -> Self:
        """Read the parameters of a URL. Raises InvalidArguments."""
        limit, after = query.get("limit", str(_ROWS)), query.get("after")
        if not _is_number(limit) or int(limit) == 0:
            raise InvalidArguments(f"limit={limit[:80]}: must be a whole number of at least 1", path="/limit")
        return cls(min(int(limit), _MOST_ROWS), None if after is None else _read_cursor(kind, after))


class _Entry(NamedTuple):
    """A thread of a listing: its row as JSON, and where the page after it begins."""

    key: ThreadKey
    changed_at: int
    json: bytes

    @property
    def cursor(self) -> str:
        """The cursor of the page after this thread."""
        return f"{self.changed_at}:{self.key.name}"


class Listing:
    """The listed threads of a kind, those that changed last first, with the people who had them open at one moment.

    Its pages are read when a reader needs them, once for all readers; there are at most `most` threads. `silent` are
    the nodes that did not tell how many people there are, and whose own stores are left out.
    """

    def __init__(
        self,
        node: Node,
        query: ListThreads,
        people: Mapping[str, int],
        *,
        silent: Collection[NodeId],
        most: int | None = None,
    ) -> None:
        self._node = node
        self._query = query
        self._people = people
        self._silent = silent
        self._most = most
        self._entries: list[_Entry] = []
        self._is_complete = False
        self._reading = asyncio.Lock()
        # The pages that all readers may see, by the number of their rows.
        self.shared: dict[int, bytes] = {}

    @classmethod
    async def begin(cls, node: Node, kind: str, page: PageQuery, *, most: int | None = None) -> Self:
        """Count the people of all nodes, and read the first page. Raises StoreError and Unavailable."""
        reports = await node.everywhere.nodes.ask_each(ReadPeople(kind))
        people = await count_people(node.actors, kind)
        for data in reports.values():
            people |= {} if data is None else _decode_people(data)
        query = ListThreads(kind=kind, order="changed", after=page.after, limit=page.limit + 1, is_for_clients=True)
        silent = [other for other, data in reports.items() if data is None]
        listing = cls(node, query, people, silent=silent, most=most)
        await listing._read_page()
        return listing

    @property
    def silent(self) -> int:
        """The number of nodes that did not answer in time."""
        return len(self._silent)

    @property
    def count(self) -> int:
        """The number of threads that were read."""
        return len(self._entries)

    async def entries(self) -> AsyncIterator[_Entry]:
        """Iterate over the threads. Raises StoreError and Unavailable."""
        at = 0
        while True:
            while at < len(self._entries):
                yield self._entries[at]
                at += 1
            if self._is_complete:
                return
            async with self._reading:
                if at == len(self._entries) and not self._is_complete:
                    await self._read_page()

    async def is_like(self, other: "Listing") -> bool:
        """Whether it shows the same as another one, as far as that was read. Raises what `entries` raises."""
        while len(self._entries) < len(other._entries) and not self._is_complete:
            async with self._reading:
                await self._read_page()
        own, others = ([entry.json for entry in each._entries[: len(other._entries)]] for each in (self, other))
        # One that has more after the end of the other may have gained a thread.
        has_gained = other._is_complete and not (self._is_complete and len(self._entries) == len(other._entries))
        return own == others and self.silent == other.silent and not has_gained

    # Inside

    async def _read_page(self) -> None:
        query = self._query
        assert query.limit is not None
        found = [each async for each in self._node.everywhere.list_threads(query, silent=self._silent)]
        self._entries += map(self._make_entry, found)
        self._is_complete = len(found) < query.limit or (self._most is not None and len(self._entries) >= self._most)
        if found:
            size = min(2 * query.limit, _MOST_READ)
            self._query = msgspec.structs.replace(query, after=found[-1].row, limit=size)

    def _make_entry(self, listed: Listed) -> _Entry:
        key, people = listed.row.key, self._people.get(listed.row.key.name, 0)
        card = None if listed.card is None else msgspec.Raw(listed.card)
        return _Entry(key, listed.row.changed_at, encode_json({"name": key.name, "people": people, "card": card}))


async def make_page(listing: Listing, identity: Identity, principal: Principal | None, limit: int) -> bytes:
    """Return the first rows of a listing that a principal may see, as JSON. Raises what `Listing.entries` does."""
    if not identity.has_rules and (known := listing.shared.get(limit)) is not None:
        return known
    shown: list[_Entry] = []
    has_more, checked = False, 0
    async for entry in listing.entries():
        checked += 1
        if checked % _AT_ONCE == 0:
            await asyncio.sleep(0)
        if identity.has_rules and not await identity.may(principal, entry.key, "list"):
            continue
        if has_more := len(shown) == limit:
            break
        shown.append(entry)
    body: dict[str, Any] = {
        "threads": [msgspec.Raw(entry.json) for entry in shown],
        "next": shown[-1].cursor if has_more else None,
        "silent": listing.silent,
    }
    page = encode_json(body)
    if not identity.has_rules:
        listing.shared[limit] = page
    return page


def _read_cursor(kind: str, text: str) -> ThreadRow:
    at, colon, name = text.partition(":")
    if not colon or not _is_number(at):
        raise InvalidArguments(f"after={text[:80]}: must be the `next` of the page before", path="/after")
    return ThreadRow(ThreadKey(kind, name), 0, 0, int(at))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
