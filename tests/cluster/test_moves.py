"""What threads keep when they move to another node: sessions, runs, what is due, and the time since their last use."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.nodes import Cluster, open_cluster
from tests.integration.socket_client import TIMEOUT, http
from tests.postgres import Postgres
from tests.schedules import in_soak

from plait import ThreadKey
from plait.store.shards import find_shard
from plait_client import connect

open_sessions = partial(open_cluster, target="tests.cluster.session_apps:app")


async def send(web: httpx.AsyncClient, session: str, text: str) -> httpx.Response:
    """Ask the assistant in a session of Alice."""
    return await web.post(f"/run/assistant?session_id={session}", json=text, headers={"x-user": "alice"})


async def ask(web: httpx.AsyncClient, session: str, text: str) -> Any:
    """Return the answer of the assistant in a session of Alice."""
    answer = await send(web, session, text)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("by", [signal.SIGKILL, *in_soak([signal.SIGTERM])], ids=["is-killed", "stops"])
async def test_a_session_of_a_node_that_leaves_goes_on_at_another_node(
    postgres: Postgres, tmp_path: Path, by: signal.Signals
) -> None:
    sessions = [f"alice-2026-06-02-{number:03}" for number in range(8)]
    async with (
        open_sessions(postgres, tmp_path) as cluster,
        http(cluster.nodes["a"].address) as at_a,
        http(cluster.nodes["b"].address) as at_b,
    ):
        a, b = (cluster.nodes[name].pid for name in "ab")
        before = [await ask(at_a, session, "Hello") for session in sessions]
        assert {each["process"] for each in before} >= {a}
        leaving = asyncio.create_task(asyncio.to_thread(cluster.nodes["a"].end, by))
        # B is asked while A leaves.
        doubted = set()
        for session in sessions:
            answer = await send(at_b, session, "Are you there?")
            if answer.status_code == 200:
                assert answer.json()["context"] == ["Hello", "Are you there?"]
            else:
                # It was sent to A, and cannot be sent again, as A may have answered it.
                assert (answer.status_code, answer.json()["error"]["code"]) == (500, "indeterminate")
                doubted.add(session)
        await leaving
        assert not doubted or by == signal.SIGKILL
        for session in sessions:
            found = await ask(at_b, session, "Good")
            assert found["process"] == b
            is_missing = session in doubted and len(found["context"]) == 2
            assert found["context"] == ["Hello", *([] if is_missing else ["Are you there?"]), "Good"]
        other = await at_b.post(f"/run/assistant?session_id={sessions[0]}", json="Hi", headers={"x-user": "bob"})
        assert other.json()["context"] == ["Hi"]


async def begin_run(
    cluster: Cluster, web: httpx.AsyncClient, thread: str, agent: str
) -> "asyncio.Task[httpx.Response]":
    """Begin a run; return its answer when it is there."""
    path = f"/threads/conversation/{thread}"
    run = asyncio.create_task(web.post(f"{path}/run/{agent}"))
    async with asyncio.timeout(TIMEOUT):
        while (await web.get(f"{path}/changes")).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return run


async def test_shards_with_runs_are_handed_over_last_when_a_node_stops(postgres: Postgres, tmp_path: Path) -> None:
    environment = {"PLAIT_SHUTDOWN_TIMEOUT": "60"}
    async with (
        open_sessions(postgres, tmp_path, environment=environment) as cluster,
        http(cluster.nodes["b"].address) as web,
    ):
        names = cluster.find_names("a", "work", 3, kind="conversation")
        busy = {find_shard(ThreadKey("conversation", name)) for name in names}
        runs = [await begin_run(cluster, web, name, "work") for name in names]
        ending = asyncio.create_task(asyncio.to_thread(cluster.nodes["a"].end, timeout=TIMEOUT))

        def are_last() -> bool:
            return {shard for shard, owner in enumerate(cluster.owners()) if owner == "a"} == busy

        await cluster.until(are_last)
        assert not any(each.done() for each in (*runs, ending))
        (cluster.nodes["a"].cwd / "go").touch()
        assert [(await each).json() for each in runs] == ["done"] * 3
        assert await ending == 0
        assert set(cluster.owners()) == {"b"}
        for name in names:
            found = await web.post(f"/threads/conversation/{name}/run/look")
            assert found.json() == [{"began": 1, "ended": 1}, False]


async def test_a_run_without_end_is_cut_off_and_its_thread_moves_marked(postgres: Postgres, tmp_path: Path) -> None:
    environment = {"PLAIT_SHUTDOWN_TIMEOUT": "2"}
    async with (
        open_sessions(postgres, tmp_path, environment=environment) as cluster,
        http(cluster.nodes["b"].address) as web,
    ):
        (name,) = cluster.find_names("a", "hang", 1, kind="conversation")
        run = await begin_run(cluster, web, name, "hang")
        assert await asyncio.to_thread(cluster.nodes["a"].end) == 0
        assert (await run).json() == {"interrupted": True, "message": None, "output": None}
        found = await web.post(f"/threads/conversation/{name}/run/look")
        assert found.json() == [{"began": 1, "kept": 1}, True]


async def test_what_is_due_while_its_node_is_dead_is_done_once_by_another(postgres: Postgres, tmp_path: Path) -> None:
    async with open_sessions(postgres, tmp_path) as cluster, http(cluster.nodes["b"].address) as web:
        a, b = (cluster.nodes[name].pid for name in "ab")
        mine = cluster.find_names("a", "due", 12, kind="tally")
        theirs = cluster.find_names("b", "due", 4, kind="tally")
        # Some are being done when the node is killed, some are due while it is dead, and some later.
        for number, name in enumerate((*mine, *theirs)):
            asked = await web.post(f"/threads/tally/{name}/rpc/count_after", json={"args": [number % 4 * 2.0]})
            assert asked.status_code == 200, asked.text
        await asyncio.to_thread(cluster.nodes["a"].end, signal.SIGKILL)

        def is_done() -> bool:
            return not cluster.ask_store(lambda store: store.due_threads(until=2**60))

        # No client wakes them.
        await cluster.until(is_done)
        for name in (*mine, *theirs):
            done = (await web.post(f"/threads/tally/{name}/rpc/counted")).json()["result"]
            assert len(done) == 1
            assert done[0] in ((a, b) if name in mine else (b,))


async def test_a_node_does_not_expire_threads_that_are_awake_at_another(postgres: Postgres, tmp_path: Path) -> None:
    async with (
        open_sessions(postgres, tmp_path, names=("a", "b", "c")) as cluster,
        http(cluster.nodes["a"].address) as web,
    ):

        def are_gone(names: list[str]) -> bool:
            keys = [ThreadKey("brief", name) for name in names]
            return not any(cluster.ask_store(partial(_find, key)) for key in keys)

        (kept,) = cluster.find_names("b", "kept", 1, kind="brief")
        # Its client is at a, and its owner is b: each looks for expired threads in the store.
        async with connect(f"ws://{cluster.nodes['a'].address}/threads/brief/{kept}") as room:
            await room.update("/n", 1)
            for number in range(2):
                idle = [name for node in "ab" for name in cluster.find_names(node, f"idle{number}", 2, kind="brief")]
                for name in idle:
                    assert (await web.put(f"/threads/brief/{name}", json={"n": 1})).status_code == 200
                await cluster.until(partial(are_gone, idle))
                # A process alone would now take all threads for idle.
                assert await asyncio.to_thread(cluster.nodes["c"].end) == 0
                await cluster.start("c")
                await cluster.until_shared()
            epoch = room.epoch
            # It moves while it is awake.
            assert await asyncio.to_thread(cluster.nodes["b"].end) == 0
            assert await room.update("/n", 2) == 2
            assert (room.epoch, room.state) == (epoch, {"n": 2})
        await cluster.until(partial(are_gone, [kept]))


async def _find(key: ThreadKey, store: Any) -> object:
    return await store.find(key)
