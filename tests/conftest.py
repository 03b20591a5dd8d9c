"""Fixtures for all tests, how examples are searched for, and where asserts say what they compared."""

import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests.clocks import Clock, stopped_clock
from tests.fronts import using_fronts
from tests.mariadb import Mariadb
from tests.nats import Nats, NatsCluster
from tests.ordering import deal
from tests.postgres import Postgres, private_folder
from tests.redis import Redis
from tests.schedules import TIMES, schedules

from plait_schemas.codec import printable

# A slow machine is no failure. Tests find the same examples each time, and `make soak` finds others.
settings.register_profile("test", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=schedules(100), print_blob=True)
settings.load_profile("soak" if TIMES > 1 else "test")

pytest.register_assert_rewrite(
    "tests.integration.convergence",
    "tests.server.store.contract",
    "tests.server.store.contract_records",
    "tests.server.store.contract_view",
    "tests.server.rooms",
    "tests.server.fakes",
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of this session."""
    with private_folder() as folder, Postgres(folder / "data") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mariadb]:
    """A MariaDB server of this session."""
    with Mariadb(tmp_path_factory.mktemp("mariadb") / "m") as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """A NATS server of this session."""
    with Nats(tmp_path_factory.mktemp("nats") / "n") as server:
        yield server


@pytest.fixture(scope="session")
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three NATS servers of this session, with three copies of each stream."""
    with NatsCluster(tmp_path_factory.mktemp("nats-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis server of this session."""
    with Redis(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock of this process, which stands still until the test moves it."""
    with stopped_clock() as clock:
        yield clock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run async tests on uvloop, as `plait serve` runs."""
    return "asyncio", {"use_uvloop": True}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a `relayed` module once or twice more, with its threads behind a gateway.

    With `in_soak`, `make test` leaves those out: a gateway carries the requests and sockets of all modules alike.
    """
    relayed = metafunc.definition.get_closest_marker("relayed")
    if relayed is None or metafunc.definition.get_closest_marker("local") is not None:
        return
    marks = [pytest.mark.release] if relayed.kwargs.get("in_soak") else []
    fronts: list[Any] = [pytest.param(None, id="local"), pytest.param("unix", id="relayed", marks=marks)]
    if TIMES > 1 or relayed.kwargs.get("tcp"):
        fronts.append(pytest.param("tcp", id="tcp", marks=pytest.mark.soak))
    metafunc.parametrize("front", fronts, indirect=True)


@pytest.fixture(autouse=True)
def front(request: pytest.FixtureRequest) -> Iterator[None]:
    """If the test is relayed, put a gateway before each app that `running` serves, and check that a link was used."""
    if (over := getattr(request, "param", None)) is None:
        yield
        return
    with using_fronts(over) as fronts:
        yield
    assert fronts, "the test has served no app: mark it with `local`"
    assert any(front.sent for front in fronts), "nothing was sent over a link"


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape halves of surrogate pairs in what a worker reports: it could not be sent, and the worker would end."""
    return _escape((yield))


def _escape(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_escape(key): _escape(member) for key, member in value.items()}
        case list() | tuple():
            return [_escape(item) for item in value]
        case _:
            return value


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without the garbage collector, and have it leave out what has been collected ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have most of several workers begin with tests that wait."""
    if (worker := getattr(config, "workerinput", None)) is not None:
        items[:] = deal(items, worker["workercount"])
