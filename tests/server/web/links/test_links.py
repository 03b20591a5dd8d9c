"""Links between nodes that are lost, and that children of a node inherit."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fronts import OneOwner

from plait.errors import Unavailable
from plait.web.links.folder import Folder
from plait.web.links.link import Link
from plait.web.links.links import Links

KIND = 50
PATIENCE = 10.0


class Recorder:
    """A stream that records what it gets."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def take(self, kind: int, data: bytes) -> None:
        self.received.put_nowait(data)

    def deliver(self, frame: Any, payload: bytes | None) -> None:
        raise AssertionError

    def set_full(self, *, is_full: bool) -> None:
        pass

    def lose(self) -> None:
        self.lost.set()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Links, Links]]:
    """Two nodes; the second one echoes the first message of a stream."""

    def open_echo(link: Link, number: int, data: bytes) -> Recorder:
        link.put(KIND, number, data)
        return Recorder()

    here = Links(OneOwner(0), Folder(0, tmp_path), hold=0.2)
    there = Links(OneOwner(1), Folder(1, tmp_path))
    there.openers[KIND] = open_echo
    await there.start()
    yield here, there
    await here.stop()
    await there.stop()


async def test_a_stream_that_is_opened_on_a_lost_link_is_lost(pair: tuple[Links, Links]) -> None:
    here, there = pair
    link = await here.reach(1, here.begin_hold())
    await there.stop()
    await link.close()
    stream = Recorder()
    async with asyncio.timeout(PATIENCE):
        link.open(KIND, b"", stream)
        await stream.lost.wait()


async def test_nothing_is_logged_when_the_caller_of_a_node_that_is_away_has_left(
    pair: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    here, there = pair
    await there.stop()
    call = asyncio.create_task(here.reach(1, here.begin_hold()))
    await asyncio.sleep(0)
    (dial,) = here._dials.values()
    call.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([call, dial])
    assert call.cancelled()
    del call, dial
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.text == ""


async def test_a_caller_that_waits_for_a_node_when_its_own_one_stops_gets_unavailable(
    pair: tuple[Links, Links],
) -> None:
    here, there = pair
    await there.stop()
    call = asyncio.create_task(here.reach(1, here.begin_hold()))
    await asyncio.sleep(0)
    await here.stop()
    with pytest.raises(Unavailable):
        await call


async def test_a_forked_child_keeps_neither_links_nor_the_socket_of_its_node(pair: tuple[Links, Links]) -> None:
    here, there = pair
    stream = Recorder()
    (await here.reach(1, here.begin_hold())).open(KIND, b"hello", stream)
    async with asyncio.timeout(PATIENCE):
        assert await stream.received.get() == b"hello"
    with forking():
        await there.stop()
        async with asyncio.timeout(PATIENCE):
            await stream.lost.wait()
        with pytest.raises(Unavailable):
            await here.reach(1, here.begin_hold())


@contextmanager
def forking() -> Iterator[None]:
    """Have a forked child while the block runs."""
    if (child := os.fork()) == 0:
        signal.alarm(60)
        signal.pause()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
