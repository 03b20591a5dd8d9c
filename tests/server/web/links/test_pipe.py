"""A sender sends what its receiver has room for, and nothing before that has taken the request."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from plait.web.links.link import Link
from plait.web.links.pipe import PIECE, WINDOW, Lost, Pipe

OPEN = 50
PATIENCE = 20.0


class End(Pipe):
    """Keeps the messages that it gets."""

    def __init__(self, link: Link, number: int = 0) -> None:
        super().__init__(link, number)
        self.got: list[tuple[bytes, bool]] = []
        self.arrived = asyncio.Event()

    def open(self) -> None:
        self._number = self._link.open(OPEN, b"", self)

    def accept(self, data: bytes, *, is_last: bool) -> None:
        self.got.append((data, is_last))
        self.arrived.set()

    async def wait_for(self, data: bytes) -> None:
        while all(each != data for each, _ in self.got):
            self.arrived.clear()
            await self.arrived.wait()

    @property
    def size(self) -> int:
        return sum(len(data) for data, _ in self.got)


@asynccontextmanager
async def open_pipe() -> AsyncIterator[tuple[End, End]]:
    """Run both ends of a pipe: the one that has opened it, and the other."""
    ends: list[End] = []

    def answer(link: Link, number: int, _: bytes) -> End:
        ends.append(End(link, number))
        return ends[-1]

    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    _, link = await loop.create_connection(lambda: Link({}, lambda _: None), sock=here)
    _, other = await loop.create_connection(lambda: Link({OPEN: answer}, lambda _: None), sock=there)
    async with asyncio.timeout(PATIENCE):
        opened = End(link)
        opened.open()
        opened.put(b"begun")
        while not ends:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await ends[0].wait_for(b"begun")
        ends[0].got.clear()
        try:
            yield opened, ends[0]
        finally:
            await link.close()
            await other.close()


async def test_nothing_is_sent_before_the_other_end_has_taken_the_request() -> None:
    async with open_pipe() as (opened, other):
        sending = asyncio.create_task(opened.send(b"body", is_last=True))
        other.put(b"a")
        await opened.wait_for(b"a")
        opened.put(b"b")
        await other.wait_for(b"b")
        assert (sending.done(), other.got) == (False, [(b"b", False)])
        other.give_room()
        await sending
        await other.wait_for(b"body")
        assert other.got[-1] == (b"body", True)


async def test_no_more_than_a_window_is_on_its_way_and_all_arrives() -> None:
    data = bytes(5 * WINDOW + 1)
    async with open_pipe() as (opened, other):
        sending = asyncio.create_task(opened.send(data, is_last=True))
        other.give_room()
        while other.size < WINDOW:  # noqa: ASYNC110
            await asyncio.sleep(0)
        opened.put(b"")
        await other.wait_for(b"")
        assert (other.size, sending.done()) == (WINDOW, False)
        used = 0
        while not sending.done() or not other.got[-1][1]:
            for piece, _ in other.got[used:]:
                assert len(piece) <= PIECE
                other.use(len(piece))
            used = len(other.got)
            await asyncio.sleep(0)
        assert (other.size, [is_last for _, is_last in other.got].count(True)) == (len(data), 1)


async def test_a_long_message_arrives_whole() -> None:
    data = b"x" * (3 * WINDOW + 1)
    async with open_pipe() as (opened, other):
        opened.put(data)
        opened.put(b"", is_last=True)
        await other.wait_for(b"")
        assert other.got == [(data, False), (b"", True)]


async def test_a_sender_waits_while_the_link_is_full_and_no_more_when_it_is_lost() -> None:
    async with open_pipe() as (opened, _):
        opened.set_full(is_full=True)
        waiting = asyncio.create_task(opened.wait_for_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        opened.set_full(is_full=False)
        await waiting
        waiting = asyncio.create_task(opened.wait_for_room(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        opened.lose()
        await waiting


async def test_all_that_wait_for_a_piece_learn_that_the_other_end_is_lost_and_so_do_those_that_come_later() -> None:
    async with open_pipe() as (opened, _):
        waiting = [asyncio.create_task(opened.next()) for _ in range(3)]
        await asyncio.sleep(0)
        opened.lose()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [Lost] * 3
        with pytest.raises(Lost):
            await opened.next()
