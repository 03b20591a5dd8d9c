"""What an element of a typed list is known by, when its JSON is written."""

from typing import Any, Final

import msgspec

from plait_schemas.align import id_of
from plait_schemas.patch import diff

__all__ = ["may_be_same", "name"]

_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def may_be_same(old: Any, new: Any) -> bool:
    """Tell whether two elements in one place may be one, so that what its type has no field for stays."""
    if isinstance(old, dict) and isinstance(new, dict):
        return id_of(old) == id_of(new)
    return (isinstance(old, list) and isinstance(new, list)) or not diff(old, new)


def name(item: Any) -> bytes:
    """Return what an element is known by: its id, or all that it is."""
    id = id_of(item)
    return _canonical(item) if id is None else b"id" + _canonical(id)
