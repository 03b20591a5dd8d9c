"""The engines that a store's URL may name, beside SQLite's files and memory: one row each."""

from pkgutil import resolve_name
from typing import Any, Final, Protocol, Self

import msgspec

from plait.store.json_files.url import FileUrl
from plait.store.mysql.url import MysqlUrl
from plait.store.nats.url import NatsUrl
from plait.store.postgres.url import PostgresUrl
from plait.store.redis.url import RedisUrl

__all__ = ["ENGINES", "Engine", "EngineUrl", "find_engine"]


class EngineUrl(Protocol):
    """A URL that was read. `str()` has no password and no options."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password."""
        ...


class Engine(msgspec.Struct, frozen=True):
    """An engine. Its classes are named, as `module:class`, because their modules import its driver."""

    schemes: tuple[str, ...]
    url: type[EngineUrl]
    # Takes the URL.
    store: str
    # The package of the driver, and the extra of plait that installs it; empty if it needs none.
    driver: str
    extra: str
    # What an error recommends for checks and backups, in place of plait's commands.
    backup: str
    # A URL for an error.
    example: str
    # Takes the URL, and is the `Cells` of a cluster's directory; empty if only one process may use the store.
    cells: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether several processes may use a store at once."""
        return bool(self.cells)

    def load(self, name: str) -> Any:
        """Return one of the classes. Raises ValueError if the driver is not installed."""
        try:
            return resolve_name(name)
        except ModuleNotFoundError:
            raise ValueError(f"{self.schemes[0]}:// needs {self.driver}: pip install 'plait[{self.extra}]'") from None


ENGINES: Final = (
    Engine(
        ("postgresql", "postgres"),
        PostgresUrl,
        "plait.store.postgres.store:PostgresStore",
        driver="asyncpg",
        extra="postgres",
        backup="PostgreSQL's pg_amcheck and pg_dump",
        example="postgresql://user:password@host/database",
        cells="plait.store.postgres.cells:PostgresCells",
    ),
    Engine(
        ("mysql", "mariadb"),
        MysqlUrl,
        "plait.store.mysql.store:MysqlStore",
        driver="asyncmy",
        extra="mysql",
        backup="mariadb-backup or mysqldump --single-transaction",
        example="mysql://user:password@host/database",
        cells="plait.store.mysql.cells:MysqlCells",
    ),
    Engine(
        ("nats",),
        NatsUrl,
        "plait.store.nats.store:NatsStore",
        driver="nats-py",
        extra="nats",
        backup="`nats stream backup`",
        example="nats://user:password@host/stream",
        cells="plait.store.nats.cells:NatsCells",
    ),
    Engine(
        ("redis", "rediss", "valkey", "redis+sentinel"),
        RedisUrl,
        "plait.store.redis.store:RedisStore",
        driver="redis",
        extra="redis",
        backup="Redis's BGREWRITEAOF and a copy of its appendonlydir",
        example="redis://user:password@host/0",
        cells="plait.store.redis.cells:RedisCells",
    ),
    Engine(
        ("file",),
        FileUrl,
        "plait.store.json_files.store:JsonFileStore",
        driver="",
        extra="",
        backup="`plait check` and `plait backup`",
        example="file:///data/game",
    ),
)
"""All engines."""


def find_engine(url: str) -> Engine | None:
    """Return the engine that a URL names; None for files of SQLite, memory, and what is no URL."""
    scheme, separator, _ = url.partition("://")
    return next((each for each in ENGINES if separator and scheme.lower() in each.schemes), None)
