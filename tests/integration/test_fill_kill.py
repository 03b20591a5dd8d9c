"""Forks and imports whose process is killed are there whole or not at all, and an original loses nothing."""

import asyncio
import hashlib
import json
import logging
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.killed_module import run_and_kill
from tests.schedules import SEED, TIMES, schedules

from plait import Messages, Plait, SqliteStore, Thread, ThreadKey, Values, rpc
from plait.cli.maintenance import check_store
from plait.store.thread_rows import INCOMPLETE, RecordRange

log = logging.getLogger(__name__)

ROUNDS = schedules() if TIMES > 1 else 3
# How many records an original has, and a file.
FORKED, IMPORTED = (8000, 4000) if TIMES > 1 else (4000, 2000)


class Box(Thread[Any]):
    """The forks; `box` is the original."""

    initial_state = 0
    values = Values()
    messages = Messages()

    @rpc
    def count(self) -> int:
        """Count in the state, a value and a message, at once."""
        with self.transaction():
            self.set_state(lambda number: number + 1)
            self.values.set("number", self.state)
            self.messages.inject("user", str(self.state))
        return int(self.state)


class Crate(Thread[Any]):
    """The imports; `kept` is replaced again and again."""

    values = Values()


def make_file(number: int) -> bytes:
    """Return a file whose state and records tell of a number."""
    lines: list[object] = [{"format": 2, "kind": "crate", "name": str(number)}, {"state": number}]
    lines += ({"part": "values", "key": f"value/{index:05}", "value": number} for index in range(IMPORTED))
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end = {"records": IMPORTED, "sha256": hashlib.sha256(data).hexdigest()}
    return data + json.dumps(end).encode() + b"\n"


def make_app(path: Path | str) -> Plait:
    return Plait(Box, Crate, store=SqliteStore(path))


# What runs in the process that is killed


async def main(path: str, first: int) -> None:
    async with make_app(path) as app:
        box = app.thread(Box, "box")
        if not await box.part(Box.values).size():
            await asyncio.gather(*(box.part(Box.values).set(f"{number:05}", number) for number in range(FORKED)))

        async def count() -> None:
            while True:
                tell("box/box", await box.call(Box.count))

        counting = asyncio.create_task(count())
        number = first
        while not counting.done():
            fork = await app.fork_thread(Box, "box", str(number))
            tell(f"box/{number}", await fork.state())
            # One that replaces the one before, and one that does not.
            for name in ("kept", None):
                await app.import_thread(make_file(number), name=name, replace=name is not None)
                tell(f"crate/{name or number}", number)
            number += 1


def tell(thread: str, number: int) -> None:
    os.write(1, f"{thread} {number}\n".encode())


# The test


@pytest.mark.soak
@pytest.mark.timeout(400 * TIMES)
async def test_forks_and_imports_that_are_killed_are_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "boxes.db"
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    # By thread: the number that was acknowledged last.
    told: dict[str, int] = {}
    interrupted: set[str] = set()
    rounds = 0
    # As many rounds as are asked for, and more until a fork and an import were interrupted.
    while rounds < ROUNDS or interrupted != {"box", "crate"}:
        told |= await run_and_kill(
            "tests.integration.test_fill_kill", str(path), str(1000 * rounds), after=chance.uniform(0, 0.8)
        )
        interrupted |= await check(path, told)
        rounds += 1


async def check(path: Path, told: dict[str, int]) -> set[str]:
    """Check the stored threads after a start, and return the kinds of threads that were incomplete before."""
    async with SqliteStore(path, readonly=True) as store:
        incomplete = await store.due_threads(until=INCOMPLETE)
        listed = [row.key for row in await store.threads()]
    assert not {each.key for each in incomplete} & set(listed)
    async with make_app(path) as app:
        assert [row.key async for row in app.threads()] == listed
        assert await app._store.due_threads(until=2**62) == []
        for each in incomplete:
            assert await app._store.find(each.key) is None
        # An import that was being replaced may be gone.
        assert set(told) - {f"{key.kind}/{key.name}" for key in listed} <= {"crate/kept"}
        for key in listed:
            await (check_box if key.kind == "box" else check_crate)(app, key, told)
        await destroy(app, listed, told)
    assert not any(is_damage for _, is_damage in check_store(path))
    return {each.key.kind for each in incomplete}


async def check_box(app: Plait, key: ThreadKey, told: dict[str, int]) -> None:
    """Check that the original has all that was counted, and that a fork is of one moment."""
    box = app.thread(Box, key.name)
    number = await box.state()
    if key.name == "box":
        assert number >= told.get("box/box", 0)
    else:
        assert number == told.get(f"box/{key.name}", number)
    found = await box.part(Box.messages).list(1)
    assert found.total == number
    if number:
        assert await box.part(Box.values).get("number") == number
        assert found.messages[0].content == str(number)
    assert await box.part(Box.values).size() == FORKED + bool(number)
    rows = await app._store.records(key, RecordRange("messages", prefix="m/", limit=10**6))
    assert len(rows) == number


async def check_crate(app: Plait, key: ThreadKey, told: dict[str, int]) -> None:
    """Check that an import is all of one file."""
    number = await app.thread(Crate, key.name).state()
    # One more may be stored than was told.
    assert number >= told.get(f"crate/{key.name}", number)
    assert key.name in ("kept", str(number))
    records = await app._store.records(key, RecordRange("values", limit=IMPORTED + 1))
    assert [each.value for each in records] == [str(number).encode()] * IMPORTED


async def destroy(app: Plait, keys: Sequence[ThreadKey], told: dict[str, int]) -> None:
    """Destroy the threads of a round."""
    for key in keys:
        if key.name not in ("box", "kept"):
            await app.destroy(Box if key.kind == "box" else Crate, key.name)
            told.pop(f"{key.kind}/{key.name}", None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
