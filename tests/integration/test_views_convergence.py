"""Clients with different pictures of one thread end with what HTTP shows them, and are told nothing else on the way."""

import asyncio
import itertools
import json
import random
import re
import signal
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.integration.builds import Builds
from tests.integration.convergence_log import logs
from tests.integration.convergence_node import Driver, bundle_client, driving
from tests.integration.convergence_proxy import Proxy
from tests.integration.socket_client import TIMEOUT, http
from tests.running import Process
from tests.schedules import TIMES, play_seeds
from tests.views_app import CardGame, Game, OpenGame, find_picture
from tests.views_stage import add, put

from plait.store.thread_rows import ThreadKey
from plait_client import ClientError, Disconnected, Room, connect

pytestmark = pytest.mark.timeout(900 * TIMES)

_SECRET: Final = re.compile(rb"sec[0-9a-f]{12}")
# How many bytes of a secret the end of a piece may have.
_CUT: Final = 14

EDITS: Final = 120
KILLS: Final = 3
PYTHON: Final = ("u0", "u1", "u2", "u3", "u4")
NODE: Final = ("u5", "u6")
WHATS: Final = ("hand", "hand", "hand", "discard", "table", "clear", "text", "player", "row")


class Tap(Proxy):
    """A network that notes the secrets which a client is told."""

    def __init__(self, port: int, dice: random.Random) -> None:
        super().__init__(port, dice)
        self.told: set[str] = set()

    async def _pump(self, pair: Any, reader: StreamReader, writer: StreamWriter) -> None:
        await super()._pump(pair, _Tapped(reader, self.told) if writer is pair.near else reader, writer)


class _Tapped(StreamReader):
    """Notes what is read."""

    def __init__(self, reader: StreamReader, told: set[str]) -> None:
        self._inner = reader
        self._told = told
        self._last = b""

    async def read(self, n: int = -1) -> bytes:
        data = await self._inner.read(n)
        self._told.update(each.decode() for each in _SECRET.findall(self._last + data))
        self._last = (self._last + data)[-_CUT:]
        return data


class Match:
    """One thread, with clients in Python and in Node, whose server is killed."""

    def __init__(self, server: Process, driver: Driver, kind: type[Game], seed: int) -> None:
        self.key = ThreadKey(kind._kind.name, f"match-{seed}")
        self.dice = random.Random(seed)
        self.taps: dict[str, Tap] = {}
        self.rooms: dict[str, Room[Any]] = {}
        self.outcomes: list[tuple[str | None, str]] = []
        # Who has made each secret, and the token with which each user has joined last.
        self.owners: dict[str, str] = {}
        self.tokens: dict[str, str] = {"olga": "olga:observers"}
        self._varies = kind is OpenGame
        self._server = server
        self._driver = driver
        self._edits: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    def make_secret(self, user: str) -> str:
        secret = f"sec{self.dice.randrange(1 << 48):012x}"
        self.owners[secret] = user
        return secret

    async def play(self) -> None:
        """Play it until all is quiet, and check what each client shows."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            for number in range(EDITS):
                await self._step()
                if number % (EDITS // (KILLS + 1)) == EDITS // (KILLS + 1) - 1 and number < EDITS - 1:
                    restart = asyncio.create_task(asyncio.to_thread(self._restart))
                    for _ in range(10):
                        await self._edit()
                    await restart
            for tap in self.taps.values():
                tap.calm()
            async with asyncio.timeout(TIMEOUT):
                await self._check()

    async def _open(self, stack: AsyncExitStack) -> None:
        await self._hide(put("/hands", {user: [self.make_secret(user)] for user in (*PYTHON, *NODE)}))
        for user in (*PYTHON, *NODE, "olga"):
            self.taps[user] = await stack.enter_async_context(Tap(self._server.port, self.dice))
        for user in (*PYTHON, "olga"):
            url = f"ws://{self.taps[user].address}/threads/{self.key}"
            self.rooms[user] = await stack.enter_async_context(connect(url, token=lambda user=user: self._token(user)))
        players = [
            {"address": self.taps[user].address, "kind": self.key.kind, "name": self.key.name, "token": user}
            for user in NODE
        ]
        await self._driver.tell("open", players=players)

    def _token(self, user: str) -> str:
        """Return a token for a socket; that of one user alternates between two roles."""
        token = self.tokens.get(user, user)
        if user == "u0":
            token = self.tokens[user] = "u0" if token == "u0:observers" else "u0:observers"
        return token

    async def _step(self) -> None:
        await self._edit()
        dice = self.dice.random()
        if dice < 0.25:
            await self._hide(add("/deck/0", self.make_secret("")), put("/vault", {self.make_secret(""): "x"}))
        elif dice < 0.35:
            name, price = f"row {next(self._numbers)}", self.make_secret("")
            await self._hide(add("/rows/0", {"name": name, "price": price, "notes": {}}))
        elif dice < 0.4:
            await self._hide_rows()
        elif dice < 0.45 and self._varies:
            await self._hide(put("/turn", self.dice.choice(["over", "closed"])))
            await self._edit()
            await self._hide(put("/turn", self.dice.choice(["over", "on", "on"])))
        elif dice < 0.5:
            user = self.dice.choice((*PYTHON, *NODE))
            await self._hide(add(f"/hands/{user}/0", self.make_secret(user)))
        elif dice < 0.6:
            self.dice.choice(list(self.taps.values())).cut()
        elif dice < 0.8:
            await asyncio.sleep(self.dice.uniform(0, 0.01))

    async def _edit(self) -> None:
        """Have a client change something that it sees whole."""
        user = self.dice.choice((*PYTHON, *NODE))
        how: dict[str, Any] = {"user": user, "number": next(self._numbers), "at": self.dice.random()}
        if (what := self.dice.choice(WHATS)) == "hand":
            how["secret"] = self.make_secret(user)
        if user in NODE:
            await self._driver.tell("edit", player=NODE.index(user), what=what, **how)
            return
        room = self.rooms[user]
        if isinstance(state := room.state, dict) and "hands" in state:
            if what == "row":
                if not state["rows"]:
                    return
                index = int(how["at"] * len(state["rows"]))
                made = room.update(f"/rows/{index}/name", f"by {user} {how['number']}")
            else:
                made = room.set(_change(json.loads(json.dumps(state)), what, **how))
            task = asyncio.ensure_future(self._follow(how.get("secret"), made))
            self._edits.add(task)
            task.add_done_callback(self._edits.discard)

    async def _follow(self, secret: str | None, made: Awaitable[int]) -> None:
        try:
            await made
        except ClientError as error:
            self.outcomes.append((secret, getattr(error, "code", type(error).__name__)))
        else:
            self.outcomes.append((secret, "ack"))

    async def _hide(self, *ops: Any) -> None:
        """Have the server change hidden places, unless it is down."""
        async with http(self._server.address, headers={"authorization": "Bearer dealer"}) as web:
            with suppress(httpx.TransportError):
                await web.post(f"/threads/{self.key}/rpc/change", json={"args": [[ops]]})

    async def _hide_rows(self) -> None:
        """Have the server move the rows, whose names alone are seen, and drop one of them."""
        async with http(self._server.address) as web:
            with suppress(httpx.TransportError):
                rows = (await self._call(web, "whole"))["rows"]
                self.dice.shuffle(rows)
                await self._hide(put("/rows", rows[: max(len(rows) - 1, 3)]))

    def _restart(self) -> None:
        self._server.end(signal.SIGKILL)
        self._server.start()

    # The end

    async def _check(self) -> None:
        """Check what each client shows, and that no edit of a place that its client sees whole was forbidden."""
        while self._edits:
            await asyncio.gather(*self._edits)
        self.outcomes += [(secret, outcome) for secret, outcome in await self._driver.tell("rest")]
        async with http(self._server.address) as web:
            version = await self._call(web, "change", [[put("/turn", "on")]])
            whole = await self._call(web, "whole")
            shown = {user: await self._sync(room) for user, room in self.rooms.items()}
            found = await self._driver.tell("end", version=version)
            shown |= {user: (each["state"], each["confirmed"]) for user, each in zip(NODE, found, strict=True)}
            for user, states in shown.items():
                token = self.tokens.get(user, user)
                answer = await web.get(f"/threads/{self.key}", headers={"authorization": f"Bearer {token}"})
                sees_all = self._varies and token.endswith(":observers")
                expected = whole if sees_all else find_picture(whole, user)
                assert answer.json() == expected, user
                assert states == (expected, expected), user
        codes = Counter(outcome for _, outcome in self.outcomes)
        # While no client sees anything, none can change anything.
        assert set(codes) <= {"ack", "conflict", *(["forbidden"] if self._varies else [])}, codes
        assert codes["ack"] > EDITS / 2, codes

    async def _call(self, web: httpx.AsyncClient, method: str, *args: Any) -> Any:
        headers = {"authorization": "Bearer dealer"}
        answer = await web.post(f"/threads/{self.key}/rpc/{method}", json={"args": args}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    async def _sync(self, room: Room[Any]) -> tuple[Any, Any]:
        """Return what a client shows and takes for confirmed, after everything so far."""
        while True:
            with suppress(Disconnected):
                await room.call("sync")
                assert room.pending == 0
                return room.state, room.confirmed

    def check_told(self, states: list[Any]) -> None:
        """Check that no client was told a secret of others, unless all saw it in one of the states of the thread."""
        open_ = [json.dumps(state) for state in states if self._varies and state["turn"] == "over"]
        shown = {each.decode() for text in open_ for each in _SECRET.findall(text.encode())}
        for user, tap in self.taps.items():
            assert tap.told & {secret for secret, owner in self.owners.items() if owner == user} or user == "olga"
            if not self._varies or user not in ("olga", "u0"):  # Those are observers, or have been.
                leaks = {secret for secret in tap.told - shown if self.owners[secret] != user}
                assert not leaks, f"{user} was told {leaks}"
        known = {each.decode() for state in states for each in _SECRET.findall(json.dumps(state).encode())}
        lost = {secret for secret, outcome in self.outcomes if secret is not None and outcome == "ack"} - known
        assert not lost, f"acknowledged, and in no version: {lost}"


def _change(state: Any, what: str, *, user: str, number: int, at: float, secret: str = "") -> Any:
    """Change a state in place, as views.js does, and return it."""
    hand, table, text = state["hands"].setdefault(user, []), state["table"], state["story"]["public"]
    match what:
        case "hand":
            hand.insert(int(at * (len(hand) + 1)), secret)
        case "discard":
            del hand[int(at * len(hand)) : int(at * len(hand)) + 1]
        case "table":
            table.insert(int(at * (len(table) + 1)), f"open {number}")
        case "clear":
            del table[int(at * len(table)) : int(at * len(table)) + 1]
        case "text":
            index = int(at * (len(text) + 1))
            state["story"]["public"] = f"{text[:index]}<{number}>{text[index:]}"
        case "player":
            state["players"][user] = number
    return state


@play_seeds(1)
async def test_clients_with_different_pictures_of_plain_games_end_with_them(
    builds: Builds, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    await play(CardGame, bundle_client(builds), tmp_path_factory.mktemp("match"), seed)


@play_seeds(1)
async def test_clients_whose_pictures_change_end_with_their_last_ones(
    builds: Builds, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    await play(OpenGame, bundle_client(builds), tmp_path_factory.mktemp("match"), seed)


async def play(kind: type[Game], bundle: Path, folder: Path, seed: int) -> None:
    """Play a match on a server of its own, and look into its log in the end."""
    store = folder / "games.db"
    environment = {"PLAIT_LIMITS": "none", "PLAIT_STORE": f"sqlite:///{store}", "PLAIT_SECRET": "s" * 32}
    with Process("tests.views_app:app", cwd=folder, environment=environment) as server:
        async with driving("views.js", {"bundle": bundle.as_uri()}) as driver:
            match = Match(server, driver, kind, seed)
            await match.play()
        server.end(signal.SIGTERM)
    async with logs(store) as found:
        match.check_told((await found.read(match.key)).states)
