"""A blocking client of the Yjs server, which handles updates as bytes and does not decode them."""

from benchmarks.message_socket import MessageSocket
from benchmarks.wire import binary

__all__ = ["YjsSocket", "sync", "update"]


def varint(number: int) -> bytes:
    """A number as Yjs encodes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def sync(length: int) -> bytes:
    """Ask for the updates that a client lacks: one with a text of `length` characters of client 1, or with nothing."""
    vector = b"\x01\x01" + varint(length) if length else b"\x00"
    return b"\x00\x00" + varint(len(vector)) + vector


def update(change: bytes) -> bytes:
    """The message with an update."""
    return b"\x00\x02" + varint(len(change)) + change


class YjsSocket(MessageSocket):
    """One socket of a room."""

    def read_update(self) -> bytes:
        """Wait for the answer to `sync`, and return its update."""
        while True:
            message = self.read()
            if message[:2] == b"\x00\x01":
                start = 2
                while message[start] > 0x7F:
                    start += 1
                return message[start + 1 :]

    def ask(self, length: int) -> bytes:
        """Ask for the updates after a text of `length` characters, and return them."""
        self.send(binary(sync(length)))
        return self.read_update()
