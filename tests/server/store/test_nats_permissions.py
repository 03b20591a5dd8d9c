"""A user of NATS who has the permissions that docs/operations.md names, and one who lacks some."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.nats import Nats
from tests.server.cluster.contract import make_node
from tests.server.store.contract import EPOCH, ROOM, beginning, change, put
from tests.server.store.contract_records import put_records

from plait.cluster.cell_directory import CellDirectory
from plait.errors import StoreError
from plait.store.deletion import delete_thread
from plait.store.nats.cells import NatsCells
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl
from plait.store.protocol import ThreadHeader

DOCS = Path(__file__).parents[3] / "docs" / "operations.md"

Serve = Callable[[str], AbstractContextManager[NatsUrl]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Starts a server with an authorization, and returns the URL of its user's stream `game`."""

    @contextmanager
    def serve(authorization: str) -> Iterator[NatsUrl]:
        with Nats(tmp_path / "nats", more=authorization) as server:
            yield NatsUrl.parse(f"nats://plait:secret@127.0.0.1:{server.port}/game?replicas=1")

    return serve


def read_docs() -> str:
    """Return the authorization in the docs, with a password."""
    (found,) = re.findall(r'```text title="nats.conf"\n(.*?)```', DOCS.read_text(), re.DOTALL)
    return str(found).replace("…", "secret")


async def test_the_permissions_in_the_docs_are_enough(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with serve(read_docs()) as url:
        async with CellDirectory(NatsCells, url) as directory:
            assert await directory.join(make_node("a")) is None
            assert await directory.beat("a-0")
            assert await directory.take("a-0", {1: 0})
            assert (await directory.read()).shards[1].node == "a-0"
        async with NatsStore(url) as store:
            await put(store, beginning())
            for version in range(1, 400):
                await put(store, change(version, snapshot=b"1", prune=version))
            await put(store, put_records(("large", b"x" * 3_000_000), after=399, epoch=EPOCH))
            assert await store.record(ROOM, "values", "large") == b"x" * 3_000_000
            assert [row.key for row in await store.threads()] == [ROOM]
        async with NatsStore(url) as store, store.reader() as reader:
            stored = await reader.load(ROOM)
            assert stored is not None
            assert stored.version == 399
            fence = await store.claim(ROOM)
            await delete_thread(store, ROOM, ThreadHeader(stored.epoch, stored.version), fence=fence)
            assert await store.find(ROOM) is None
    assert not [each.message for each in caplog.records if "removed" in each.message or "permission" in each.message]


@pytest.mark.parametrize(
    "missing", ["game.>", "$JS.API.STREAM.*.game", "$JS.API.STREAM.MSG.GET.game", "$JS.API.DIRECT.GET.game"]
)
async def test_a_permission_that_is_missing_is_named(serve: Serve, missing: str) -> None:
    docs = read_docs()
    assert f'"{missing}"' in docs
    refused = pytest.raises(StoreError, match=r"no permission to publish to (game\.|\$JS\.API\.)")
    with serve(docs.replace(f'"{missing}"', '"other"')) as url, refused:
        async with NatsStore(url) as store:
            await store.threads()


async def test_a_user_who_may_not_receive_answers_is_told(serve: Serve) -> None:
    refused = pytest.raises(StoreError, match=r"(?i)permissions violation for subscription to \"_INBOX")
    with serve(read_docs().replace("_INBOX.>", "other")) as url, refused:
        async with NatsStore(url):
            pass
