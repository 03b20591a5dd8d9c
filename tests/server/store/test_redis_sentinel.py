"""A store in Redis whose primary Sentinels name."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from tests.sentinels import Sentinels
from tests.server.store.contract import ROOM, beginning, change
from tests.server.store.writing import until

from plait.cluster.cell_directory import CellDirectory
from plait.errors import StoreError
from plait.store.redis.cells import RedisCells
from plait.store.redis.store import RedisStore
from plait.store.redis.url import RedisUrl


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Sentinels]:
    with Sentinels.run(tmp_path) as found:
        yield found


async def test_a_store_follows_the_primary_that_the_sentinels_name(servers: Sentinels) -> None:
    losses: list[None] = []
    async with RedisStore(RedisUrl.parse(servers.url)) as store:
        store.watch_claims(lambda: losses.append(None))
        fence = await store.claim(ROOM)
        await store.submit(msgspec.structs.replace(beginning(), fence=fence))
        await until(lambda: servers.replica.execute("DBSIZE") == servers.primary.execute("DBSIZE"))
        await asyncio.to_thread(servers.primary.stop, signal.SIGKILL)
        await until(lambda: servers.find_primary() == servers.replica.port)
        async with asyncio.timeout(60):
            while True:
                try:
                    fence, stored = await store.claim_and_load(ROOM)
                    break
                except StoreError:
                    await asyncio.sleep(0.05)
        assert stored is not None
        assert (stored.version, len(losses)) == (0, 1)
        assert stored.epoch != beginning().epoch
        await store.submit(msgspec.structs.replace(change(1, epoch=stored.epoch), fence=fence))


async def test_sentinels_that_do_not_answer_are_no_obstacle_for_a_cluster(servers: Sentinels) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)]
        hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
        url = RedisUrl.parse(servers.url.replace("127.0.0.1:1,", f"{hosts},"))
        async with CellDirectory(RedisCells, url) as directory:
            assert not (await directory.read()).nodes


async def test_a_name_that_no_sentinel_knows_is_refused(servers: Sentinels) -> None:
    url = servers.url.replace("mymaster", "other")
    with pytest.raises(StoreError, match=r"No master found for 'other' by any of the Sentinels$"):
        await RedisStore(RedisUrl.parse(url)).__aenter__()
