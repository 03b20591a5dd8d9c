"""A store in MariaDB or MySQL."""

from plait.store.mysql.dialect import MysqlDialect
from plait.store.mysql.url import MysqlUrl
from plait.store.sql.store import SqlStore

__all__ = ["MysqlStore"]


class MysqlStore(SqlStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    url: MysqlUrl
    _make_dialect = MysqlDialect
