"""Changes as authors and HTTP clients see them."""

from datetime import UTC, datetime
from typing import Self

import msgspec

from plait.store.protocol import ChangeRow
from plait_schemas.patch import Op, decode_ops

__all__ = ["Change"]


class Change(msgspec.Struct, frozen=True):
    """One durable change: `source` is a connection's id, "server", "migration", or "undo", a version and a source."""

    version: int
    ops: list[Op]
    source: str
    at: datetime

    @classmethod
    def of(cls, row: ChangeRow) -> Self:
        """Return a change as it is stored, decoded."""
        return cls(row.version, decode_ops(row.ops), row.source, datetime.fromtimestamp(row.at / 1e6, UTC))
