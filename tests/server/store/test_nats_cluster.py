"""The store in NATS JetStream, in a stream with three copies, and with each row in a message of its own."""

import pytest
from tests.nats import NatsCluster, new_stream
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
def store(nats_cluster: NatsCluster) -> NatsStore:
    return NatsStore(NatsUrl.parse(new_stream(nats_cluster.url)), most_in_head=0)
