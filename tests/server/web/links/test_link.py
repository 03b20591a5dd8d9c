"""One end of a link, whose messages keep their order."""

import asyncio
import socket

from plait.actor.transport import Frame
from plait.web.links.link import Link

KIND = 50


class Reader:
    """A stream that keeps the frames that it gets."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def take(self, kind: int, data: bytes) -> None:
        self.frames.append(data)

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        self.frames.append(frame.data)

    def set_full(self, *, is_full: bool) -> None:
        raise AssertionError

    def lose(self) -> None:
        pass


async def test_frames_for_one_stream_and_for_many_keep_their_order() -> None:
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, owner = await loop.create_connection(lambda: Link({KIND: lambda *_: None}, lambda link: None), sock=here)
    _, gateway = await loop.create_connection(lambda: Link({}, lambda link: None), sock=there)
    readers = [Reader(), Reader(), Reader()]
    one, two, three = (gateway.open(KIND, b"", reader) for reader in readers)
    shared, last = Frame(b"shared"), Frame(b"last")
    owner.put(KIND, one, b"first")
    owner.cast(shared, one)
    numbers = [one, two]
    owner.cast_all(Frame(b"to two"), numbers)
    numbers.append(three)
    owner.cast(shared, two)
    owner.cast(shared, three)
    owner.cast_all(Frame(b"to three"), numbers)
    for number in numbers:
        owner.cast(last, number)
    sent = owner.sent
    async with asyncio.timeout(10):
        while readers[2].frames[-1:] != [b"last"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [reader.frames for reader in readers] == [
        [b"first", b"shared", b"to two", b"to three", b"last"],
        [b"to two", b"shared", b"to three", b"last"],
        [b"shared", b"to three", b"last"],
    ]
    assert owner.sent - sent == 6  # Frames are shared where that changes no order.
    await owner.close()
    await gateway.close()
