"""A server that is asked to end finishes what it has begun, within its limit, and leaves everything in order."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import httpx
import pytest
from tests.integration.socket_client import TIMEOUT, Closed, bare_socket, connected, http, open_socket, opened
from tests.running import Process

from plait import MemoryStore, Plait, Thread, rpc

PATH = "/threads/slow/one"


@asynccontextmanager
async def ending(server: Process, by: signal.Signals = signal.SIGTERM) -> AsyncIterator[None]:
    """Ask a server to end; in the end wait until it has."""
    task = asyncio.create_task(asyncio.to_thread(server.end, by))
    try:
        yield
    finally:
        await task


async def _until_refused(server: Process) -> None:
    """Wait until the server takes no new sockets, and tells them to come again."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            client = await opened(server.address, PATH)
            with suppress(Closed):
                await client.until(lambda client: client.states)
                client.socket.transport.abort()
            if await client.until_closed() == 1013:
                return


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_turn_ends_and_its_result_is_delivered_before_1001(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as caller, connected(server.address, PATH) as other:
            answer = await caller.begin("add_late", "go")
            await caller.until(lambda caller: caller.messages == ["running"])
            async with ending(server, by):
                await _until_refused(server)
                (tmp_path / "go").touch()
                assert await asyncio.wait_for(answer, TIMEOUT) == 1
                for client in (caller, other):
                    assert await client.until_closed() == 1001
                    assert client.state == {"n": 1, "stops": 0}
        _check_order(tmp_path)
        server.start()
        async with connected(server.address, PATH) as client:
            await client.until_state({"n": 1, "stops": 1})


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_was_asked_to_end_exits_with_0_and_without_a_trace(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        assert server.end(by) == 0
    assert "Traceback" not in server.log.read_text()


async def test_turns_that_wait_in_the_mailbox_end_too(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as caller:
            answers = [await caller.begin("add_late", "go") for _ in range(3)]
            await caller.until(lambda caller: caller.messages == ["running"])
            async with ending(server):
                await _until_refused(server)
                (tmp_path / "go").touch()
                assert [await asyncio.wait_for(answer, TIMEOUT) for answer in answers] == [1, 2, 3]
                assert await caller.until_closed() == 1001
        async with http(server.address) as web:
            with pytest.raises(httpx.ConnectError):
                await web.get("/healthz")
        _check_order(tmp_path)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_ending_tells_new_clients_to_come_again_until_what_runs_has_ended(
    tmp_path: Path, by: signal.Signals
) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path, environment={"PLAIT_SHUTDOWN_TIMEOUT": "60"}) as server:
        async with connected(server.address, PATH) as caller, http(server.address) as web:
            answer = await caller.begin("add_late", "go")
            await caller.until(lambda caller: caller.messages == ["running"])
            async with ending(server, by):
                await _until_refused(server)
                for _ in range(3):
                    # Each by a connection of its own: the server still listens.
                    async with http(server.address) as other:
                        for method, path in (("GET", PATH), ("PUT", "/threads/slow/new"), ("POST", f"{PATH}/rpc/x")):
                            refused = await other.request(method, path, json={})
                            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
                            assert int(refused.headers["retry-after"]) >= 1
                        assert (await other.get("/healthz")).status_code == 200
                        assert (await other.get("/readyz")).status_code == 503
                assert (await web.get("/healthz")).status_code == 200
                (tmp_path / "go").touch()
                assert await asyncio.wait_for(answer, TIMEOUT) == 1
                assert await caller.until_closed() == 1001
        _check_order(tmp_path)


async def test_a_stream_that_runs_ends_too(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as caller:
            stream = await caller.begin("stream_late", "go")
            await caller.until(lambda caller: caller.messages == ["running"])
            async with ending(server):
                await _until_refused(server)
                (tmp_path / "go").touch()
                assert await asyncio.wait_for(stream, TIMEOUT) == [1, None]
                assert await caller.until_closed() == 1001


async def test_a_request_that_runs_is_answered(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as client, http(server.address) as web:
            request = asyncio.create_task(web.post(f"{PATH}/rpc/add_late", json={"args": ["go"]}))
            await client.until(lambda client: client.messages == ["running"])
            async with ending(server):
                await _until_refused(server)
                (tmp_path / "go").touch()
                assert (await request).json() == {"result": 1}
                assert await client.until_closed() == 1001
        _check_order(tmp_path)


async def test_a_turn_that_exceeds_the_limit_is_given_up(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path, environment={"PLAIT_SHUTDOWN_TIMEOUT": "0.5"}) as server:
        async with connected(server.address, PATH) as caller, connected(server.address, "/threads/slow/two") as other:
            answer = await caller.begin("add_late", "never")
            await caller.until(lambda caller: caller.messages == ["running"])
            async with ending(server):
                assert await other.until_closed() == 1001
                assert await caller.until_closed() == 1001
                with pytest.raises(Closed):
                    await answer
        assert "cancelling the turns" in server.log.read_text()
        assert "Traceback" not in server.log.read_text()
        server.start()
        async with connected(server.address, PATH) as client:
            await client.until(lambda client: client.states)
            assert client.state["n"] == 0


async def test_a_server_without_work_ends_at_once_and_cleanly(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as client:
            await client.push({"n": 5, "stops": 0})
            async with ending(server):
                assert await client.until_closed() == 1001
        _check_order(tmp_path)
        assert "Traceback" not in server.log.read_text()


async def test_a_store_that_was_closed_is_a_single_file(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        async with connected(server.address, PATH) as client:
            assert await client.call("add_late", ".") == 1
        async with ending(server):
            pass
    assert not (tmp_path / "plait.db-wal").exists()


async def test_peers_that_do_not_read_or_answer_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path, environment={"PLAIT_SHUTDOWN_TIMEOUT": "1"}) as server:
        with bare_socket(server.address) as silent, bare_socket(server.address, receive_buffer=4096) as full:
            for bare in (silent, full):
                await open_socket(bare, PATH)
            async with connected(server.address, PATH) as client:
                await client.push({"n": 1, "stops": 0, "text": "x" * 500_000})
                assert await client.call("add_late", ".") == 2
                async with ending(server):
                    assert await client.until_closed() == 1001
        _check_order(tmp_path)


async def test_a_server_that_is_ending_is_alive_but_not_ready() -> None:
    running, go = asyncio.Event(), asyncio.Event()

    class Busy(Thread[None]):
        @rpc
        async def work(self) -> str:
            running.set()
            await go.wait()
            return "done"

    app = Plait(Busy, store=MemoryStore())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web:
        assert (await web.get("/readyz")).status_code == 503
        await app.__aenter__()
        assert (await web.get("/readyz")).json() == {
            "status": "ok",
            "writes": "accepted",
            "durability": "changes are lost when the process ends",
        }
        work = asyncio.create_task(app.thread(Busy, "one").call(Busy.work))
        await running.wait()
        end = asyncio.create_task(app.__aexit__(None, None, None))
        answer = await web.get("/readyz")
        while answer.status_code != 503:
            await asyncio.sleep(0)
            answer = await web.get("/readyz")
        assert answer.json()["error"]["code"] == "unavailable"
        assert (await web.get("/healthz")).status_code == 200
        answer = await web.get("/threads/busy/another")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert not end.done()
        go.set()
        assert await work == "done"
        await end


def _check_order(folder: Path) -> None:
    """Fail unless the server has stopped its threads and closed its store."""
    assert (folder / "stopped").exists()
    with closing(sqlite3.connect(folder / "plait.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_hangup_ends_a_server_as_sigterm_does_unless_it_is_ignored(tmp_path: Path, is_ignored: bool) -> None:
    begin = f"import os, signal, sys; signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if is_ignored else 'SIG_DFL'}); "
    begin += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    served = ["-m", "plait.cli", "serve", "tests.integration.apps:app", "--port", "0"]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", begin, *served],
            cwd=tmp_path,
            env={**os.environ, **paths},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().split(" at ")[1].split()[0]
        server.send_signal(signal.SIGHUP)
        if is_ignored:
            assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
            server.terminate()
        assert server.wait(TIMEOUT) == 0
    assert "Application shutdown complete" in (tmp_path / "log").read_text()
