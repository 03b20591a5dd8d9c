"""One connection to a MariaDB or MySQL server. Its statements are text, and several share a round trip."""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import asyncmy
from asyncmy.constants.CLIENT import MULTI_STATEMENTS
from asyncmy.errors import InterfaceError, MySQLError

from plait.store.mysql.url import MysqlUrl
from plait.store.outcomes import Unreachable, describe

__all__ = [
    "DRIVER_ERRORS",
    "Found",
    "MysqlDb",
    "connect",
    "explain",
    "fill",
    "get_code",
    "is_lost",
    "make_list",
    "make_lists",
    "was_sent",
]

DRIVER_ERRORS: Final[tuple[type[Exception], ...]] = (MySQLError, OSError)
"""The errors of the driver, apart from those of arguments."""

_PLACE: Final = re.compile(r"\$([0-9]+)")
# Bytes that a statement needs beside its text, in a packet.
_MARGIN: Final = 1024
# Bytes of literals after which another statement begins.
_LARGE: Final = 2**18
# With double quotes for names, as in standard SQL. Values are never escaped, so no mode changes what they mean.
_SESSION: Final = (
    "SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET SESSION innodb_lock_wait_timeout = 6, net_read_timeout = 5",
    # A server may have others for interactive use: they refuse updates, cut results, or end a session with a commit.
    "SET SESSION sql_safe_updates = 0, sql_select_limit = 18446744073709551615, completion_type = 0",
)
# The numbers of errors after which a connection is no longer used: it is lost, its server ends or may not be written,
# or a commit has failed.
_LOST: Final = frozenset(
    {0, 1047, 1053, 1180, 1290, 1317, 1836, 1927, 2003, 2006, 2013, 2014, 2055, 3032, 3100, 3101, 3169, 4031}
)


class Found(NamedTuple):
    """The rows that a statement has found, and how many it has changed."""

    rows: Sequence[tuple[Any, ...]]
    changed: int


class MysqlDb:
    """A connection, as `Db`. Values become literals, bytes in hexadecimal digits."""

    def __init__(self, connection: asyncmy.Connection, most: int) -> None:
        self._connection = connection
        # Bytes of one packet.
        self._most = most
        self._listeners: list[Callable[[Any], Any]] = []

    async def run(self, *statements: str) -> list[Found]:
        """Execute statements in one round trip, or in a few if they are large; return what each has found."""
        found = list[Found]()
        try:
            for trip in _pack(statements, self._most):
                cursor = self._connection.cursor()
                await cursor.execute(trip)
                is_more: bool | None = True
                while is_more:
                    found.append(Found(await cursor.fetchall(), cast(int, cursor.rowcount)))
                    is_more = await cursor.nextset()
        except BaseException as error:
            if not isinstance(error, MySQLError | ValueError) or is_lost(error):
                self.terminate()
            raise
        return found

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Any]:
        return (await self.run(fill(query, *args)))[-1].rows

    async def execute(self, query: str, /, *args: Any) -> int:
        return (await self.run(fill(query, *args)))[-1].changed

    def is_closed(self) -> bool:
        transport = self._transport
        return transport is None or transport.is_closing()

    def is_in_transaction(self) -> bool:
        return self._connection.get_transaction_status()

    def terminate(self) -> None:
        if (transport := self._transport) is not None:
            transport.abort()  # To close it would wait until a server that hangs has read everything.
        self._connection.close()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    async def close(self, *, timeout: float | None = None) -> None:
        self._listeners.clear()
        async with asyncio.timeout(timeout):
            await self._connection.ensure_closed()

    def add_termination_listener(self, callback: Callable[[Any], Any], /) -> None:
        self._listeners.append(callback)

    @property
    def _transport(self) -> asyncio.Transport | None:
        found: asyncio.Transport | None = getattr(self._connection, "_transport", None)
        return found


async def connect(url: MysqlUrl, host: str, port: int) -> MysqlDb:
    """Return a new connection to a host. Raises Unreachable, and the errors of the driver."""
    try:
        context = ssl.create_default_context(cafile=url.authorities) if url.has_tls else None
    except OSError as error:
        raise Unreachable(f"ssl_ca={url.authorities} cannot be read: {explain(error)}") from error
    try:
        connection = await asyncmy.connect(
            host=host,
            port=port,
            unix_socket=url.socket,
            user=url.user,
            password=url.password,
            database=url.database,
            ssl=context,
            charset="utf8mb4",
            autocommit=True,
            client_flag=MULTI_STATEMENTS,
        )
    except RuntimeError as error:
        raise Unreachable(explain(error)) from error
    db = MysqlDb(connection, 2**20)
    try:
        *_, ((most,),) = [found.rows for found in await db.run(*_SESSION, "SELECT @@max_allowed_packet")]
    except BaseException:
        db.terminate()
        raise
    return MysqlDb(connection, most - _MARGIN)


def fill(sql: str, *values: Any) -> str:
    """Return SQL with the literals of values. Raises UnicodeEncodeError and TypeError."""
    return _PLACE.sub(lambda place: _make_literal(values[int(place[1]) - 1]), sql) if values else sql


def make_list(rows: Iterable[Sequence[Any]]) -> str:
    """Return the literals of rows, as VALUES and IN have them."""
    return ",".join([f"({','.join(map(_make_literal, row))})" for row in rows])


def make_lists(rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    """Return the literals of rows in lists, as large rows need several statements."""
    found, size = list[str](), 0
    for row in rows:
        literals = make_list((row,))
        if found and size + len(literals) > _LARGE:
            yield ",".join(found)
            found, size = [], 0
        found.append(literals)
        size += len(literals)
    if found:
        yield ",".join(found)


def get_code(error: BaseException) -> int:
    """Return the number of an error of the driver; -1 if it has none."""
    code = error.args[0] if isinstance(error, MySQLError) and error.args else -1
    return code if isinstance(code, int) else -1


def is_lost(error: BaseException, /, *, is_closed: bool = False) -> bool:
    """Whether an error means that the outcome of a statement is not known; `is_closed` tells of the connection."""
    if isinstance(error, MySQLError):
        return is_closed or get_code(error) in _LOST
    return isinstance(error, OSError | asyncio.TimeoutError)


def was_sent(error: BaseException, /) -> bool:
    """Whether a statement that has failed with a lost connection may have reached the server."""
    return not isinstance(error, InterfaceError)


def explain(error: BaseException, /) -> str:
    """Return in one line what an error of the driver means."""
    return describe(error, str(error.args[1]) if isinstance(error, MySQLError) and len(error.args) > 1 else "")


def _make_literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return f"x'{value.encode().hex()}'"
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _pack(statements: Sequence[str], most: int) -> Iterable[str]:
    """Join statements to the texts of packets. Raises ValueError if one is too large."""
    found, size = list[str](), 0
    for statement in statements:
        if len(statement) > most:
            raise ValueError(f"a statement has {len(statement)} bytes, and the server's max_allowed_packet is {most}")
        if found and size + len(statement) > most:
            yield ";\n".join(found)
            found, size = [], 0
        found.append(statement)
        size += len(statement) + 2
    if found:
        yield ";\n".join(found)
