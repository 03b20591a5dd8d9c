"""A store in PostgreSQL, over rows."""

from plait.store.postgres.dialect import PostgresDialect
from plait.store.postgres.url import PostgresUrl
from plait.store.rows.shared import SharedRowStore
from plait.store.sql.engine import SqlRows

__all__ = ["PostgresStore"]


class PostgresStore(SharedRowStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    url: PostgresUrl

    @staticmethod
    def make(url: PostgresUrl, *, readonly: bool) -> SqlRows:
        """Return the rows of the database."""
        return SqlRows(PostgresDialect(url), readonly=readonly)
