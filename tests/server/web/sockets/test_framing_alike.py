"""What a client sends is parsed as websockets' own parser does it, wherever the bytes are cut."""

import asyncio
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.session.guests import until
from tests.server.web.sockets.test_socket import Peer, Received
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.utils import apply_mask

from plait.web.sockets.framing import FrameParser

SMALL = 200
LARGE = 300_000
EDGES = (65_535, 65_536, 2**18 - 1, 2**18, 2**18 + 1, LARGE, LARGE + 1)
TEXTS = ("", "a", "é", "日本", "😀")
NOT_UTF8 = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf")

Frames = list[tuple[Opcode, bytes]]
CONTROL = (Opcode.CLOSE, Opcode.PING, Opcode.PONG)


def encode(opcode: int, data: bytes, *, fin: bool = True, reserved: int = 0, mask: bytes | None = b"abcd") -> bytes:
    """Encode a frame, also one that the protocol forbids. Without a mask it is not masked."""
    return _encode(opcode | (fin << 7) | (reserved << 4), data, mask, wide=0)


def _encode(first: int, data: bytes, mask: bytes | None, *, wide: int) -> bytes:
    """Encode a frame; its length has at least `wide` bytes more than are needed for a short one."""
    size, masked = len(data), 0 if mask is None else 0x80
    if size < 126 and not wide:
        head = bytes([first, masked | size])
    elif size < 65536 and wide <= 2:
        head = bytes([first, masked | 126]) + size.to_bytes(2)
    else:
        head = bytes([first, masked | 127]) + size.to_bytes(8)
    return head + (data if mask is None else mask + apply_mask(data, mask))


def payloads(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    """Bytes of some size, often UTF-8, sometimes nearly."""
    filled = st.builds(lambda size, fill: (fill * size)[:size], sizes, st.sampled_from([b"x", b"\0", "é".encode()]))
    return st.one_of(filled, st.sampled_from([each.encode() for each in TEXTS] + list(NOT_UTF8)))


CLOSES = st.one_of(
    st.builds(
        lambda code, reason: code.to_bytes(2) + reason,
        st.sampled_from([0, 999, 1000, 1001, 1004, 1005, 1006, 1015, 2999, 3000, 4999, 5000, 65535]),
        st.sampled_from([b"", b"bye", *NOT_UTF8, b"x" * 123, b"x" * 124]),
    ),
    st.sampled_from([b"", b"\x03"]),
)
RESTS = st.one_of(st.just(0), st.integers(1, 20))
MASKS = st.one_of(st.just(b"abcd"), st.just(b"\0\0\0\0"), st.binary(min_size=4, max_size=4))


def frames(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    """What a client sends: whole messages, fragments with control frames between them, and sometimes mistakes."""
    data = payloads(sizes)
    whole = st.builds(lambda opcode, data, mask: encode(opcode, data, mask=mask), st.sampled_from([1, 2]), data, MASKS)
    control = st.builds(encode, st.sampled_from([9, 10]), st.sampled_from([b"", b"p", b"x" * 125]))
    close = st.builds(encode, st.just(8), CLOSES)
    fragments = st.builds(
        lambda opcode, first, between, last: encode(opcode, first, fin=False) + between + encode(0, last),
        st.sampled_from([1, 2]),
        data,
        st.one_of(st.just(b""), control, st.builds(encode, st.just(0), data, fin=st.just(False))),
        data,
    )
    longer = st.builds(
        lambda first, data, wide: _encode(first, data, b"abcd", wide=wide),
        st.sampled_from([0x81, 0x82, 0x8A, 0x89]),
        data,
        st.sampled_from([2, 8]),
    )
    odd = st.builds(
        encode,
        st.integers(0, 15),
        data,
        fin=st.booleans(),
        reserved=st.sampled_from([0, 0, 0, 1, 4, 7]),
        mask=st.sampled_from([b"abcd", b"abcd", None]),
    )
    huge = st.sampled_from([b"\x81\xff" + b"\xff" * 8 + b"abcd", b"\x82\xff\x00\x00\x00\x01" + b"\0" * 8])
    return st.one_of(whole, whole, whole, fragments, control, longer, odd, close, huge)


class Parsed:
    """What a parser makes of bytes."""

    def __init__(self, protocol: ServerProtocol) -> None:
        self.protocol = protocol
        self.frames = Frames()

    @property
    def outcome(self) -> tuple[Any, ...]:
        """The frames, how the connection ended, and what the peer is answered."""
        protocol = self.protocol
        error = repr(protocol.parser_exc)
        answers = b"".join(protocol.data_to_send())
        return self.frames, protocol.state, protocol.close_rcvd, protocol.close_sent, error, answers


def parse(pieces: Iterable[bytes], max_size: int) -> tuple[Any, ...]:
    """Return what the server's parser makes of bytes that come in pieces."""
    parser = FrameParser(max_size)
    parsed = Parsed(parser.protocol)
    for piece in pieces:
        parser.feed(piece)
        while parser.parse():
            while parser.frames:
                opcode, data = parser.frames.pop()
                assert type(data) is bytes
                if opcode is not Opcode.CONT:
                    parsed.frames.append((opcode, data))
        assert not parser.is_waiting
    return parsed.outcome


def parse_by_protocol(data: bytes, max_size: int) -> tuple[Any, ...]:
    """Return what websockets makes of bytes that come at once."""
    parsed = Parsed(ServerProtocol(state=State.OPEN, max_size=max_size))
    parsed.protocol.receive_data(data)
    begun: list[WireFrame] = []
    for frame in parsed.protocol.events_received():
        assert isinstance(frame, WireFrame)
        if frame.opcode in CONTROL:
            parsed.frames.append((frame.opcode, bytes(frame.data)))
            continue
        begun.append(frame)
        if frame.fin:
            parsed.frames.append((begun[0].opcode, b"".join(bytes(each.data) for each in begun)))
            begun.clear()
    return parsed.outcome


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes at some places."""
    ends = sorted({each % (len(data) + 1) for each in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def test_each_beginning_of_a_frame_is_parsed_as_by_the_protocol() -> None:
    before, after = encode(1, b"before"), encode(1, b"after")
    for first in range(256):
        for size, wide in [(0, 0), (125, 0), (0, 2), (SMALL, 2), (SMALL + 1, 2), (1, 8), (SMALL, 8), (SMALL + 1, 8)]:
            for mask in (b"abcd", None):
                frame = _encode(first, b"x" * size, mask, wide=wide)
                data = before + frame + after
                expected = parse_by_protocol(data, SMALL)
                for place in (0, 1, 2, len(frame)):
                    assert parse(cut(data, [len(before) + place]), SMALL) == expected, (first, size, wide, mask, place)


@given(sent=st.lists(frames(st.sampled_from([0, 1, 2, 124, 125, 126, 127, SMALL, SMALL + 1])), max_size=4), rest=RESTS)
@example(sent=[encode(1, b"x" * SMALL), encode(10, b"y"), encode(8, b"\x03\xe8"), encode(1, b"z")], rest=0)
@example(sent=[encode(1, b"x", fin=False), encode(1, b"y")], rest=0)
@example(sent=[_encode(0x81, b"x", b"abcd", wide=8), encode(1, b"y")], rest=3)
def test_bytes_that_are_cut_at_any_place_are_parsed_as_by_the_protocol(sent: Sequence[bytes], rest: int) -> None:
    data = b"".join(sent)
    data = data[: max(0, len(data) - rest)]
    expected = parse_by_protocol(data, SMALL)
    assert parse([data], SMALL) == expected
    assert parse((data[n : n + 1] for n in range(len(data))), SMALL) == expected
    for place in range(len(data)):
        assert parse([data[:place], data[place:]], SMALL) == expected, place


@given(
    sent=st.lists(frames(st.sampled_from(EDGES)), min_size=1, max_size=3),
    places=st.lists(st.integers(0, 2 * LARGE), max_size=6),
    near=st.integers(-20, 20),
)
def test_large_messages_are_parsed_as_by_the_protocol(sent: Sequence[bytes], places: list[int], near: int) -> None:
    data = b"".join(sent)
    at = 0
    for each in sent:
        at += len(each)
        places.append(max(0, at + near))
    expected = parse_by_protocol(data, LARGE)
    assert parse(cut(data, places), LARGE) == expected
    assert parse([data], LARGE) == expected


@given(
    sent=st.lists(frames(st.sampled_from([0, 1, 125, 126, 5000])), max_size=4),
    places=st.lists(st.integers(0, 20_000), max_size=6),
)
def test_a_socket_hands_over_and_closes_as_the_protocol_says(sent: Sequence[bytes], places: list[int]) -> None:
    data = b"".join(sent)
    found, _, received, answered, _, _ = parse_by_protocol(data, 2**20)

    messages, pongs, end = list[str | bytes](), 0, None
    for opcode, each in found:
        if opcode is Opcode.TEXT:
            try:
                messages.append(each.decode())
            except UnicodeDecodeError:
                end = 1007
                break
        elif opcode is Opcode.BINARY:
            messages.append(each)
        pongs += opcode is Opcode.PONG
    if end is None and (close := received or answered) is not None:
        end = close.code

    async def run() -> None:
        peer = Peer(session=Kept())
        for piece in cut(data, places):
            peer.socket.data_received(piece)
        await until(lambda: peer.pipe.is_read or peer.session.closed is not None or peer.pipe.is_closed)
        assert isinstance(peer.session, Kept)
        assert (peer.session.messages, peer.session.pongs, peer.session.closed) == (messages, pongs, end)
        peer.pipe.close()
        peer.socket.connection_lost(None)

    asyncio.run(run())


class Kept(Received):
    """A receiver that keeps texts and bytes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str | bytes] = []

    def receive(self, data: bytes, *, is_text: bool) -> None:
        self.messages.append(data.decode() if is_text else data)


@each_case("step", [1, 4096])
def test_the_beginning_of_a_message_takes_no_more_memory_than_its_bytes_however_few_come_at_a_time(step: int) -> None:
    size = 2**16
    data = encode(2, bytes(size))
    parser = FrameParser(size)
    pieces = [data[n : n + step] for n in range(0, len(data), step)]
    tracemalloc.start()
    try:
        for piece in pieces[:-1]:
            parser.feed(bytes(piece))
            assert not parser.parse()
        held = tracemalloc.get_traced_memory()[0]
        parser.feed(pieces[-1])
        assert parser.parse()
        assert parser.frames.pop() == (Opcode.BINARY, bytes(size))
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.3 * size
    assert left < 10_000
