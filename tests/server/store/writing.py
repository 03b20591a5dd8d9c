"""Writes to a store whose engine is in trouble, and checks that nothing acknowledged is lost or repeated."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

import msgspec
from tests.schedules import schedules
from tests.server.store.contract import PATIENCE, beginning, change, client_row, outcomes
from tests.server.store.contract_records import put_records
from tests.server.store.cutting_proxy import CuttingProxy

from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.protocol import Store, ThreadKey, Write
from plait.store.thread_rows import RecordRange

__all__ = ["KEYS", "Writing", "cut_answers", "until"]

log = logging.getLogger(__name__)

KEYS: Final = [ThreadKey("room", str(number)) for number in range(4)]


class Writing:
    """Writes to some threads, and knows what must be stored, and what may be."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store = store
        self._dice = dice
        self.fences: dict[ThreadKey, int] = {}
        self.versions = dict.fromkeys(KEYS, 0)
        self.records: dict[ThreadKey, set[str]] = {key: set() for key in KEYS}
        self.count = 0
        self.refused = 0

    async def begin(self) -> None:
        for key in KEYS:
            self.fences[key] = await self.store.claim(key)
            await self.store.submit(msgspec.structs.replace(beginning(key=key), fence=self.fences[key]))

    async def write(self, key: ThreadKey) -> None:
        """Make one write, and check its outcome against what is stored. Nothing may be in doubt."""
        self.count += 1
        write = self._make(key)
        future = self.store.submit(msgspec.structs.replace(write, fence=self.fences[key]))
        (error,) = await outcomes([future])
        assert error in (None, StoreError, Unreachable)
        if error is None:
            self.versions[key] = write.version
            self.records[key].update(record.key for record in write.records)
        else:
            self.refused += 1

    def has_made(self, count: int) -> bool:
        """Whether so many writes were made."""
        return self.count >= count

    def _make(self, key: ThreadKey) -> Write:
        version, name = self.versions[key], str(self.count)
        what = self._dice.choice(("change", "client", "snapshot", "record"))
        if what == "record":
            return put_records((name, b""), after=version, key=key)
        client = client_row(ref=self.count) if what == "client" else None
        return change(version + 1, key=key, client=client, snapshot=b"1" if what == "snapshot" else None)

    async def check(self) -> None:
        """Check that exactly the writes that were acknowledged are stored."""
        for key in KEYS:
            stored = await self.store.load(key)
            assert stored is not None
            assert stored.version == self.versions[key]
            assert {record.key for record in await self.store.records(key, RecordRange("values"))} == self.records[key]


async def cut_answers(store: Store, proxy: CuttingProxy, dice: random.Random, *, is_late: bool) -> None:
    """Write while connections are cut at random places, and check that no outcome is in doubt.

    With `is_late`, what was sent arrives after the connection is cut.
    """
    proxy.is_late = is_late
    writing = Writing(store, dice)
    await writing.begin()
    for _ in range(schedules(60)):
        proxy.fuse = dice.randrange(1, 8000)
        while proxy.fuse is not None:
            await asyncio.gather(*(writing.write(key) for key in KEYS if dice.random() < 0.7))
        await writing.check()
    counts = writing.count, proxy.cuts, proxy.arrived_late, writing.refused
    log.warning("%d writes, %d connections cut, %d arrived late, %d refused", *counts)
    assert proxy.cuts >= 60
    assert (proxy.arrived_late > 0) is is_late
    # A write that was lost is made again.
    assert writing.refused <= writing.count // 50


async def until(is_reached: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE):
        while not is_reached():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
