"""What may start with a shared store: nodes of a cluster with names of their own, or one process alone."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.commands import run_command
from tests.integration.socket_client import http
from tests.ports import hold_port
from tests.postgres import Postgres, new_schema
from tests.running import Process

from plait_client import connect

TARGET = "tests.cluster.apps:app"

on_each_engine = each_engine("postgres")


def run_plait(*arguments: str, environment: dict[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its output."""
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = run_command(arguments, cwd=cwd or Path.cwd(), environment={**os.environ, **path, **(environment or {})})
    return done.returncode, done.stdout + done.stderr


def serve(store: str, *options: str, **variables: str) -> tuple[int, str]:
    """Try to serve the app; return the exit code and the output."""
    return run_plait("serve", TARGET, "--port", "0", *options, environment={"PLAIT_STORE": store, **variables})


@on_each_engine
async def test_a_second_process_without_a_cluster_names_the_first_and_ends(engine: Engine, tmp_path: Path) -> None:
    store = engine.make_store()
    first = Process(TARGET, cwd=tmp_path, environment={"PLAIT_STORE": store})
    with first:
        began = time.monotonic()
        (alone, said), (node, said_by_node) = await asyncio.gather(
            asyncio.to_thread(serve, store),
            asyncio.to_thread(serve, store, "--cluster", "--node", "a", "--listen-nodes", "127.0.0.1:7946"),
        )
        assert time.monotonic() - began >= 4
        assert (alone, node) == (3, 3)
        assert f"process {first.pid}" in said
        assert f"process {first.pid}" in said_by_node
        assert "--cluster" in said
        async with connect(f"ws://{first.address}/threads/ledger/one") as room:
            await room.update("/n", 1)


@on_each_engine
async def test_a_process_takes_over_from_one_that_was_killed_or_has_stopped(engine: Engine, tmp_path: Path) -> None:
    process = Process(TARGET, cwd=tmp_path, environment={"PLAIT_STORE": engine.make_store()})
    with process:
        for by in (signal.SIGKILL, signal.SIGTERM):
            async with connect(f"ws://{process.address}/threads/ledger/one") as room:
                version = await room.update("/n", 1)
                process.signal(by)
                await asyncio.to_thread(process.wait)
            began = time.monotonic()
            await asyncio.to_thread(process.start)
            taken = time.monotonic() - began
            assert taken >= 4 if by is signal.SIGKILL else taken < 4
            async with http(process.address) as web:
                assert (await web.get("/threads/ledger/one")).headers["etag"].endswith(f':{version}"')


@on_each_engine
async def test_a_paused_process_that_was_replaced_shows_nothing_old(engine: Engine, tmp_path: Path) -> None:
    store = engine.make_store()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = Process(TARGET, cwd=tmp_path / "one", environment={"PLAIT_STORE": store})
    two = Process(TARGET, cwd=tmp_path / "two", environment={"PLAIT_STORE": store})
    with one, ExitStack() as stack:
        stack.push(two)
        async with http(one.address) as web:
            assert (await web.put("/threads/ledger/one", json={"n": 1})).status_code == 200
            one.signal(signal.SIGSTOP)
            try:
                asked = asyncio.create_task(web.get("/threads/ledger/one"))
                await asyncio.to_thread(two.start)
                async with connect(f"ws://{two.address}/threads/ledger/one") as room:
                    await room.update("/n", 2)
            finally:
                one.signal(signal.SIGCONT)
            # It cannot join again, and so answers nothing, or that it is cut off.
            await asyncio.wait([asked], timeout=2)
            assert not asked.done() or asked.exception() is not None or asked.result().status_code == 503
            asked.cancel()


async def test_a_node_needs_a_name_of_its_own_and_a_shared_store(postgres: Postgres, tmp_path: Path) -> None:
    store = new_schema(postgres.url)
    place = ("--cluster", "--node", "a", "--listen-nodes", "127.0.0.1:7946")
    for given, options, variables, expected in (
        ("sqlite:///x.db", place, {}, "needs a store that all of its nodes use"),
        ("memory://", place, {}, "needs a store that all of its nodes use"),
        (store, ("--cluster", "--listen-nodes", "127.0.0.1:7946"), {}, "needs a name for each node"),
        (store, ("--cluster", "--node", "A b", "--listen-nodes", "127.0.0.1:7946"), {}, "needs a name for each node"),
        (store, ("--cluster", "--node", "a"), {}, "--listen-nodes"),
        (store, ("--cluster", "--node", "a", "--listen-nodes", "7946"), {}, "a host and a port"),
        (store, ("--cluster", "--node", "a", "--listen-nodes", "10.1.2.3:7946"), {}, "PLAIT_CLUSTER_SECRET"),
        (store, ("--cluster", "--node", "a", "--listen-nodes", "0.0.0.0:7946"), {}, "PLAIT_NODE_ADDRESS"),
        (store, place, {"PLAIT_CLUSTER_KEY": "x"}, "PLAIT_CLUSTER_CERTIFICATE"),
        (store, ("--node", "a"), {}, "add --cluster"),
    ):
        code, text = await asyncio.to_thread(serve, given, *options, **variables)
        assert code in (1, 2), text
        assert expected in text
        assert "Traceback" not in text
    async with open_cluster(postgres, tmp_path, names=("a",)) as cluster:
        with hold_port() as held:
            address = f"127.0.0.1:{held.getsockname()[1]}"
            (node, said_by_node), (alone, said) = await asyncio.gather(
                asyncio.to_thread(serve, cluster.store, "--cluster", "--node", "a", "--listen-nodes", address),
                asyncio.to_thread(serve, cluster.store),
            )
        assert (node, alone) == (3, 3)
        assert "the node 'a' is running already" in said_by_node
        assert "--cluster" in said


@on_each_engine
async def test_status_tells_of_nodes_beats_shards_epochs_and_links(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path) as cluster:
        (name,) = cluster.find_names("a", "status", 1)
        async with connect(f"ws://{cluster.nodes['b'].address}/threads/ledger/{name}") as room:
            await room.update("/n", 1)

            def read() -> Any:
                code, text = run_plait("cluster", "status", cluster.store, "--json")
                assert code == 0, text
                return json.loads(text)

            def are_linked() -> bool:
                return {each["name"]: each["links"] for each in read()["nodes"]} == {"a": ["b"], "b": ["a"]}

            await cluster.until(are_linked)
            found = await asyncio.to_thread(read)
            first = found["nodes"][0]
            assert first["state"] == "alive"
            assert first["beats"] > 1
            assert first["versions"] == {"ledger": 1, "place": 1}
            assert {each["node"] for each in found["shards"]} == {"a", "b"}
            assert all(each["epoch"] > 0 for each in found["shards"])
        code, text = await asyncio.to_thread(run_plait, "cluster", "status", cluster.store)
        assert code == 0
        assert "2 nodes, 1024 shards, 0 without an owner" in text
        code, text = await asyncio.to_thread(run_plait, "cluster", "status", "sqlite:///x.db")
        assert code == 1
        assert "for one machine" in text


async def test_nodes_with_another_secret_get_no_link(postgres: Postgres, tmp_path: Path) -> None:
    async with open_cluster(postgres, tmp_path, environment={"PLAIT_CLUSTER_SECRET": "one"}) as cluster:
        (name,) = cluster.find_names("a", "secret", 1)
        async with http(cluster.nodes["b"].address) as web:
            assert (await web.put(f"/threads/ledger/{name}", json={"n": 1})).status_code == 200
        cluster.nodes["b"]._environment["PLAIT_CLUSTER_SECRET"] = "another"
        await asyncio.to_thread(cluster.nodes["b"].end)
        await cluster.start("b")
        await cluster.until_shared()
        (name,) = cluster.find_names("a", "secret", 1)
        async with http(cluster.nodes["b"].address) as web:
            answer = await web.put(f"/threads/ledger/{name}", json={"n": 1})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        assert "has a different secret" in cluster.nodes["b"].log.read_text()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with an authority, and a certificate that it has signed and one that it has not."""
    folder = tmp_path / "tls"
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(*new, "-subj", "/CN=nodes", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=else", "-keyout", "else.key", "-out", "else.pem")
    openssl(*new[:1], *new[2:7], "-subj", "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    openssl(
        *("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "node.pem", "-days", "2"),
        "-CAcreateserial",
    )
    return folder


async def test_links_with_mutual_tls_refuse_others(postgres: Postgres, tmp_path: Path, certificates: Path) -> None:
    environment = {
        "PLAIT_CLUSTER_CERTIFICATE": str(certificates / "node.pem"),
        "PLAIT_CLUSTER_KEY": str(certificates / "node.key"),
        "PLAIT_CLUSTER_CA": str(certificates / "ca.pem"),
    }
    async with open_cluster(postgres, tmp_path, environment=environment) as cluster:
        (name,) = cluster.find_names("a", "tls", 1)
        async with http(cluster.nodes["b"].address) as web:
            assert (await web.put(f"/threads/ledger/{name}", json={"n": 1})).status_code == 200
        target = next(id for id, name in cluster.names().items() if name == "a")

        async def greet(certificate: str) -> bytes:
            context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
            context.check_hostname = False
            context.load_cert_chain(certificates / f"{certificate}.pem", certificates / f"{certificate}.key")
            port = cluster.nodes["a"].links.port
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(b'{"nonce": "x", "source": "x", "target": "%s"}\n' % target.encode())
                answer = await reader.readline()
            except (ssl.SSLError, ConnectionError):
                return b""
            writer.transport.abort()
            return answer

        assert b"proof" in await greet("node")
        assert await greet("else") == b""


@pytest.mark.release
async def test_each_worker_of_a_node_is_a_node_itself(postgres: Postgres, tmp_path: Path) -> None:
    async with open_cluster(
        postgres, tmp_path, options=("--workers", "2"), is_shared=False, has_proxies=False
    ) as cluster:

        def are_there() -> bool:
            return set(cluster.owners()) == {"a.0", "a.1", "b.0", "b.1"}

        await cluster.until(are_there)
        for owner in ("a.0", "b.1"):
            (name,) = cluster.find_names(owner, "workers", 1)
            for address in cluster.addresses:
                async with connect(f"ws://{address}/threads/ledger/{name}") as room:
                    await room.update(f"/{address[-1]}", 1)
        for node in cluster.nodes.values():
            assert await asyncio.to_thread(node.end) == 0
