"""Finds which part of a thread's log a write prunes."""

from collections.abc import Sequence
from itertools import takewhile

from plait.clock import read_wall_clock
from plait.store.nats.contents import Contents, read_changes, read_values
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import Change, decode_client
from plait.store.protocol import Write
from plait.store.pruning import find_expired
from plait.store.thread_rows import Prune

__all__ = ["find_floor"]


async def find_floor(stream: JetStream, contents: Contents | None, write: Write) -> tuple[int, list[str]]:
    """Return the version up to which changes are pruned by a write, and the clients that have expired.

    `contents` are those before the write, None for a new thread. Only messages are read that a bound divides. Raises
    Moved and StoreError.
    """
    prune, now = write.prune, read_wall_clock()
    assert prune is not None
    log = _Log(stream, contents, write)
    bound = max(prune.version, await log.find_age(prune, now), await log.find_size(prune))
    snapshots = [*(() if contents is None else contents.snapshots), *(each.version for each in write.snapshots)]
    floor = max((at for at in snapshots if at <= bound), default=0)
    return floor, await _find_expired(stream, contents, write, now)


class _Log:
    """The changes of a thread: messages of them, and then those of its head and the write."""

    def __init__(self, stream: JetStream, contents: Contents | None, write: Write) -> None:
        self._stream = stream
        self._start = "" if contents is None else contents.start
        self._segments = () if contents is None else contents.segments
        self._last = [] if contents is None else list(contents.thread.changes)
        self._last += [(row.version, row.ops, row.source, row.at) for row in write.changes]

    async def find_age(self, prune: Prune, now: int) -> int:
        """Return the last version that is too old.

        The clock may have been wrong: times in the future are ignored, and no change after a recent one is too old.
        """
        bound = 0
        if prune.at <= 0:
            return bound
        for segment, rest in self._segments:
            if segment.latest < prune.at:
                bound = segment.last
            elif segment.earliest <= now:  # Otherwise all of its times are in the future.
                found, is_end = _find_old(await self._read(rest), prune.at, now)
                bound = max(bound, found)
                if is_end:
                    return bound
        return max(bound, _find_old(self._last, prune.at, now)[0])

    async def find_size(self, prune: Prune) -> int:
        """Return the last version before the newest ones whose bytes are kept."""
        if prune.bytes is None:
            return 0
        size = 0
        for row in reversed(self._last):
            size += len(row[1])
            if size > prune.bytes:
                return row[0]
        for segment, rest in reversed(self._segments):
            if size + segment.size <= prune.bytes:
                size += segment.size
                continue
            for row in reversed(await self._read(rest)):
                size += len(row[1])
                if size > prune.bytes:
                    return row[0]
        return 0

    async def _read(self, rest: str) -> list[Change]:
        return await read_changes(self._stream, self._start, [rest])


def _find_old(rows: Sequence[Change], at: int, now: int) -> tuple[int, bool]:
    """Return the last version that is too old, and whether a recent change ends the search."""
    older = list(takewhile(lambda row: not at <= row[3] <= now, rows))
    return max((row[0] for row in older if row[3] < at), default=0), len(older) < len(rows)


async def _find_expired(stream: JetStream, contents: Contents | None, write: Write, now: int) -> list[str]:
    """Return clients whose rows are not kept."""
    rows: dict[str, int] = {}
    if contents is not None:
        wanted = list(contents.clients.values())
        for _, value in (await read_values(stream, contents.start, wanted, contents.thread.rows)).values():
            if value is not None:
                row = decode_client(value)
                rows[row.client] = row.at
    rows |= {row.client: row.at for row in write.clients}
    return find_expired(rows, now)
