"""A primary server of an engine and its replica, which is promoted."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from tests.cluster.proxy import Proxy
from tests.mariadb import Mariadb
from tests.postgres import Postgres, private_folder
from tests.redis import Redis

__all__ = ["Failover", "failover"]


class _Server(Protocol):
    port: int

    @property
    def is_running(self) -> bool: ...

    def make_store(self, options: str = "") -> str: ...

    def crash(self) -> None: ...

    def replica(self, folder: Path) -> AbstractContextManager[Any]: ...

    def wait_for(self, primary: Any) -> None: ...

    def cut_off(self) -> None: ...

    def promote(self) -> None: ...


_PRIMARIES: Final[Mapping[str, Callable[[Path], AbstractContextManager[_Server]]]] = {
    "postgres": Postgres,
    "mysql": lambda folder: Mariadb(folder, "--log-bin"),
    "redis": Redis,
}


class Failover:
    """A primary and a replica; the URL is of a new store on whichever can be written."""

    def __init__(self, primary: _Server, replica: _Server, proxy: Proxy | None) -> None:
        self.primary = primary
        self.replica = replica
        self._proxy = proxy
        hosts = [primary.port, replica.port] if proxy is None else [proxy.port]
        self.url = primary.make_store().replace(
            f"127.0.0.1:{primary.port}", ",".join(f"127.0.0.1:{port}" for port in hosts)
        )

    def wait(self) -> None:
        """Wait until the replica has everything."""
        self.replica.wait_for(self.primary)

    def cut_off(self) -> None:
        """Stop the replication."""
        self.replica.cut_off()

    def promote(self) -> None:
        """Kill the primary, and make the replica the new one."""
        self.primary.crash()
        self.replica.promote()
        if self._proxy is not None:
            self._proxy.target = self.replica.port


@asynccontextmanager
async def failover(engine: str = "postgres") -> AsyncIterator[Failover]:
    """Run a primary and its replica."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(private_folder())
        primary = stack.enter_context(_PRIMARIES[engine](folder / "primary"))
        replica: Any = stack.enter_context(primary.replica(folder / "replica"))
        replica.wait_for(primary)
        # A URL of Redis names one server: the address moves.
        proxy = await stack.enter_async_context(Proxy(primary.port)) if engine == "redis" else None
        yield Failover(primary, replica, proxy)
