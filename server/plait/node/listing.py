"""Lists the stored threads, by user or by metadata if wanted."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from plait.actor.kind import Kind
from plait.agents.address import may_be_secret
from plait.agents.session_names import find_session
from plait.kv.namespace import NAMESPACE
from plait.kv.user import USER
from plait.kv.user_names import find_user, user_prefix
from plait.node.remote_requests import Listed, ListThreads
from plait.parts.part import find_parts
from plait.parts.values import Values
from plait.parts.values_head import METADATA
from plait.state.card import CARD
from plait.store.page import PLACES
from plait.store.protocol import Order, Store, ThreadQuery
from plait.store.thread_rows import ThreadKey

__all__ = ["INNER_KINDS", "list_own", "merge_listings"]

INNER_KINDS: Final = frozenset({NAMESPACE, USER})
"""The kinds that plait itself uses; listings do not show them."""

# The number of threads that are read at once.
_PAGE: Final = 1000

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


async def list_own(store: Store, kinds: Mapping[str, Kind], query: ListThreads) -> AsyncIterator[Listed]:
    """Iterate over the threads of a node's own store, a page at a time."""
    prefix, after, left = query.prefix, query.after, query.limit
    user: str | None = None
    is_mine = query.is_of_user and query.is_for_clients
    if is_mine:
        user = query.user_id
    # Threads of anonymous users, and of users with very long ids, are found only by their names.
    elif query.is_of_user and (user := find_user(of_user := user_prefix(query.user_id))) is None:
        if not of_user.startswith(prefix) and not prefix.startswith(of_user):
            return
        prefix = max(prefix, of_user, key=len)
    wanted = {key: _encode(value) for key, value in _decode(query.metadata).items()}
    while left is None or left > 0:
        size = _PAGE if left is None or wanted else min(left, _PAGE)
        rows = await store.threads(
            ThreadQuery(kind=query.kind, prefix=prefix, user=user, order=query.order, after=after, limit=size)
        )
        shown = {row.key for row in rows if not query.is_for_clients or is_mine or not may_be_secret(row.key.name)}
        cards = await _read_cards(store, kinds, shown) if query.is_for_clients else {}
        for row in rows:
            if row.key.kind in INNER_KINDS and not query.has_inner:
                continue
            if row.key not in shown:
                continue
            if wanted and not await _has_metadata(store, kinds, row.key, wanted):
                continue
            session = await find_session(store, row.key) if query.has_sessions else None
            yield Listed(row, session, cards.get(row.key))
            if left is not None:
                left -= 1
                if left == 0:
                    return
        if len(rows) < size:
            return
        after = rows[-1]


async def merge_listings(
    listings: Sequence[AsyncIterator[Listed]], order: Order, limit: int | None
) -> AsyncIterator[Listed]:
    """Merge sorted listings into a sorted one."""
    place, choose = PLACES[order], min if order == "name" else max
    heads = [(found, listing) for listing in listings if (found := await anext(listing, None)) is not None]
    count = 0
    while heads and (limit is None or count < limit):
        found, listing = head = choose(heads, key=lambda each: place(each[0].row))
        yield found
        count += 1
        following = await anext(listing, None)
        heads.remove(head)
        if following is not None:
            heads.append((following, listing))


async def _read_cards(
    store: Store, kinds: Mapping[str, Kind], shown: Iterable[ThreadKey]
) -> Mapping[ThreadKey, bytes | None]:
    """Return the cards of threads whose classes have cards."""
    with_cards = {name for name, kind in kinds.items() if "card" in kind.overrides}
    keys = [key for key in shown if key.kind in with_cards]
    return dict(zip(keys, await store.record_of_each(keys, *CARD) if keys else [], strict=True))


async def _has_metadata(store: Store, kinds: Mapping[str, Kind], key: ThreadKey, wanted: Mapping[str, bytes]) -> bool:
    """Whether any value of a thread has the metadata."""
    if (kind := kinds.get(key.kind)) is None:
        return False
    for name, part in find_parts(kind.cls).items():
        if isinstance(part, Values) and (data := await store.record(key, name, METADATA)) is not None:
            found = _decode(data)
            if all(key in found and _encode(found[key]) == value for key, value in wanted.items()):
                return True
    return False
