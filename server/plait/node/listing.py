"""Lists the stored threads, by user or by metadata if wanted."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from plait.actor.kind import Kind
from plait.agents.address import may_be_secret
from plait.agents.session_names import find_session
from plait.kv.namespace import NAMESPACE
from plait.kv.user import USER
from plait.kv.user_names import find_user, user_prefix
from plait.node.remote_requests import Listed, ListThreads
from plait.parts.messages.overview import mark_key
from plait.parts.messages.state import HEAD, read_told
from plait.parts.part import find_parts, find_role
from plait.parts.values import Values
from plait.parts.values_head import METADATA
from plait.state.card import CARD
from plait.store.page import PLACES
from plait.store.protocol import READ, Order, Store, ThreadQuery
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
            ThreadQuery(
                kind=query.kind,
                prefix=prefix,
                user=user,
                order=query.order,
                after=after,
                limit=size,
                has_versions=not query.is_for_clients,
            )
        )
        shown = {row.key for row in rows if not query.is_for_clients or is_mine or not may_be_secret(row.key.name)}
        with_cards = [key for key in shown if key.kind in kinds and "card" in kinds[key.kind].overrides]
        reader = user if is_mine else None
        cards = await _read_cards(store, kinds, with_cards, reader) if query.is_for_clients else {}
        for row in rows:
            if row.key.kind in INNER_KINDS and not query.has_inner:
                continue
            if row.key not in shown:
                continue
            if wanted and not await _has_metadata(store, kinds, row.key, wanted):
                continue
            session = await find_session(store, row.key) if query.has_sessions else None
            card, unread = cards.get(row.key, (None, None))
            yield Listed(row, session, card, unread)
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
    store: Store, kinds: Mapping[str, Kind], keys: Sequence[ThreadKey], user: str | None
) -> Mapping[ThreadKey, tuple[bytes | None, int | None]]:
    """Return the cards of some threads, and how many messages a user has not read, if these have messages."""
    if not keys:
        return {}
    part = None if user is None else find_role(kinds[keys[0].kind].cls, "messages")
    if user is None or part is None:
        return {key: (card, None) for key, (card,) in zip(keys, await store.records_of_each(keys, CARD), strict=True)}
    places = CARD, (part.name, HEAD), (READ, mark_key(part.name, user))
    found = zip(keys, await store.records_of_each(keys, *places), strict=True)
    return {key: (card, max(0, read_told(head) - int(read or 0))) for key, (card, head, read) in found}


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
