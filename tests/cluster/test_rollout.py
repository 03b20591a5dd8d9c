"""Nodes whose code has a different `state_version` from the other nodes."""

import asyncio
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import Cluster, open_cluster
from tests.cluster.test_starts import run_plait
from tests.integration.socket_client import TIMEOUT, http
from tests.postgres import Postgres

from plait import ThreadKey
from plait.store.shards import find_shard

TARGET = "tests.cluster.rollout_app:app"


def set_code(folder: Path, name: str, code: str) -> None:
    """Choose the code of a node for its next start."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "code").write_text(code)


async def replace(cluster: Cluster, folder: Path, name: str, code: str) -> None:
    """Stop a node, and start it again with other code."""
    await asyncio.to_thread(cluster.nodes[name].end)
    set_code(folder, name, code)
    await cluster.start(name)


async def ask(cluster: Cluster, node: str, name: str, *, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """Return the status and the body of the answer to a request about a thread, which waits for its owner."""
    async with asyncio.timeout(TIMEOUT), http(cluster.nodes[node].address) as web:
        while True:
            answer = await web.request(method, f"/threads/doc/{name}", content=body)
            # A state that may have been put, by an owner that was lost, can be put again.
            if answer.status_code != 503 and b'"indeterminate"' not in answer.content:
                return answer.status_code, answer.content
            await asyncio.sleep(0.05)


async def test_a_rollout_whose_migration_fails_can_be_rolled_back(postgres: Postgres, tmp_path: Path) -> None:
    for name in ("a", "b"):
        set_code(tmp_path, name, "old")
    async with open_cluster(postgres, tmp_path, target=TARGET) as cluster:
        names = [*cluster.find_names("a", "x", 2, kind="doc"), *cluster.find_names("b", "y", 2, kind="doc")]
        for name in names:
            assert (await ask(cluster, "a", name, method="PUT", body=b'{"text":"kept"}'))[0] == 200
        await replace(cluster, tmp_path, "b", "broken")
        # It becomes the owner of everything.
        await asyncio.to_thread(cluster.nodes["a"].end)
        await cluster.until(lambda: set(cluster.owners()) == {"b"})
        for name in names:
            assert (await ask(cluster, "b", name))[0] == 500
        assert all(not each.versions for each in cluster.read().shards)
        set_code(tmp_path, "a", "old")
        await cluster.start("a")
        await cluster.until(lambda: "a" in cluster.owners())
        await replace(cluster, tmp_path, "b", "old")
        await cluster.until_shared()
        for name in names:
            assert await ask(cluster, "a", name) == (200, b'{"text":"kept"}')


async def test_older_code_does_not_get_the_shards_of_threads_that_newer_code_has_stored(
    postgres: Postgres, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        set_code(tmp_path, name, "old")
    async with open_cluster(postgres, tmp_path, target=TARGET) as cluster:
        kept, odd, unused = ([f"{prefix}-{number}" for number in range(40)] for prefix in ("kept", "odd", "made"))
        for name in (*kept, *odd):
            body = f'{{"text":"{name.partition("-")[0]}"}}'.encode()
            assert (await ask(cluster, "a", name, method="PUT", body=body))[0] == 200
        await replace(cluster, tmp_path, "b", "new")

        def find_three() -> Sequence[str] | None:
            """Return one name of each kind in shards of b, which gets a few of these at a time."""
            owned = (owned_by_b(cluster, names) for names in (kept, odd, unused))
            return next((three for three in product(*owned) if len(set(map(shard_of, three))) == 3), None)

        await cluster.until(find_three)
        found = await asyncio.to_thread(find_three)
        assert found is not None
        migrated, failed, made = found
        assert await ask(cluster, "a", migrated) == (200, b'{"text":["kept"]}')
        assert (await ask(cluster, "a", failed))[0] == 500
        assert (await ask(cluster, "a", made, method="PUT", body=b'{"text":["new"]}'))[0] == 200
        newer = {shard_of(name) for name in (migrated, made)}
        recorded = {shard: each.versions for shard, each in enumerate(cluster.read().shards) if each.versions}
        assert recorded == {shard: {"doc": 2} for shard in newer}
        await asyncio.to_thread(cluster.nodes["b"].end)
        await cluster.until(lambda: {shard for shard, owner in enumerate(cluster.owners()) if owner != "a"} == newer)
        assert await ask(cluster, "a", failed) == (200, b'{"text":"odd"}')
        await cluster.start("b")
        await cluster.until(lambda: "" not in cluster.owners())
        assert await ask(cluster, "a", made) == (200, b'{"text":["new"]}')


def shard_of(name: str) -> int:
    """Return the shard of a document."""
    return find_shard(ThreadKey("doc", name))


def owned_by_b(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Return the ones of some threads that node b owns."""
    owners = cluster.owners()
    return [name for name in names if owners[shard_of(name)] == "b"]


@each_engine("mariadb")
async def test_a_dry_run_of_migrations_works_beside_a_live_cluster(engine: Engine, tmp_path: Path) -> None:
    set_code(tmp_path, "a", "old")
    async with open_cluster(engine, tmp_path, names=("a",), target=TARGET) as cluster:
        for number in range(120):
            body = b'{"text":"odd"}' if number == 60 else b'{"text":"kept"}'
            assert (await ask(cluster, "a", f"d{number}", method="PUT", body=body))[0] == 200
        set_code(tmp_path, "elsewhere", "new")
        code, text = await asyncio.to_thread(
            run_plait,
            "migrate",
            TARGET,
            "--dry-run",
            environment={"PLAIT_STORE": cluster.store},
            cwd=tmp_path / "elsewhere",
        )
        assert "0 up to date, 119 to migrate, 1 failed" in text
        assert code == 1
        assert await ask(cluster, "a", "d0") == (200, b'{"text":"kept"}')
