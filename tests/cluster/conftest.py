"""The engines of clusters, for the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.cluster.engines import Engine
from tests.mariadb import Mariadb
from tests.nats import NatsCluster
from tests.postgres import Postgres, private_folder
from tests.redis import Redis


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server, which runs when a test begins."""
    with private_folder() as folder, Postgres(folder / "main") as server:
        yield server


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers, which run when a test begins."""
    with NatsCluster(tmp_path_factory.mktemp("nats"), sync="always") as servers:
        yield servers


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis server, which runs when a test begins."""
    with Redis(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mariadb]:
    """A MariaDB server, which runs when a test begins."""
    with Mariadb(tmp_path_factory.mktemp("mariadb") / "m") as server:
        yield server


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine that `each_engine` gives a test."""
    found: Engine = request.getfixturevalue(request.param)
    return found
