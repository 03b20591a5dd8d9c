"""The directories pass their contract: that of tests, and those of engines."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.mariadb import Mariadb
from tests.nats import Nats
from tests.postgres import Postgres
from tests.redis import Redis
from tests.server.cluster.contract import DirectoryContract, SharedContract
from tests.server.cluster.stepped import SteppedDirectory

from plait.cluster.cell_directory import CellDirectory
from plait.cluster.directory import Directory
from plait.store.mysql.cells import MysqlCells
from plait.store.mysql.url import MysqlUrl
from plait.store.nats.cells import NatsCells
from plait.store.nats.url import NatsUrl
from plait.store.postgres.cells import PostgresCells
from plait.store.postgres.url import PostgresUrl
from plait.store.redis.cells import RedisCells
from plait.store.redis.url import RedisUrl
from plait.store.shards import SHARDS


class _Driven:
    """Makes all steps of the calls of a SteppedDirectory."""

    def __init__(self, directory: SteppedDirectory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return _finish(getattr(self._directory, name)(*args, **kwargs))

        return call


def _finish(work: Any) -> Any:
    try:
        work.send(None)
        while True:
            work.send("done")
    except StopIteration as end:
        return end.value


class TestStepped(DirectoryContract):
    @pytest.fixture
    async def directory(self) -> Any:
        return _Driven(SteppedDirectory(SHARDS))

    @pytest.fixture
    async def other(self, directory: Directory) -> Directory:
        return directory


class TestPostgres(SharedContract):
    @pytest.fixture
    def engine(self, postgres: Postgres) -> Postgres:
        return postgres

    @pytest.fixture
    def open_directory(self, postgres: Postgres) -> Callable[[], Directory]:
        url = PostgresUrl.parse(postgres.make_store())
        postgres.execute(f"CREATE SCHEMA {url.schema}")
        return lambda: CellDirectory(PostgresCells, url)


class TestNats(SharedContract):
    @pytest.fixture
    def engine(self, nats_server: Nats) -> Nats:
        return nats_server

    @pytest.fixture
    def open_directory(self, nats_server: Nats) -> Callable[[], Directory]:
        url = NatsUrl.parse(nats_server.make_store())
        return lambda: CellDirectory(NatsCells, url)


class TestMysql(SharedContract):
    @pytest.fixture
    def engine(self, mariadb: Mariadb) -> Mariadb:
        return mariadb

    @pytest.fixture
    def open_directory(self, mariadb: Mariadb) -> Callable[[], Directory]:
        url = MysqlUrl.parse(mariadb.make_store())
        return lambda: CellDirectory(MysqlCells, url)


class TestRedis(SharedContract):
    @pytest.fixture
    def engine(self, redis_server: Redis) -> Redis:
        return redis_server

    @pytest.fixture
    def open_directory(self, redis_server: Redis) -> Callable[[], Directory]:
        url = RedisUrl.parse(redis_server.make_store())
        return lambda: CellDirectory(RedisCells, url)
