"""Writes to a store whose engine is in trouble, and checks that nothing acknowledged is lost or repeated."""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from tests.private_server import PrivateServer
from tests.schedules import schedules
from tests.server.store.contract import PATIENCE, beginning, change, client_row, outcomes
from tests.server.store.contract_records import put_records
from tests.server.store.cutting_proxy import CuttingProxy

from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.protocol import Store, Write
from plait.store.thread_rows import RecordRange, ThreadKey

__all__ = ["KEYS", "Writing", "begin", "cut_answers", "survive_kills", "until"]

log = logging.getLogger(__name__)

KEYS: Final = [ThreadKey("room", str(number)) for number in range(4)]


async def begin(store: Store, *keys: ThreadKey) -> dict[ThreadKey, int]:
    """Begin threads, and return the numbers of their owner."""
    fences = {key: await store.claim(key) for key in keys}
    for key in keys:
        await store.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
    return fences


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
        self.fences = await begin(self.store, *KEYS)

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

    async def write_on(self, key: ThreadKey, count: int) -> None:
        """Write to a thread until so many writes were made to all."""
        while self.count < count:
            await self.write(key)
            await asyncio.sleep(0)

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
    for _ in range(schedules(30)):
        proxy.fuse = dice.randrange(1, 8000)
        while proxy.fuse is not None:
            await asyncio.gather(*(writing.write(key) for key in KEYS if dice.random() < 0.7))
        await writing.check()
    counts = writing.count, proxy.cuts, proxy.arrived_late, writing.refused
    log.warning("%d writes, %d connections cut, %d arrived late, %d refused", *counts)
    assert proxy.cuts >= schedules(30)
    assert (proxy.arrived_late > 0) is is_late
    # A write that was lost is made again.
    assert writing.refused <= writing.count // 50


async def survive_kills(store: Store, server: PrivateServer, kills: int) -> None:
    """Write while the server is killed and started again, and check that no write is lost, repeated or in doubt."""
    writing = Writing(store, random.Random(3))
    await writing.begin()
    for _ in range(kills):
        work = [asyncio.create_task(writing.write_on(key, writing.count + 300)) for key in KEYS]
        await until(partial(writing.has_made, writing.count + 100))
        await asyncio.to_thread(server.crash)
        await asyncio.to_thread(server.start)
        await asyncio.gather(*work)
        await writing.check()
    await store.check_writes()


async def until(is_reached: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE):
        while not is_reached():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
