"""The store in NATS JetStream with each row in a message of its own; in `make soak`, in a stream with three copies."""

import pytest
from tests.nats import Nats, NatsCluster, new_stream
from tests.schedules import TIMES
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl

pytestmark = pytest.mark.soak


@pytest.fixture
def store(request: pytest.FixtureRequest) -> NatsStore:
    if TIMES > 1:
        cluster: NatsCluster = request.getfixturevalue("nats_cluster")
        return NatsStore(NatsUrl.parse(new_stream(cluster.url)), most_in_head=0)
    server: Nats = request.getfixturevalue("nats_server")
    return NatsStore(NatsUrl.parse(new_stream(server.url, "replicas=1")), most_in_head=0)
