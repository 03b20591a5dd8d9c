"""Bytes from a client become the same frames however they were cut, and are refused where they break the protocol."""

import time
from collections.abc import Callable
from random import Random

import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.holding import MOST_HELD, measure_held
from tests.server.session.guests import until
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode

from plait.cluster.gate import Gate
from plait.web.sockets.framing import FrameParser, WriteBatcher

MOST = 200_000

Frames = list[tuple[Opcode, bytes]]


class Peer:
    """A client whose bytes are parsed as they come, with the frames that were made of them."""

    def __init__(self, *, max_size: int = MOST) -> None:
        self.incoming = FrameParser(max_size)
        self.frames: Frames = []

    @property
    def refused(self) -> int | None:
        close = self.incoming.protocol.close_sent
        return None if self.incoming.protocol.parser_exc is None or close is None else close.code

    def send(self, data: bytes) -> None:
        self.incoming.feed(data)
        while self.incoming.parse():
            while self.incoming.frames:
                self.frames.append(self.incoming.frames.pop())
        assert not self.incoming.is_waiting


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    return WireFrame(opcode, data, fin=fin).serialize(mask=mask)


def make_some(random: Random, largest: int) -> tuple[bytes, Frames]:
    """Return what a client may send at a time, and the frames of it."""
    size = min(largest, random.choice([0, 1, 5, 124, 125, 126, 127, 128, 300, 4095, 4096, 4097, 70_000]))
    data = random.randbytes(size)
    match random.randrange(10):
        case 0:
            opcode = random.choice([Opcode.PING, Opcode.PONG])
            return frame(opcode, data[:125]), [(opcode, data[:125])]
        case 1:
            first, last = frame(Opcode.BINARY, data, fin=False), frame(Opcode.CONT, data)
            return first + frame(Opcode.PING) + frame(Opcode.PONG) + last, [
                (Opcode.CONT, b""),
                (Opcode.PING, b""),
                (Opcode.PONG, b""),
                (Opcode.BINARY, data + data),
            ]
        case _:
            opcode = random.choice([Opcode.TEXT, Opcode.BINARY])
            return frame(opcode, data), [(opcode, data)]


@each_case("most", [1, 3, 50, 5000, 10**9])
@play_seeds(1)
def test_frames_are_the_same_however_their_bytes_are_cut(seed: int, most: int) -> None:
    random = Random(seed)
    sent, expected = b"", Frames()
    for _ in range(30):
        data, frames = make_some(random, 100 * most)
        sent += data
        expected += frames
    peer = Peer()
    while sent:
        size = random.randint(1, most)
        peer.send(sent[:size])
        sent = sent[size:]
    assert peer.frames == expected
    assert peer.refused is None


@each_case(
    ("sent", "code"),
    [
        pytest.param(frame(Opcode.TEXT, b"x", mask=False), 1002, id="an unmasked message"),
        pytest.param(frame(Opcode.TEXT, mask=False), 1002, id="an unmasked empty message"),
        pytest.param(b"\xc1\x81\0\0\0\0x", 1002, id="a reserved bit"),
        pytest.param(b"\x83\x81\0\0\0\0x", 1002, id="a reserved opcode"),
        pytest.param(b"\x8a\xfe\0\x7e\0\0\0\0" + b"x" * 126, 1002, id="a pong that is too long"),
        pytest.param(b"\x0a\x80\0\0\0\0", 1002, id="a fragment of a pong"),
        pytest.param(frame(Opcode.CONT, b"x"), 1002, id="the end of nothing"),
        pytest.param(frame(Opcode.TEXT, fin=False) + frame(Opcode.TEXT), 1002, id="a message inside of another"),
        pytest.param(frame(Opcode.TEXT, b"x" * 201), 1009, id="a small message that is too large"),
        pytest.param(frame(Opcode.TEXT, b"x" * 300)[:4], 1009, id="the beginning of a message that is too large"),
        pytest.param(frame(Opcode.TEXT, b"x" * 70_000)[:10], 1009, id="the beginning of one that is much too large"),
        pytest.param(b"\x81\xff\0\0\0\0\0\0\0\xff\0\0\0\0", 1009, id="a length of more bytes than are needed"),
    ],
)
def test_what_breaks_the_protocol_is_refused_after_the_messages_before_it_and_nothing_is_taken_later(
    sent: bytes, code: int
) -> None:
    peer = Peer(max_size=200)
    message = frame(Opcode.TEXT, b"before")
    peer.send(message + message + sent)
    assert peer.frames[:2] == [(Opcode.TEXT, b"before")] * 2
    assert peer.refused == code
    taken = len(peer.frames)
    peer.send(message)
    assert len(peer.frames) == taken


def test_a_message_inside_of_another_is_refused_even_if_it_comes_alone() -> None:
    peer = Peer()
    peer.send(frame(Opcode.TEXT, b"x", fin=False))
    peer.send(frame(Opcode.TEXT, b"y"))
    assert peer.frames == [(Opcode.CONT, b"")]
    assert peer.refused == 1002


def test_no_message_is_taken_after_the_close_frame() -> None:
    peer = Peer()
    peer.send(frame(Opcode.TEXT, b"x") + frame(Opcode.CLOSE, b"\x03\xe8"))
    peer.send(frame(Opcode.TEXT, b"y"))
    assert peer.frames == [(Opcode.TEXT, b"x"), (Opcode.CLOSE, b"\x03\xe8")]


def test_a_message_whose_length_is_written_longer_than_needed_does_not_break_those_after_it() -> None:
    peer = Peer()
    for long in (b"\x81\xfe\0\1\0\0\0\0x", b"\x81\xff\0\0\0\0\0\0\0\1\0\0\0\0x"):
        peer.send(long)
        peer.send(long[:-1])
        peer.send(long[-1:] + frame(Opcode.TEXT, b"y"))
    assert peer.frames == [(Opcode.TEXT, each) for each in (b"x", b"x", b"y") * 2]


def test_the_beginning_of_a_message_does_not_wait_to_be_parsed() -> None:
    peer = Peer()
    peer.send(frame(Opcode.TEXT, b"x") + frame(Opcode.TEXT, b"y" * 50)[:20])
    assert peer.frames == [(Opcode.TEXT, b"x")]
    assert not peer.incoming.is_waiting


class Slow:
    """A socket whose kernel takes a millisecond of processor time for what is written."""

    def __init__(self, number: int, written: list[int]) -> None:
        self._number = number
        self._written = written

    def flush(self) -> None:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        self._written.append(self._number)

    def drop_output(self) -> None: ...


class Closed(Gate):
    """A gate that opens when a test says so."""

    def call_when_open(self, callback: Callable[[], None]) -> None:
        self.open = callback


@each_case("is_held", [False, True])
async def test_writes_to_many_sockets_do_not_hold_the_loop_and_keep_their_order(is_held: bool) -> None:
    async def write() -> None:
        gate, written = Closed(), list[int]()
        batcher = WriteBatcher(gate)
        for number in range(150):
            (batcher.hold if is_held else batcher.add)(Slow(number, written))
        if is_held:
            gate.open()
        await until(lambda: bool(written))
        batcher.add(Slow(150, written))
        await until(lambda: len(written) == 151)
        assert written == [*range(151)]

    assert await measure_held(write) < MOST_HELD
