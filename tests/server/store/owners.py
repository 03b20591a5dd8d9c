"""Takeovers of threads between two stores of one engine, while their owners write."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import msgspec
from tests.schedules import SEED
from tests.server.store.contract import ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import delete, put_records

from plait.errors import Fenced
from plait.store.protocol import Store, Write
from plait.store.thread_rows import RecordRange, ThreadKey

__all__ = ["check_fence_of_deleted", "found", "take_over", "take_over_many"]

# How many takeovers are made at the same time.
AT_ONCE: Final = 10


def make_writes(dice: random.Random, key: ThreadKey, fence: int) -> list[Write]:
    """Return a few writes of an owner: changes, and records whose keys are their numbers."""
    writes, version = [], 0
    for number in range(dice.randrange(3, 8)):
        what = dice.choice(("change", "change", "client", "snapshot", "record"))
        if what == "record":
            write = put_records((str(number), b""), after=version, key=key)
        else:
            version += 1
            client = client_row(ref=number) if what == "client" else None
            write = change(version, key=key, client=client, snapshot=b"1" if what == "snapshot" else None)
        writes.append(msgspec.structs.replace(write, fence=fence))
    return writes


async def found(store: Store, key: ThreadKey) -> tuple[int, set[str]]:
    """Return the version of a thread and the keys of its records."""
    stored = await store.load(key)
    assert stored is not None
    return stored.version, {record.key for record in await store.records(key, RecordRange("values"))}


async def submit_all(store: Store, writes: Sequence[Write], dice: random.Random) -> list[asyncio.Future[int]]:
    futures = []
    for write in writes:
        futures.append(store.submit(write))
        if dice.random() < 0.5:
            await asyncio.sleep(0)
    return futures


async def take_over(first: Store, second: Store, key: ThreadKey, dice: random.Random) -> int:
    """Claim a thread while its owner writes, check what is stored, and return how many writes were refused."""
    fence = await first.claim(key)
    await first.submit(msgspec.structs.replace(beginning(key=key), fence=fence))
    writes = make_writes(dice, key, fence)
    futures = await submit_all(first, writes, dice)
    for _ in range(dice.randrange(12)):
        await asyncio.sleep(0)
    owner, loaded = await second.claim_and_load(key)
    assert loaded is not None
    seen = await found(second, key)
    assert seen[0] == loaded.version
    late = first.submit(msgspec.structs.replace(writes[-1], fence=fence))
    results = await outcomes([*futures, late])
    assert results[-1] is Fenced
    stored = [write for write, result in zip(writes, results, strict=False) if result is None]
    assert set(results) <= {None, Fenced}
    # What was acknowledged is what the new owner has loaded, and nothing came later.
    version = max([0, *(write.version for write in stored)])
    assert seen == (version, {record.key for write in stored for record in write.records})
    assert await found(second, key) == seen
    await second.submit(msgspec.structs.replace(change(version + 1, key=key), fence=owner))
    second.release(key, owner)
    return len(results) - len(stored)


async def take_over_many(stores: Sequence[Store], count: int) -> int:
    """Make so many takeovers between open stores, and return how many writes were refused."""

    async def take_some(number: int) -> int:
        dice, refused = random.Random(f"{SEED} {number}"), 0
        for each in range(count // AT_ONCE):
            first, second = dice.sample(stores, 2)
            refused += await take_over(first, second, ThreadKey("room", f"{number}-{each}"), dice)
        return refused

    return sum(await asyncio.gather(*(take_some(number) for number in range(AT_ONCE))))


async def check_fence_of_deleted(first: Store, second: Store) -> int:
    """Check that a thread refuses earlier owners before its first write and after its deletion.

    Returns the fence of the last owner, which is the first store, and has released the thread.
    """
    fence = await first.claim(ROOM)
    await first.submit(msgspec.structs.replace(beginning(), fence=fence))
    owner = await second.claim(ROOM)
    await second.submit(msgspec.structs.replace(delete(0), fence=owner))
    assert await outcomes([first.submit(msgspec.structs.replace(beginning(), fence=fence))]) == [Fenced]
    third = await first.claim(ROOM)
    assert third > owner > fence
    assert await outcomes([second.submit(msgspec.structs.replace(beginning(), fence=owner))]) == [Fenced]
    first.release(ROOM, third)
    return third
