"""The keys and rows of a store in Redis."""

from typing import Any, Final, NamedTuple

import msgspec

from plait.store.protocol import ThreadKey
from plait.store.thread_rows import ChangeRow, ClientRow

__all__ = [
    "HEAD",
    "Heads",
    "Keys",
    "RedisHead",
    "decode",
    "encode_row",
    "join",
    "split",
    "to_change",
    "to_client",
]

# All keys begin with the same hash tag, so that one script may use them.
#
# - h:<thread>, a hash, the head: f, o, w are there from the first claim on, the others (HEAD) if a thread is stored.
#   f: the number of the owner; o: the timeline on which it was claimed; w: counts writes and questions.
#   e: the epoch; v: the version; sv: the version of the state's type; s: the secret; x: whether it is stateless;
#   due, cr, ch, u: as in `Write`; b: the version before the first change of the log; m: changes with the records.
# - c:<thread>, a list: the changes; s:, a hash: the snapshots by version; l:, a hash: the clients.
# - r:<thread>, a hash: the records by part and key; o:<thread>, a sorted set: their names.
# - names, created, changed, due, user:<id>, sorted sets: of threads, by name or by time.
# - schemas, a hash; origin, fence, format.
HEAD: Final = ("e", "v", "sv", "s", "x", "due", "cr", "ch", "u", "b", "m")
encode_row: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[int, bytes, str, int]).decode
_decode_client: Final = msgspec.msgpack.Decoder(tuple[int, bytes, int]).decode


class Keys:
    """The keys of a store, which begin with a prefix."""

    def __init__(self, prefix: str) -> None:
        self._tag = f"{{{prefix}}}:".encode()

    def __call__(self, what: str, member: bytes | None = None) -> bytes:
        """Return a key: that of a thread's part, or one of the whole store."""
        return self._tag + what.encode() + (b"" if member is None else b":" + member)

    def thread(self, key: ThreadKey, parts: str) -> list[bytes]:
        """Return the keys of a thread, for example `h` of its head. Raises UnicodeEncodeError."""
        member = join(*key)
        return [self(part, member) for part in parts]


def join(first: str, second: str) -> bytes:
    """Return the name of a thread or a record; these are in the order of kinds and names, or of parts and keys."""
    return first.encode() + b"\0" + second.encode()


def split(name: bytes) -> tuple[str, str]:
    """Return the kind and the name, or the part and the key, that `join` has made one."""
    first, _, second = name.partition(b"\0")
    return first.decode(), second.decode()


def decode(text: bytes | None) -> str | None:
    """Return text, or None."""
    return None if text is None else text.decode()


def to_change(row: bytes) -> ChangeRow:
    """Return the change of a row."""
    return ChangeRow(*_decode(row))


def to_client(client: str, row: bytes) -> ClientRow:
    """Return the client of a row."""
    return ClientRow(client, *_decode_client(row))


class RedisHead(NamedTuple):
    """The head of a thread as a claim has read it, kept up to date by the writes."""

    fence: int
    # None if no thread is stored.
    epoch: str | None
    version: int | None
    writes: int
    user: str | None

    @property
    def stored(self) -> tuple[str, int] | None:
        """The stored epoch and version; None if no thread is stored."""
        return None if self.epoch is None or self.version is None else (self.epoch, self.version)

    @property
    def guard(self) -> str:
        """The text that the script of a batch compares."""
        return f"{self.fence}|{self.epoch or ''}|{'' if self.version is None else self.version}|{self.writes}"

    @classmethod
    def read(cls, row: Any) -> "RedisHead":
        """Return the head in a script's answer."""
        fence, epoch, version, writes, user = row
        return cls(
            int(fence or 0),
            decode(epoch),
            None if version is None else int(version),
            int(writes or 0),
            decode(user),
        )


Heads = dict[ThreadKey, RedisHead]
