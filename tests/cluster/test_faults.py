"""Faults by seed, under load: nothing that was acknowledged is lost, and nothing old is shown."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.faults import FAULTS, Hurt, play
from tests.cluster.nats_faults import find_faults
from tests.cluster.nodes import open_cluster
from tests.cluster.postgres_faults import (
    SMALL,
    Pair,
    fill_disk,
    late_statements,
    promote,
    promote_beside,
    promote_with_loss,
    small_disk,
)
from tests.cluster.redis_faults import REDIS_FAULTS
from tests.mariadb import Mariadb
from tests.nats import NatsCluster
from tests.postgres import Postgres, private_folder
from tests.redis import Redis
from tests.schedules import TIMES, in_soak, schedules
from tests.server.store.cutting_proxy import CuttingProxy


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_faults_lose_nothing_acknowledged_and_show_nothing_old(postgres: Postgres, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        proxies = {name: await stack.enter_async_context(CuttingProxy(postgres.port)) for name in "ab"}
        through = {name: [each.port] for name, each in proxies.items()}
        cluster = await stack.enter_async_context(open_cluster(postgres, tmp_path, through=through))
        faults = {**FAULTS, "late_statements": partial(late_statements, proxies)}
        await play(cluster, faults, schedules(len(faults) // 2))


@pytest.mark.release
@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
async def test_faults_on_nats_lose_nothing_acknowledged_and_show_nothing_old(nats: NatsCluster, tmp_path: Path) -> None:
    async with open_cluster(nats, tmp_path) as cluster:
        await play(cluster, find_faults(nats), schedules(4))


@pytest.mark.release
@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
async def test_faults_on_redis_lose_nothing_acknowledged_and_show_nothing_old(redis: Redis, tmp_path: Path) -> None:
    async with open_cluster(redis, tmp_path) as cluster:
        assert [told.lost for told in await play(cluster, REDIS_FAULTS, schedules(6))] == [0] * schedules(6)


@pytest.mark.release
@pytest.mark.soak
@pytest.mark.timeout(600 * TIMES)
async def test_faults_on_mariadb_lose_nothing_acknowledged_and_show_nothing_old(
    mariadb: Mariadb, tmp_path: Path
) -> None:
    async with open_cluster(mariadb, tmp_path) as cluster:
        assert [told.lost for told in await play(cluster, FAULTS, schedules(6))] == [0] * schedules(6)


@pytest.mark.release
@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_failover_to_a_synchronous_standby_loses_nothing(tmp_path: Path) -> None:
    with private_folder() as folder, Pair(folder, is_synchronous=True) as pair:
        async with open_cluster(pair, tmp_path) as cluster:
            (told, *_) = await play(cluster, {"promote": partial(promote, pair)}, schedules(1))
            assert told.lost == 0


@pytest.mark.parametrize("promote_one", [promote_with_loss, *in_soak((promote_beside,))])
@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_failover_that_loses_acknowledged_changes_begins_new_epochs(
    tmp_path: Path, promote_one: Callable[[Pair, Hurt], Awaitable[None]]
) -> None:
    with private_folder() as folder, Pair(folder, is_synchronous=False) as pair:
        async with open_cluster(pair, tmp_path) as cluster:
            for told in await play(cluster, {"promote": partial(promote_one, pair)}, schedules(1)):
                assert told.lost > 0


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_a_full_disk_refuses_changes_and_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    with (
        private_folder() as folder,
        small_disk(folder / "disk", megabytes=192) as disk,
        Postgres(disk / "data", *SMALL) as server,
    ):
        async with open_cluster(server, tmp_path) as cluster:
            await play(cluster, {"fill_disk": partial(fill_disk, disk, server)}, schedules(1))
