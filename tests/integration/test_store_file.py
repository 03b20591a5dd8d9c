"""Reports to operators about a store's file, and the commands that maintain it."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.commands import Done, run_command
from tests.integration.socket_client import TIMEOUT, http
from tests.integration.test_cli import environment
from tests.running import Process
from tests.server.owning import submit

from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Snapshot, ThreadKey

APPS = """
from starlette.applications import Starlette
from starlette.routing import Mount

from plait import Plait, Thread, rpc

class Room(Thread):
    initial_state = {"n": 0}

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return self.state["n"]

app = Plait(Room)
api = Starlette(routes=[Mount("/live", app)], lifespan=app.lifespan)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store in a working directory with apps, in which 100 threads have been."""
    (tmp_path / "apps.py").write_text(APPS)
    with asyncio.Runner() as runner:
        runner.run(_fill(tmp_path / "plait.db"))
    return tmp_path / "plait.db"


async def _fill(path: Path) -> None:
    async with SqliteStore(path) as store:
        for number in range(100):
            await submit(
                store,
                Write(ThreadKey("room", str(number)), "e1", None, 0, snapshots=(Snapshot(0, b'{"n":%d}' % number),)),
            )


def plait(folder: Path, *arguments: str, **more: str) -> Done:
    """Run a command to its end in a folder whose rights hold."""
    return run_command(arguments, cwd=folder, environment=environment(more), heeds_rights=True)


def complaint(folder: Path, *arguments: str, **more: str) -> str:
    """Run a command that must fail with nothing but one line, and return that."""
    done = plait(folder, *arguments, **more)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("plait: ")
    return line.removeprefix("plait: ")


def overwrite(store: Path, first: int, last: int) -> None:
    """Overwrite pages of a store, from the first to the last, counted from 1."""
    with store.open("r+b") as file:
        file.seek((first - 1) * 4096)
        file.write(b"\xff\x00\xa5\x5a" * 1024 * (last - first + 1))


# Starting


def _overwrite_the_first_page(store: Path) -> None:
    overwrite(store, 1, 1)


def _overwrite_the_others(store: Path) -> None:
    overwrite(store, 2, store.stat().st_size // 4096)


def _overwrite_the_tables_names(store: Path) -> None:
    data = store.read_bytes()
    store.write_bytes(data.replace(b"CREATE TABLE rows", b"CREATE \xff\xfeBLE rows"))


def _make_the_file_readonly(store: Path) -> None:
    store.chmod(0o444)


def _make_the_folder_readonly(store: Path) -> None:
    store.parent.chmod(0o555)


def _hide_the_file(store: Path) -> None:
    store.chmod(0o000)


DAMAGED = "plait.db: it is damaged: see `plait check plait.db`, and restore a backup with `plait restore`"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (
            _overwrite_the_first_page,
            "plait.db: file is not a database, or its first page was overwritten: name another",
        ),
        (_overwrite_the_others, DAMAGED),
        (_overwrite_the_tables_names, DAMAGED),
        (_make_the_file_readonly, "plait.db: it is read-only for this user: allow writing to it"),
        (_make_the_folder_readonly, "is read-only for this user: plait writes other files next to it (chmod"),
        (_hide_the_file, "plait.db: this user may not read it: allow reading it"),
    ],
)
def test_a_store_that_cannot_be_served_is_told_in_one_line(
    store: Path, harm: Callable[[Path], None], says: str
) -> None:
    store.with_name("plait.db.lock").unlink()
    harm(store)
    try:
        line = complaint(store.parent, "serve", "apps:app", "--port", "0")
    finally:
        store.parent.chmod(0o755)
    assert line.startswith("cannot open the store plait.db: ")
    assert says in line


@pytest.mark.parametrize("command", ["serve apps:app --port 0", "migrate apps:app"])
def test_a_folder_that_is_missing_is_to_be_made(store: Path, command: str) -> None:
    line = complaint(store.parent, *command.split(), PLAIT_STORE="sqlite:///data/game.db")
    folder = store.parent / "data"
    assert line == f"cannot open the store data/game.db: there is no folder {folder}: make it with `mkdir -p {folder}`"


@pytest.mark.parametrize(
    ("command", "harm"),
    [
        ("threads", _overwrite_the_first_page),
        ("threads", _overwrite_the_tables_names),
        ("threads", _hide_the_file),
        ("state room/1", _hide_the_file),
        ("check", _overwrite_the_first_page),
        ("backup plait.db copy.db", _overwrite_the_tables_names),
    ],
)
def test_a_store_that_cannot_be_looked_at_is_told_in_one_line(
    store: Path, command: str, harm: Callable[[Path], None]
) -> None:
    harm(store)
    assert complaint(store.parent, *command.split()).startswith("cannot open the store plait.db: ")


def test_pages_that_were_overwritten_are_told_in_one_line_of_those_who_read_them(store: Path) -> None:
    _overwrite_the_others(store)
    assert DAMAGED in complaint(store.parent, "threads")
    assert DAMAGED in complaint(store.parent, "state", "room/1")


@pytest.mark.parametrize("command", ["plait.cli serve apps:api", "uvicorn apps:app", "uvicorn apps:api"])
def test_under_another_server_or_in_another_app_the_reason_is_told(store: Path, command: str) -> None:
    _overwrite_the_first_page(store)
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "--port", "0"],
        cwd=store.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == (1 if command.startswith("plait") else 3)
    assert "cannot open the store plait.db: file is not a database" in done.stderr
    if command != "uvicorn apps:api":
        assert "Traceback" not in done.stderr


# Looking after it


async def test_a_store_is_checked_backed_up_and_restored(store: Path) -> None:
    folder = store.parent
    with Process("apps:app", cwd=folder) as server:
        async with http(server.address) as web:
            assert (await web.post("/threads/room/1/rpc/add")).json() == {"result": 2}
            done = plait(folder, "check")
            assert (done.returncode, done.stdout) == (0, "plait.db: 100 threads, 1 change, nothing is damaged\n")
            done = plait(folder, "backup", "plait.db", "copy.db")
            assert (done.returncode, done.stdout) == (0, "copy.db has the 100 threads of plait.db\n")
            assert "copy.db exists" in complaint(folder, "backup", "plait.db", "copy.db")
            assert (await web.post("/threads/room/1/rpc/add")).json() == {"result": 3}
            before = (await web.get("/threads/room/1")).headers["etag"]
        assert "in use by another server" in complaint(folder, "restore", "copy.db", "plait.db")
        server.end()
        done = plait(folder, "restore", "copy.db", "sqlite:///plait.db")
        assert done.stdout == (
            "plait.db has the 100 threads of copy.db, with new epochs; the old file is kept as "
            "plait.db.before-restore\n"
        )
        server.start()
        async with http(server.address) as web:
            answer = await web.get("/threads/room/1")
            assert answer.json() == {"n": 2}
            assert answer.headers["etag"].partition(":")[0] != before.partition(":")[0]


def test_damage_is_told_and_the_command_fails(store: Path) -> None:
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE rows SET value = replace(value, '7', '8') WHERE thread = 8 AND part = '~s'")
    done = plait(store.parent, "check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "room/7 cannot be read: the snapshot of version 0 is damaged",
        "plait.db: 100 threads, 0 changes, 1 damaged place",
    ]


def test_looking_after_what_is_no_store_is_told(store: Path) -> None:
    folder = store.parent
    assert complaint(folder, "check", "other.db") == "cannot open the store other.db: there is no such file"
    assert complaint(folder, "check", "memory://") == "memory:// is not a store file: use a path, or sqlite:///path"
    assert complaint(folder, "backup", "other.db", "copy.db").startswith("cannot open the store other.db: ")
    assert complaint(folder, "restore", "apps.py", "plait.db").startswith("cannot open the store apps.py: ")
