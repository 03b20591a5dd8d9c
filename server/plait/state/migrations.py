"""`@migrate`, and the migration of states that were stored with an earlier `state_version`."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

from plait.clock import read_wall_clock
from plait.errors import MigrationFailed, NewerState, PlaitError
from plait.state.state_history import StateHistory, replay_document
from plait.state.types import StateType, explain_invalid_state
from plait.store.protocol import Store, StoredThread, ThreadQuery, ThreadRow, Write
from plait.store.thread_rows import ChangeRow, Snapshot, ThreadKey
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.encoding import EncodeError, encode_given

__all__ = [
    "Outcome",
    "explain_lost",
    "find_lost",
    "find_migrations",
    "migrate",
    "migrate_all",
    "migrate_state",
    "store_migrated",
]

_MARK: Final = "__plait_migrate__"

F = TypeVar("F", bound=Callable[..., Any])


def migrate(*, from_: int) -> Callable[[F], F]:
    """Mark a function in a Thread class that migrates a state from version `from_` to the next one.

    The function takes the state as dicts, lists and scalars, may change it in place, and returns it. There is no
    `self`.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, from_)
        return function

    return mark


def find_migrations(cls: type, state_version: int) -> dict[int, Callable[[Any], Any]]:
    """Return the migrations of a class, by the version from which they migrate. Raises TypeError."""
    if type(state_version) is not int or state_version < 1:
        raise TypeError(f"{cls.__name__}.state_version must be a whole number, at least 1, not {state_version!r}")
    found: dict[int, Callable[[Any], Any]] = {}
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        marks = [
            getattr(each, _MARK) for each in (function, getattr(function, "__func__", None)) if hasattr(each, _MARK)
        ]
        if not marks:
            continue
        function, from_ = getattr(function, "__func__", function), marks[0]
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{cls.__name__}.{attribute} must be a plain function")
        if type(from_) is not int or not 1 <= from_ < state_version:
            raise TypeError(
                f"{cls.__name__}.{attribute}: @migrate(from_={from_!r}): from_ must be a whole number, at least 1 and "
                f"below state_version, {state_version}"
            )
        if from_ in found:
            raise TypeError(f"{cls.__name__} has two migrations from {from_}")
        found[from_] = function
    return found


class StateClass(Protocol):
    """The attributes of a Thread class that describe its states."""

    cls: type[Any]
    state_type: StateType
    state_version: int
    migrations: dict[int, Callable[[Any], Any]]


Outcome = Literal["current", "migrated", "failed", "lossy", "unknown"]
"""The outcome of migrating a stored thread.

"lossy" means that the type lacks members of the stored state: the state is not migrated, and loses them with its next
change. "unknown" means that the app does not have the thread's kind.
"""

# Threads that are migrated at the same time, so that their writes share transactions.
_AT_ONCE: Final = 100


def migrate_state(key: ThreadKey, kind: StateClass, stored: StoredThread) -> bytes | None:
    """Return the stored state as JSON, migrated to the version of its class; None if there is nothing to migrate.

    Raises MigrationFailed, NewerState or CorruptThread.
    """
    version, wanted = stored.state_version, kind.state_version
    if version == wanted or not stored.has_state:
        return None
    if version > wanted:
        raise NewerState(f"{key} was stored with state_version {version}, this code has {wanted}; deploy newer code")
    document = replay_document(key, stored)
    what = f"{key} could not be migrated to state_version {wanted}"
    for step in range(version, wanted):
        migrate = kind.migrations.get(step)
        if migrate is None:
            raise MigrationFailed(what, detail=f"{kind.cls.__name__} has no @migrate(from_={step})")
        try:
            document = migrate(document)
        except BaseException as error:  # The author's function may raise any exception; the store stays as it is.
            raised = f"@migrate(from_={step}) raised {type(error).__name__}: {error}"
            raise MigrationFailed(what, detail=raised) from error
    try:
        data = encode_given(document)
        state = kind.state_type.decode(data)
        # Encode the decoded state: the type adds default values that the migrations left out.
        encoded = encode_given(state)
    except EncodeError as error:
        raise MigrationFailed(what, detail=f"the result of the migrations is not JSON: {error}") from error
    except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
        returned = f"the result of the migrations is not a state of {kind.cls.__name__}: {explain_invalid_state(error)}"
        raise MigrationFailed(what, detail=returned) from error
    return data if kind.state_type.is_plain else encoded


def find_lost(key: ThreadKey, kind: StateClass, stored: StoredThread) -> list[str]:
    """Return the paths of stored members that the type no longer has. Raises CorruptThread."""
    if not stored.has_state or kind.state_type.is_plain:
        return []
    return kind.state_type.find_unknown(replay_document(key, stored))


def explain_lost(key: ThreadKey, lost: Iterable[str]) -> str:
    """Return a message about the members that a thread's state will lose, as its type lacks them, with the remedy."""
    places = ", ".join(lost)
    return f"{key} loses {places} with its next change, as the type lacks it: raise state_version, and add a @migrate"


async def store_migrated(
    store: Store, key: ThreadKey, stored: StoredThread, data: bytes, *, state_version: int, fence: int
) -> StoredThread:
    """Store a migrated state by a change with the source "migration"; return the stored thread after this change.

    `fence` is the number of the thread's owner. Raises StoreError.
    """
    ops = encode_json(diff(replay_document(key, stored), decode_json(data)))
    if len(ops) > len(data) + 64:
        ops = b'[{"op":"replace","path":"","value":%b}]' % data
    version = stored.version + 1
    row = ChangeRow(version, ops, "migration", read_wall_clock())
    write = Write(
        key,
        stored.epoch,
        stored.version,
        version,
        (row,),
        (Snapshot(version, data),),
        state_version=state_version,
        fence=fence,
    )
    await store.submit(write)
    return msgspec.structs.replace(stored, version=version, snapshot=data, changes=(), state_version=state_version)


async def migrate_all(
    store: Store, kinds: Mapping[str, StateClass], *, dry_run: bool
) -> AsyncIterator[tuple[ThreadKey, Outcome, PlaitError | None]]:
    """Migrate every thread of a store, or only try to with `dry_run`; yield the outcome for each thread."""
    after: ThreadRow | None = None
    while rows := await store.threads(ThreadQuery(after=after, limit=_AT_ONCE)):
        keys = [row.key for row in rows]
        found = await asyncio.gather(*(_try(store, key, kinds.get(key.kind), dry_run=dry_run) for key in keys))
        for key, outcome in zip(keys, found, strict=True):
            yield key, *outcome
        after = rows[-1]


async def _try(
    store: Store, key: ThreadKey, kind: StateClass | None, *, dry_run: bool
) -> tuple[Outcome, PlaitError | None]:
    if kind is None:
        return "unknown", None
    try:
        if dry_run:
            return await _migrate(store, key, kind, None)
        fence = await store.claim(key)
        try:
            return await _migrate(store, key, kind, fence)
        finally:
            store.release(key, fence)
    except PlaitError as error:
        return "failed", error


async def _migrate(
    store: Store, key: ThreadKey, kind: StateClass, fence: int | None
) -> tuple[Outcome, PlaitError | None]:
    """Migrate a thread; without the number of an owner, only try to."""
    stored = await store.load(key)
    if stored is None or (data := migrate_state(key, kind, stored)) is None:
        # Raises if the type of the class has changed, but not its state_version.
        StateHistory(key, kind.state_type, stored)
        if stored is None or not (lost := find_lost(key, kind, stored)):
            return "current", None
        error = MigrationFailed(explain_lost(key, lost))
        error.lost = lost
        return "lossy", error
    if fence is not None:
        await store_migrated(store, key, stored, data, state_version=kind.state_version, fence=fence)
    return "migrated", None
