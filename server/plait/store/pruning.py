"""Finds which part of a thread's log a write removes, and which of its clients have expired."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from plait.store.thread_rows import CLIENT_DAYS, DAY, ChangeRow, Prune

__all__ = ["find_expired", "find_oldest"]


def find_oldest(changes: Sequence[ChangeRow], snapshots: Collection[int], prune: Prune, now: int) -> int:
    """Return the version of the newest snapshot that is outside a bound, with which the log then begins; 0 if none is.

    The clock may have been wrong: times in the future are ignored, and no change after a recent one is too old.
    """
    bound, size = prune.version, 0
    older = takewhile(lambda row: not prune.at <= row.at <= now, changes)
    bound = max([bound, *(row.version for row in older if row.at < prune.at)])
    for row in reversed(changes):
        size += len(row.ops)
        if prune.bytes is not None and size > prune.bytes:
            bound = max(bound, row.version)
    return max((at for at in snapshots if at <= bound), default=0)


def find_expired(pushed: Mapping[str, int], now: int) -> list[str]:
    """Return clients whose rows are not kept, by the times of their last pushes.

    A wrong clock expires none: each is kept until others have pushed on as many different days.
    """
    days = sorted({at // DAY for at in pushed.values() if at <= now})[-CLIENT_DAYS:]
    young = now - CLIENT_DAYS * DAY
    return [id for id, at in pushed.items() if at < young and at // DAY < days[0]]
