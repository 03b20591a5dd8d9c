"""What the tests that all shared engines pass must know of each of them."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest
from tests.mariadb import Mariadb
from tests.nats import Nats
from tests.postgres import Postgres
from tests.redis import Redis
from tests.schedules import in_soak
from tests.server.store.contract import ROOM

from plait.store.reconnecting import Reconnector

__all__ = ["ENGINES", "Engine", "Server", "asks_redis", "only"]

Server = Postgres | Mariadb | Redis | Nats


class Engine(NamedTuple):
    """An engine."""

    # The one in `tests/failover.py`, if it has replicas that may lack the last writes.
    name: str
    # The fixture of a server of the session.
    fixture: str
    # Makes a server of the test's own, with more options.
    make: Callable[..., Server]
    # Returns what connects a store, or connects it again.
    find_line: Callable[[Any], Reconnector[Any]]
    # Whether a request asks for the outcome of a write; None if it is that of an SQL database.
    is_question: Callable[[bytes], bool] | None
    # Returns how many threads have a head, and how many other rows there are of threads.
    count_heads: Callable[[Any, Any], Awaitable[int]]
    count_rows: Callable[[Any, Any], Awaitable[int]]
    # The SQL that counts deadlocks.
    deadlocks: str = ""
    # How many bytes of a write a connection carries before it is cut, so that its outcome is not known.
    fuse: int = 1
    # Whether a server that was killed has all that it had, and it can be known that it has.
    keeps: bool = True
    # Options of a URL with which a write takes several round trips, which may be parts of one transaction.
    in_steps: str = ""
    # Options of a server and of the URL with which a crash may lose writes, and how a store says so; and whether a stop
    # in order may lose some, too.
    unsynced: tuple[tuple[str, ...], str, str] | None = None
    stop_loses: bool = True


_STATUS: Final = "FROM information_schema.global_status"
# The rows of owners, and those of threads.
_OWNERS: Final = "thread = 0 AND part LIKE '~owner/%'"
_OF_THREADS: Final = "thread > 0"


async def _count_postgres(server: Postgres, store: Any, where: str) -> int:
    tables = " UNION ALL ".join(f"TABLE {store.url.schema}.plait_{name}" for name in ("rows", "changes"))
    return int(server.execute(f"SELECT count(*) FROM ({tables}) rows WHERE {where}"))


async def _count_mysql(server: Mariadb, store: Any, where: str) -> int:
    return int(server.execute(f"SELECT count(*) FROM plait.{store.url.prefix}rows WHERE {where}"))


async def _count_redis(server: Redis, store: Any) -> int:
    return int(server.execute("HLEN", f"{{{store.url.prefix}}}:w"))


async def _count_redis_rows(server: Redis, store: Any) -> int:
    # Those that begin with 0 are the index.
    return len(server.execute("KEYS", f"{{{store.url.prefix}}}:[orc]:[1-9]*"))


async def _count_nats(server: Nats, store: Any) -> int:
    # An empty one is removed later.
    return sum(1 for each in await store._stream.last([store._subjects.head(ROOM)]) if each.data)


async def _count_nats_rows(server: Nats, store: Any) -> int:
    return len((await store._stream.info(f"{store.url.stream}.d.>")).subjects)


def asks_redis(data: bytes) -> bool:
    """Whether a request to Redis asks for the outcome of a write."""
    return re.search(rb'"asked":[1-9]', data) is not None


def _bind(count: Callable[..., Awaitable[int]], *names: str) -> Callable[[Any, Any], Awaitable[int]]:
    return lambda server, store: count(server, store, *names)


_FOUND: Final = (
    Engine(
        "postgres",
        "postgres",
        Postgres,
        lambda store: store._server._writer._dbs,
        None,
        _bind(_count_postgres, _OWNERS),
        _bind(_count_postgres, _OF_THREADS),
        deadlocks="SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'",
        in_steps="&statement_cache_size=0",
        unsynced=((), "&synchronous_commit=off", "its fsync is off"),
        stop_loses=False,
    ),
    Engine(
        "mysql",
        "mariadb",
        Mariadb,
        lambda store: store._server._writer._dbs,
        None,
        _bind(_count_mysql, _OWNERS),
        _bind(_count_mysql, _OF_THREADS),
        deadlocks=f"SELECT variable_value {_STATUS} WHERE variable_name = 'Innodb_deadlocks'",
        # The first round trip is carried, and the one with the commit is cut.
        fuse=800,
        unsynced=(("--innodb-flush-log-at-trx-commit=2",), "", "innodb_flush_log_at_trx_commit"),
    ),
    Engine(
        "redis",
        "redis_server",
        Redis,
        lambda store: store._server._line,
        asks_redis,
        _count_redis,
        _count_redis_rows,
        keeps=False,
    ),
    Engine(
        "nats",
        "nats_server",
        Nats,
        lambda store: store._connection._lines,
        # A write that is published again asks whether it was published.
        lambda data: b"Nats-Expected-Last-Subject-Sequence" in data,
        _count_nats,
        _count_nats_rows,
        unsynced=((), "&sync=interval", "sync=interval"),
    ),
)
ENGINES: Final[Mapping[str, Engine]] = {each.name: each for each in _FOUND}
"""The engines that several processes may use, by name."""


def only(*names: str, soak: Sequence[str] = ()) -> Any:
    """Have a test run on some engines, and in `make soak` on more."""
    return pytest.mark.parametrize("engine", [*names, *in_soak(*([each] for each in soak))], indirect=True)
