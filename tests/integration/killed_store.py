"""Writes to the threads of a store until it is killed: `python -m tests.integration.killed_store URL`."""

import asyncio
import os
import sys

from tests.server.store.contract import beginning

from plait.store.protocol import Store, Write
from plait.store.thread_rows import ChangeRow, Record, ThreadKey
from plait.store.urls import open_store

__all__ = ["KEYS", "OPS"]

KEYS = [ThreadKey("room", str(number)) for number in range(16)]
OPS = b'[{"op":"replace","path":"/text","value":"%s"}]' % (b"x" * 1000)


async def write(store: Store, key: ThreadKey) -> None:
    """Add changes to a thread, each with a record of its number, and print the acknowledged numbers."""
    fence, stored = await store.claim_and_load(key)
    if stored is None:
        await store.submit(Write(key, "e1", None, 0, snapshots=beginning().snapshots, fence=fence))
    version = 0 if stored is None else stored.version
    while True:
        version += 1
        record = Record("values", str(version), b"%d" % version)
        row = ChangeRow(version, OPS, "server", 1)
        await store.submit(Write(key, "e1", version - 1, version, (row,), records=(record,), fence=fence))
        os.write(1, f"{key.name} {version}\n".encode())  # Whole, also if it is the last one.


async def main(url: str) -> None:
    """Write to all threads at once."""
    async with open_store(url) as store, asyncio.TaskGroup() as group:
        for key in KEYS:
            group.create_task(write(store, key))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
