"""The rows of claimed threads, cached, and the SQL that claims a thread."""

import secrets
from typing import Any, Final, NamedTuple

from plait.store.postgres.engine import TIMELINE, Engine
from plait.store.protocol import ThreadKey

__all__ = ["CLAIM", "ClaimedHead", "Heads", "claim_values"]

# A number is above those before it, on any server and timeline: the sequence goes back only if a failover has lost
# writes, and a dump that is restored may be on an earlier timeline.
# A thread that was claimed on another timeline gets a new epoch, as clients may have seen changes that are lost. If no
# failover loses any, it gets one only on another server.
CLAIM: Final = f"""
INSERT INTO {{threads}} AS t (kind, name, fence, origin)
VALUES ($1, $2, ({TIMELINE} << 40) + nextval('{{fences}}'), $3)
ON CONFLICT (kind, name) DO UPDATE SET fence = greatest(t.fence + 1, excluded.fence), origin = excluded.origin,
    epoch = CASE WHEN t.origin = excluded.origin OR t.epoch IS NULL
        OR $4 AND split_part(t.origin, ':', 1) = split_part(excluded.origin, ':', 1) THEN t.epoch ELSE $5 END
RETURNING t.id, t.epoch, t.version, t.fence, t.writes, {TIMELINE} AS timeline
"""
"""SQL that makes its caller the owner of a thread, with the values of `claim_values`, and returns its head."""


class ClaimedHead(NamedTuple):
    """The row of a thread: its id, what is stored, the number of its owner, and how many writes it has had.

    The count tells whether a write whose answer was lost is stored. Its lower 40 bits count writes; the others count
    such questions, so that a write that arrives after the question no longer fits.
    """

    id: int
    # None if no thread is stored.
    epoch: str | None
    version: int | None
    fence: int
    writes: int

    @property
    def stored(self) -> tuple[str, int] | None:
        """The stored epoch and version; None if no thread is stored."""
        return None if self.epoch is None or self.version is None else (self.epoch, self.version)

    @classmethod
    def read(cls, row: Any) -> "ClaimedHead":
        """Return the head in a row of its columns."""
        id, epoch, version, fence, writes = row[:5]
        return cls(id, None if epoch is None else epoch.decode(), version, fence, writes)


Heads = dict[ThreadKey, ClaimedHead]


def claim_values(engine: Engine, key: ThreadKey) -> tuple[Any, ...]:
    """Return the values of `CLAIM`. Raises UnicodeEncodeError."""
    fresh = secrets.token_hex(8).encode()
    return key.kind.encode(), key.name.encode(), engine.origin, engine.url.has_standby, fresh
