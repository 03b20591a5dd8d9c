"""The store in NATS JetStream."""

import pytest
from tests.nats import Nats, new_stream
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_idle import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl


@pytest.fixture
def store(nats_server: Nats) -> NatsStore:
    return NatsStore(NatsUrl.parse(new_stream(nats_server.url, "replicas=1")))
