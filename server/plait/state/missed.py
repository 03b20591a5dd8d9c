"""The changes that a reader has missed, as one list of operations."""

from collections.abc import Sequence

from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, compact, decode_ops

__all__ = ["MissedChanges"]


class MissedChanges:
    """The operations from one version to a later one; typed or streamed text is joined into one operation."""

    __slots__ = ("_size", "ops", "version")

    def __init__(self, version: int) -> None:
        # The version after the operations.
        self.version = version
        self.ops: list[Op] = []
        # The approximate bytes of all operations except the last one, to which others may still be joined.
        self._size = 0

    @property
    def size(self) -> int:
        """The approximate bytes of the operations as JSON."""
        return self._size + len(encode_json(self.ops[-1:]))

    def add(self, rows: Sequence[ChangeRow]) -> None:
        """Add the next changes."""
        if rows:
            ops = compact([*self.ops[-1:], *(op for row in rows for op in decode_ops(row.ops))])
            self._size += len(encode_json(ops[:-1]))
            self.ops[-1:] = ops
            self.version = rows[-1].version
