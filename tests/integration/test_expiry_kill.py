"""Threads that expire on a server that is killed: none before its time, and none that was not destroyed whole."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.socket_client import http
from tests.nats import Nats
from tests.postgres import Postgres, private_folder
from tests.running import Process
from tests.schedules import in_soak

from plait.clock import read_wall_clock
from plait.store.protocol import Store, ThreadHeader, ThreadQuery, Write
from plait.store.thread_rows import Record, Snapshot, ThreadKey
from plait.store.urls import open_store

HOUR = 3600.0
PATIENCE = 60.0
# Some of these threads are destroyed when the server is killed.
MANY = 300
APP = """
import os
import time

from plait import Plait, Thread, Values, rpc
from plait.clock import CLOCK

hours = float(os.environ["HOURS"])
CLOCK.use(wall=lambda: time.time_ns() + int(hours * 3600e9))
# The clock of a server that is shared is as far ahead.
follow = CLOCK.follow
CLOCK.follow = lambda at, asked: follow(at + int(hours * 3600e6), asked)


class Draft(Thread[dict]):
    expires_after = 3600.0
    values = Values()

    @rpc
    def look(self) -> int:
        return self.state["n"]


class Raised(Draft):
    expires_after = 3 * 3600.0


app = Plait(Draft, Raised, store=os.environ["STORE"], limits=None)
app._node._alarms._interval = 0.2
"""


# In NATS, a thread is not destroyed in one transaction, and its server has a clock of its own.
@pytest.fixture(params=["nats", *in_soak(["sqlite"], ["postgres"])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'draft.db'}"
        case "postgres":
            with private_folder() as folder, Postgres(folder / "main") as server:
                yield server.make_store()
        case _:
            with Nats(tmp_path / "nats") as server:
                yield server.make_store()


def key_of(name: str, kind: str = "draft") -> ThreadKey:
    return ThreadKey(kind, name)


async def put(store: Store, key: ThreadKey, *, hours: float) -> None:
    """Store a thread that is asleep, was changed an hour before it expires, and does so in some hours."""
    due = read_wall_clock() + int(hours * HOUR * 1e6) | 1
    fence = await store.claim(key)
    record = Record("values", "head/a", b"1")
    write = Write(key, "e1", None, 0, snapshots=(Snapshot(0, b'{"n":5}'),), records=(record,), due=due, fence=fence)
    await store.submit(write)
    changed_at = due - int(HOUR * 1e6)
    await store.submit(Write(key, "e1", 0, 0, fence=fence, changed_at=changed_at))
    store.release(key, fence)


async def find(url: str, key: ThreadKey) -> ThreadHeader | None:
    """Return the header of a thread, which a server may have awake."""
    store = open_store(url)
    async with store.reader() as reader:  # type: ignore[attr-defined]
        found: ThreadHeader | None = await reader.find(key)
        return found


async def count(url: str, prefix: str) -> int:
    store = open_store(url)
    async with store.reader() as reader:  # type: ignore[attr-defined]
        return len(await reader.threads(ThreadQuery(kind="draft", prefix=prefix)))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.timeout(240)
async def test_threads_of_a_killed_server_expire_not_before_their_time_and_within_twice_of_it(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "draft_app.py").write_text(APP)
    async with open_store(url) as store:
        for name in ("used", "asleep"):
            await put(store, key_of(name), hours=0.01)
        await put(store, key_of("raised", "raised"), hours=0.4)
        await asyncio.gather(*(put(store, key_of(f"many{n}"), hours=0.4) for n in range(MANY)))

    def serve(hours: float) -> Process:
        return Process("draft_app:app", cwd=tmp_path, environment={"HOURS": str(hours), "STORE": url})

    with serve(0) as server:
        async with http(server.address) as web:
            # A use that writes nothing of its own: its answer says that it is stored.
            answer = await web.post("/threads/draft/used/rpc/look", json={})
            assert answer.json()["result"] == 5, answer.text
        server.end(signal.SIGKILL)
    with serve(0.5) as server:  # Their old times have passed.

        async def has_begun() -> bool:
            return await count(url, "many") < MANY

        await until(has_begun)
        server.end(signal.SIGKILL)
    with serve(0.5) as server:

        async def are_gone() -> bool:
            return not await count(url, "many") and await find(url, key_of("asleep")) is None

        await until(are_gone)
        used, raised = await find(url, key_of("used")), await find(url, key_of("raised", "raised"))
        assert used is not None
        assert raised is not None
        # What was destroyed is gone with all that it had.
        async with http(server.address) as web:
            answer = await web.get("/threads/draft/many0")
            assert answer.status_code == 404, answer.text
        server.end(signal.SIGKILL)
    with serve(2.1) as server:  # The time of the first use, and as much again.

        async def is_gone() -> bool:
            return await find(url, key_of("used")) is None

        await until(is_gone)
        assert await find(url, key_of("raised", "raised")) is not None
