"""A store in PostgreSQL."""

from plait.store.postgres.dialect import PostgresDialect
from plait.store.postgres.url import PostgresUrl
from plait.store.sql.store import SqlStore

__all__ = ["PostgresStore"]


class PostgresStore(SqlStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    url: PostgresUrl
    _make_dialect = PostgresDialect
