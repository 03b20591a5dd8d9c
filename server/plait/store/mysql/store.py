"""A store in MariaDB or MySQL, over rows."""

from plait.store.mysql.dialect import MysqlDialect
from plait.store.mysql.url import MysqlUrl
from plait.store.rows.shared import SharedRowStore
from plait.store.sql.engine import SqlRows

__all__ = ["MysqlStore"]


class MysqlStore(SharedRowStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    url: MysqlUrl

    @staticmethod
    def make(url: MysqlUrl, *, readonly: bool) -> SqlRows:
        """Return the rows of the database."""
        return SqlRows(MysqlDialect(url), readonly=readonly)
