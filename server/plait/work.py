"""Bringing changes behind others, as long as that does not hold up everybody else."""

from collections.abc import Sequence
from typing import Any, Final

from plait.errors import Conflict
from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, decode_ops
from plait_schemas.rebase import Rebased, rebase

__all__ = ["Work"]

# In about microseconds.
_MOST: Final = 150_000


class Work:
    """Decodes changes and brings operations behind others, and counts what that costs."""

    def __init__(self) -> None:
        self._left = _MOST

    def decode(self, row: ChangeRow) -> list[Op]:
        """Return the operations of a change. Raises Conflict when all together is too much."""
        self._take(len(row.ops) // 100)
        return decode_ops(row.ops)

    def rebase(self, ops: Sequence[Op], over: Sequence[Op], document: Any) -> Rebased:
        """Do what `rebase` does. Raises Conflict when all together is too much."""
        if over:
            self._take(20 + 3 * (len(ops) + len(over)) + 4 * len(ops) * len(over))
        return rebase(ops, over, document)

    def _take(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise Conflict("too much has been changed since")
