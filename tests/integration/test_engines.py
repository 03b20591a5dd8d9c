"""Apps and commands whose store is in an engine: PostgreSQL, NATS, Redis, MariaDB or a folder of JSON files."""

import asyncio
import json
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases import each_case
from tests.commands import Done, run_command
from tests.failover import failover
from tests.mariadb import Mariadb, new_prefix
from tests.nats import new_stream
from tests.postgres import new_schema
from tests.redis import Redis, new_store
from tests.running import Process, running
from tests.schedules import in_soak
from tests.server.instruments.test_prometheus import read as read_metrics
from tests.server.store.test_copying import fill, read

from plait import Plait, Thread, ThreadKey, rpc
from plait.store.urls import open_store
from plait_client import Room, connect

PATIENCE = 30.0


class Tally(Thread[dict[str, Any]]):
    """Counts."""

    initial_state = {"n": 0, "seen": []}  # noqa: RUF012

    @rpc
    async def add(self) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + 1})
        return int(self.state["n"])


app = Plait(Tally)


def each_engine(first: str) -> pytest.MarkDecorator:
    """Have a test use a store of each engine: one in `make test`, and the others for a release."""
    others = in_soak(*([each] for each in ("postgresql", "nats", "redis", "mysql", "file") if each != first))
    return pytest.mark.parametrize("url", [first, *others], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, with a password that its server does not want, except those of Redis and MariaDB."""
    if request.param == "file":
        return f"file://{tmp_path / 'game'}"
    if request.param == "redis":
        redis: Redis = request.getfixturevalue("redis_server")
        redis.execute("ACL", "SETUSER", "plait", "on", ">pass-word", "allkeys", "+@all")
        return new_store(redis.url.replace("//", "//plait:pass-word@"))
    if request.param == "mysql":
        mariadb: Mariadb = request.getfixturevalue("mariadb")
        user = "ada@'127.0.0.1'"
        mariadb.execute(f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'pass-word'", f"GRANT ALL ON plait.* TO {user}")
        return new_prefix(mariadb.url.replace("plait@", "ada:pass-word@"))
    if request.param == "nats":
        server = request.getfixturevalue("nats_server")
        return new_stream(server.url.replace("//", "//plait:pass-word@"), "replicas=1")
    return new_schema(request.getfixturevalue("postgres").url.replace("plait@", "plait:pass-word@"))


def plait(folder: Path, *arguments: str) -> Done:
    """Run a command to its end."""
    return run_command(arguments, cwd=folder, environment={})


async def add_each(rooms: Iterable[Room[Any]], times: int) -> None:
    """Have all clients count at once."""
    async with asyncio.timeout(PATIENCE):
        for _ in range(times):
            await asyncio.gather(*(room.call("add") for room in rooms))


def is_at(number: int, state: dict[str, Any]) -> bool:
    """Whether a client has all changes of a round."""
    return state == {"n": 10 * number + 9, "seen": [number, 9]}


@each_engine("nats")
async def test_two_clients_of_an_app_see_every_change_through_a_restart_and_a_kill(url: str, tmp_path: Path) -> None:
    target = "tests.integration.test_engines:app"
    with Process(target, cwd=tmp_path, environment={"PLAIT_STORE": url}) as server:
        address = f"ws://{server.address}/threads/tally/one"
        async with connect(address) as first, connect(address) as second:
            epoch = first.epoch
            for number, end in enumerate((signal.SIGTERM, signal.SIGKILL, None), 1):
                # Pushes of both, which are sent again after the kill.
                async with asyncio.timeout(PATIENCE):
                    for n in range(10):
                        await asyncio.gather(first.update("/n", 10 * number + n), second.update("/seen", [number, n]))
                for room in (first, second):
                    await room.wait_for(partial(is_at, number), PATIENCE)
                if end is not None:
                    await asyncio.to_thread(server.end, end)
                    server.start()
            assert first.epoch == second.epoch == epoch
        async with httpx.AsyncClient() as http:
            ready = await http.get(f"http://{server.address}/readyz")
        assert ready.status_code == 200
        assert ready.json()["durability"].startswith("changes survive")
        assert "pass-word" not in ready.text
    assert "pass-word" not in server.log.read_text()


@each_engine("redis")
async def test_cluster_status_and_metrics_tell_of_the_process_that_uses_an_engine(url: str, tmp_path: Path) -> None:
    async def read_status(*options: str) -> Done:
        done = await asyncio.to_thread(plait, tmp_path, "cluster", "status", url, *options)
        assert "pass-word" not in done.stdout + done.stderr
        return done

    if is_file := url.startswith("file:"):
        assert (await read_status()).stderr == "plait: this store is for one machine, and has no nodes\n"
    else:
        assert "\n0 nodes, " in (await read_status()).stdout
    target = "tests.integration.test_engines:app"
    with Process(target, cwd=tmp_path, environment={"PLAIT_STORE": url}, options=["--metrics"]) as server:
        async with connect(f"ws://{server.address}/threads/tally/one") as room:
            await add_each([room], 5)
        if not is_file:
            (node,) = json.loads((await read_status("--json")).stdout)["nodes"]
            assert (node["state"], node["shards"]) == ("alive", 1024)
            table = (await read_status()).stdout
            assert "\n(one process, no cluster)  " in table
            assert "\n1 node, 1024 shards, 0 without an owner\n" in table
        async with httpx.AsyncClient() as http:
            found = read_metrics((await http.get(f"http://{server.address}/metrics")).text)
        await asyncio.to_thread(server.end, signal.SIGTERM)
    assert found["plait_changes_total", "tally", "ok"] == found["plait_commit_seconds_count", "tally"] == 5
    assert found["plait_commit_writes_count",] == 5
    assert found.get(("plait_shards",)) == (None if is_file else 1024)
    assert found.get(("plait_beats_failed_total",), 0) == 0
    assert not [name for name in found if name[0] == "plait_store_errors_total"]
    if not is_file:
        assert "\n0 nodes, " in (await read_status()).stdout


@pytest.mark.parametrize("engine", ["postgres", *in_soak(["mysql"], ["redis"])])
async def test_after_a_failover_that_lost_changes_clients_join_anew_and_agree_with_the_server(engine: str) -> None:
    async with failover(engine) as servers:
        served = Plait(Tally, store=servers.url)
        async with running(served) as address, connect(f"ws://{address}/threads/tally/one") as room:
            await add_each([room], 3)
            epoch = room.epoch
            servers.wait()
            servers.cut_off()
            await add_each([room], 2)
            assert room.state["n"] == 5
            servers.promote()
            # No client writes: the server has noticed the failover by itself.
            await room.wait_for(lambda state: state["n"] == 3, PATIENCE)
            assert room.epoch != epoch
            await add_each([room], 1)
            assert room.state["n"] == 4


@each_engine("mysql")
def test_a_store_is_copied_to_an_engine_and_back_and_is_equal(url: str, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "game.db"))
    there = plait(tmp_path, "store", "copy", "game.db", url)
    assert there.returncode == 0
    assert all("less durable" in line for line in there.stderr.splitlines())
    assert there.stdout.endswith(" has the 62 threads of game.db\n")
    back = plait(tmp_path, "store", "copy", url, "sqlite:///back.db?files=2")
    assert (back.returncode, back.stderr) == (0, "")
    assert asyncio.run(read(tmp_path / "back.db")) == asyncio.run(read(tmp_path / "game.db"))
    itself = plait(tmp_path, "store", "copy", url, url)
    assert "cannot be copied to itself" in itself.stderr


APP = """
from plait import Plait, Thread, migrate

class Tally(Thread[dict]):
    initial_state = {"n": 0}
    state_version = 2

    @migrate(from_=1)
    def double(state):
        return {"n": state["n"] * 2}

app = Plait(Tally, store="%s")
"""


@each_engine("postgresql")
async def test_commands_read_migrate_and_delete_its_threads(url: str, tmp_path: Path) -> None:
    async with Plait(Tally, store=url) as served:
        for name in ("one", "two"):
            await served.thread(Tally, name).set_state({"n": 21, "seen": []})

    async def run(*arguments: str) -> Done:
        return await asyncio.to_thread(plait, tmp_path, *arguments)

    listed = await run("threads", url)
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["tally/one", "tally/two"]
    shown = await run("threads", "show", "tally", "one", url)
    assert '"n": 21' in shown.stdout
    exported = await run("threads", "export", "tally", "one", url, "--out", "one.jsonl")
    assert exported.returncode == 0
    (tmp_path / "tally.py").write_text(APP % url)
    dry = await run("migrate", "tally:app", "--dry-run")
    assert "2 to migrate" in dry.stdout
    done = await run("migrate", "tally:app")
    assert "2 migrated" in done.stdout
    assert '"n": 42' in (await run("state", "tally/one", url)).stdout
    gone = await run("threads", "destroy", "tally", "one", url, "--yes")
    assert gone.returncode == 0
    async with open_store(url) as store:
        assert [row.key for row in await store.threads()] == [ThreadKey("tally", "two")]
    imported = await run("threads", "import", "tally:app", "one.jsonl")
    assert imported.returncode == 0, imported.stderr


@each_case(
    ("scheme", "tool"),
    [("postgresql", "pg_dump"), ("nats", "nats stream backup"), ("redis", "BGREWRITEAOF"), ("mysql", "mysqldump")],
)
@each_case("command", [("check",), ("backup", "copy.db"), ("restore",)])
def test_commands_for_files_say_what_to_use_instead(
    tmp_path: Path, command: tuple[str, ...], scheme: str, tool: str
) -> None:
    url = f"{scheme}://ada:pass-word@127.0.0.1:1/game"
    name, *rest = command
    arguments = (name, str(tmp_path / "game.db"), url) if name == "restore" else (name, url, *rest)
    done = plait(tmp_path, *arguments)
    assert done.returncode == 1
    assert tool in done.stderr
    assert "pass-word" not in done.stderr
