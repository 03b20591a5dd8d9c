"""The subjects and messages of a store's stream.

Each thread has one head, whose sequence is what every write of the thread is compared with; it also has the last
changes and rows, while they are small. All else has a subject for each row, with the last message as its value.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from plait.errors import StoreError
from plait.store.thread_rows import ChangeRow, ClientRow, ThreadKey

__all__ = [
    "CHUNK",
    "CONFIG",
    "DELETED",
    "FORMAT",
    "GIVEN_UP",
    "Change",
    "Known",
    "Name",
    "Segment",
    "StoredHead",
    "Subjects",
    "ThreadHead",
    "count_chunks",
    "decode_client",
    "decode_rows",
    "encode_rows",
    "is_pruned",
    "join_chunks",
    "make_name",
    "name_record",
    "read_names",
    "split_chunks",
    "to_change",
]

T = TypeVar("T")

FORMAT: Final = 2
"""The format of the messages, which the metadata of the stream tell."""

CONFIG: Final[dict[str, Any]] = {
    "max_msgs_per_subject": 1,
    "max_msgs": -1,
    "max_age": 0,
    "max_msg_size": -1,
    # When the disk or a limit is full, refuse writes: nothing is ever removed to make room.
    "discard": "new",
    "discard_new_per_subject": None,
    "allow_atomic": True,
    "allow_msg_ttl": True,
    "deny_delete": False,
    "deny_purge": False,
    "sealed": False,
    "persist_mode": None,
    "mirror": None,
    "sources": None,
    "metadata": {"plait": str(FORMAT)},
}
"""The required settings of the stream, besides name and replicas; None: the setting must be absent."""

GIVEN_UP: Final = 3600
"""Seconds for which a head stays that was given up, so that listings of other processes see that."""

DELETED: Final = 60
"""Seconds after which the server removes the message that deletes a row."""

CHUNK: Final = 256 * 1024
"""The maximum size of a message of a row, unless the server allows less."""

# A value that is stored in one message, and the number of messages of one that is stored in several.
_WHOLE: Final = b"="
_PARTS: Final = b"+"

Change = tuple[int, bytes, str, int]
"""The fields of a `ChangeRow`."""


class StoredHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a stored thread."""

    epoch: str
    version: int
    state_version: int
    secret: bytes
    is_stateless: bool
    due: int
    created_at: int
    changed_at: int
    user: str | None
    # A part of the subjects of its rows. A thread that is created again has another one.
    generation: int
    # The changes up to this version are pruned, and the snapshots before it.
    floor: int = 0
    # The changes that have no message of their own, and the rows, by the rest of their subject; None deletes one.
    changes: Sequence[Change] = ()
    rows: Mapping[str, bytes | None] = {}
    # Whether values of records may have several messages.
    has_chunks: bool = False
    # The messages with rows of the last write that are not in their own subjects yet. Nothing can be read until then.
    unfinished: int = 0


class ThreadHead(msgspec.Struct, frozen=True, array_like=True):
    """The value of a thread's head."""

    kind: str
    name: str
    # The number of the owner.
    fence: int
    # The stream at the time of the claim.
    origin: str
    # The number of the owner before, and how many writes the thread had when this owner claimed it.
    former: int = 0
    begins_at: int = 0
    # The number of its writes: tells whether one whose answer was lost is stored.
    writes: int = 0
    # None if no thread is stored.
    thread: StoredHead | None = None
    # The generations of deleted threads whose rows are not removed yet.
    removed: Sequence[int] = ()

    @property
    def stored(self) -> tuple[str, int] | None:
        """The stored epoch and version; None if no thread is stored."""
        return None if self.thread is None else (self.thread.epoch, self.thread.version)

    @property
    def key(self) -> ThreadKey:
        """The thread."""
        return ThreadKey(self.kind, self.name)


class Known(NamedTuple):
    """A head, and its sequence in the stream."""

    sequence: int
    head: ThreadHead

    @property
    def fence(self) -> int:
        """The number of the owner."""
        return self.head.fence

    @property
    def version(self) -> int | None:
        """The version of the thread; None if no thread is stored."""
        return None if self.head.thread is None else self.head.thread.version


class Segment(NamedTuple):
    """The versions in the subject of a message of changes."""

    last: int
    first: int
    # Their bytes of operations, and their earliest and latest times.
    size: int
    earliest: int
    latest: int


class Name(NamedTuple):
    """The kind and the key of a row, which are its subject."""

    # `changes`, `snapshot`, `client` or `record`.
    what: str
    segment: Segment | None = None
    version: int = 0
    text: str = ""
    part: str = ""


class Subjects:
    """The subjects of a stream."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.heads = f"{stream}.h.*"

    def head(self, key: ThreadKey) -> str:
        """Return the subject of a thread's head. Raises UnicodeEncodeError."""
        return f"{self.stream}.h.{_hash(key)}"

    def barrier(self, store: str) -> str:
        """Return the subject of the message after which a store has read all heads."""
        return f"{self.stream}.h.-{store}"

    def rows(self, key: ThreadKey, generation: int | str) -> str:
        """Return what the subjects of a thread's rows begin with, with a dot at the end."""
        return f"{self.stream}.d.{_hash(key)}.{generation}."

    def schema(self, kind: str, hash: str) -> str:
        """Return the subject of a schema."""
        return f"{self.stream}.j.{_encode(kind)}.{_encode(hash)}"

    @property
    def schemas(self) -> str:
        """The subjects of all schemas."""
        return f"{self.stream}.j.>"

    def read_schema(self, subject: str) -> tuple[str, str]:
        """Return the kind and the hash in the subject of a schema."""
        kind, hash = subject.split(".")[2:4]
        return _decode(kind), _decode(hash)


def make_name(name: Name) -> str:
    """Return the last part of a row's subject. Raises UnicodeEncodeError."""
    match name.what:
        case "changes":
            assert name.segment is not None
            return f"c.{'_'.join(map(str, name.segment))}"
        case "snapshot":
            return f"s.{name.version}"
        case "client":
            return f"k.{_encode(name.text)}"
        case _:
            return f"r.{_encode(name.part)}.{_encode(name.text)}"


def name_record(name: tuple[str, str]) -> str:
    """Return the last part of the subject of a record, by its part and key. Raises UnicodeEncodeError."""
    return make_name(Name("record", part=name[0], text=name[1]))


def read_names(subjects: Iterable[str], start: str) -> Iterator[tuple[Name, str]]:
    """Yield what the subjects tell that begin with `start`, each with the part after that, without further chunks."""
    for subject in subjects:
        if not subject.startswith(start):
            continue
        rest = subject[len(start) :]
        match rest.split("."):
            case ["c", segment]:
                yield Name("changes", Segment(*map(int, segment.split("_")))), rest
            case ["s", version]:
                yield Name("snapshot", version=int(version)), rest
            case ["k", client]:
                yield Name("client", text=_decode(client)), rest
            case ["r", part, key]:
                yield Name("record", part=_decode(part), text=_decode(key)), rest


def is_pruned(rest: str, floor: int) -> bool:
    """Whether the rest of a subject is that of a snapshot before the floor."""
    return rest.startswith("s.") and int(rest[2:]) < floor


# Values


def split_chunks(subject: str, value: bytes, most: int) -> list[tuple[str, bytes]]:
    """Split a value into messages of a maximum size."""
    if len(value) < most:
        return [(subject, _WHOLE + value)]
    room = most - 16
    parts = [value[start : start + room] for start in range(0, len(value), room)]
    first = _PARTS + str(len(parts)).encode() + b":" + parts[0]
    return [(subject, first), *((f"{subject}.{number}", _WHOLE + part) for number, part in enumerate(parts[1:], 1))]


def count_chunks(data: bytes) -> int:
    """Return how many messages a value has, by its first one; 0 if it was deleted."""
    if not data:
        return 0
    return 1 if data[:1] == _WHOLE else int(data[1 : data.index(b":")])


def join_chunks(parts: Sequence[bytes]) -> bytes:
    """Return the value of these messages."""
    first = parts[0]
    head = first[1:] if len(parts) == 1 else first[first.index(b":") + 1 :]
    return b"".join([head, *(each[1:] for each in parts[1:])])


def encode_rows(rows: object) -> bytes:
    """Return the bytes of a value. Raises TypeError, OverflowError and UnicodeEncodeError."""
    return msgspec.msgpack.encode(rows)


def decode_rows(data: bytes, type: type[T]) -> T:
    """Return the value of these bytes. Raises StoreError."""
    try:
        return msgspec.msgpack.decode(data, type=type)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the stream has a message of another program or version: {error}") from error


def decode_client(data: bytes) -> ClientRow:
    """Return the row of a client. Raises StoreError."""
    return ClientRow(*decode_rows(data, tuple[str, int, bytes, int]))


def to_change(row: Change) -> ChangeRow:
    """Return a row of its fields."""
    return ChangeRow(*row)


def _hash(key: ThreadKey) -> str:
    kind, name = key.kind.encode(), key.name.encode()
    return hashlib.blake2b(b"%d %b%b" % (len(kind), kind, name), digest_size=16).hexdigest()


def _encode(text: str) -> str:
    # An empty token is not possible.
    return "=" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(token: str) -> str:
    return base64.urlsafe_b64decode(token[1:] + "=" * (-(len(token) - 1) % 4)).decode()
