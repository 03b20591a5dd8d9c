"""Bytes of a WebSocket: our parser finds the same frames as the protocol of websockets, and refuses the same."""

from random import Random
from typing import Final, NamedTuple

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from fuzz.running import Fuzzer, mutate
from plait.web.sockets.framing import FrameParser

__all__ = ["FRAMES"]

_SIZES: Final = (0, 1, 5, 124, 125, 126, 127, 128, 300, 2048, 4095, 4096, 4097, 8192, 65_535, 65_536, 70_000, 270_000)
# Beginnings of frames, right and wrong ones.
_WORDS: Final = [
    bytes([first, second]) for first in (0x01, 0x80, 0x81, 0x82, 0x88, 0x8A, 0xC1) for second in (0, 1, 0xFE, 0xFF)
]
_CONTROL: Final = (Opcode.CLOSE, Opcode.PING, Opcode.PONG)


class Found(NamedTuple):
    """The frames that were found, and the code of the refusal."""

    frames: list[tuple[Opcode, bytes]]
    code: int | None


def make(chance: Random) -> bytes:
    """Return frames of a client, some of them damaged."""
    sent = b""
    for _ in range(chance.randrange(1, 8)):
        data = chance.randbytes(chance.choice(_SIZES))
        match chance.randrange(8):
            case 0:
                sent += _serialize(chance.choice(_CONTROL[1:]), data[:125])
            case 1:
                sent += _serialize(Opcode.BINARY, data, fin=False)
                sent += _serialize(Opcode.PING) + _serialize(Opcode.CONT, data)
            case 2:
                sent += _serialize(Opcode.CLOSE, b"\x03\xe8")
            case _:
                sent += _serialize(chance.choice((Opcode.TEXT, Opcode.BINARY)), data)
    return mutate(chance, sent, words=_WORDS)


def check(data: bytes, chance: Random) -> None:
    """Compare what both find, however the bytes are cut."""
    most = chance.choice((200, 200_000, 1_000_000))
    assert _parse(data, chance, most) == _parse_plainly(data, most)


def _parse(data: bytes, chance: Random, most: int) -> Found:
    parser, frames = FrameParser(most), list[tuple[Opcode, bytes]]()
    size = chance.choice((1, 7, 100, 5_000, 1 << 30)) if len(data) < 10_000 else chance.choice((5_000, 70_000, 1 << 30))
    while data:
        parser.feed(data[:size])
        data = data[size:]
        while parser.parse():
            while parser.frames:
                frames.append(parser.frames.pop())
    return Found(frames, _find_code(parser.protocol))


def _parse_plainly(data: bytes, most: int) -> Found:
    protocol, frames = _make_protocol(most), list[tuple[Opcode, bytes]]()
    protocol.receive_data(data)
    opcode, begun = Opcode.CONT, b""
    for event in protocol.events_received():
        assert isinstance(event, Frame)
        if event.opcode in _CONTROL:
            frames.append((event.opcode, bytes(event.data)))
            continue
        if event.opcode is not Opcode.CONT:
            opcode, begun = event.opcode, b""
        begun += event.data
        frames.append((opcode, begun) if event.fin else (Opcode.CONT, b""))
    return Found(frames, _find_code(protocol))


def _make_protocol(most: int) -> ServerProtocol:
    return ServerProtocol(state=State.OPEN, max_size=most)


def _find_code(protocol: ServerProtocol) -> int | None:
    close = protocol.close_sent
    return None if protocol.parser_exc is None or close is None else close.code


def _serialize(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


FRAMES: Final = Fuzzer(make, check)
