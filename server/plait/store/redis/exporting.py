"""Reads all of a thread, as the writes that make it."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from plait.errors import CorruptThread
from plait.store.protocol import ThreadKey, Write
from plait.store.redis.layout import decode, to_client
from plait.store.redis.reads import Reads, telling
from plait.store.thread_rows import Snapshot

__all__ = ["Exports"]

# The maximum size of the values in one write, and the maximum number of rows.
_SIZE: Final = 512 * 1024
_ROWS: Final = 1000


class Exports(Reads):
    """The methods of a store that read all of it."""

    async def export(self, key: ThreadKey) -> AsyncIterator[Write]:
        with telling(key):
            head_key, snapshots_key, clients_key = self._keys.thread(key, "hsl")
            fields = ("cr", "e", "v", "sv", "s", "x", "due", "ch", "u", "b")
            head, versions = await self._run(("HMGET", head_key, *fields), ("HKEYS", snapshots_key))
        if head[0] is None:
            return
        created_at, last, state_version, due, changed_at, base = (int(head[at]) for at in (0, 2, 3, 6, 7, 9))
        epoch, ends = head[1].decode(), sorted(int(each) for each in versions)
        snapshots = await self._snapshots(key, [at for at in ends if at == base])
        if not snapshots and not (base == 0 and (last or head[5] == b"1")):
            raise CorruptThread(f"{key} cannot be read: the snapshot of version {base} is missing")
        yield Write(
            *(key, epoch, None, base, (), snapshots),
            state_version=state_version,
            secret=head[4],
            due=due or None,
            created_at=created_at,
            user=decode(head[8]),
            begins_at=base,
            changed_at=changed_at,
        )
        version = base
        while version < last:
            end = next((at for at in ends if at > version), last)
            changes = await self.changes(key, after=version, limit=min(_ROWS, end - version), size=_SIZE)
            end = version + len(changes)
            if not changes or [row.version for row in changes] != list(range(version + 1, end + 1)):
                raise CorruptThread(f"{key} cannot be read: changes are missing after version {version}")
            snapshots = await self._snapshots(key, [at for at in ends if version < at <= end])
            yield Write(key, epoch, version, end, changes, snapshots, changed_at=changed_at)
            version = end
        with telling(key):
            (pushed,) = await self._run(("HGETALL", clients_key))
        rows = sorted(zip(pushed[::2], pushed[1::2], strict=True))  # As all stores have them.
        clients = [to_client(name.decode(), row) for name, row in rows]
        for at in range(0, len(clients), _ROWS):
            yield Write(key, epoch, last, last, clients=clients[at : at + _ROWS], changed_at=changed_at)
        after = ("", "")
        while records := (await self._read_page(key, after, _ROWS, _SIZE))[1]:
            yield Write(key, epoch, last, last, records=records, changed_at=changed_at)
            after = records[-1].part, records[-1].key

    async def _snapshots(self, key: ThreadKey, versions: Sequence[int]) -> list[Snapshot]:
        with telling(key):
            found = await self._run(*(("HGET", *self._keys.thread(key, "s"), at) for at in versions))
        return [Snapshot(at, state) for at, state in zip(versions, found, strict=True)]
