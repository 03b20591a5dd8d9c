"""Servers and commands with a store in a folder of JSON files."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.commands import Done, run_command
from tests.integration.killed_module import run_and_kill
from tests.integration.killed_store import KEYS
from tests.integration.test_engines import Tally
from tests.schedules import TIMES
from tests.server.store.contract import OTHER, beginning, change, put
from tests.server.store.test_copying import fill_thread

from plait import Plait, StoreError
from plait.cli import folders
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.protocol import Write
from plait.store.thread_rows import RecordRange, ThreadKey
from plait.store.urls import open_share, open_shares, open_store
from plait.testing import serve

KILLS = 5 * TIMES


def plait(folder: Path, *arguments: str) -> Done:
    """Run a command to its end."""
    return run_command(arguments, cwd=folder, environment={})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'game'}"


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


async def fill_folder(url: str, *, threads: int = 3) -> None:
    async with open_store(url) as store:
        for number in range(threads):
            await fill_thread(store, ThreadKey("room", f"Ada {number}"), number)


async def read_folder(url: str) -> dict[str, list[Write]]:
    """Return all writes of all threads."""
    async with JsonFileStore(FileUrl.parse(url)).reader() as store:
        return {row.key.name: [each async for each in store.export(row.key)] for row in await store.threads()}


async def test_a_folder_that_a_server_has_open_is_backed_up_and_restored_with_new_epochs(
    url: str, tmp_path: Path
) -> None:
    await fill_folder(url)
    before = await read_folder(url)
    (tmp_path / "saved.partial").mkdir()  # Of a backup that was interrupted.
    (tmp_path / "saved.partial" / "threads").touch()
    async with JsonFileStore(FileUrl.parse(url)) as store:
        done = plait(tmp_path, "backup", url, "saved")
        assert (done.stdout, done.stderr) == (f"saved has the 3 threads of {tmp_path}/game\n", "")
        fence = await store.claim(ThreadKey("room", "new"))
        await store.submit(msgspec.structs.replace(beginning(key=ThreadKey("room", "new")), fence=fence))
        refused = plait(tmp_path, "restore", "saved", url)
        assert (refused.returncode, "in use by another server" in refused.stderr) == (1, True)
    saved = await read_folder(f"file://{tmp_path}/saved")
    assert saved == before
    done = plait(tmp_path, "restore", "saved", url)
    kept = f"{tmp_path}/game.before-restore"
    says = f"{tmp_path}/game has the 3 threads of saved, with new epochs; the old folder is kept as {kept}\n"
    assert (done.stdout, done.stderr) == (says, "")
    restored = await read_folder(url)
    assert {name: strip_epochs(writes) for name, writes in restored.items()} == {
        name: strip_epochs(writes) for name, writes in saved.items()
    }
    epochs = {write.epoch for writes in restored.values() for write in writes}
    assert len(epochs - {"e1"}) == 3
    assert "new" in await read_folder(f"file://{kept}")
    assert not {path.name for path in tmp_path.iterdir()} & {"saved.partial", "game.restored"}


def test_a_folder_that_others_may_not_read_is_so_after_a_backup_and_a_restore(url: str, tmp_path: Path) -> None:
    asyncio.run(fill_folder(url))
    game, saved = tmp_path / "game", tmp_path / "saved"
    game.chmod(0o700)
    folders.back_up(game, saved)
    assert saved.stat().st_mode & 0o777 == 0o700
    game.chmod(0o750)
    folders.restore(saved, game)
    assert game.stat().st_mode & 0o777 == 0o750
    folders.restore(saved, tmp_path / "other")
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o700


def strip_epochs(writes: Sequence[Write]) -> list[Write]:
    return [msgspec.structs.replace(write, epoch="") for write in writes]


async def test_backups_that_cannot_be_made_or_restored_are_refused_in_a_line(url: str, tmp_path: Path) -> None:
    await fill_folder(url)
    (tmp_path / "there").touch()
    (tmp_path / "empty").mkdir()
    for arguments, says in (
        (("backup", url, "there"), "there exists"),
        (("backup", url, "there/saved"), "cannot open the store there/saved.partial: there: File exists"),
        (("backup", f"{url}-none", "saved"), "there is no such folder"),
        (("backup", f"{url}?files=2", "saved"), "use file:///absolute/folder"),
        (("restore", "none", url), "cannot open the store none: there is no such folder"),
        (("restore", "there", url), "cannot open the store there: there is no such folder"),
        (("restore", "empty", url), "cannot open the store empty: it has no folder threads"),
        (("backup", f"file://{tmp_path}/empty", "saved"), "it has no folder threads"),
        (("check", f"{url}-none"), "there is no such folder"),
        (("check", f"file://{tmp_path}/empty"), "it has no folder threads"),
    ):
        done = plait(tmp_path, *arguments)
        assert (done.returncode, done.stdout, says in done.stderr, done.stderr.count("\n")) == (1, "", True, 1), done
    assert len(await read_folder(url)) == 3
    # A damaged thread is not left out.
    path = next((tmp_path / "game" / "threads" / "room").glob("*.jsonl"))
    path.write_bytes(b"*" + path.read_bytes())
    for arguments in (("backup", url, "saved"), ("store", "copy", url, "game.db"), ("restore", "game", f"{url}-2")):
        done = plait(tmp_path, *arguments)
        assert (done.returncode, f"{path.name}, line 1: JSON is malformed" in done.stderr) == (1, True), done
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & {"saved", "saved.partial", "game-2", "game-2.restored"}


async def test_a_check_lists_damaged_files_and_edits_that_do_not_fit(url: str, tmp_path: Path) -> None:
    async with JsonFileStore(FileUrl.parse(url)) as store:
        await put(store, beginning(snapshot=b'{"n":7}'), change(1), beginning(key=OTHER), change(1, key=OTHER))
        done = plait(tmp_path, "check", url)
        assert (done.returncode, done.stdout) == (0, f"{tmp_path}/game: 2 threads, nothing is damaged\n")
    one, two = (tmp_path / "game" / "threads" / "room" / f"{name}.jsonl" for name in ("one", "two"))
    one.write_text(one.read_text() + "*\n")
    two.write_text(two.read_text().replace('"path":""', '"path":"/a/b"'))
    done = plait(tmp_path, "check", url)
    assert done.returncode == 1
    damaged, misfit, summary = done.stdout.splitlines()
    assert f"room/one cannot be read: {one}, line 2: JSON is malformed" in damaged
    assert "room/two cannot be read" in misfit
    assert summary == f"{tmp_path}/game: 2 threads, 2 damaged threads"


async def test_a_copy_takes_a_folder_that_no_server_has_open(url: str, tmp_path: Path) -> None:
    await fill_folder(url)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "game")
    async with JsonFileStore(FileUrl.parse(url)):
        for arguments in ((url, "game.db"), (f"file://{link}", "game.db")):
            refused = plait(tmp_path, "store", "copy", *arguments)
            assert (refused.returncode, "in use by another server" in refused.stderr) == (1, True), refused
    itself = plait(tmp_path, "store", "copy", url, f"file://{link}/")
    assert "cannot be copied to itself" in itself.stderr
    none = plait(tmp_path, "store", "copy", f"{url}-none", "game.db")
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "game-none").exists()
    assert not (tmp_path / "game.db").exists()


def test_workers_and_clusters_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for share in (lambda: open_share(url, 0, 2), lambda: open_shares(url, 2)):
        with pytest.raises(StoreError, match="is served by one process: start without workers"):
            share()
    assert "this store is for one machine" in plait(tmp_path, "cluster", "status", url).stderr
    for name, value in (("CLUSTER", "1"), ("NODE", "a"), ("LISTEN_NODES", "127.0.0.1:1"), ("CLUSTER_SECRET", "s" * 32)):
        monkeypatch.setenv(f"PLAIT_{name}", value)
    with pytest.raises(ValueError, match=r"a cluster needs a store that all of its nodes use, .*; file:// is for one"):
        Plait(Tally, store=url)
    assert not (tmp_path / "game").exists()


async def test_a_test_of_an_app_does_not_run_on_a_folder(url: str) -> None:
    with pytest.raises(ValueError, match=r"plait.testing needs an app with the store .*, not one with a JsonFileStore"):
        await serve(Plait(Tally, store=url)).__aenter__()
