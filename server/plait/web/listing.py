"""The listed threads of a kind, as clients see them: a page of the threads that a principal may see."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Self

import msgspec

from plait.cluster.owners import NodeId
from plait.errors import Forbidden, InvalidArguments
from plait.node.awake import count_people
from plait.node.node import Node
from plait.node.remote_requests import Listed, ListThreads, ReadPeople
from plait.state.principal import Principal
from plait.store.protocol import ThreadRow
from plait.store.thread_rows import ThreadKey
from plait.web.authentication import Action, Identity
from plait_schemas.codec import encode_json

__all__ = ["Entry", "Listing", "PageQuery", "People", "is_number", "make_page", "read_limit"]

# The rows of a page: the default number, and the maximum.
_ROWS: Final = 50
_MOST_ROWS: Final = 200
# Maximum threads that are read at once, after many threads were hidden.
_MOST_READ: Final = 500
# Seconds after which the people are counted again.
_FRESH: Final = 1.0
# Rows that are checked before other tasks may run.
_AT_ONCE: Final = 100
# Maximum digits of a time or a number of rows.
_MOST_DIGITS: Final = 18

_decode_people: Final = msgspec.msgpack.Decoder(dict[str, int]).decode


class PageQuery(NamedTuple):
    """The number of rows that a client asks for, the last row of the page before, and whose threads they are."""

    limit: int
    after: ThreadRow | None
    # The id of the user that asks for their own threads; None for all threads.
    user: str | None = None

    @classmethod
    def read(cls, kind: str, query: Mapping[str, str], principal: Principal | None) -> Self:
        """Read the parameters of a URL. Raises InvalidArguments, and Forbidden for `mine` without a principal."""
        limit, after, mine = read_limit(query.get("limit", str(_ROWS))), query.get("after"), query.get("mine")
        if mine not in (None, "", "true"):
            raise InvalidArguments(f"mine={mine[:80]}: must be true, or be left out", path="/mine")
        if mine is not None and principal is None:
            raise Forbidden("mine: the threads of a user are listed, and this request has no principal")
        cursor = None if after is None else _read_cursor(kind, after)
        return cls(min(limit, _MOST_ROWS), cursor, None if mine is None or principal is None else principal.id)


class Entry(NamedTuple):
    """A thread of a listing: its row as JSON, and the position at which the next page begins."""

    key: ThreadKey
    changed_at: int
    json: bytes

    @property
    def cursor(self) -> str:
        """The cursor of the page after this thread."""
        return f"{self.changed_at}:{self.key.name}"


class People:
    """The people who have the threads of a kind open, by name: counted for all who ask, but not twice in a second."""

    def __init__(self, node: Node, kind: str) -> None:
        self._node = node
        self._kind = kind
        self._counted_at = -math.inf
        self._counting = asyncio.Lock()
        self.counts: Mapping[str, int] = {}
        # The nodes that did not report their people in time.
        self.silent: Collection[NodeId] = ()

    async def count(self) -> None:
        """Count the people of all nodes, unless the last count is recent. Raises StoreError."""
        async with self._counting:
            now = asyncio.get_running_loop().time()
            if now - self._counted_at < _FRESH:
                return
            reports = await self._node.everywhere.nodes.ask_each(ReadPeople(self._kind))
            people = await count_people(self._node.actors, self._kind)
            for data in reports.values():
                people |= {} if data is None else _decode_people(data)
            self.counts, self._counted_at = people, now
            self.silent = [node for node, data in reports.items() if data is None]


class Listing:
    """The listed threads of a kind, the latest change first, with the people who have them open.

    No threads are kept in memory. `charge` is called with a number of threads before they are read, and may raise.
    """

    def __init__(
        self,
        node: Node,
        kind: str,
        page: PageQuery,
        *,
        charge: Callable[[int], object] = lambda _: None,
        people: People | None = None,
    ) -> None:
        self._node = node
        self._kind = kind
        self._user = page.user
        self._charge = charge
        # What a principal must be allowed to do with a thread that is shown. The threads of a user are not found by
        # browsing, so that `list` may be refused.
        self.action: Action = "list" if page.user is None else "read"
        # The last thread read, and the number to read next: one more than a page, to find out whether it is the last
        # page.
        self._after = page.after
        self._size = page.limit + 1
        self._people = people or People(node, kind)
        # The nodes that did not report their people in time. The listing leaves out the threads in their own stores.
        self._silent: Collection[NodeId] | None = None
        self.is_complete = False

    @property
    def silent(self) -> int:
        """The number of nodes that did not answer in time."""
        return len(self._silent or ())

    @property
    def is_cut(self) -> bool:
        """Whether threads may follow the last one, which are never read."""
        return False

    async def entries(self) -> AsyncGenerator[Entry]:
        """Iterate over the threads, once. Raises the errors of `read`."""
        while not self.is_complete:
            for entry in await self.read():
                yield entry

    async def read(self, most: int = _MOST_READ) -> list[Entry]:
        """Read the next threads, at most `most`. Raises StoreError, Unavailable, and the errors of `charge`."""
        size = min(self._size, most)
        self._charge(size)
        await self._people.count()
        if self._silent is None:  # All pages of a listing are from the same nodes.
            self._silent = self._people.silent
        entries: list[Entry] = []
        query = ListThreads(
            kind=self._kind,
            is_of_user=self._user is not None,
            user_id=self._user,
            order="changed",
            after=self._after,
            limit=size,
            is_for_clients=True,
        )
        async for listed in self._node.everywhere.list_threads(query, silent=self._silent or ()):
            entries.append(self._make_entry(listed))
            self._after = listed.row
            if len(entries) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self.is_complete = len(entries) < size
        self._size = min(2 * size, _MOST_READ)
        return entries

    # Inside

    def _make_entry(self, listed: Listed) -> Entry:
        key, people = listed.row.key, self._people.counts.get(listed.row.key.name, 0)
        card = None if listed.card is None else msgspec.Raw(listed.card)
        row = {"name": key.name, "people": people, "card": card}
        if listed.unread is not None:
            row["unread"] = listed.unread
        return Entry(key, listed.row.changed_at, encode_json(row))


async def make_page(listing: Listing, identity: Identity, principal: Principal | None, limit: int) -> bytes:
    """Return the first rows of a listing that a principal may see, as JSON. Raises the errors of its `entries`."""
    shown: list[Entry] = []
    has_more, checked = False, 0
    async with aclosing(listing.entries()) as entries:
        async for entry in entries:
            checked += 1
            if checked % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if identity.has_rules and not await identity.may(principal, entry.key, listing.action):
                continue
            if has_more := len(shown) == limit:
                break
            shown.append(entry)
    body: dict[str, Any] = {
        "threads": [msgspec.Raw(entry.json) for entry in shown],
        "next": shown[-1].cursor if has_more else None,
        "silent": listing.silent,
        "more": has_more or listing.is_cut,
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
    """Whether a text in a URL is a whole number of few digits; Python raises an error for thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= 100
