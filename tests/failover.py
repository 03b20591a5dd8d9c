"""A PostgreSQL server with a standby, which is promoted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.postgres import Postgres, new_schema, private_folder

__all__ = ["Failover", "failover", "require_standby", "wait_for_standby"]


class Failover:
    """A primary and a standby; the URL is of a new store on whichever can be written."""

    def __init__(self, primary: Postgres, standby: Postgres, options: str) -> None:
        self.primary = primary
        self.standby = standby
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        self.url = new_schema(f"postgresql://plait@{hosts}/postgres", options)

    def cut_off(self) -> None:
        """Stop the replication."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        self.primary.until("SELECT count(*) FROM pg_stat_replication", "0")

    def promote(self) -> None:
        """Kill the primary, and make the standby the new one."""
        self.primary.crash()
        self.standby.execute("SELECT pg_promote()")


@asynccontextmanager
async def failover(options: str = "") -> AsyncIterator[Failover]:
    """Run a primary and a standby; with `standby=synchronous` in the options of the URL, commits wait for it."""
    with (
        private_folder() as folder,
        Postgres(folder / "primary") as primary,
        primary.standby(folder / "standby") as standby,
    ):
        wait_for_standby(primary)
        if "standby=" in options:
            require_standby(primary)
        yield Failover(primary, standby, options)


def require_standby(primary: Postgres) -> None:
    """Make commits wait for the standby."""
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")


def wait_for_standby(primary: Postgres) -> None:
    """Wait until the standby has everything."""
    primary.until("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()", "1")
