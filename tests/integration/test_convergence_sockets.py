"""The same over sockets: clients in Python, a network that fails, and a server that is killed."""

import asyncio
import logging
import os
import random
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from plait_client import ClientError, Disconnected, Refused, Room, Unanswered, connect
from tests.integration.convergence import Member, World
from tests.integration.convergence_app import KINDS
from tests.integration.convergence_log import Logs, canonical, logs
from tests.integration.convergence_proxy import Proxy
from tests.integration.socket_client import TIMEOUT, http
from tests.integration.test_convergence import Schedule
from tests.running import Process

from plait import Thread
from plait.store.protocol import ThreadKey

log = logging.getLogger(__name__)

SCHEDULES: Final = 18
LANES: Final = 3
# The same again: PLAIT_SEED=… pytest …
SEED: Final = int(os.environ.get("PLAIT_SEED") or random.randrange(2**32))


class Player(Member):
    """A client on real sockets, looked at whenever something may have changed."""

    def __init__(self, world: World, name: str, room: Room[Any]) -> None:
        super().__init__(world, name)
        self.world = world
        self.session = room._live.session
        self.edits: list[asyncio.Task[None]] = []
        self.looks = 0
        self._room = room
        self._refusals = 0
        room.on_refused(self._refused)

    def edit(self, schedule: Schedule) -> None:
        """Change what is shown, and have its outcome noted."""
        schedule.count += 1
        ops = schedule.ops(self.session.shown)
        outcome = self._room.push(self._room.shown(), ops)
        self.made(schedule.count, self.session.pending[-1])
        self.edits.append(asyncio.ensure_future(self._follow(schedule.count, outcome)))
        self.look()

    async def draw(self, number: int) -> None:
        """Have the server change the state."""
        try:
            await self._room.call("draw", number)
        except Disconnected:
            log.debug("a call was lost")

    async def sync(self) -> int:
        """Return the thread's version, behind all that the server has been told."""
        while True:
            try:
                version: int = await self._room.call("sync")
                return version
            except Disconnected:
                log.debug("a call was lost")

    async def watch(self) -> None:
        """Look at it, until it is closed."""
        try:
            while True:
                self.look()
                await self._room._live.next_news()
        except ClientError:
            assert self._room._live.is_closed, self._room._live.ending()

    def look(self) -> None:
        """Check what is shown."""
        self.looks += 1
        assert msgspec.json.encode(self.session.shown) == msgspec.json.encode(self.folded())
        self.world._observe(self)

    async def until_version(self, version: int) -> None:
        """Wait until it has joined and is at a version, with nothing pending."""
        while self.session.status != "joined" or self.session.version < version or self.session.pending:
            await self._room._live.next_news()

    def check_refusals(self) -> None:
        """Check that it was told of each refusal, once."""
        assert self._refusals == sum(outcome != "ack" for outcome in self.outcomes.values())

    def _refused(self, _: object) -> None:
        self._refusals += 1

    async def _follow(self, number: int, outcome: Any) -> None:
        try:
            await outcome
        except (Refused, Unanswered) as error:
            self.outcomes[number] = error.code
        else:
            self.outcomes[number] = "ack"


class Game:
    """One schedule: what happens, on one thread of a server."""

    def __init__(self, server: Process, kind: type[Thread[Any]], seed: int) -> None:
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
        async with Proxy(self._server.port, self.dice) as proxy, AsyncExitStack() as rooms, asyncio.TaskGroup() as tasks:
            for index in range(self.dice.randint(2, 5)):
                connecting = connect(f"ws://{proxy.address}/threads/{self.key}")
                room = await rooms.enter_async_context(connecting)
                self.players.append(Player(self.world, f"client {index}", room))
                tasks.create_task(self.players[-1].watch())
            await self._steps(proxy, self.dice.randint(20, 60))
            for _ in range(self.dice.randint(0, 2)):
                self.kills += 1
                restart = asyncio.create_task(self._kill())
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

    async def _kill(self) -> None:
        await asyncio.to_thread(self._server.end, signal.SIGKILL)
        await asyncio.to_thread(self._server.start)

    async def _rest(self) -> None:
        """Wait until all have what the server has."""
        version = max([await player.sync() for player in self.players])
        for player in self.players:
            await player.until_version(version)
        async with http(self._server.address) as client:
            answer = await client.get(f"/threads/{self.key}")
        self.state = answer.json()
        for player in self.players:
            session = player.session
            assert answer.headers["etag"] == f'"{session.epoch}:{session.version}"'
            assert canonical(session.shown) == canonical(session.confirmed) == canonical(self.state)

    async def check(self, logs: Logs) -> None:
        """Compare what clients were told with what the log says."""
        found = await logs.read(self.key)
        assert canonical(found.states[-1]) == canonical(self.state)
        for (_, version), seen in self.world.seen.items():
            assert canonical(found.states[version]) == seen, f"version {version} was shown differently"
        for player in self.players:
            assert set(player.outcomes) == set(player.numbers.values())
            player.check_refusals()
        found.check_tokens(self.schedule.tokens, self.outcomes)

    @property
    def outcomes(self) -> dict[int, str]:
        """What became of each push."""
        return {number: outcome for player in self.players for number, outcome in player.outcomes.items()}


@pytest.mark.timeout(150)
async def test_clients_on_sockets_end_with_the_state_of_a_server_that_is_killed(tmp_path: Path) -> None:
    log.warning("PLAIT_SEED=%d", SEED)
    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(_play(tmp_path / str(lane), lane)) for lane in range(LANES)]
    _check_that_much_happened([game for lane in lanes for game in lane.result()])


async def _play(folder: Path, lane: int) -> list[Game]:
    """Play some schedules on a server of their own, and check them when it has ended."""
    folder.mkdir()
    environment = {"PLAIT_LIMITS": "none", "PLAIT_STORE": "sqlite:///pads.db"}
    games: list[Game] = []
    with Process("tests.integration.convergence_app:app", cwd=folder, environment=environment) as server:
        for index in range(lane, SCHEDULES, LANES):
            games.append(Game(server, KINDS[index // LANES % len(KINDS)], SEED + index))
            try:
                await games[-1].play()
            except Exception as error:
                error.add_note(f"schedule {SEED + index}")
                raise
    async with logs(folder / "pads.db") as found:
        for game in games:
            await game.check(found)
    return games


def _check_that_much_happened(games: Sequence[Game]) -> None:
    outcomes = [outcome for game in games for outcome in game.outcomes.values()]
    looks = sum(player.looks for game in games for player in game.players)
    kills = sum(game.kills for game in games)
    log.warning("%d schedules, %d kills, %d pushes, %d looks", len(games), kills, len(outcomes), looks)
    assert kills
    assert {"ack", "rejected"} <= set(outcomes)
