"""The address of a thread, and its rows in a store: changes, snapshots, clients and records."""

from typing import Final, NamedTuple

import msgspec

__all__ = [
    "CLIENT_DAYS",
    "DAY",
    "INCOMPLETE",
    "KNOWN_CLIENTS",
    "ChangeRow",
    "ClientRow",
    "Prune",
    "Record",
    "RecordRange",
    "Snapshot",
    "ThreadKey",
]

DAY: Final = 24 * 3600 * 1_000_000
"""A day, in microseconds."""

CLIENT_DAYS: Final = 30
"""A client's row is kept this many days after its last push, and until others have pushed on that many days."""

KNOWN_CLIENTS: Final = 256
"""The maximum number of client ids that are loaded with a thread; with more, each join looks for its client's row."""

INCOMPLETE: Final = 1
"""The due time of a thread that is being imported, until its last write. No listing shows it.

After a crash, `Store.due_threads` finds it with this time, and what is stored of it is removed.
"""


class ThreadKey(NamedTuple):
    """The address of a thread."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class ChangeRow(msgspec.Struct, frozen=True):
    """A stored change: `ops` is a JSON array of JSON Patch operations, `at` is in microseconds since the epoch."""

    version: int
    ops: bytes
    source: str
    at: int


class ClientRow(msgspec.Struct, frozen=True):
    """The outcome of a client's last pushes: `refused` is JSON, `at` is in microseconds since the epoch."""

    # The connection id, so that each principal has its own row.
    client: str
    ref: int
    refused: bytes
    at: int


class Prune(msgspec.Struct, frozen=True):
    """The bounds of a thread's log: changes outside any of them may be removed.

    The remaining log begins with a snapshot, so that each of its versions can be read. A change after a recent one is
    never too old, whatever its time is, as the clock may have been wrong.
    """

    # Remove changes up to this version, and changes made before this time, in microseconds since the epoch.
    version: int = 0
    at: int = 0
    # Keep the last changes with this many bytes of operations.
    bytes: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The whole state at a version, as JSON."""

    version: int
    state: bytes


class Record(msgspec.Struct, frozen=True, gc=False):
    """A value that a part of a thread keeps under a key. Writing None deletes it."""

    part: str
    key: str
    value: bytes | None


class RecordRange(msgspec.Struct, frozen=True):
    """The records of a part whose keys begin with `prefix`, in the order of the keys' code points."""

    part: str
    prefix: str = ""
    # The last records, in descending order.
    reverse: bool = False
    limit: int = 1000
    # Only keys after and before these.
    after: str = ""
    before: str | None = None
    # The last record is that at which the values reach this many bytes.
    size: int | None = None
