"""The same over sockets: clients in Python, a network that fails, and a server that is killed, or loses its links."""

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from tests.fronts import Front, using_fronts
from tests.integration.convergence import World
from tests.integration.convergence_app import KINDS
from tests.integration.convergence_log import Logs, canonical, logs
from tests.integration.convergence_player import Player
from tests.integration.convergence_proxy import Proxy
from tests.integration.convergence_server import Server, get_state
from tests.integration.socket_client import TIMEOUT
from tests.integration.test_convergence import Schedule
from tests.running import running
from tests.schedules import SEED, TIMES, schedules

from plait import Plait, Thread
from plait.store.thread_rows import ThreadKey
from plait_client import connect

log = logging.getLogger(__name__)

SCHEDULES: Final = schedules(12)
LANES: Final = 3
RELAYED: Final = schedules(len(KINDS))


class Served(Protocol):
    """A server that is hurt and comes back."""

    @property
    def port(self) -> int: ...

    async def restart(self) -> None: ...

    async def get(self, key: ThreadKey) -> tuple[str, Any]: ...


class Linked:
    """A gateway, whose links are lost when it is hurt, and the owner of all threads, in this process."""

    def __init__(self, address: str, front: Front) -> None:
        self._address = address
        self._front = front
        self.port = int(address.rpartition(":")[2])

    async def restart(self) -> None:
        """Lose the links, and listen for others."""
        await self._front.app._context.links.stop()
        await self._front.app._context.links.start()

    async def get(self, key: ThreadKey) -> tuple[str, Any]:
        """Return epoch and version of a thread, with a colon between, and its state."""
        return await get_state(self._address, key)


class Game:
    """One schedule: what happens, on one thread of a server."""

    def __init__(self, server: Served, kind: type[Thread[Any]], seed: int) -> None:
        self.key = ThreadKey(kind._kind.name, f"schedule-{seed}")
        self.seed = seed
        self.world = World(kind, [])
        self.dice = random.Random(seed)
        self.schedule = Schedule(self.world, self.dice)
        self.players: list[Player] = []
        self.kills = 0
        self.state: Any = None
        self._server = server
        self._calls: list[asyncio.Task[None]] = []

    async def play(self) -> None:
        """Play it until all is quiet."""
        async with (
            Proxy(self._server.port, self.dice) as proxy,
            AsyncExitStack() as rooms,
            asyncio.TaskGroup() as tasks,
        ):
            for index in range(self.dice.randint(2, 5)):
                connecting = connect(f"ws://{proxy.address}/threads/{self.key}")
                room = await rooms.enter_async_context(connecting)
                self.players.append(Player(self.world, f"client {index}", room))
                tasks.create_task(self.players[-1].watch())
            await self._steps(proxy, self.dice.randint(20, 60))
            for _ in range(self.dice.randint(1, 2)):
                self.kills += 1
                restart = asyncio.create_task(self._server.restart())
                await self._steps(proxy, self.dice.randint(5, 20))
                await restart
                await self._steps(proxy, self.dice.randint(20, 60))
            proxy.calm()
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*self._calls, *(edit for player in self.players for edit in player.edits))
                await self._rest()
            await rooms.aclose()

    async def _steps(self, proxy: Proxy, count: int) -> None:
        dice = self.dice
        for _ in range(count):
            player = dice.choice(self.players)
            match dice.choices(["edit", "pause", "cut", "draw"], [40, 40, 4, 4])[0]:
                case "edit":
                    player.edit(self.schedule)
                case "pause":
                    await asyncio.sleep(dice.uniform(0, 0.01))
                case "cut":
                    proxy.cut()
                case "draw":
                    self._calls.append(asyncio.create_task(player.draw(dice.randrange(1000))))

    async def _rest(self) -> None:
        """Wait until all clients have the server's state."""
        version = max([await player.sync() for player in self.players])
        for player in self.players:
            await player.until_version(version)
        at, self.state = await self._server.get(self.key)
        for player in self.players:
            session = player.session
            assert at == f"{session.epoch}:{session.version}"
            assert canonical(session.shown) == canonical(session.confirmed) == canonical(self.state)

    async def check(self, logs: Logs) -> None:
        """Compare the answers to clients with the log."""
        found = await logs.read(self.key)
        assert canonical(found.states[-1]) == canonical(self.state)
        for (_, version), seen in self.world.seen.items():
            assert canonical(found.states[version]) == seen, f"version {version} was shown differently"
        for player in self.players:
            assert set(player.outcomes) == set(player.numbers.values())
            player.check_refusals()
        found.check_tokens(self.schedule.tokens, self.outcomes)
        found.check_removals({player.connection: player.meant for player in self.players})

    @property
    def outcomes(self) -> dict[int, str]:
        """The outcome of each push."""
        return {number: outcome for player in self.players for number, outcome in player.outcomes.items()}


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_clients_on_sockets_end_with_the_state_of_a_server_that_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log.warning("PLAIT_SEED=%d", SEED)
    folders = [tmp_path_factory.mktemp("lane") for _ in range(LANES)]
    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(_play(folder, lane)) for lane, folder in enumerate(folders)]
    _check_that_much_happened([game for lane in lanes for game in lane.result()])


@pytest.mark.soak
@pytest.mark.timeout(300 * TIMES)
async def test_clients_of_a_gateway_end_with_the_state_of_the_owner_whatever_links_are_lost(tmp_path: Path) -> None:
    log.warning("PLAIT_SEED=%d", SEED)
    store = tmp_path / "pads.db"
    with using_fronts() as fronts:
        async with running(Plait(*KINDS, store=f"sqlite:///{store}", limits=None)) as address:
            (front,) = fronts
            linked = Linked(address, front)
            games = [Game(linked, KINDS[index % len(KINDS)], SEED + index) for index in range(RELAYED)]
            await _play_all(games)
    log.warning("%d messages over links", front.sent)
    assert front.sent > len([outcome for game in games for outcome in game.outcomes])
    await _check_all(games, store)
    _check_that_much_happened(games)


async def _play(folder: Path, lane: int) -> list[Game]:
    """Play some schedules on a server of their own, and check them when it has ended."""
    async with Server(folder) as server:
        indices = range(lane, SCHEDULES, LANES)
        games = [Game(server, KINDS[index // LANES % len(KINDS)], SEED + index) for index in indices]
        await _play_all(games)
    await _check_all(games, server.store)
    return games


async def _play_all(games: Sequence[Game]) -> None:
    for game in games:
        try:
            await game.play()
        except Exception as error:
            error.add_note(f"schedule {game.seed}")
            raise


async def _check_all(games: Sequence[Game], store: Path) -> None:
    async with logs(store) as found:
        for game in games:
            await game.check(found)


def _check_that_much_happened(games: Sequence[Game]) -> None:
    outcomes = [outcome for game in games for outcome in game.outcomes.values()]
    looks = sum(player.looks for game in games for player in game.players)
    kills = sum(game.kills for game in games)
    log.warning("%d schedules, %d kills, %d pushes, %d looks", len(games), kills, len(outcomes), looks)
    assert kills
    assert {"ack", "rejected"} <= set(outcomes)
