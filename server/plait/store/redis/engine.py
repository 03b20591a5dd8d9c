"""Opens connections to Redis, and notices when it may have lost durable writes."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis.asyncio import Connection, SSLConnection
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import MovedError, ReadOnlyError, RedisError, ResponseError

from plait.clock import CLOCK
from plait.errors import StoreError
from plait.store.origins import OriginWatch
from plait.store.outcomes import Replaced, Unreachable, describe
from plait.store.reconnecting import Turns
from plait.store.redis.line import Command, Line
from plait.store.redis.scripts import IDENTIFY
from plait.store.redis.sentinels import find_primary
from plait.store.redis.url import RedisUrl

__all__ = ["DRIVER_ERRORS", "ERRORS", "TOO_FEW", "Engine", "explain", "is_lost", "telling"]

DRIVER_ERRORS: Final = (RedisError, OSError)
"""The errors of the driver, apart from those of arguments."""

ERRORS: Final = (*DRIVER_ERRORS, OverflowError, TypeError, ValueError)
"""The errors of reading and writing, beside StoreError."""

TOO_FEW: Final = "too few replicas have it"
"""Why it is not known whether a failover would keep a write."""

# Seconds after which a command without an answer counts as lost with its connection.
_ANSWER_TIMEOUT: Final = 10.0
_CONNECT_TIMEOUT: Final = 5.0
# Milliseconds for which a write waits for replicas: less than the directory of a cluster waits for an answer.
_WAIT: Final = 1500
# The connections that read and claim.
_READERS: Final = 8
# The settings with which Redis keeps what it has acknowledged, and the version that has WAITAOF. With `save`, one
# snapshot that fails has Redis refuse all writes.
_SAFE: Final = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}
_WAITAOF: Final = (7, 2)
# The oldest version whose scripts have flags.
_OLDEST: Final = (7, 0)


class Engine(OriginWatch):
    """Opens connections to the server of a URL. The origin is the number of the timeline and the server's run."""

    def __init__(self, url: RedisUrl, *, readonly: bool = False) -> None:
        super().__init__(url)
        self.url = url
        self._readonly = readonly
        # With which all keys begin.
        self.tag: Final = f"{{{url.prefix}}}:".encode()
        self.format_key: Final = self.tag + b"format"
        self.timeline_keys: Final = (self.tag + b"origin", self.tag + b"fence", self.format_key)
        # Why the server may lose what it has acknowledged; "" if its settings keep all.
        self.weakness = ""
        # Whether WAITAOF waits for the disks of replicas. WAIT waits until they have it in memory.
        self.can_wait_for_disks = False
        self._kind: Any = SSLConnection if url.has_tls else Connection
        self._options: dict[str, Any] = {
            "db": url.database,
            "username": url.username,
            "password": url.password,
            "timeout": _ANSWER_TIMEOUT,
            "socket_connect_timeout": _CONNECT_TIMEOUT,
        }
        if url.has_tls:
            self._options |= {"ssl_ca_certs": url.ssl_ca_certs, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        # The connections of `run` that nothing uses, and the turns of its callers; None while the store is closed.
        self._idle: list[Line] = []
        self._turns: Turns | None = None

    def open(self) -> None:
        """Begin."""
        self._turns = Turns(_READERS)

    async def connect(self) -> Line:
        """Return a new connection, whose server was identified. Raises Unreachable."""
        try:
            address = self.url.addresses[0] if self.url.service is None else await find_primary(self.url)
            line = await Line.open(self._kind, *address, **self._options)
            try:
                if not self._readonly:
                    await self._identify(line)
            except BaseException:
                line.terminate()
                raise
        except DRIVER_ERRORS as error:
            raise Unreachable(explain(error)) from error
        return line

    async def confirm(self, line: Line) -> None:
        """Check the server of a connection as at its beginning, and whether it is still the primary.

        Raises Unreachable, and Replaced if a majority of the Sentinels names another server.
        """
        if self.url.service is not None and (primary := await find_primary(self.url)) != line.address:
            self.drop(is_replaced=True)
            where = f"{primary[0]}:{primary[1]}"
            raise Replaced(f"the Sentinels name another primary, {where}: what was acknowledged since then is lost")
        await self._identify(line)

    async def run(self, *commands: Command) -> list[Any]:
        """Run commands on one of a few connections. Raises StoreError, and what the driver raises."""
        if (turns := self._turns) is None:
            raise StoreError("the store is closed")
        async with turns.take():
            while self._idle and self._idle[-1].is_lost:
                self._idle.pop().terminate()
            line = self._idle.pop() if self._idle else await self.connect()
            try:
                return await line.run(*commands)
            finally:
                if turns is self._turns:
                    self._idle.append(line)
                else:
                    line.terminate()

    async def run_durably(self, command: Command, line: Line | None = None) -> Any:
        """Run a command, and wait for replicas if the URL asks for them. Raises StoreError if they are too few, too."""
        answer, *waited = await (self if line is None else line).run(*self.add_wait(command))
        if not self.has_replicas(waited):
            raise StoreError(TOO_FEW)
        return answer

    async def close(self) -> None:
        """Close the connections of `run`."""
        self._turns = None
        while self._idle:
            self._idle.pop().terminate()

    def add_wait(self, command: Command) -> list[Command]:
        """Return a command, and the one that waits for replicas if the URL asks for them, to be sent together."""
        if not (replicas := self.url.replicas):
            return [command]
        return [command, ("WAITAOF", 0, replicas, _WAIT) if self.can_wait_for_disks else ("WAIT", replicas, _WAIT)]

    def has_replicas(self, waited: Sequence[Any]) -> bool:
        """Whether enough replicas have what was written, by the answer to the waiting, if there was any."""
        found = [each[1] if isinstance(each, list) else each for each in waited]
        return all(each >= self.url.replicas for each in found)

    def note_claim(self, origin: bytes, line: Line | None = None) -> None:
        """Note the origin in the answer of a script. Raises Unreachable if it is older."""
        (number, _, server), (before, _, former) = (each.partition(":") for each in (origin.decode(), self.origin))
        # A server whose data was lost, or was put back, may begin again with a lower number.
        self.note(origin.decode(), line, is_older=server != former != "" and int(number) < int(before))

    # Inside

    async def _identify(self, line: Line) -> None:
        """Find out which server this is, whether it keeps what the URL promises, and what its clock says."""
        weakness = await _find_weakness(line)
        if weakness is None and self.url.durable is None:
            raise Unreachable("Redis does not tell its settings: add durable=yes or durable=no to the URL")
        if weakness and self.url.durable is not False:
            raise Unreachable(
                f"Redis may lose or refuse changes, as {weakness}: change that, or add durable=no to the URL"
            )
        self.weakness = weakness or ("its settings are not known" if self.url.durable is False else "")
        asked = CLOCK.read_steady()
        (seconds, microseconds), info = await line.run(("TIME",), ("INFO", "server"))
        CLOCK.follow(int(seconds) * 1_000_000 + int(microseconds), asked)
        if (version := _read_version(info)) < _OLDEST:
            found, oldest = (".".join(map(str, each)) for each in (version, _OLDEST))
            raise Unreachable(f"Redis {found} is too old: {oldest} or newer is needed")
        self.can_wait_for_disks = version >= _WAITAOF
        script = IDENTIFY + b"return origin"
        (origin,) = await line.run(("EVAL", script, len(self.timeline_keys), *self.timeline_keys))
        self.note_claim(origin, line)


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
    return isinstance(error, LostError | ReadOnlyError)


def explain(error: BaseException) -> str:
    """Return in one line what an error of the driver means."""
    if isinstance(error, ReadOnlyError):
        return "the server is a replica, which cannot be written"
    if isinstance(error, MovedError):
        return "the server is one of several of a Redis Cluster, which a store cannot be in"
    return describe(error)


@contextmanager
def telling(what: str = "", failure: str = "cannot be read") -> Iterator[None]:
    """Make other errors StoreErrors, which say what has failed if it is named."""
    try:
        yield
    except (StoreError, *ERRORS) as error:
        kind = type(error) if isinstance(error, Unreachable) else Unreachable if is_lost(error) else StoreError
        raise kind(f"{what} {failure}: {explain(error)}" if what else explain(error)) from error
