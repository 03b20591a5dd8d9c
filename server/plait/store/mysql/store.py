"""A store in MariaDB or MySQL."""

from plait.store.mysql.dialect import MysqlDialect
from plait.store.mysql.url import MysqlUrl
from plait.store.sql.store import SqlStore

__all__ = ["MysqlStore"]


class MysqlStore(SqlStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    def __init__(self, url: MysqlUrl, *, readonly: bool = False) -> None:
        self.url = url
        super().__init__(MysqlDialect(url, self._on_loss), title=f"the store {url}", readonly=readonly)

    def reader(self) -> "MysqlStore":
        """Return a read-only store of the same database."""
        return MysqlStore(self.url, readonly=True)
