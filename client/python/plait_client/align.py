"""What an element of a typed list is known by, when its JSON is written."""

from typing import Any, Final

import msgspec

from plait_schemas.align import id_of
from plait_schemas.diff import diff

__all__ = ["may_be_same", "name"]

_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def may_be_same(old: Any, new: Any, key: str | None = None) -> bool:
    """Tell whether two elements in one place may be one, so that what its type has no field for stays."""
    if isinstance(old, dict) and isinstance(new, dict):
        return id_of(old, key) == id_of(new, key)
    return (isinstance(old, list) and isinstance(new, list)) or not diff(old, new)


def name(item: Any, key: str | None = None) -> bytes:
    """Return what an element is known by: its id, or all that it is; `key` as in `id_of`."""
    id = id_of(item, key)
    return _canonical(item) if id is None else b"id" + _canonical(id)
