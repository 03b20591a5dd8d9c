"""Live, durable, shared state: named threads, kept in SQLite, pushed to every socket."""

from plait.app import Plait
from plait.changes import Change
from plait.commit import Commit
from plait.connection import Connection, Principal, Source
from plait.current import current
from plait.editing import Edit
from plait.errors import (
    CallFailed,
    Conflict,
    CorruptThread,
    Fenced,
    Forbidden,
    Gap,
    InvalidArguments,
    InvalidState,
    MethodNotFound,
    MigrationFailed,
    NewerState,
    NotFound,
    Outdated,
    PlaitError,
    Readonly,
    Reject,
    StoreError,
    TooLarge,
    TooMany,
    TurnTimeout,
    Unanswerable,
    Unauthenticated,
    Unavailable,
)
from plait.evolution import migrate
from plait.handle import Handle
from plait.limits import Limits
from plait.retention import Retention
from plait.rpc import Stream, rpc
from plait.store.memory import MemoryStore
from plait.store.protocol import Store, ThreadKey
from plait.store.sqlite import SqliteStore
from plait.thread import Thread
from plait.web.identity import Action

__all__ = [
    "Action",
    "CallFailed",
    "Change",
    "Commit",
    "Conflict",
    "Connection",
    "CorruptThread",
    "Edit",
    "Fenced",
    "Forbidden",
    "Gap",
    "Handle",
    "InvalidArguments",
    "InvalidState",
    "Limits",
    "MemoryStore",
    "MethodNotFound",
    "MigrationFailed",
    "NewerState",
    "NotFound",
    "Outdated",
    "Plait",
    "PlaitError",
    "Principal",
    "Readonly",
    "Reject",
    "Retention",
    "Source",
    "SqliteStore",
    "Store",
    "StoreError",
    "Stream",
    "Thread",
    "ThreadKey",
    "TooLarge",
    "TooMany",
    "TurnTimeout",
    "Unanswerable",
    "Unauthenticated",
    "Unavailable",
    "current",
    "migrate",
    "rpc",
]
