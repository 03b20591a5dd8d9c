"""`kv`: durable namespaces of strings, JSON and bytes, whose entries may expire."""

import asyncio
import logging
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from plait.actor.actor import Actor
from plait.actor.turn import begin_write
from plait.clock import read_wall_clock
from plait.errors import NotFound, PlaitError, TooLarge, operator_message
from plait.kv.namespace import DUE, NAMESPACE, Description, Namespace, escape, read_due, unescape
from plait.limits import Limits
from plait.parts.encoding import encode_named
from plait.store.protocol import Store, ThreadQuery, ThreadRow
from plait.store.thread_rows import RecordRange, ThreadKey
from plait_schemas.codec import decode_json

__all__ = ["KV", "KVEntry", "KVStats"]

log = logging.getLogger("plait.kv")

_LONGEST_NAME: Final = 256
_LONGEST_KEY: Final = 1024
_LONGEST_TYPE: Final = 255
# Seconds, about a hundred years.
_LONGEST_TTL: Final = 3_200_000_000.0
_SWEEP_INTERVAL: Final = 60.0
_PAGE: Final = 1000

_TYPES: Final = {
    "text": "text/plain; charset=utf-8",
    "json": "application/json",
    "bytes": "application/octet-stream",
}


class KVEntry(msgspec.Struct, frozen=True):
    """The result of `kv.get`: if there is no entry, or it has expired, `exists` is False and the rest is None."""

    exists: bool
    data: Any = None
    content_type: str | None = None
    expires_at: datetime | None = None


class KVStats(msgspec.Struct, frozen=True):
    """The number of entries of a namespace, and the bytes of their data."""

    count: int
    bytes: int


class Threads(Protocol):
    """The threads of all nodes; `Everywhere` describes the methods."""

    async def call_part(self, key: ThreadKey, part: str, method: str, *args: Any) -> Any: ...

    async def destroy(self, key: ThreadKey) -> None: ...

    def list_names(self, kind: str) -> AsyncIterator[str]: ...


class KV:
    """Durable entries by namespace and key; the first entry creates its namespace.

    The methods that write begin when they are called. A write is durable when awaiting the result returns, even in a
    run that raises later. In a run, each call is a checkpoint. The methods raise StoreError, and ValueError for an
    invalid name or key.
    """

    def __init__(
        self,
        store: Store,
        wake: Callable[[ThreadKey], Awaitable[Actor]],
        threads: Threads,
        *,
        limits: Limits,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._wake = wake
        # The namespaces of all nodes; `wake` wakes those of this one.
        self._threads = threads
        self._limits = limits
        # Called by each method; raises Interrupted in a run that is interrupted.
        self._check = check
        # The last namespace that was swept.
        self._swept: ThreadRow | None = None
        self._sweeper: asyncio.Task[None] | None = None

    # Entries

    async def get(self, namespace: str, key: str) -> KVEntry:
        """Return an entry; `data` has the type that was set: str, bytes or JSON."""
        escaped = _check_key(key)
        found = await self._call(namespace, "read", escaped, read_wall_clock())
        if found is None:
            return KVEntry(exists=False)
        entry, data = found
        expires_at = None if entry.expires is None else datetime.fromtimestamp(entry.expires / 1e6, UTC)
        return KVEntry(True, _decode(entry.form, data), entry.content_type, expires_at)

    def set(
        self,
        namespace: str,
        key: str,
        value: Any,
        *,
        ttl: float | msgspec.UnsetType | None = msgspec.UNSET,
        content_type: str | None = None,
    ) -> Awaitable[None]:
        """Set an entry to a str, bytes, or anything that encodes as JSON.

        The entry expires after `ttl` seconds, or never with None; without `ttl`, after the namespace's default. Raises
        TypeError for a value that cannot be JSON, ValueError for an infinite number or NaN, and TooLarge for a value
        over `Limits.record`.
        """
        escaped = _check_key(key)
        if ttl is not msgspec.UNSET:
            _check_ttl(ttl)
        if content_type is not None and (not isinstance(content_type, str) or len(content_type) > _LONGEST_TYPE):
            shown = reprlib.repr(content_type)
            raise ValueError(f"content_type must be a str of at most {_LONGEST_TYPE} characters, not {shown}")
        form, data = _encode(key, value)
        if len(data) > self._limits.record:
            size = f"{len(data)} bytes; the limit is {self._limits.record}"
            raise TooLarge(f"the value of {key!r} has {size}", limit="record")
        label = _TYPES[form] if content_type is None else content_type

        given = () if ttl is msgspec.UNSET else (ttl,)
        entry = Description(escaped, form, label, len(data))
        return self._begin(namespace, "write", entry, data, read_wall_clock(), *given)

    def delete(self, namespace: str, key: str) -> Awaitable[None]:
        """Remove an entry, if it is there."""
        escaped = _check_key(key)
        return self._begin(namespace, "delete", escaped)

    async def keys(self, namespace: str, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        return sorted(map(unescape, await self._call(namespace, "keys", escape(prefix), read_wall_clock())))

    async def stats(self, namespace: str) -> KVStats:
        """Return the number and the size of a namespace's entries."""
        return KVStats(*await self._call(namespace, "stats", read_wall_clock()))

    # Namespaces

    async def namespaces(self) -> list[str]:
        """Return the names of the namespaces, sorted."""
        self._check()
        return sorted([unescape(name) async for name in self._threads.list_names(NAMESPACE)])

    def create_namespace(self, name: str, *, ttl: float | None = None) -> Awaitable[None]:
        """Create a namespace, or change its default `ttl`, after which entries expire that are set without one.

        Existing entries keep their expiry.
        """
        _check_ttl(ttl)
        return self._begin(name, "set_default", ttl)

    def delete_namespace(self, name: str) -> Awaitable[None]:
        """Remove a namespace and all of its entries, if there is one."""
        key = _key_of(name)
        self._check()
        return begin_write(self._destroy(key))

    # Expiry

    def start(self) -> None:
        """Start removing expired entries from the store."""
        self._sweeper = asyncio.create_task(self._run(), name="plait kv sweeper")

    async def stop(self) -> None:
        """Stop removing expired entries."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
            self._sweeper = None

    async def sweep(self) -> None:
        """Remove expired entries of the next namespaces. Raises StoreError."""
        rows = await self._store.threads(ThreadQuery(kind=NAMESPACE, after=self._swept, limit=_PAGE))
        self._swept = rows[-1] if len(rows) == _PAGE else None
        for row in rows:
            due = await self._store.records(row.key, RecordRange(DUE, limit=1))
            if due and read_due(due[0].key) <= read_wall_clock():
                actor = await self._wake(row.key)
                assert isinstance(actor.thread, Namespace)
                with actor.usage.keep_awake():
                    is_page_full = True
                    while is_page_full:
                        is_page_full = await actor.thread.sweep(read_wall_clock(), _PAGE) == _PAGE
                        await asyncio.sleep(0)  # Other tasks run between the pages.

    # Inside

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            try:
                await self.sweep()
            except PlaitError as error:
                log.error(
                    "expired entries of kv could not be removed and will be tried again: %s", operator_message(error)
                )

    def _call(self, namespace: str, method: str, *args: Any) -> Coroutine[Any, Any, Any]:
        key = _key_of(namespace)
        self._check()
        return self._threads.call_part(key, "entries", method, *args)

    def _begin(self, namespace: str, method: str, *args: Any) -> Awaitable[None]:
        return begin_write(self._call(namespace, method, *args))

    async def _destroy(self, key: ThreadKey) -> None:
        with suppress(NotFound):
            await self._threads.destroy(key)


def _key_of(namespace: str) -> ThreadKey:
    if not isinstance(namespace, str):
        raise ValueError(f"a namespace must be a str, not {reprlib.repr(namespace)}")
    if not namespace or len(name := escape(namespace)) > _LONGEST_NAME:
        raise ValueError(f"a namespace must have 1 to {_LONGEST_NAME} characters, unlike {reprlib.repr(namespace)}")
    return ThreadKey(NAMESPACE, name)


def _check_key(key: str) -> str:
    if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST_KEY:
        raise ValueError(f"a key must be a str of 1 to {_LONGEST_KEY} characters, not {reprlib.repr(key)}")
    return escape(key)


def _check_ttl(ttl: float | None) -> None:
    if ttl is None:
        return
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if not is_number or not 0 < ttl <= _LONGEST_TTL:
        most = f"{_LONGEST_TTL:.0f}"
        raise ValueError(
            f"ttl must be a number of seconds above 0, up to {most}, or None for never, not {reprlib.repr(ttl)}"
        )


def _encode(key: str, value: Any) -> tuple[Literal["text", "json", "bytes"], bytes]:
    if isinstance(value, str):
        return "text", value.encode(errors="surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes", bytes(value)
    return "json", encode_named(key, value)


def _decode(form: str, data: bytes) -> Any:
    match form:
        case "text":
            return data.decode(errors="surrogatepass")
        case "bytes":
            return data
        case _:
            return decode_json(data)
