"""Live, durable, shared state: named threads, kept in SQLite, pushed to every socket."""

from plait.app import Plait
from plait.connection import Connection, Principal, Source
from plait.current import current
from plait.errors import (
    CallFailed,
    Conflict,
    CorruptThread,
    Fenced,
    Forbidden,
    InvalidArguments,
    InvalidState,
    MethodNotFound,
    NotFound,
    PlaitError,
    Readonly,
    Reject,
    StoreError,
    TooLarge,
    TooMany,
    TurnTimeout,
    Unauthenticated,
    Unavailable,
)
from plait.handle import Handle
from plait.limits import Limits
from plait.pipeline import Commit
from plait.rpc import Stream, rpc
from plait.store.memory import MemoryStore
from plait.store.protocol import Store, ThreadKey
from plait.store.sqlite import SqliteStore
from plait.thread import Thread
from plait.web.identity import Action

__all__ = [
    "Action",
    "CallFailed",
    "Commit",
    "Conflict",
    "Connection",
    "CorruptThread",
    "Fenced",
    "Forbidden",
    "Handle",
    "InvalidArguments",
    "InvalidState",
    "Limits",
    "MemoryStore",
    "MethodNotFound",
    "NotFound",
    "Plait",
    "PlaitError",
    "Principal",
    "Readonly",
    "Reject",
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
    "Unauthenticated",
    "Unavailable",
    "current",
    "rpc",
]
