"""A server that is killed at any moment has lost nothing that it acknowledged, and never showed what it then lost."""

import asyncio
import logging
import random
import secrets
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.integration.socket_client import TIMEOUT, Client, Closed, connected, http, opened
from tests.running import Process
from tests.schedules import SEED, TIMES, schedules
from tests.store_rows import count_strays, load_changes

log = logging.getLogger(__name__)

ROUNDS = schedules() if TIMES > 1 else 3
THREADS = ("called", "stepped", "pushed", "put", "mixed")


class Seen:
    """The stamps of the threads by count: the ones that clients saw, and the acknowledged ones."""

    def __init__(self) -> None:
        self.seen: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self.acknowledged: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self.first = asyncio.Event()

    def see(self, thread: str, state: Mapping[str, Any]) -> None:
        """Record the state of a frame or of an HTTP answer."""
        count, stamp = state["count"], state["stamp"]
        assert self.seen[thread].setdefault(count, stamp) == stamp

    def acknowledge(self, thread: str, count: int, stamp: str) -> None:
        """Record a change that the server has acknowledged."""
        assert count not in self.acknowledged[thread], "two changes are said to have made one version"
        self.acknowledged[thread][count] = stamp
        self.first.set()


class Load:
    """Clients of one life of a server, which do what they can until it is gone."""

    def __init__(self, address: str, told: Seen) -> None:
        self._address = address
        self._told = told

    async def call(self, thread: str, *, at_once: int, method: str = "add") -> None:
        """Call `add`, or another method, many calls on their way at once."""

        async def one(client: Client) -> None:
            while True:
                stamp = secrets.token_hex(4)
                self._told.acknowledge(thread, await (await client.begin(method, stamp)), stamp)

        async with self._client(thread) as client, asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(_until_closed(one(client)))

    async def push(self, thread: str) -> None:
        """Push states, and ask after each few of them whether they are durable."""
        async with self._client(thread) as client:
            await client.until(lambda client: client.states)
            count = client.state["count"]
            while True:
                mine = [secrets.token_hex(4) for _ in range(5)]
                for each, stamp in enumerate(mine, 1):
                    await client.push({"count": count + each, "stamp": stamp})
                assert await client.call("sync") == count + len(mine)
                assert not client.refusals
                for stamp in mine:
                    count += 1
                    self._told.acknowledge(thread, count, stamp)

    async def put(self, thread: str) -> None:
        """Put the state that follows the one that was read, unless another client has."""
        async with http(self._address) as client:
            url = f"/threads/tally/{thread}"
            while True:
                found = await client.get(url)
                state = found.json()
                self._told.see(thread, state)
                mine = {"count": state["count"] + 1, "stamp": secrets.token_hex(4)}
                answer = await client.put(url, json=mine, headers={"If-Match": found.headers["etag"]})
                if answer.status_code == 412:
                    continue
                assert answer.is_success, answer.text
                assert answer.json()["version"] == mine["count"]
                self._told.acknowledge(thread, mine["count"], mine["stamp"])

    async def read(self, thread: str) -> None:
        """Only look."""
        async with self._client(thread) as client:
            await client.until_closed()

    @asynccontextmanager
    async def _client(self, thread: str) -> AsyncIterator[Client]:
        client = await opened(self._address, f"/threads/tally/{thread}")
        try:
            yield client
        finally:
            # All that left the server counts, also what arrived after its end.
            await client.until_closed()
            for state in client.states:
                self._told.see(thread, state)


class Ending:
    """A thread that one client begins, changes and destroys again and again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._url = f"/threads/tally/{name}"
        # The stamps of its changes as they were acknowledged last, and as they are if what is on its way was stored.
        # None when the thread is destroyed.
        self.stamps: list[str] | None = None
        self.wanted: list[str] | None = None
        self.destroyed = asyncio.Event()

    async def play(self, address: str) -> None:
        """Change the thread a few times, then destroy it."""
        async with http(address) as client:
            while True:
                for _ in range(2):
                    stamp = secrets.token_hex(4)
                    self.wanted = [*(self.stamps or ()), stamp]
                    answer = await client.post(f"{self._url}/rpc/add", json={"args": [stamp]})
                    assert answer.json() == {"result": len(self.wanted)}
                    self.stamps = self.wanted
                self.wanted = None
                assert (await client.delete(self._url)).status_code == 204
                self.stamps = None
                self.destroyed.set()

    async def check(self, address: str, store: Path) -> None:
        """Check that the thread is as it was acknowledged, or as what was on its way has made it."""
        async with http(address) as client:
            answer = await client.get(self._url)
        stored = [*_stored_stamps(store, self._name).values()]
        if answer.status_code == 404:
            assert stored == []
        else:
            assert answer.json()["count"] == len(stored)
        found = None if answer.status_code == 404 else stored
        assert found in (self.stamps, self.wanted)
        self.stamps = self.wanted = found
        async with asyncio.timeout(30):
            while count_strays(store):  # noqa: ASYNC110  The file is another's.
                await asyncio.sleep(0.01)


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_a_killed_server_has_lost_nothing_that_it_acknowledged_or_showed(tmp_path: Path) -> None:
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    told, endings = Seen(), [Ending(f"ended {n}") for n in range(4)]
    environment = {"PLAIT_LIMITS": "none", "PLAIT_STORE": "sqlite:///kill.db"}
    with Process("tests.integration.apps:app", cwd=tmp_path, environment=environment) as server:
        for thread in THREADS:
            async with connected(server.address, f"/threads/tally/{thread}"):
                pass  # A thread begins with its first socket.
        epochs = await _check(server.address, tmp_path / "kill.db", told)
        for _ in range(ROUNDS):
            load = asyncio.create_task(_load(server.address, told, endings), name="load")
            # The first round goes on until each of the threads that end has been destroyed once.
            waiting = asyncio.gather(told.first.wait(), *(ending.destroyed.wait() for ending in endings))
            await asyncio.wait([load, waiting], timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done(), "too little was acknowledged"
            await asyncio.sleep(chance.uniform(0, 0.4))
            server.end(signal.SIGKILL)
            async with asyncio.timeout(TIMEOUT):
                await load
            server.start()
            assert await _check(server.address, tmp_path / "kill.db", told) == epochs
            for ending in endings:
                await ending.check(server.address, tmp_path / "kill.db")
            told.first.clear()
    assert all(told.acknowledged[thread] for thread in THREADS)


async def _load(address: str, told: Seen, endings: Sequence[Ending]) -> None:
    load = Load(address, told)
    async with asyncio.TaskGroup() as tasks:
        for each in (
            load.call("called", at_once=20),
            load.call("called", at_once=1),
            load.call("stepped", at_once=5, method="add_in_steps"),
            load.push("pushed"),
            load.put("put"),
            load.call("mixed", at_once=3),
            load.put("mixed"),
            *(load.read(thread) for thread in THREADS),
            *(ending.play(address) for ending in endings),
        ):
            tasks.create_task(_until_closed(each))


async def _until_closed(work: Coroutine[Any, Any, None]) -> None:
    with suppress(Closed, OSError, httpx.TransportError):
        await work


async def _check(address: str, store: Path, told: Seen) -> dict[str, str]:
    """Compare the server's data with its answers, and return the threads' epochs."""
    epochs: dict[str, str] = {}
    async with http(address) as client:
        for thread in THREADS:
            answer = await client.get(f"/threads/tally/{thread}")
            state = answer.json()
            epochs[thread], _, version = answer.headers["etag"].strip('"').partition(":")
            told.see(thread, state)
            assert state["count"] == int(version)
            stored = _stored_stamps(store, thread)
            assert [*stored] == [*range(min(stored, default=1), state["count"] + 1)], "versions are not dense"
            for claims in (told.acknowledged[thread], told.seen[thread]):
                assert max(claims, default=0) <= state["count"]
                wrong = {count for count in claims.keys() & stored.keys() if claims[count] != stored[count]}
                assert not wrong, f"{thread} tells of {wrong} something else than before"
    return epochs


def _stored_stamps(store: Path, thread: str) -> dict[int, str]:
    """Return the logged change of each version."""
    stamps: dict[int, str] = {}
    for version, ops in load_changes(store, thread):
        values = {op["path"]: op.get("value") for op in msgspec.json.decode(ops)}
        stamps[version] = values["/stamp"] if "/stamp" in values else values[""]["stamp"]
    return stamps
