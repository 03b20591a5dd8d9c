"""The same with native clients in Python and TypeScript, and the published Cloudflare client, on one thread."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.builds import Builds
from tests.integration.convergence import World
from tests.integration.convergence_app import KINDS
from tests.integration.convergence_log import Log, Logs, canonical, logs
from tests.integration.convergence_node import Driver, bundle_client, driving
from tests.integration.convergence_player import Player
from tests.integration.convergence_proxy import Proxy
from tests.integration.convergence_server import Server
from tests.integration.socket_client import TIMEOUT
from tests.integration.test_convergence import Schedule
from tests.schedules import SEED, TIMES, schedules

from plait import Thread
from plait.actor.sockets import connection_id
from plait.store.thread_rows import ThreadKey
from plait_client import connect

log = logging.getLogger(__name__)

pytest_plugins = ["tests.integration.agents_client.fixtures"]

SCHEDULES: Final = schedules(12)
LANES: Final = 3


class Game:
    """One schedule. In a patient one, Cloudflare clients write only what they have thought of with nothing unseen."""

    def __init__(
        self, server: Server, driver: Driver, kind: type[Thread[Any]], seed: int, *, is_patient: bool, is_killed: bool
    ) -> None:
        self.key = ThreadKey(kind._kind.name, f"schedule-{seed}")
        self.seed = seed
        self.is_patient = is_patient
        self.is_killed = is_killed
        self.state: Any = None
        # How often the Cloudflare clients' writes were stored, and what they took away.
        self.counts: Counter[str] = Counter()
        self._server = server
        self._driver = driver
        self._world = World(kind, [])
        self._dice = random.Random(seed)
        self._schedule = Schedule(self._world, self._dice)
        self._players: list[Player] = []
        self._calls: list[asyncio.Task[None]] = []
        # In Node: how many native clients, what the others open with, and in the end the ids of their connections.
        self._natives = self._dice.randint(1, 2)
        self._keys: list[str] = []
        self._others: list[str] = []
        self._report: dict[str, Any] = {}

    async def play(self) -> None:
        """Play it until all is quiet."""
        dice = self._dice
        async with Proxy(self._server.port, dice) as proxy, AsyncExitStack() as rooms, asyncio.TaskGroup() as tasks:
            for index in range(dice.randint(1, 2)):
                room = await rooms.enter_async_context(connect(f"ws://{proxy.address}/threads/{self.key}"))
                self._players.append(Player(self._world, f"client {index}", room))
                tasks.create_task(self._players[-1].watch())
            self._keys = await self._driver.tell(
                "open",
                address=proxy.address,
                kind=self.key.kind,
                name=self.key.name,
                seed=self.seed,
                natives=self._natives,
                others=dice.randint(1, 3),
            )
            await self._steps(proxy, dice.randint(30, 60))
            if self.is_killed:
                restart = asyncio.create_task(self._server.restart())
                await self._steps(proxy, dice.randint(5, 20))
                await restart
                await self._steps(proxy, dice.randint(10, 30))
            proxy.calm()
            async with asyncio.timeout(TIMEOUT):
                await self._end()
            await rooms.aclose()

    async def _steps(self, proxy: Proxy, count: int) -> None:
        dice = self._dice
        for _ in range(count):
            match dice.choices(["python", "typescript", "cloudflare", "pause", "cut", "draw"], [20, 20, 20, 30, 4, 4])[
                0
            ]:
                case "python":
                    dice.choice(self._players).edit(self._schedule)
                case "typescript":
                    player = dice.randrange(self._natives)
                    await self._driver.tell("edit", player=player, number=self._number())
                case "cloudflare":
                    await self._write(dice.randrange(len(self._keys)))
                case "pause":
                    await asyncio.sleep(dice.uniform(0, 0.01))
                case "cut":
                    proxy.cut()
                case "draw":
                    call = dice.choice(self._players).draw(dice.randrange(1000))
                    self._calls.append(asyncio.create_task(call))

    def _number(self) -> int:
        self._schedule.count += 1
        return self._schedule.count

    async def _write(self, writer: int) -> None:
        if not self.is_patient:
            command = self._dice.choice(["write", "write", "write", "write_offline"])
            await self._driver.tell(command, writer=writer, number=self._number())
            return
        async with asyncio.timeout(TIMEOUT):
            await self._rest()
            _, state = await self._server.get(self.key)
            await self._driver.tell("write_on", writer=writer, number=self._number(), state=state)

    async def _rest(self) -> None:
        """Wait until every native client knows the outcome of all that it did."""
        await asyncio.gather(*self._calls, *(edit for player in self._players for edit in player.edits))
        await self._driver.tell("rest")

    async def _end(self) -> None:
        await self._rest()
        await self._driver.tell("sync")
        for player in self._players:
            await player.sync()
        at, self.state = await self._server.get(self.key)
        version = int(at.partition(":")[2])
        for player in self._players:
            await player.until_version(version)
            assert player.session.version == version
            assert canonical(player.session.shown) == canonical(player.session.confirmed) == canonical(self.state)
        self._report = await self._driver.tell("end", version=version, state=self.state)
        for each in self._report["players"]:
            assert not each["problems"], each["problems"]
            assert each["state"] == each["confirmed"] == self.state
        for each in self._report["writers"]:
            assert each["state"] == each["last"] == self.state

    # What the log says

    async def check(self, logs: Logs) -> None:
        """Compare the answers to clients with the log."""
        found = await logs.read(self.key)
        self._others = [connection_id(found.secret, "cloudflare", None, key) for key in self._keys]
        assert canonical(found.states[-1]) == canonical(self.state)
        for (_, version), seen in self._world.seen.items():
            assert canonical(found.states[version]) == seen, f"version {version} was shown differently"
        outcomes = {number: outcome for player in self._players for number, outcome in player.outcomes.items()}
        tokens = dict(self._schedule.tokens)
        for each in self._report["players"]:
            outcomes |= {int(number): outcome for number, outcome in each["outcomes"].items()}
            tokens |= {int(number): token for number, token in each["tokens"].items()}
        found.check_tokens(tokens, outcomes, without=self._others)
        self._check_natives(found)
        self._check_writes(found, {token for number, token in tokens.items() if outcomes[number] == "ack"})

    def _check_natives(self, found: Log) -> None:
        """Check that native clients have changed single places only: what they take away they mean to."""
        for row, ops in zip(found.rows, found.ops, strict=True):
            if row.source not in self._others:
                assert all(op.path.count("/") > 1 or op.path == "/n" for op in ops), (row.version, ops)

    def _check_writes(self, found: Log, accepted: set[str]) -> None:
        """Check that what the Cloudflare clients have written is there, and all that they have not seen.

        A server that was killed does not know what they showed: then a write replaces the state.
        """
        writes = {write["number"]: (each["id"], write) for each in self._report["writers"] for write in each["writes"]}
        self.counts["offline"] += sum(write["isFirst"] for _, write in writes.values())
        for row in found.rows:
            if row.source not in self._others:
                continue
            before, after = found.states[row.version - 1], found.states[row.version]
            writer = self._others.index(row.source)
            id, write = writes.pop(after["by"][f"cf-{writer}"])
            assert id == writer
            unseen = accepted & set(before["list"]) - set(after["list"]) - set(write["shown"]["list"])
            self.counts["writes"] += 1
            self.counts["crossed"] += before != write["shown"]
            self.counts["unseen"] += len(unseen)
            if not self.is_killed:
                _check_merged(write["shown"], write["sent"], after)
                assert not unseen, f"version {row.version} was {before}, and {write} was written over it"
            if self.is_patient:
                assert before == write["shown"], f"version {row.version}"
            if write["isFirst"] and not self.is_killed:
                self.counts["stored offline"] += 1
                assert before in write["known"], f"version {row.version} was written offline over a newer state"


def _check_merged(shown: Any, sent: Any, after: Any) -> None:
    """Check that a state has what a client has put into the one that it showed.

    What it has taken out stays where it was on its way just then, and the server could not know that it was shown.
    """
    assert shown["n"] == sent["n"] or after["n"] == sent["n"]
    for key, value in sent["by"].items():
        assert shown["by"].get(key) == value or after["by"].get(key) == value, key
    before, wanted, there = ({canonical(item) for item in state["list"]} for state in (shown, sent, after))
    assert wanted - before <= there


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_clients_of_both_protocols_end_with_the_state_of_the_server(
    agents_package: Path, builds: Builds, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log.warning("PLAIT_SEED=%d", SEED)
    bundle = bundle_client(builds)
    folders = [tmp_path_factory.mktemp("lane") for _ in range(LANES)]
    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(_play(folder, lane, bundle)) for lane, folder in enumerate(folders)]
    games = [game for lane in lanes for game in lane.result()]
    counts = sum((game.counts for game in games), Counter[str]())
    log.warning("%d schedules, of the Cloudflare clients: %s", len(games), dict(counts))
    assert counts["writes"] > SCHEDULES
    assert counts["crossed"]
    assert counts["offline"]
    assert not sum(game.counts["crossed"] for game in games if game.is_patient)


async def _play(folder: Path, lane: int, bundle: Path) -> list[Game]:
    """Play some schedules on a server of their own, and check them when it has ended."""
    games: list[Game] = []
    async with Server(folder) as server, driving("mixed.js", {"bundle": bundle.as_uri()}) as driver:
        for index in range(lane, SCHEDULES, LANES):
            kind = KINDS[index // LANES % len(KINDS)]
            game = Game(server, driver, kind, SEED + index, is_patient=index % 2 == 0, is_killed=index % 4 == 1)
            games.append(game)
            with _noted(game):
                await game.play()
    async with logs(server.store) as found:
        for game in games:
            with _noted(game):
                await game.check(found)
    return games


@contextmanager
def _noted(game: Game) -> Iterator[None]:
    """Say of a failure in which schedule it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"schedule {game.seed}")
        raise
