"""A backup that is put back under clients that have seen what came after it."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.socket_client import TIMEOUT, http
from tests.running import Process

from plait.cli.maintenance import back_up_store, restore_store
from plait.store.sqlite.files import Files
from plait_client import Refused, connect


def put_back(backup: Path, store: Path, *, by_command: bool) -> None:
    """Put a backup in the place of a store: by `plait restore`, or by hand, without new epochs."""
    if by_command:
        restore_store(Files.find(backup), Files.find(store))
        return
    for suffix in ("", "-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    store.write_bytes(backup.read_bytes())


@pytest.mark.parametrize("by_command", [True, False], ids=["by plait restore", "by hand"])
async def test_a_client_that_had_seen_more_than_the_backup_has_the_servers_state_and_goes_on(
    tmp_path: Path, by_command: bool
) -> None:
    store, backup = tmp_path / "plait.db", tmp_path / "backup.db"
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with asyncio.timeout(TIMEOUT), connect(f"ws://{server.address}/threads/disk/one") as room:
            await room.update("/n", 1)
            await asyncio.to_thread(back_up_store, Files.find(store), backup)
            await room.update("/list", ["seen by this client"])
            await room.update("/n", 100)
            await asyncio.to_thread(server.end)
            into_nothing, kept = room.update("/list/0", "changed meanwhile"), room.update("/text", "made meanwhile")
            await asyncio.to_thread(put_back, backup, store, by_command=by_command)
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
