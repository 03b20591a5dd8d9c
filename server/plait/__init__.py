"""Live, durable, shared state: named threads, kept in SQLite, pushed to every socket."""

from plait.actor.connection import Connection, Principal, Source
from plait.actor.current import current
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.app import Plait
from plait.errors import (
    CallFailed,
    Conflict,
    CorruptThread,
    Destroyed,
    Fenced,
    Forbidden,
    Gap,
    Indeterminate,
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
    RolledBack,
    StoreError,
    TooLarge,
    TooMany,
    TurnTimeout,
    Unanswerable,
    Unauthenticated,
    Unavailable,
)
from plait.instruments import Instruments, NoInstruments
from plait.limits import Limits
from plait.node.handle import Handle
from plait.state.authors import Stretch
from plait.state.commit import Commit
from plait.state.edit import Edit
from plait.state.log import Change
from plait.state.migrations import migrate
from plait.state.retention import Retention
from plait.state.texts import Text
from plait.state.transaction import Transaction
from plait.store.memory import MemoryStore
from plait.store.protocol import Store, ThreadKey
from plait.store.sqlite import SqliteStore
from plait.web.identity import Action

__all__ = [
    "Action",
    "CallFailed",
    "Change",
    "Commit",
    "Conflict",
    "Connection",
    "CorruptThread",
    "Destroyed",
    "Edit",
    "Fenced",
    "Forbidden",
    "Gap",
    "Handle",
    "Indeterminate",
    "Instruments",
    "InvalidArguments",
    "InvalidState",
    "Limits",
    "MemoryStore",
    "MethodNotFound",
    "MigrationFailed",
    "NewerState",
    "NoInstruments",
    "NotFound",
    "Outdated",
    "Plait",
    "PlaitError",
    "Principal",
    "Readonly",
    "Reject",
    "Retention",
    "RolledBack",
    "Source",
    "SqliteStore",
    "Store",
    "StoreError",
    "Stream",
    "Stretch",
    "Text",
    "Thread",
    "ThreadKey",
    "TooLarge",
    "TooMany",
    "Transaction",
    "TurnTimeout",
    "Unanswerable",
    "Unauthenticated",
    "Unavailable",
    "current",
    "migrate",
    "rpc",
]
