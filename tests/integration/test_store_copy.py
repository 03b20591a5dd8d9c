"""`plait store copy` and the other commands for a store of several files."""

import asyncio
import json
import os
import pty
import re
import select
import signal
from pathlib import Path

import pytest
from tests.commands import Command, Done, run_command
from tests.schedules import TIMES
from tests.server.owning import submit
from tests.server.store.contract import beginning, change, put
from tests.server.store.test_copying import fill, fill_thread, read

from plait.store.sqlite.files import Files
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_files, open_store

# A step is of 32 threads.
KILLS, THREADS = (10, 400) if TIMES > 1 else (3, 110)


def plait(folder: Path, *arguments: str) -> Done:
    """Run a command to its end."""
    return run_command(arguments, cwd=folder, environment={})


class Copying:
    """A running `plait store copy`, `export` or `import`, whose progress is read from a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._master, self._terminal = pty.openpty()
        where = Path(os.ttyname(self._terminal))
        self._command = Command(("store", *arguments), cwd=folder, environment={}, stderr=where)
        self._shown = b""

    def kill_at(self, threads: int) -> bool:
        """Kill the command once it shows this many threads; return False if it has ended before."""
        while not any(int(count) >= threads for count in re.findall(rb"\] (\d+) of \d+", self._shown)):
            ready, _, _ = select.select([self._master, self._command.stdout], [], [])
            if self._master not in ready:  # It says its result, or has ended.
                break
            self._shown += os.read(self._master, 1000)
        os.kill(self._command.pid, signal.SIGKILL)
        code = self._command.wait(60)
        os.close(self._master)
        os.close(self._terminal)
        return code < 0


@pytest.mark.soak
def test_a_copy_that_is_killed_again_and_again_goes_on_and_is_equal(tmp_path: Path) -> None:
    path, target = tmp_path / "game.db", tmp_path / "copy.db"
    asyncio.run(fill(path, 2, threads=THREADS))
    arguments = ("copy", "game.db", "sqlite:///copy.db?files=3")
    kills = sum(Copying(tmp_path, *arguments).kill_at(kill * THREADS // (KILLS + 1)) for kill in range(KILLS))
    assert kills == KILLS
    refused = plait(tmp_path, "store", "copy", "sqlite:///copy.db", "other.db")
    assert refused.returncode == 1
    assert "unfinished copy" in refused.stderr
    done = plait(tmp_path, "store", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"copy.db has the {THREADS + 2} threads of game.db, in 3 files\n"
    assert asyncio.run(read(target)) == asyncio.run(read(path))


async def test_neither_store_may_be_open(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/game.db?files=2") as store:
        await put(store, beginning())
        done = await asyncio.to_thread(plait, tmp_path, "store", "copy", "game.db", "copy.db")
        assert done.returncode == 1
        assert "game.0.db: it is in use by another server" in done.stderr
    assert not (tmp_path / "copy.db").exists()
    async with open_store(f"sqlite:///{tmp_path}/copy.db?files=2"):
        done = await asyncio.to_thread(plait, tmp_path, "store", "copy", "game.db", "copy.db")
        assert done.returncode == 1
        assert "in use by another server" in done.stderr


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("none.db", "copy.db", "there is no store none.db"),
        ("memory://", "copy.db", "memory:// is not a store file"),
        ("game.db", "memory://", "memory:// is not a store file"),
        ("game.db", "sqlite:///game.db?files=2", "has 1 file, not 2"),
        ("game.db", "game.db", "cannot be copied to itself"),
        ("game.db", "sqlite:///copy.db?files=65", "from 1 to 64"),
        ("game.db", "nowhere/copy.db", "there is no folder"),
    ],
)
def test_what_cannot_be_copied_is_refused_in_a_line(tmp_path: Path, source: str, target: str, says: str) -> None:
    asyncio.run(fill(tmp_path / "game.db", threads=1))
    done = plait(tmp_path, "store", "copy", source, target)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


APP = """
from plait import Plait, Thread, migrate

class Room(Thread[dict]):
    initial_state = {"n": 0}
    state_version = 2

    @migrate(from_=1)
    def double(state):
        return {"n": state["n"] * 2}

app = Plait(Room, store="sqlite:///game.db")
"""
KEYS = [ThreadKey("room", str(number)) for number in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a store of three files, and an app that migrates its threads."""

    async def make() -> None:
        async with open_store(f"sqlite:///{tmp_path}/game.db?files=3") as store:
            await put(store, *(beginning(key=key, snapshot=b'{"n":%b}' % key.name.encode()) for key in KEYS))

    asyncio.run(make())
    (tmp_path / "game.py").write_text(APP)
    return tmp_path


def test_threads_are_listed_shown_exported_and_destroyed_in_all_files(folder: Path) -> None:
    listed = [line.split()[-1] for line in plait(folder, "threads", "game.db").stdout.splitlines()]
    assert listed == sorted(str(key) for key in KEYS)
    for key in KEYS:
        exported = plait(folder, "threads", "export", *key, "game.db").stdout
        assert json.loads(exported.splitlines()[0])["name"] == key.name
        assert f'{{"n":{key.name}}}' in exported
    assert json.loads(plait(folder, "threads", "show", "room", "7", "game.db").stdout)["version"] == 0
    assert json.loads(plait(folder, "state", "room/8", "game.db").stdout) == {"n": 8}
    done = plait(folder, "threads", "destroy", "room", "9", "game.db", "--yes")
    assert done.stdout == "room/9 is deleted; its on_destroyed was not called\n", done.stderr
    assert "room/9" not in plait(folder, "threads", "game.db").stdout


def test_threads_of_all_files_are_migrated_also_by_a_dry_run_beside_a_server(folder: Path) -> None:
    async def try_beside() -> Done:
        async with open_files(Files.find(folder / "game.db")):
            return await asyncio.to_thread(plait, folder, "migrate", "game:app", "--dry-run")

    assert "0 up to date, 12 to migrate, 0 failed" in asyncio.run(try_beside()).stdout
    assert "0 up to date, 12 migrated, 0 failed" in plait(folder, "migrate", "game:app").stdout
    assert json.loads(plait(folder, "state", "room/8", "game.db").stdout) == {"n": 16}


def test_all_files_are_checked_and_a_thread_in_the_wrong_file_is_found(folder: Path) -> None:
    done = plait(folder, "check", "game.db")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["game.0.db", "game.1.db", "game.2.db"]
    assert all(line.endswith("nothing is damaged") for line in lines)

    async def misplace() -> None:
        files = Files.find(folder / "game.db")
        async with open_files(files) as store:
            key = ThreadKey("room", "misplaced")
            number = files.paths.index(files.path_of(key))
            other = store._stores[(number + 1) % 3]  # type: ignore[union-attr]
            await submit(other, beginning(key=key))

    asyncio.run(misplace())
    done = plait(folder, "check", "game.db")
    assert done.returncode == 1
    assert "room/misplaced is not found by servers: it belongs to file" in done.stdout


def test_all_files_are_backed_up_and_restored(folder: Path) -> None:
    done = plait(folder, "backup", "game.db", "saved.db")
    assert done.stdout == "saved.db has the 12 threads of game.db\n", done.stderr
    assert all((folder / f"saved.{number}.db").exists() for number in range(3))
    again = plait(folder, "backup", "game.db", "saved.db")
    assert again.returncode == 1
    assert "saved.0.db exists" in again.stderr

    async def write() -> None:
        async with open_files(Files.find(folder / "game.db")) as store:
            await put(store, *(change(1, key=key) for key in KEYS))

    asyncio.run(write())
    done = plait(folder, "restore", "saved.db", "game.db")
    assert done.stdout == (
        "game.db has the 12 threads of saved.db, with new epochs; the old files are kept as "
        "game.0.db.before-restore, game.1.db.before-restore, game.2.db.before-restore\n"
    ), done.stderr
    lines = plait(folder, "threads", "game.db").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0"] * 12
    done = plait(folder, "restore", "saved.db", "new.db")
    assert done.stdout == "new.db has the 12 threads of saved.db, with new epochs\n", done.stderr
    (folder / "saved.1.db").write_bytes(b"damaged")
    before = [(folder / f"game.{number}.db").read_bytes() for number in range(3)]
    assert plait(folder, "restore", "saved.db", "game.db").returncode == 1
    assert [(folder / f"game.{number}.db").read_bytes() for number in range(3)] == before
    asyncio.run(fill(folder / "one.db", threads=1))
    done = plait(folder, "restore", "one.db", "game.db")
    assert "one.db has 1 file, and game.db 3 files" in done.stderr


def test_a_server_does_not_start_on_an_unfinished_copy(folder: Path) -> None:
    async def leave() -> None:
        async with open_store(f"sqlite:///{folder}/copy.db") as store:
            await fill_thread(store, ThreadKey("~copy", "unfinished"), 1)

    asyncio.run(leave())
    (folder / "game.py").write_text(APP.replace("game.db", "copy.db"))
    done = plait(folder, "serve", "game:app", "--port", "0")
    assert done.returncode == 1
    assert "unfinished copy" in done.stderr
