"""Opens connections to Redis, and notices when it may have lost durable writes."""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import MovedError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as LateError

from plait.errors import StoreError
from plait.store.origins import OriginWatch
from plait.store.outcomes import Unreachable, describe
from plait.store.redis.scripts import IDENTIFY
from plait.store.redis.url import RedisUrl

__all__ = ["DRIVER_ERRORS", "TOO_FEW", "Command", "Engine", "Line", "explain", "is_lost"]

DRIVER_ERRORS: Final = (RedisError, OSError)
"""The errors of the driver, apart from those of arguments."""

TOO_FEW: Final = "too few replicas have it"
"""Why it is not known whether a failover would keep a write."""

Command = Sequence[object]
"""A command and its arguments: bytes, text and numbers."""

# Seconds after which a command without an answer counts as lost with its connection.
_ANSWER_TIMEOUT: Final = 10.0
_CONNECT_TIMEOUT: Final = 5.0
# Three Sentinels may be asked in vain before the directory of a cluster gives up, after 2 seconds.
_SENTINEL_TIMEOUT: Final = 0.5
# Milliseconds for which a write waits for replicas: less than the directory of a cluster waits for an answer.
_WAIT: Final = 1500
# The connections that read and claim.
_READERS: Final = 8
# The settings with which Redis keeps what it has acknowledged, and the version that has WAITAOF.
_SAFE: Final = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_WAITAOF: Final = (7, 2)
# The oldest version whose scripts have flags.
_OLDEST: Final = (7, 0)


class Line:
    """A connection, on which one caller at a time runs commands."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def is_lost(self) -> bool:
        # A server that ends closes its connections. What is sent then may have arrived.
        return not self._connection.is_connected or self._connection._reader.at_eof()

    async def run(self, *commands: Command) -> list[Any]:
        """Return the answers of commands that are sent together. Raises the error of the first that has failed."""
        connection = self._connection
        try:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            found: list[Any] = []
            for _ in commands:
                try:
                    found.append(await connection.read_response())
                except ResponseError as error:
                    found.append(error)
        except BaseException:  # Answers may be left on it.
            await connection.disconnect(nowait=True)
            raise
        if (failure := next((each for each in found if isinstance(each, ResponseError)), None)) is not None:
            if isinstance(failure, ReadOnlyError):  # The server is no longer the primary.
                await connection.disconnect(nowait=True)
            raise failure
        return found

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.disconnect(nowait=True)


class Engine(OriginWatch):
    """Opens connections to the server of a URL. The origin is the number of the timeline and the server's run."""

    def __init__(self, url: RedisUrl, on_loss: Callable[[], None] | None = None, *, readonly: bool = False) -> None:
        super().__init__(url, on_loss)
        self.url = url
        self._readonly = readonly
        tag = f"{{{url.prefix}}}:".encode()
        self.timeline_keys: Final = (tag + b"origin", tag + b"fence", tag + b"format")
        # Why the server may lose what it has acknowledged; "" if its settings keep all.
        self.weakness = ""
        # Whether WAITAOF waits for the disks of replicas. WAIT waits until they have it in memory.
        self.can_wait_for_disks = False
        self._sentinel: Any = None
        kind: Any = Connection
        options: dict[str, Any] = {
            "db": url.database,
            "username": url.username,
            "password": url.password,
            "socket_timeout": _ANSWER_TIMEOUT,
            "socket_connect_timeout": _CONNECT_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,
            "redis_connect_func": self._greet,
        }
        if url.service is None:
            options["host"], options["port"] = url.addresses[0]
        else:
            kind, options["find"] = _PrimaryConnection, self._find_primary
            limits = {
                "socket_timeout": _SENTINEL_TIMEOUT,
                "socket_connect_timeout": _SENTINEL_TIMEOUT,
                "retry": Retry(NoBackoff(), 0),
            }
            self._sentinel = Sentinel(url.addresses, sentinel_kwargs=limits)  # type: ignore[no-untyped-call]
        if url.has_tls:
            kind = SSLConnection
            options |= {"ssl_ca_certs": url.ssl_ca_certs, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        self._kind, self._options = kind, options
        self._pool: Any = None

    def open(self) -> None:
        """Begin."""
        self._pool = BlockingConnectionPool(
            max_connections=_READERS, timeout=_ANSWER_TIMEOUT, connection_class=self._kind, **self._options
        )

    async def connect(self) -> Line:
        """Return a new connection. Raises Unreachable."""
        connection = self._kind(**self._options)
        try:
            await connection.connect()
        except DRIVER_ERRORS as error:
            raise Unreachable(explain(error)) from error
        return Line(connection)

    async def run(self, *commands: Command) -> list[Any]:
        """Run commands on one of a few connections. Raises StoreError, and what the driver raises."""
        if (pool := self._pool) is None:
            raise StoreError("the store is closed")
        connection = await pool.get_connection()
        try:
            return await Line(connection).run(*commands)
        finally:
            await pool.release(connection)

    async def run_durably(self, command: Command) -> Any:
        """Run a command, and wait for replicas if the URL asks for them. Raises StoreError if they are too few, too."""
        answer, *waited = await self.run(*self.add_wait(command))
        if not self.has_replicas(waited):
            raise StoreError(TOO_FEW)
        return answer

    async def close(self) -> None:
        """Close the connections of `run`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.disconnect()
        if self._sentinel is not None:
            for each in self._sentinel.sentinels:
                await each.aclose()

    def add_wait(self, command: Command) -> list[Command]:
        """Return a command, and the one that waits for replicas if the URL asks for them, to be sent together."""
        if not (replicas := self.url.replicas):
            return [command]
        return [command, ("WAITAOF", 0, replicas, _WAIT) if self.can_wait_for_disks else ("WAIT", replicas, _WAIT)]

    def has_replicas(self, waited: Sequence[Any]) -> bool:
        """Whether enough replicas have what was written, by the answer to the waiting, if there was any."""
        found = [each[1] if isinstance(each, list) else each for each in waited]
        return all(each >= self.url.replicas for each in found)

    # Inside

    async def _find_primary(self) -> tuple[str, int]:
        try:
            host, port = await self._sentinel.discover_master(self.url.service)
        except MasterNotFoundError as error:  # It tells all settings of the connections.
            raise LostError(str(error).partition(" : ")[0] + " by any of the Sentinels") from None
        return host, port

    async def _greet(self, connection: Any) -> None:
        """Log in, and find out which server this is, and whether it keeps what the URL promises."""
        try:
            await connection.on_connect()
            if not self._readonly:
                await self._identify(Line(connection))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def _identify(self, line: Line) -> None:
        weakness = await _find_weakness(line)
        if weakness is None and self.url.durable is None:
            raise Unreachable("Redis does not tell its settings: add durable=yes or durable=no to the URL")
        if weakness and self.url.durable is not False:
            raise Unreachable(f"Redis may lose changes, as {weakness}: change that, or add durable=no to the URL")
        self.weakness = weakness or ("its settings are not known" if self.url.durable is False else "")
        (info,) = await line.run(("INFO", "server"))
        if (version := _read_version(info)) < _OLDEST:
            found, oldest = (".".join(map(str, each)) for each in (version, _OLDEST))
            raise Unreachable(f"Redis {found} is too old: {oldest} or newer is needed")
        self.can_wait_for_disks = version >= _WAITAOF
        script = IDENTIFY + b"return origin"
        (origin,) = await line.run(("EVAL", script, len(self.timeline_keys), *self.timeline_keys))
        self.note(origin.decode())


class _PrimaryConnection(Connection):
    """A connection to the server that the Sentinels name."""

    def __init__(self, *, find: Callable[[], Awaitable[tuple[str, int]]], **options: Any) -> None:
        super().__init__(**options)
        self._find = find

    async def _connect(self) -> None:
        self.host, self.port = await self._find()
        await super()._connect()  # type: ignore[no-untyped-call]


async def _find_weakness(line: Line) -> str | None:
    """Return which setting of the server may lose changes; "" if none does, None if it does not tell."""
    try:
        found = await line.run(*(("CONFIG", "GET", name) for name in _SAFE))
    except ResponseError:
        return None
    settings = {name: value[1].decode() for name, value in zip(_SAFE, found, strict=True) if value}
    if len(settings) < len(_SAFE):
        return None
    return next((f"its {name} is {value}" for name, value in settings.items() if value != _SAFE[name]), "")


def _read_version(info: bytes) -> tuple[int, ...]:
    """Return the version of Redis; Valkey says there which one it is like."""
    version = info.partition(b"redis_version:")[2].split(b"\r", 1)[0]
    return tuple(int(each) for each in version.split(b".")[:2])


def is_lost(error: BaseException) -> bool:
    """Whether an error means that the outcome of a command is not known, or that the server is not the primary."""
    return isinstance(error, LostError | LateError | OSError | ReadOnlyError)


def explain(error: BaseException) -> str:
    """Return in one line what an error of the driver means."""
    if isinstance(error, ReadOnlyError):
        return "the server is a replica, which cannot be written"
    if isinstance(error, MovedError):
        return "the server is one of several of a Redis Cluster, which a store cannot be in"
    return describe(error)
