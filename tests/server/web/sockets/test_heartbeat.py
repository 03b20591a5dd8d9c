"""When silent peers are pinged and dropped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.cases import each_case

from plait.testing.clock import Clock
from plait.web.sockets.heartbeat import Heartbeat


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop, whose clock is turned."""
    return "asyncio", {"use_uvloop": False}


class Peer:
    """A socket whose peer answers pings, or not."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._began = self.heard = self._loop.time()
        self.is_asked = False
        self.is_held = False
        self.told: list[tuple[str, float]] = []

    def hear(self) -> None:
        self.heard, self.is_asked = self._loop.time(), False

    def ping(self) -> None:
        self.told.append(("ping", round(self._loop.time() - self._began)))
        if self._answers:
            self.hear()

    def give_up(self) -> None:
        self.told.append(("give up", round(self._loop.time() - self._began)))


@asynccontextmanager
async def beating(interval: float, timeout: float) -> AsyncIterator[tuple[Clock, Heartbeat]]:
    with Clock.turning() as clock:
        heartbeat = Heartbeat(interval, timeout)
        heartbeat.start()
        try:
            yield clock, heartbeat
        finally:
            await heartbeat.stop()


@each_case(("interval", "timeout"), [(20, 20), (20, 5), (5, 20)])
async def test_a_silent_peer_is_pinged_and_then_dropped_at_its_time(interval: float, timeout: float) -> None:
    async with beating(interval, timeout) as (clock, heartbeat):
        for seconds in (0, 1, 7, 19, 33):
            await clock.advance(seconds)
            peer = Peer(answers=False)
            heartbeat.add(peer)
            await clock.advance(interval + timeout + 1)
            (ping, pinged), (end, ended) = peer.told[:2]
            assert (ping, end) == ("ping", "give up")
            assert interval <= pinged <= interval + min(interval, timeout) / 10
            assert interval + timeout <= ended <= interval + timeout + min(interval, timeout) / 10 + 1
            heartbeat.discard(peer)


async def test_a_peer_that_answers_is_pinged_once_an_interval() -> None:
    async with beating(20, 20) as (clock, heartbeat):
        peer = Peer(answers=True)
        heartbeat.add(peer)
        await clock.advance(200)
        assert [name for name, _ in peer.told] == ["ping"] * len(peer.told)
        assert 9 <= len(peer.told) <= 10


async def test_a_peer_that_sends_is_never_pinged() -> None:
    async with beating(20, 20) as (clock, heartbeat):
        peer = Peer(answers=False)
        heartbeat.add(peer)
        for _ in range(20):
            await clock.advance(19)
            peer.hear()
        assert peer.told == []


async def test_a_peer_that_is_not_read_from_is_not_pinged() -> None:
    async with beating(20, 20) as (clock, heartbeat):
        peer = Peer(answers=False)
        peer.is_held = True
        heartbeat.add(peer)
        await clock.advance(200)
        assert peer.told == []
        peer.is_held = False
        await clock.advance(45)
        assert [name for name, _ in peer.told[:2]] == ["ping", "give up"]


@each_case("count", [0, 3])
async def test_it_looks_only_when_a_peer_may_be_due(count: int) -> None:
    looks: list[float] = []

    class Watched(Peer):
        @property
        def is_held(self) -> bool:  # Read at each look.
            looks.append(self._loop.time())
            return False

        @is_held.setter
        def is_held(self, value: bool) -> None:
            pass

    async with beating(20, 20) as (clock, heartbeat):
        for _ in range(count):
            heartbeat.add(Watched(answers=True))
        await clock.advance(3600)
        assert len(looks) <= count * 2 * 181  # Once more if it is early by a rounding error.
