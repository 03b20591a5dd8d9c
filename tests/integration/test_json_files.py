"""Servers and commands with a store in a folder of JSON files."""

import random
from pathlib import Path

import pytest
from tests.commands import Done, run_command
from tests.integration import test_engines
from tests.integration.killed_module import run_and_kill
from tests.integration.killed_store import KEYS
from tests.integration.test_engines import Tally
from tests.schedules import TIMES
from tests.server.store.contract import beginning, change, put

from plait import Plait, StoreError
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.protocol import ThreadKey
from plait.store.thread_rows import RecordRange
from plait.store.urls import open_share, open_shares, open_store

KILLS = 5 * TIMES


def plait(folder: Path, *arguments: str) -> Done:
    """Run a command to its end."""
    return run_command(arguments, cwd=folder, environment={})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'game'}"


async def test_clients_of_an_app_see_every_change_through_a_restart_and_a_kill(url: str, tmp_path: Path) -> None:
    await test_engines.test_two_clients_of_an_app_see_every_change_through_a_restart_and_a_kill(url, tmp_path)


async def test_a_process_that_is_killed_loses_nothing_and_tears_nothing(url: str) -> None:
    chance, acknowledged = random.Random(1), dict[str, int]()
    for _ in range(KILLS):
        acknowledged |= await run_and_kill("tests.integration.killed_store", url, after=chance.random())
        async with open_store(url) as store:
            for key in KEYS:
                stored = await store.load(key)
                assert stored is not None
                # Only what was being written may be there, too.
                assert acknowledged.get(key.name, 0) <= stored.version <= acknowledged.get(key.name, 0) + 1
                records = await store.records(key, RecordRange("values", limit=10**6))
                assert {record.key for record in records} == {str(each) for each in range(1, stored.version + 1)}
                acknowledged[key.name] = stored.version
    assert sum(acknowledged.values()) > 100


async def test_commands_read_a_folder_that_a_server_has_open(url: str, tmp_path: Path) -> None:
    async with JsonFileStore(FileUrl.parse(url)) as store:
        await put(store, beginning(snapshot=b'{"n":7}'), change(1))
        assert "room/one" in plait(tmp_path, "threads", url).stdout
        assert plait(tmp_path, "state", "room/one", url).stdout == "1\n"
        refused = plait(tmp_path, "threads", "destroy", "room", "one", url, "--yes")
        assert (refused.returncode, "in use by another server" in refused.stderr) == (1, True)
        assert await store.find(ThreadKey("room", "one")) is not None
    assert plait(tmp_path, "threads", "destroy", "room", "one", url, "--yes").returncode == 0
    assert plait(tmp_path, "threads", url).stdout == ""


def test_copies_backups_workers_and_clusters_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.db").touch()
    for arguments in (("store", "copy", url, "a.db"), ("store", "copy", "a.db", url)):
        done = plait(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"plait: {url} cannot be copied: use `cp -r` while no server has it open\n"
    for arguments in (("backup", url, "a.db"), ("check", url), ("restore", "a.db", url)):
        done = plait(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{url} is not a file: check and back it up with `cp -r` while no server has it open" in done.stderr
    for share in (lambda: open_share(url, 0, 2), lambda: open_shares(url, 2)):
        with pytest.raises(StoreError, match="is served by one process: start without workers"):
            share()
    assert "this store is for one machine" in plait(tmp_path, "cluster", "status", url).stderr
    for name, value in (("CLUSTER", "1"), ("NODE", "a"), ("LISTEN_NODES", "127.0.0.1:1"), ("CLUSTER_SECRET", "s" * 32)):
        monkeypatch.setenv(f"PLAIT_{name}", value)
    with pytest.raises(ValueError, match=r"a cluster needs a store that all of its nodes use, .*; file:// is for one"):
        Plait(Tally, store=url)
    assert not (tmp_path / "game").exists()
