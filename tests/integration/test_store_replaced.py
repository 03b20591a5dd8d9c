"""A running server's file that is replaced or truncated: nothing is damaged, and nothing is lost without a word."""

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.integration.socket_client import TIMEOUT, http
from tests.integration.test_store_file import APPS, complaint, plait
from tests.running import Process


def shell(command: str, folder: Path) -> None:
    subprocess.run(shlex.split(command), cwd=folder, check=True, timeout=TIMEOUT)


async def add(server: Process, times: int) -> None:
    async with http(server.address) as web:
        for number in range(times):
            answer = await web.post(f"/threads/room/{number % 5}/rpc/add")
            assert answer.status_code == 200


def read_state(folder: Path, file: str) -> object:
    done = plait(folder, "state", "room/1", file)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# What else may happen to the file, and when, is in tests/server/store/sqlite/test_file_identity.py.
@pytest.mark.parametrize(
    ("command", "end"), [("cp copy.db plait.db", "stopped"), ("truncate --size 0 plait.db", "killed")]
)
async def test_a_file_that_is_replaced_under_a_running_server(tmp_path: Path, command: str, end: str) -> None:
    (tmp_path / "apps.py").write_text(APPS)
    store = tmp_path / "plait.db"
    with Process("apps:app", cwd=tmp_path) as server:
        await add(server, 40)
        assert plait(tmp_path, "backup", "plait.db", "copy.db").returncode == 0
        shell("cp copy.db backup.db", tmp_path)
        await add(server, 40)
        shell(command, tmp_path)
        there = store.read_bytes()
        async with http(server.address) as web:
            answer = await web.post("/threads/room/1/rpc/add")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_error")
            assert answer.headers["retry-after"] == "1"
            assert (await web.get("/readyz")).json()["writes"] == "refused"
        if end == "stopped":
            server.end()
        else:
            server.end(signal.SIGKILL)
        assert store.read_bytes() == there
        if end == "killed":
            line = complaint(tmp_path, "serve", "apps:app", "--port", "0")
            assert "plait.db-wal has changes of the file before it" in line
            assert "`plait restore BACKUP plait.db`" in line
            assert store.read_bytes() == there
        if end == "killed" or not there:
            assert plait(tmp_path, "restore", "backup.db", "plait.db").returncode == 0
        assert (tmp_path / "plait.db-wal.lost").stat().st_size
        assert plait(tmp_path, "check").returncode == 0
        assert read_state(tmp_path, "plait.db") == {"n": 8}
        server.start()
        await add(server, 5)
        async with http(server.address) as web:
            assert (await web.get("/threads/room/1")).json() == {"n": 9}
