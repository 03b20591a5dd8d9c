"""Commits that the disk reports as failed, although they are in the log."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.server.store.contract import OTHER, ROOM, versions
from tests.server.store.sqlite.test_store import run

from plait.store.sqlite.store import SqliteStore

# Fails as many syncs of a log as the file FAILING has bytes.
FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], path[4096];
    struct stat status;
    const char *failing = getenv("FAILING");
    if (!failing || stat(failing, &status) || !status.st_size) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    if (!strstr(path, "-wal")) return 0;
    errno = truncate(failing, status.st_size - 1) ? errno : EIO;
    return 1;
}

int fdatasync(int fd) { return fails(fd) ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { return fails(fd) ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""

BEGIN = """
    import asyncio, os, pathlib, sys
    from plait.store.sqlite.store import SqliteStore
    from tests.server.owning import submit
    from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, versions

    async def attempt(*writes):
        for write in await asyncio.gather(*(submit(store, each) for each in writes), return_exceptions=True):
            print(type(write).__name__)

    def fail(count):
        pathlib.Path(os.environ["FAILING"]).write_bytes(b"x" * count)

    async def main():
        global store
        async with SqliteStore(sys.argv[1]) as store:
            await asyncio.gather(submit(store, beginning()), submit(store, beginning(key=OTHER)))
            await submit(store, change(1))
            await trouble()
            sys.stdout.flush()
            os._exit(9)

    async def trouble():
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make syncs fail in processes that are started."""
    compiler = shutil.which("cc")
    if compiler is None or not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs a C compiler, and Linux")
    source, library = tmp_path / "failing.c", tmp_path / "failing.so"
    source.write_text(FAILING_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAILING", str(tmp_path / "failing"))


def die_after(trouble: str, path: Path) -> list[str]:
    """Run a server that has this trouble and is killed then, and return what it has printed."""
    done = run(f"{BEGIN}    {trouble}\n\n    asyncio.run(main())\n", path)
    assert done.returncode == 9, done.stderr
    return done.stdout.split()


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("write", ["change(2)", "change(2, client=client_row())"])
async def test_a_write_whose_sync_failed_is_refused_and_does_not_come_back(path: Path, write: str) -> None:
    assert die_after(f"    fail(1); await attempt({write})", path) == ["StoreError"]
    async with SqliteStore(path) as store:
        assert await versions(store) == (1, [1])


@pytest.mark.usefixtures("failing")
async def test_writes_that_share_a_transaction_whose_sync_failed_are_stored_once_it_works(path: Path) -> None:
    trouble = "    fail(1); await attempt(change(2), change(1, key=OTHER))"
    assert die_after(trouble, path) == ["int", "int"]
    async with SqliteStore(path) as store:
        assert [await versions(store, key) for key in (ROOM, OTHER)] == [(2, [1, 2]), (1, [1])]


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("others", ["", ", change(1, key=OTHER)"])
async def test_a_write_is_in_doubt_while_what_the_log_has_of_it_cannot_be_overwritten(path: Path, others: str) -> None:
    answers = die_after(f"    fail(1000); await attempt(change(2){others})", path)
    assert set(answers) == {"Indeterminate"}


@pytest.mark.usefixtures("failing")
async def test_until_a_doubt_has_ended_nothing_is_written_and_no_thread_gets_an_owner(path: Path) -> None:
    trouble = """
        fail(1000)
        await attempt(change(2))
        await attempt(change(1, key=OTHER))
        try:
            await store.claim(ROOM)
        except Exception as error:
            print(type(error).__name__)
        fail(0)
        print(await store.claim(ROOM), *await versions(store))
    """
    answers = die_after(trouble, path)
    assert answers == ["Indeterminate", "StoreError", "StoreError", "4", "1", "[1]"]
    async with SqliteStore(path) as store:
        assert [await versions(store, key) for key in (ROOM, OTHER)] == [(1, [1]), (0, [])]
