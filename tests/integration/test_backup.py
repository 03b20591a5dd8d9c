"""A backup that is put back as docs/serving.md says, under clients that have seen what came after it."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.socket_client import TIMEOUT, http
from tests.running import Process

from plait_client import Refused, connect

ROOT = Path(__file__).parents[2]


def back_up(store: Path, backup: Path) -> None:
    """Copy a store while a server has it open, as `sqlite3 STORE ".backup BACKUP"` does."""
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)


def put_back(backup: Path, store: Path) -> None:
    """Put a backup in the place of a store, and carry out on it what the page says."""
    for suffix in ("", "-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    store.write_bytes(backup.read_bytes())
    found = re.search(r'sqlite3 game\.db "(UPDATE [^"]+)"', (ROOT / "docs" / "serving.md").read_text())
    assert found
    with closing(sqlite3.connect(store)) as db, db:
        db.execute(found[1])


async def test_a_client_that_had_seen_more_than_the_backup_has_the_servers_state_and_goes_on(tmp_path: Path) -> None:
    store, backup = tmp_path / "plait.db", tmp_path / "backup.db"
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with asyncio.timeout(TIMEOUT), connect(f"ws://{server.address}/threads/disk/one") as room:
            await room.update("/n", 1)
            await asyncio.to_thread(back_up, store, backup)
            await room.update("/list", ["seen by this client"])
            await room.update("/n", 100)
            await asyncio.to_thread(server.end)
            into_nothing, kept = room.update("/list/0", "changed meanwhile"), room.update("/text", "made meanwhile")
            put_back(backup, store)
            with Process("tests.integration.apps:app", cwd=tmp_path) as elsewhere:
                async with http(elsewhere.address) as web:
                    for n in range(2, 6):
                        (await web.put("/threads/disk/one", json={"n": n})).raise_for_status()
                await asyncio.to_thread(elsewhere.end)

            await asyncio.to_thread(server.start)
            with pytest.raises(Refused) as refused:
                await into_nothing
            assert refused.value.code == "conflict"
            assert await kept == 6
            assert await room.update("/n", 7) == 7
            assert room.state == {"n": 7, "text": "made meanwhile"}
            async with http(server.address) as web:
                assert (await web.get("/threads/disk/one")).json() == room.state
