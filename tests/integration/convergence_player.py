"""A Python client on real sockets, as the convergence tests use it."""

import asyncio
import logging
from typing import Any

import msgspec
from tests.integration.convergence import Member, World
from tests.integration.test_convergence import Schedule

from plait_client import ClientError, Disconnected, Refused, Room, Unanswered

__all__ = ["Player"]

log = logging.getLogger(__name__)


class Player(Member):
    """A client on real sockets, looked at whenever something may have changed."""

    def __init__(self, world: World, name: str, room: Room[Any]) -> None:
        super().__init__(world, name)
        self.world = world
        self.session = room._live.session
        self.edits: list[asyncio.Task[None]] = []
        self.looks = 0
        # What it meant to take from the list.
        self.meant: set[str] = set()
        self._room = room
        self._refusals = 0
        room.on_refused(self._refused)

    def edit(self, schedule: Schedule) -> None:
        """Change the shown state, and note the outcome."""
        schedule.count += 1
        ops = schedule.ops(self.session.shown)
        for op in ops:
            if op.op != "add" and op.path.startswith("/list/"):
                self.meant.add(self.session.shown["list"][int(op.path.removeprefix("/list/"))])
        outcome = self._room.push(self._room.shown(), ops)
        self.made(schedule.count, self.session.pending[-1])
        self.edits.append(asyncio.ensure_future(self._follow(schedule.count, outcome)))
        self.look()

    @property
    def connection(self) -> str:
        """The id of the client in the log."""
        assert self.session.connection is not None
        return self.session.connection

    async def draw(self, number: int) -> None:
        """Have the server change the state."""
        try:
            await self._room.call("draw", number)
        except Disconnected:
            log.debug("a call was lost")

    async def sync(self) -> int:
        """Return the thread's version after everything that was sent before."""
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
        """Check the shown state."""
        self.looks += 1
        assert msgspec.json.encode(self.session.shown) == msgspec.json.encode(self.folded())
        self.world._observe(self)

    async def until_version(self, version: int) -> None:
        """Wait until it has joined and is at a version, with nothing pending."""
        while self.session.status != "online" or self.session.version < version or self.session.pending:
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
