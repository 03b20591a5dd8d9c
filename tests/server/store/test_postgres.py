"""The store in PostgreSQL."""

import pytest
from tests.postgres import Postgres, new_schema
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_idle import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl


@pytest.fixture
def store(postgres: Postgres) -> PostgresStore:
    return PostgresStore(PostgresUrl.parse(new_schema(postgres.url)))
