"""One namespace of the key-value store: a thread whose records are the entries."""

import hashlib
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec.structs import replace

from plait.actor.thread import Thread, ThreadActor
from plait.errors import PlaitError
from plait.parts.part import Part
from plait.state.commit import Commit
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import encode_json

__all__ = ["DUE", "NAMESPACE", "Description", "Namespace", "escape", "read_due", "unescape"]

NAMESPACE: Final = "plait-kv"
"""The kind of namespaces."""

DUE: Final = "due"
"""The part whose keys are the times at which entries expire, sorted by time."""

# The part with two records for each entry, its description and its data, which are read together.
_ENTRIES: Final = "entries"
# The part with the descriptions alone, for listings.
_INDEX: Final = "index"
_SETTINGS: Final = "settings"

# The characters that the key of a record cannot have, and those with a meaning in the keys of this file.
_ODD: Final = re.compile("[\x00-\x20\x7f-\x9f\ud800-\udfff%*]")
# Bytes of a key in the store. A longer key is replaced by its first bytes and a hash.
_LONGEST: Final = 480
_BEGINNING: Final = 400
_PAGE: Final = 1000


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry without its data; `expires` is in microseconds since the epoch."""

    # The whole escaped key: the key of the record may have a hash.
    key: str
    form: Literal["text", "json", "bytes"]
    content_type: str
    size: int
    expires: int | None = None


_decode_description: Final = msgspec.json.Decoder(Description).decode
_decode_ttl: Final = msgspec.json.Decoder(float | None).decode


class Entries(Part["Namespace"]):
    """Gives handles the methods of a namespace."""

    reading: ClassVar = frozenset({"read", "keys", "stats"})

    def bind(self, actor: ThreadActor) -> "Namespace":
        thread: Namespace = actor.thread
        return thread


class Namespace(Thread[Any]):
    """Holds the entries of a namespace. Its methods take escaped keys, and times in microseconds."""

    kind = NAMESPACE
    entries = Entries()

    def __init__(self) -> None:
        # Seconds after which an entry expires that was set without a `ttl`.
        self.default_ttl: float | None = None
        # For each reader, the keys that were written while it reads.
        self._watches: list[set[str]] = []

    async def on_start(self) -> None:
        """Read the default `ttl`."""
        if (data := await self._actor.records.read(_SETTINGS, "ttl")) is not None:
            self.default_ttl = _decode_ttl(data)

    async def set_default(self, ttl: float | None) -> None:
        """Set the default `ttl`, and create the namespace if it does not exist."""
        commit = self._actor.records.write([Record(_SETTINGS, "ttl", encode_json(ttl))])
        commit.then(lambda error: self._take_default(ttl) if error is None else None)
        await commit

    def write(
        self, entry: Description, data: bytes, now: int, ttl: float | msgspec.UnsetType | None = msgspec.UNSET
    ) -> Commit:
        """Set an entry, which expires after `ttl` seconds, by default after those of the namespace."""
        seconds = self.default_ttl if ttl is msgspec.UNSET else ttl
        if seconds is not None:
            entry = replace(entry, expires=now + math.ceil(seconds * 1e6))
        described, name = encode_json(entry), _record_key(entry.key)
        records = [
            Record(_ENTRIES, f"{name} 0", described),
            Record(_ENTRIES, f"{name} 1", data),
            Record(_INDEX, name, described),
        ]
        if entry.expires is not None:
            records.append(Record(DUE, _due_key(entry.expires, now, name), b""))
        return self._write(records, [name])

    async def read(self, key: str, now: int) -> tuple[Description, bytes] | None:
        """Return an entry and its data, None if there is none or it has expired."""
        name = _record_key(key)
        with self._watch() as written:
            found = await self._actor.records.list(RecordRange(_ENTRIES, prefix=f"{name} ", limit=2))
            if len(found) < 2:
                return None
            entry, data = _decode_description(found[0].value or b""), found[1].value or b""
            if _has_expired(entry, now):
                self._remove_expired([name], written)
                return None
        return entry, data

    async def delete(self, key: str) -> None:
        """Remove an entry, if it is there."""
        if self._actor.state.history.is_begun:
            name = _record_key(key)
            await self._write(_removals([name]), [name])

    async def keys(self, prefix: str, now: int) -> list[str]:
        """Return the escaped keys of the entries whose escaped keys begin with `prefix`."""
        return [entry.key async for entry in self.descriptions(prefix, now)]

    async def stats(self, now: int) -> tuple[int, int]:
        """Return the number of the entries, and the bytes of their data."""
        sizes = [entry.size async for entry in self.descriptions("", now)]
        return len(sizes), sum(sizes)

    async def descriptions(self, prefix: str, now: int) -> AsyncIterator[Description]:
        """Iterate over the entries that have not expired and whose keys begin with `prefix`."""
        after, start = "", _cut(prefix)
        while True:
            with self._watch() as written:
                rows = await self._actor.records.list(RecordRange(_INDEX, prefix=start, after=after, limit=_PAGE))
                entries = [(row.key, _decode_description(row.value or b"")) for row in rows]
                self._remove_expired([name for name, entry in entries if _has_expired(entry, now)], written)
            for _, entry in entries:
                if entry.key.startswith(prefix) and not _has_expired(entry, now):
                    yield entry
            if len(rows) < _PAGE:
                return
            after = rows[-1].key

    async def sweep(self, now: int, limit: int) -> int:
        """Remove expired entries; return how many due times were read, at most `limit`."""
        with self._watch() as written:
            rows = await self._actor.records.list(RecordRange(DUE, limit=limit))
            due = [row.key for row in rows if read_due(row.key) <= now]
            expired = []
            for name in dict.fromkeys(key.partition(" ")[2] for key in due):
                described = await self._actor.records.read(_INDEX, name)
                if described is not None and _has_expired(_decode_description(described), now):
                    expired.append(name)
            if due:
                left = [name for name in expired if name not in written]
                await self._write([*_removals(left), *(Record(DUE, key, None) for key in due)], left)
        return len(due)

    # Inside

    @contextmanager
    def _watch(self) -> Iterator[set[str]]:
        """Collect the keys that are written during the block, which may have read older values of them."""
        written: set[str] = set()
        self._watches.append(written)
        try:
            yield written
        finally:
            self._watches[:] = [each for each in self._watches if each is not written]

    def _take_default(self, ttl: float | None) -> None:
        self.default_ttl = ttl

    def _write(self, records: list[Record], names: Iterable[str]) -> Commit:
        commit = self._actor.records.write(records)
        for written in self._watches:
            written.update(names)
        return commit

    def _remove_expired(self, names: list[str], written: set[str]) -> None:
        """Remove entries, except those that were set again since they were read, without waiting for the store."""
        if left := [name for name in names if name not in written]:
            with suppress(PlaitError):  # The thread is stopping; the entries are removed later.
                self._write(_removals(left), left)


def escape(text: str) -> str:
    """Replace the characters that the key of a record or the name of a thread cannot have."""
    return _ODD.sub(_escape_one, text)


def unescape(escaped: str) -> str:
    """Undo `escape`."""
    return re.sub("(?:%[0-9A-F]{2})+", _unescape_some, escaped)


def read_due(key: str) -> int:
    """Return the time in a key of the part `DUE`."""
    return int(key[:16], 16)


def _escape_one(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def _unescape_some(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode(errors="surrogatepass")


def _record_key(escaped: str) -> str:
    data = escaped.encode()
    if len(data) <= _LONGEST:
        return escaped
    return f"{_cut(escaped)}*{hashlib.blake2b(data, digest_size=32).hexdigest()}"


def _cut(escaped: str) -> str:
    """Return the prefix of the record keys of all keys that begin with `escaped`."""
    return escaped.encode()[:_BEGINNING].decode(errors="ignore")


def _removals(names: Iterable[str]) -> list[Record]:
    keys = [
        (part, key)
        for name in names
        for part, key in ((_ENTRIES, f"{name} 0"), (_ENTRIES, f"{name} 1"), (_INDEX, name))
    ]
    return [Record(part, key, None) for part, key in keys]


def _due_key(expires: int, now: int, name: str) -> str:
    # Round up by about a tenth of the remaining time, so that an entry that is set often has few due times.
    step = 1 << max((expires - now).bit_length() - 4, 0)
    return f"{-(-expires // step) * step:016x} {name}"


def _has_expired(entry: Description, now: int) -> bool:
    return entry.expires is not None and entry.expires <= now
