"""Lists the stored threads, and finds those of a user or with certain metadata."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from plait.kv.namespace import NAMESPACE
from plait.kv.user import USER
from plait.kv.user_names import find_user, user_prefix
from plait.node.node import Node
from plait.parts.part import find_parts
from plait.parts.values import Values
from plait.parts.values_index import METADATA
from plait.store.protocol import Order, Store, ThreadKey, ThreadRow

__all__ = ["INNER_KINDS", "list_threads"]

INNER_KINDS: Final = frozenset({NAMESPACE, USER})
"""The kinds that plait itself uses, which no listing shows."""

# The number of threads that are read at once.
_PAGE: Final = 1000

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


async def list_threads(
    store: Store,
    node: Node,
    *,
    kind: str | None,
    user_id: str | msgspec.UnsetType | None,
    metadata: Mapping[str, Any],
    prefix: str,
    order: Order,
    after: ThreadRow | None,
    limit: int | None,
) -> AsyncIterator[ThreadRow]:
    """Iterate over the stored threads, a page at a time, as `Plait.threads` does."""
    user: str | None = None
    # Threads of anonymous users, and of users with very long ids, are found by their names only.
    if user_id is not msgspec.UNSET and (user := find_user(of_user := user_prefix(user_id))) is None:
        if not of_user.startswith(prefix) and not prefix.startswith(of_user):
            return
        prefix = max(prefix, of_user, key=len)
    wanted = {key: _encode(value) for key, value in metadata.items()}
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None or wanted else min(left, _PAGE)
        rows = await store.threads(kind=kind, prefix=prefix, user=user, order=order, after=after, limit=size)
        for row in rows:
            if row.key.kind in INNER_KINDS or (wanted and not await _has_metadata(store, node, row.key, wanted)):
                continue
            yield row
            if left is not None:
                left -= 1
                if left == 0:
                    return
        if len(rows) < size:
            return
        after = rows[-1]


async def _has_metadata(store: Store, node: Node, key: ThreadKey, wanted: Mapping[str, bytes]) -> bool:
    """Whether one of the values of a thread has the metadata."""
    if (kind := node.kinds.get(key.kind)) is None:
        return False
    for name, part in find_parts(kind.cls).items():
        if isinstance(part, Values) and (data := await store.record(key, name, METADATA)) is not None:
            found = _decode(data)
            if all(key in found and _encode(found[key]) == value for key, value in wanted.items()):
                return True
    return False
