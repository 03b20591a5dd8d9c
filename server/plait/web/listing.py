"""The listed threads of a kind, as clients see them: a page of those that a principal may see."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Protocol, Self

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

__all__ = ["Entry", "Listing", "PageQuery", "is_number", "make_page", "read_limit"]

# The rows of a page, unless the client asks for another number, and the most that it gets.
_ROWS: Final = 50
_MOST_ROWS: Final = 200
# The threads that are read at once, if many of those before were not shown.
_MOST_READ: Final = 500
# Seconds for which the number of people holds.
_FRESH: Final = 1.0
# Rows that are checked before other tasks may run.
_AT_ONCE: Final = 100
# No time and no number of rows has more digits.
_MOST_DIGITS: Final = 18

_decode_people: Final = msgspec.msgpack.Decoder(dict[str, int]).decode


class PageQuery(NamedTuple):
    """The number of rows that a client wants, and the last row before them."""

    limit: int
    after: ThreadRow | None

    @classmethod
    def read(cls, kind: str, query: Mapping[str, str]) -> Self:
        """Read the parameters of a URL. Raises InvalidArguments."""
        limit, after = read_limit(query.get("limit", str(_ROWS))), query.get("after")
        return cls(min(limit, _MOST_ROWS), None if after is None else _read_cursor(kind, after))


class Entry(NamedTuple):
    """A thread of a listing: its row as JSON, and where the page after it begins."""

    key: ThreadKey
    changed_at: int
    json: bytes

    @property
    def cursor(self) -> str:
        """The cursor of the page after this thread."""
        return f"{self.changed_at}:{self.key.name}"


class Listing:
    """The listed threads of a kind, those that changed last first, with the people who have them open.

    It keeps no threads. `charge` is called with a number of threads before these are read, and may raise.
    """

    def __init__(
        self, node: Node, kind: str, page: PageQuery, *, charge: Callable[[int], object] = lambda _: None
    ) -> None:
        self._node = node
        self._kind = kind
        self._charge = charge
        # The last thread that was read, and how many are read next: one more than a page, as it may be the last one.
        self._after = page.after
        self._size = page.limit + 1
        self._people: Mapping[str, int] = {}
        self._counted_at = -math.inf
        # The nodes that did not tell how many people there are, and whose own stores are left out.
        self._silent: Collection[NodeId] | None = None
        self.is_complete = False

    @property
    def silent(self) -> int:
        """The number of nodes that did not answer in time."""
        return len(self._silent or ())

    async def entries(self) -> AsyncGenerator[Entry]:
        """Iterate over the threads, once. Raises what `read` raises."""
        while not self.is_complete:
            for entry in await self.read():
                yield entry

    async def read(self, most: int = _MOST_READ) -> list[Entry]:
        """Read the next threads, at most so many. Raises StoreError, Unavailable, and what `charge` raises."""
        size = min(self._size, most)
        self._charge(size)
        await self._count_people()
        entries: list[Entry] = []
        query = ListThreads(kind=self._kind, order="changed", after=self._after, limit=size, is_for_clients=True)
        async for listed in self._node.everywhere.list_threads(query, silent=self._silent or ()):
            entries.append(self._make_entry(listed))
            self._after = listed.row
            if len(entries) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self.is_complete = len(entries) < size
        self._size = min(2 * size, _MOST_READ)
        return entries

    # Inside

    async def _count_people(self) -> None:
        """Count the people of all nodes, unless that was just done."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at < _FRESH:
            return
        reports = await self._node.everywhere.nodes.ask_each(ReadPeople(self._kind))
        people = await count_people(self._node.actors, self._kind)
        for data in reports.values():
            people |= {} if data is None else _decode_people(data)
        self._people, self._counted_at = people, now
        if self._silent is None:  # A listing is all of the same nodes.
            self._silent = [node for node, data in reports.items() if data is None]

    def _make_entry(self, listed: Listed) -> Entry:
        key, people = listed.row.key, self._people.get(listed.row.key.name, 0)
        card = None if listed.card is None else msgspec.Raw(listed.card)
        return Entry(key, listed.row.changed_at, encode_json({"name": key.name, "people": people, "card": card}))


class _Entries(Protocol):
    """The threads of a listing, and how many nodes are silent."""

    @property
    def silent(self) -> int: ...
    def entries(self) -> AsyncGenerator[Entry]: ...


async def make_page(listing: _Entries, identity: Identity, principal: Principal | None, limit: int) -> bytes:
    """Return the first rows of a listing that a principal may see, as JSON. Raises what its `entries` raises."""
    shown: list[Entry] = []
    has_more, checked = False, 0
    async with aclosing(listing.entries()) as entries:
        async for entry in entries:
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
    return encode_json(body)


def _read_cursor(kind: str, text: str) -> ThreadRow:
    at, colon, name = text.partition(":")
    if not colon or not is_number(at) or len(at) > _MOST_DIGITS:
        raise InvalidArguments(f"after={text[:80]}: must be the `next` of the page before", path="/after")
    return ThreadRow(ThreadKey(kind, name), 0, 0, int(at))


def read_limit(text: str) -> int:
    """Return the limit in a URL. Raises InvalidArguments."""
    if not is_number(text) or len(text) > _MOST_DIGITS or int(text) == 0:
        raise InvalidArguments(f"limit={text[:80]}: must be a whole number of at least 1", path="/limit")
    return int(text)


def is_number(text: str) -> bool:
    """Whether a text in a URL is a whole number; Python refuses to read one of thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= 100
