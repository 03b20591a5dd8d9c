"""WebSocket frames as a client writes them, and a reader that walks header lengths only."""

from websockets.frames import Frame, Opcode

__all__ = ["BEGIN", "BINARY", "END", "PING", "TEXT", "FrameReader", "binary", "pong", "request", "text"]

TEXT, BINARY, CLOSE, PING = 0x81, 0x82, 0x88, 0x89
# The first and the last fragment of a text.
BEGIN, END = 0x01, 0x80
_DATA = frozenset({TEXT, BINARY, BEGIN, END})


def text(payload: bytes) -> bytes:
    """One masked text frame."""
    return Frame(Opcode.TEXT, payload).serialize(mask=True)


def binary(payload: bytes) -> bytes:
    """One masked binary frame."""
    return Frame(Opcode.BINARY, payload).serialize(mask=True)


def pong(payload: bytes) -> bytes:
    """One masked pong frame."""
    return Frame(Opcode.PONG, payload).serialize(mask=True)


def request(path: str, host: str, subprotocol: str | None = None) -> bytes:
    """The opening handshake, without extensions."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join((*lines, "", "")).encode()


class FrameReader:
    """Counts the messages of one socket in `texts`; keeps only the payloads of control frames.

    `longest` is the size of the largest message since it was last set to 0.
    """

    __slots__ = ("_begun", "_length", "_opcode", "closed", "longest", "pings", "rest", "skip", "texts")

    def __init__(self) -> None:
        self.texts = 0
        self.longest = 0
        self.pings: list[bytes] = []
        self.closed = False
        # Start of a frame whose header, or control payload, has not arrived whole.
        self.rest = b""
        # The missing bytes of a message that has begun, and its size.
        self.skip = 0
        self._length = 0
        self._opcode = TEXT
        # The size of a first fragment.
        self._begun = 0

    def feed(self, data: bytes | bytearray, size: int) -> None:
        """Take the first `size` bytes of data, which the caller may overwrite afterwards."""
        if self.rest:
            data = self.rest + data[:size]
            size = len(data)
            self.rest = b""
        offset = self.skip
        if offset:
            if offset > size:
                self.skip = offset - size
                return
            self.skip = 0
            self.count(self._opcode, self._length)
        while size - offset >= 2:
            length = data[offset + 1]
            start = offset + 2
            if length > 125:
                start += 2 if length == 126 else 8
                if start > size:
                    break
                length = int.from_bytes(data[offset + 2 : start], "big")
            stop = start + length
            opcode = data[offset]
            if opcode in _DATA:
                if stop > size:
                    self.skip, self._length, self._opcode = stop - size, length, opcode
                    return
                self.count(opcode, length)
            elif stop > size:
                break
            else:
                self.control(opcode, bytes(data[start:stop]))
            offset = stop
        if offset < size:
            self.rest = bytes(data[offset:size])

    def count(self, opcode: int, length: int) -> None:
        """Count a message, or keep the size of its first fragment."""
        if opcode == BEGIN:
            self._begun = length
            return
        self.texts += 1
        self.longest = max(self.longest, length + self._begun)
        self._begun = 0

    def control(self, opcode: int, payload: bytes) -> None:
        """Note a ping or a close, on which the loop over the sockets must act."""
        if opcode == PING:
            self.pings.append(payload)
        elif opcode == CLOSE:
            self.closed = True
        else:
            raise AssertionError(f"a frame no server here should send: first byte {opcode:#x}")
