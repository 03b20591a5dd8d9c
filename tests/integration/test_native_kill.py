"""Each push is applied exactly once, however often the server is killed and the push is sent again."""

import asyncio
import json
import logging
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native_client import NativeClient, add
from tests.integration.socket_client import TIMEOUT, Closed
from tests.running import Process
from tests.schedules import SEED, TIMES, schedules
from tests.store_rows import load_changes

from plait import Plait, Reject, Source, Thread
from plait.state.retention import Retention

log = logging.getLogger(__name__)

ROUNDS = schedules() if TIMES > 1 else 3
CLIENTS = 4
AT_ONCE = 16
PATH = "/threads/ledger/one"


class Ledger(Thread[dict[str, Any]]):
    """A list of stamps; it takes none that ends in 7."""

    initial_state = {"stamps": []}  # noqa: RUF012
    retention = Retention(changes=None)

    def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
        if str(next_state["stamps"][-1]).endswith("7"):
            raise Reject("not that one")


app = Plait(Ledger)


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_each_push_is_applied_exactly_once_though_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    environment = {"PLAIT_LIMITS": "none", "PLAIT_STORE": "sqlite:///kill.db"}
    with Process("tests.integration.test_native_kill:app", cwd=tmp_path, environment=environment) as server:
        clients = [NativeClient(server.address, PATH, f"client {n}") for n in range(CLIENTS)]
        pushed: dict[NativeClient, dict[int, str]] = {client: {} for client in clients}
        for _ in range(ROUNDS):
            work = [asyncio.create_task(_push(client, n, pushed[client])) for n, client in enumerate(clients)]
            before = sum(len(client.answers) for client in clients)
            await _progress(clients, before + chance.randrange(1, 400))
            await asyncio.to_thread(server.end, signal.SIGKILL)
            await asyncio.gather(*work)
            server.start()
        for client in clients:
            await client.join()
            await client.until(lambda client: not client.pending)
        version = max(client.version for client in clients)
        for client in clients:
            await client.until(lambda client: client.version == version)
            await client.close()
    _check(clients, pushed, _stored(tmp_path / "kill.db"))


async def _push(client: NativeClient, number: int, pushed: dict[int, str]) -> None:
    """Join, resend pending pushes, and push stamps, some at once, until the server is gone."""
    with suppress(Closed, OSError):
        await client.join()
        while True:
            await client.until(lambda client: len(client.pending) < AT_ONCE)
            stamp = f"{number}-{len(pushed) + 1}"
            pushed[len(pushed) + 1] = stamp
            await client.push(add("/stamps/-", stamp))
    await client.close()


async def _progress(clients: list[NativeClient], answers: int) -> None:
    """Wait until this many pushes have been answered."""
    async with asyncio.timeout(TIMEOUT):
        while sum(len(client.answers) for client in clients) < answers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _check(clients: list[NativeClient], pushed: dict[NativeClient, dict[int, str]], stored: dict[int, str]) -> None:
    stamps = clients[0].state["stamps"]
    assert [*stored] == [*range(1, len(stored) + 1)], "versions are not dense"
    assert list(stored.values()) == stamps
    assert [stamp for stamp, count in Counter(stamps).items() if count > 1] == []
    expected = {stamp for made in pushed.values() for stamp in made.values() if not stamp.endswith("7")}
    assert set(stamps) == expected
    places = {stamp: place for place, stamp in enumerate(stamps)}
    for client in clients:
        assert client.state["stamps"] == stamps
        answers = {push.ops[0]["value"]: answer for push, answer in client.answers}
        assert [*answers] == [*pushed[client].values()], "not every push was answered, once and in order"
        assert len(client.answers) == len(answers)
        for stamp, answer in answers.items():
            if stamp.endswith("7"):
                assert (answer["type"], answer["code"]) == ("nack", "rejected")
            else:
                assert answer["type"] == "ack"
                assert places[stamp] < answer["version"]
        own = set(pushed[client].values())
        assert [stamp for stamp in stamps if stamp in own] == [
            stamp for stamp in pushed[client].values() if not stamp.endswith("7")
        ], "out of order"


def _stored(store: Path) -> dict[int, str]:
    """Return the stamp that each version added, as the log says."""
    found: dict[int, str] = {}
    for version, ops in load_changes(store, "one"):
        (op,) = json.loads(ops)
        found[version] = op["value"] if op["path"] else op["value"]["stamps"][-1]
    return found
