"""Links of a node that may not serve: nothing leaves, and the streams wait."""

import asyncio
import socket
from typing import Any

from plait.cluster.gate import LeaseGate
from plait.cluster.lease import NodeLease
from plait.web.links.link import Link

KIND = 50


class Waiting:
    """A stream that records whether it may put something on the link."""

    def __init__(self) -> None:
        self.may_put = True

    def take(self, kind: int, data: bytes) -> None:
        raise AssertionError

    def deliver(self, frame: Any, payload: bytes | None) -> None:
        raise AssertionError

    def set_full(self, *, is_full: bool) -> None:
        self.may_put = not is_full

    def lose(self) -> None:
        pass


async def test_streams_wait_while_the_gate_is_closed() -> None:
    now = 1000.0
    gate, lease = LeaseGate(), NodeLease(lambda: now)
    gate.follow(lease)
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(lambda: Link({}, lambda link: None, gate=gate), sock=here)
    reader, writer = await asyncio.open_connection(sock=there)
    one, other = Waiting(), Waiting()
    link.open(KIND, b"one", one)
    async with asyncio.timeout(10):
        while one.may_put:  # noqa: ASYNC110
            await asyncio.sleep(0)
    link.open(KIND, b"other", other)
    assert not other.may_put  # Who comes later waits, too.
    link.pause_writing()
    link.resume_writing()
    assert not one.may_put
    lease.extend(now)
    gate.tell()
    assert one.may_put
    assert other.may_put
    async with asyncio.timeout(10):
        found = await reader.readuntil(b"other")
    assert b"one" in found
    link.abort()
    writer.close()
