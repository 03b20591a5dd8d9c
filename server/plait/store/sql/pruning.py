"""The SQL statements that remove what is outside the bounds of logs, and clients that have not pushed."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from plait.clock import read_wall_clock
from plait.store.thread_rows import CLIENT_DAYS, DAY, Prune

__all__ = ["make_prunes"]

# The log begins with the last snapshot that is within the bounds. The statements of MariaDB and MySQL may read the
# table from which they delete only in a derived table.
_OLDEST: Final = """(SELECT version FROM (
    SELECT max(version) AS version FROM {snapshots} WHERE thread = $1 AND version <= %s) oldest)"""
# The clock may have been wrong: times in the future are ignored, no change after a recent one is too old, and clients
# are kept until other clients have pushed on as many different days.
_BEFORE: Final = """coalesce((SELECT max(version) FROM {changes} WHERE thread = $1 AND at < $3 AND version < coalesce((
    SELECT min(version) FROM {changes} WHERE thread = $1 AND at BETWEEN $3 AND $4), 9223372036854775807)), 0)"""
_BEYOND: Final = """coalesce((SELECT max(version) FROM (
    SELECT version, sum(length(ops)) OVER (ORDER BY version DESC) AS size FROM {changes} WHERE thread = $1
) sizes WHERE size > %s), 0)"""
_CLIENTS: Final = f"""
DELETE FROM {{clients}} WHERE thread = $1 AND at < $2 AND floor(at / {DAY}) < (SELECT min(day) FROM (
    SELECT DISTINCT floor(at / {DAY}) AS day FROM {{clients}} WHERE thread = $1 AND at <= $3
    ORDER BY day DESC LIMIT {CLIENT_DAYS}) days)
"""


def make_prunes(prunes: Iterable[tuple[int, Prune]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the statements for the bounds of logs, each with the id of its thread, and their values."""
    now = read_wall_clock()
    for id, prune in prunes:
        bounds, values = ["$2"], [id, prune.version]
        if prune.at > 0:
            bounds.append(_BEFORE)
            values += [prune.at, now]
        if prune.bytes is not None:
            values.append(prune.bytes)
            bounds.append(_BEYOND % f"${len(values)}")
        oldest = _OLDEST % (f"greatest({', '.join(bounds)})" if len(bounds) > 1 else bounds[0])
        # The snapshots first, as the bounds are found in the changes.
        yield f"DELETE FROM {{snapshots}} WHERE thread = $1 AND version < {oldest}", tuple(values)
        yield f"DELETE FROM {{changes}} WHERE thread = $1 AND version <= {oldest}", tuple(values)
        yield _CLIENTS, (id, now - CLIENT_DAYS * DAY, now)
