"""`plait store export` and `plait store import`."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.integration.test_store_copy import Copying, plait
from tests.schedules import in_soak
from tests.server.owning import submit
from tests.server.store.contract import beginning, put
from tests.server.store.test_copying import fill
from tests.server.store.test_export_store import known_lines

from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_store

THREADS = 100


@pytest.mark.parametrize("target", ["sqlite:///copy.db?files=2", *in_soak(["file://{folder}/copy"])])
def test_an_import_that_is_killed_again_and_again_goes_on_and_is_equal(tmp_path: Path, target: str) -> None:
    asyncio.run(fill(tmp_path / "game.db", threads=THREADS))
    done = plait(tmp_path, "store", "export", "game.db", "--out", "game.jsonl")
    assert (done.stdout, done.stderr) == (f"game.jsonl has the {THREADS + 2} threads of game.db\n", "")
    arguments = ("import", "game.jsonl", target.format(folder=tmp_path))
    # Each step is of 32 threads.
    assert [Copying(tmp_path, *arguments).kill_at(at) for at in (32, 64)] == [True, True]
    refused = plait(tmp_path, "store", "export", arguments[-1], "--out", "half.jsonl")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "unfinished copy" in refused.stderr
    assert not list(tmp_path.glob("half.jsonl*"))
    done = plait(tmp_path, "store", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f" has the {THREADS + 2} threads of game.jsonl, with new epochs" in done.stdout
    plait(tmp_path, "store", "export", arguments[-1], "--out", "copy.jsonl")
    assert known_lines(tmp_path / "copy.jsonl") == known_lines(tmp_path / "game.jsonl")


def test_an_export_that_is_killed_leaves_the_file_before_and_can_be_made_again(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "game.db", threads=THREADS))
    before = '{"format":3,"holds":"store"}'
    (tmp_path / "game.jsonl").write_text(before)
    assert Copying(tmp_path, "export", "game.db", "--out", "game.jsonl").kill_at(50)
    assert (tmp_path / "game.jsonl").read_text() == before
    assert (tmp_path / "game.jsonl.partial").exists()
    done = plait(tmp_path, "store", "export", "game.db", "--out", "game.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "game.jsonl.partial").exists()
    assert plait(tmp_path, "store", "export", "game.db").stdout == (tmp_path / "game.jsonl").read_text()
    assert (tmp_path / "game.jsonl").stat().st_mode & 0o777 == 0o600


async def test_no_server_may_have_the_store_open(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/game.db") as store:
        await put(store, beginning())
        done = await asyncio.to_thread(plait, tmp_path, "store", "export", "game.db", "--out", "game.jsonl")
        assert done.returncode == 1
        assert "game.db: it is in use by another server" in done.stderr
        assert "game.jsonl" not in {name.removesuffix(".partial") for name in os.listdir(tmp_path)}
    assert plait(tmp_path, "store", "export", "game.db", "--out", "game.jsonl").returncode == 0
    async with open_store(f"sqlite:///{tmp_path}/copy.db"):
        done = await asyncio.to_thread(plait, tmp_path, "store", "import", "game.jsonl", "copy.db")
        assert done.returncode == 1
        assert "in use by another server" in done.stderr


def test_what_cannot_be_exported_or_imported_is_refused_in_a_line(tmp_path: Path) -> None:
    async def damage() -> None:
        async with open_store(f"sqlite:///{tmp_path}/game.db") as store:
            await submit(store, beginning(key=ThreadKey("room", "one"), snapshot=b"not JSON"))

    asyncio.run(damage())
    (tmp_path / "bad.jsonl").write_text(json.dumps({"format": 3, "kind": "room", "name": "one"}) + "\n")
    for arguments, says in (
        (("export", "none.db"), "there is no store none.db"),
        (("export", "memory://"), "memory:// is not a store file"),
        (("export", "game.db", "--out", "nowhere/game.jsonl"), "cannot write to nowhere/game.jsonl: No such file"),
        (("export", "game.db", "--out", "game.jsonl"), "room/one cannot be read: it has a row that is not JSON"),
        (("export", "game.db", "--out", "game.db"), "game.db exists, and is not an export: name another file"),
        (("import", "none.jsonl", "copy.db"), "cannot read none.jsonl: No such file"),
        (("import", "bad.jsonl", "copy.db"), "bad.jsonl cannot be imported: it is not an exported store"),
    ):
        done = plait(tmp_path, "store", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert says in done.stderr
    assert not (tmp_path / "copy.db").exists()
    assert not list(tmp_path.glob("game.jsonl*"))
