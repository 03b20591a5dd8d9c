"""The rows of a store: their parts, keys and values.

A record is a row of its own part. All other parts begin with `~`, after the parts of records. In the space of a thread:

- `~c`, by version, a change: `{"at":…,"source":…,"ops":…}`
- `~s`, by version, a snapshot: the state
- `~p`, by the id of a client, its last push: `{"ref":…,"at":…,"refused":…}`

These names are short, as every write repeats them.

In the index, where times are numbers of 19 digits:

- `~thread/KIND`, by name: a `Head`
- `~created/KIND` and `~changed/KIND`, by time and name; `~user/USER/name/KIND`, by name, and `~user/USER/created/KIND`
  and `~user/USER/changed/KIND`, by time and name; `~due`, by time, kind and name: the places of a thread in listings,
  without a value
- `~removed`, by space: deleted threads with rows
- `~schema/KIND`, by hash: a JSON Schema
- `~number`: the next number of a space that is not reserved
- `~owner/KIND`, by name, on a server: who may write to a thread: `{"fence":…,"by":…,"writes":…,"asked":…}`
- `~format`, by kind of row: the version of its format. A later plait rewrites rows of an older version in place.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from plait.errors import CorruptThread
from plait.store.format import check_format
from plait.store.rows.engine import INDEX, LOST, Head, Key, Place, Range, Row, Span
from plait.store.rows.parts import (
    CHANGE,
    CHANGED,
    CLIENT,
    CREATED,
    DUE,
    FORMAT,
    SNAPSHOT,
    THREAD,
    USER,
)
from plait.store.thread_rows import ChangeRow, ClientRow, Record, Snapshot, ThreadKey

__all__ = [
    "FORMATS",
    "check_formats",
    "check_value",
    "decode_head",
    "due_key",
    "encode_head",
    "find_places",
    "find_version",
    "finds",
    "only",
    "part_of_user",
    "read_changes",
    "read_clients",
    "read_due",
    "read_head",
    "read_records",
    "read_snapshot",
    "span_of",
    "span_of_head",
    "span_of_one",
    "spans_of_last",
    "time_key",
]

FORMATS: Final[dict[str, int]] = dict.fromkeys(
    ("change", "snapshot", "client", "record", "thread", "index", "schema"), 1
)
"""The version of the format of each kind of row; `index` are all in the index but those of threads and schemas."""

_encode: Final = msgspec.json.Encoder().encode
_REST_OF_CHANGE: Final = b',"ops":'
_REST_OF_CLIENT: Final = b',"refused":'
# The digits of a time in a key.
_DIGITS: Final = 19


class _Change(msgspec.Struct):
    at: int
    source: str


class _Client(msgspec.Struct):
    ref: int
    at: int


_decode_head: Final = msgspec.json.Decoder(Head).decode
_decode_change: Final = msgspec.json.Decoder(_Change).decode
_decode_client: Final = msgspec.json.Decoder(_Client).decode


def check_formats(rows: Iterable[Row]) -> list[tuple[int, str, Key, bytes]]:
    """Return the formats of the kinds of rows that are new to a store. Raises StoreError if this plait lacks one."""
    found = {str(row[1]): int(check_value("the store", row)) for row in rows}
    for kind, version in found.items():
        check_format(version, FORMATS.get(kind, 0), f"rows of the kind {kind!r} ")
    return [(INDEX, FORMAT, kind, b"%d" % version) for kind, version in FORMATS.items() if kind not in found]


# Places


def span_of(space: int | ThreadKey, part: str, start: Key | None = None, end: Key | None = None) -> Span:
    """Return the span of the rows of a part, from a key and up to another one if they are given."""
    first: Place = (part,) if start is None else (part, start)
    return Span(space, first, (part + "\0",) if end is None else (part, end))


def span_of_one(space: int | ThreadKey, part: str, key: str) -> Span:
    """Return the span of one row."""
    return span_of(space, part, key, key + "\0")


def span_of_head(key: ThreadKey) -> Span:
    """Return the span of the row of a thread."""
    return span_of_one(INDEX, THREAD + key.kind, key.name)


def spans_of_last(space: int | ThreadKey) -> list[Span]:
    """Return the spans from which `find_version` finds the version of a thread."""
    return [span_of(space, part)._replace(reverse=True, limit=1, keys_only=True) for part in (CHANGE, SNAPSHOT)]


def find_version(found: Sequence[Sequence[Row]], head: Head) -> int:
    """Return the version of a thread: that of its last change or snapshot, but at least that of its row."""
    return max([head.version, *[int(rows[0][1]) for rows in found if rows]])


def only(space: int, part: str, key: Key) -> Range:
    """Return the range of one row."""
    return space, part, key, key + 1 if isinstance(key, int) else key + "\0"


def time_key(at: int, name: str = "") -> str:
    """Return the key of a name at a time."""
    return f"{at:0{_DIGITS}}{name}"


def due_key(due: int, key: ThreadKey) -> str:
    """Return the key by which a due thread is found."""
    return time_key(due, f"{key.kind}\0{key.name}")


def read_due(key: Key) -> tuple[int, ThreadKey]:
    """Return when a thread is due, and the thread, from its key."""
    text = str(key)
    return int(text[:_DIGITS]), ThreadKey(*text[_DIGITS:].split("\0", 1))


def part_of_user(user: str, order: str) -> str:
    """Return the start of the parts by which the threads of a user are found in an order."""
    return f"{USER}{_encode(user).decode()}/{order}/"


def find_places(key: ThreadKey, head: Head | None) -> set[tuple[str, str]]:
    """Return the places of the index by which a stored thread is found, beside that of its head."""
    if head is None:
        return set()
    kind, name = key
    created, changed = time_key(head.created_at, name), time_key(head.changed_at, name)
    places = {(CREATED + kind, created), (CHANGED + kind, changed)}
    if head.due:
        places.add((DUE, due_key(head.due, key)))
    if head.user is not None:
        by_order = ("name", name), ("created", created), ("changed", changed)
        places |= {(part_of_user(head.user, order) + kind, place) for order, place in by_order}
    return places


def finds(key: ThreadKey, part: str, place: Key) -> bool:
    """Whether a row of the index finds a thread by a time or a user."""
    kind, name = key
    if part.startswith(USER) and part.endswith(f'"/name/{kind}'):
        return place == name
    if part.startswith(USER) and not part.endswith((f'"/created/{kind}', f'"/changed/{kind}')):
        return False
    return str(place)[_DIGITS:] == (f"{kind}\0{name}" if part == DUE else name)


# Values


def encode_head(key: ThreadKey, head: Head) -> tuple[int, str, Key, bytes]:
    """Return the row of a thread. Raises ValueError if it could not be read again."""
    value = _encode(head)
    _decode_head(value)
    return INDEX, THREAD + key.kind, key.name, value


def check_value(thread: object, row: Row) -> bytes:
    """Return the value of a row of a thread. Raises CorruptThread if it is damaged."""
    part, key, value = row
    if value is None:
        raise CorruptThread(f"{thread} cannot be read: {_name_row(part, key)} is damaged")
    return value


def _name_row(part: str, key: Key) -> str:
    if part == CHANGE:
        return f"change {key}"
    if part == SNAPSHOT:
        return f"the snapshot of version {key}"
    if part == CLIENT:
        return "the record of a client's pushes"
    return "the thread's own record" if part.startswith(THREAD) else f"the record {key!r} of {part}"


def decode_head(key: ThreadKey, rows: Sequence[Row]) -> Head | None:
    """Return the head in the row of a thread; None if there is no row. Raises CorruptThread."""
    return _decode_head(check_value(key, rows[0])) if rows else None


def read_head(rows: Sequence[Row]) -> Head | None:
    """Return the head in the row of a thread, which is LOST if it is damaged; None if there is no row."""
    try:
        return decode_head(ThreadKey("", ""), rows)
    except (CorruptThread, ValueError):
        return LOST


def read_changes(thread: object, rows: Iterable[Row]) -> list[ChangeRow]:
    """Return changes. Raises CorruptThread."""
    found: list[ChangeRow] = []
    for row in rows:
        # The operations may be of any bytes. A quote in the source is escaped, so it has no such text.
        first, _, rest = check_value(thread, row).partition(_REST_OF_CHANGE)
        change = _decode_change(first + b"}")
        found.append(ChangeRow(int(row[1]), rest[:-1], change.source, change.at))
    return found


def read_clients(thread: object, rows: Iterable[Row]) -> list[ClientRow]:
    """Return clients. Raises CorruptThread."""
    found: list[ClientRow] = []
    for row in rows:
        first, _, rest = check_value(thread, row).partition(_REST_OF_CLIENT)
        client = _decode_client(first + b"}")
        found.append(ClientRow(str(row[1]), client.ref, rest[:-1], client.at))
    return found


def read_records(thread: object, rows: Iterable[Row]) -> list[Record]:
    """Return records. Raises CorruptThread."""
    return [Record(row[0], str(row[1]), check_value(thread, row)) for row in rows]


def read_snapshot(thread: object, rows: Sequence[Row]) -> Snapshot | None:
    """Return the first of these snapshots; None if there are none. Raises CorruptThread."""
    return Snapshot(int(rows[0][1]), check_value(thread, rows[0])) if rows else None
