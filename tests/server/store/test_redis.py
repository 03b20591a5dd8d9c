"""The store in Redis."""

import pytest
from tests.redis import Redis, new_store
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl


@pytest.fixture
def store(redis_server: Redis) -> RedisStore:
    return RedisStore(RedisUrl.parse(new_store(redis_server.url)))
