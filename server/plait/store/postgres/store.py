"""A store in PostgreSQL."""

from plait.store.postgres.dialect import PostgresDialect
from plait.store.postgres.url import PostgresUrl
from plait.store.sql.store import SqlStore

__all__ = ["PostgresStore"]


class PostgresStore(SqlStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    def __init__(self, url: PostgresUrl, *, readonly: bool = False) -> None:
        self.url = url
        super().__init__(PostgresDialect(url, self._on_loss), title=f"the store {url}", readonly=readonly)

    def reader(self) -> "PostgresStore":
        """Return a read-only store of the same database."""
        return PostgresStore(self.url, readonly=True)
