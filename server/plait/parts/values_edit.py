"""Unshared changes of the values of a thread, on top of values that they do not change."""

from collections.abc import Mapping

from plait_schemas.codec import encode_json

__all__ = ["ValuesEdit", "measure"]


def measure(key: str, value: bytes) -> int:
    """Return the bytes that a key and its value add to all values as JSON."""
    return len(encode_json(key)) + len(value) + 2


class ValuesEdit:
    """The values after some operations."""

    __slots__ = ("__weakref__", "added", "base", "is_cleared", "metadata", "replaced", "total")

    def __init__(self, base: Mapping[str, bytes], total: int) -> None:
        self.base = base
        # The sum of what `measure` returns.
        self.total = total
        # Whether all keys of the base were removed.
        self.is_cleared = False
        # The new values of keys of the base, None for removed ones; and the added keys, in order of insertion.
        self.replaced: dict[str, bytes | None] = {}
        self.added: dict[str, bytes] = {}
        # The new metadata; None if it does not change.
        self.metadata: bytes | None = None

    def find(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none."""
        if (found := self.added.get(key)) is not None:
            return found
        if key in self.replaced:
            return self.replaced[key]
        return None if self.is_cleared else self.base.get(key)

    def items(self) -> list[tuple[str, bytes]]:
        """Return the keys and their values, in order of insertion."""
        base = {} if self.is_cleared else {**self.base, **self.replaced}
        return [*((key, value) for key, value in base.items() if value is not None), *self.added.items()]

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        before = self.find(key)
        self.total += measure(key, value) - (0 if before is None else measure(key, before))
        if before is None or key in self.added:
            self.added[key] = value
        else:
            self.replaced[key] = value

    def remove(self, key: str) -> None:
        """Remove a key, if it is there."""
        if (before := self.find(key)) is not None:
            self.total -= measure(key, before)
            if self.added.pop(key, None) is None:
                self.replaced[key] = None

    def clear(self) -> None:
        """Remove all keys."""
        self.is_cleared, self.total = True, 0
        self.added, self.replaced = {}, {}
