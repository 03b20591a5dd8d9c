"""A blocking client of Yjs' server, which takes updates as bytes and does not look into them."""

from benchmarks.message_socket import MessageSocket
from benchmarks.wire import binary

__all__ = ["YjsSocket", "sync", "update"]


def varint(number: int) -> bytes:
    """A number as Yjs writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def sync(length: int) -> bytes:
    """Ask for what a client misses that has a text of so many characters, made by client 1, or nothing."""
    vector = b"\x01\x01" + varint(length) if length else b"\x00"
    return b"\x00\x00" + varint(len(vector)) + vector


def update(change: bytes) -> bytes:
    """The message with an update."""
    return b"\x00\x02" + varint(len(change)) + change


class YjsSocket(MessageSocket):
    """One socket; with the length of the text that an earlier one left."""

    def read_update(self) -> bytes:
        """Wait for the answer to `sync`; what it has of the text."""
        while True:
            message = self.read()
            if message[:2] == b"\x00\x01":
                start = 2
                while message[start] > 0x7F:
                    start += 1
                return message[start + 1 :]

    def ask(self, length: int) -> bytes:
        """Ask for what is missing of a text, and wait for it."""
        self.send(binary(sync(length)))
        return self.read_update()
