"""A store in Redis, over rows."""

from plait.store.redis.rows import RedisRows
from plait.store.redis.url import RedisUrl
from plait.store.rows.shared import SharedRowStore

__all__ = ["RedisStore"]


class RedisStore(SharedRowStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    url: RedisUrl
    make = RedisRows
