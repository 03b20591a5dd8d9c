"""Where a thread stands: its current state, its version and epoch, and what of it is durable. No I/O."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from plait.errors import CorruptThread
from plait.state import StateType
from plait.store.protocol import ChangeRow, Stored, ThreadKey, Write
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import Op, PatchError, apply, diff

__all__ = ["UNSET", "History", "Revision"]

UNSET: Final = msgspec.UNSET

_KEEP: Final = 1000
_SMALL_LOG: Final = 4096

_decode_ops = msgspec.json.Decoder(list[Op]).decode


class Revision(msgspec.Struct, frozen=True):
    """A state and its version. `json` is None where there is no state yet."""

    version: int
    state: Any
    json: bytes | None
    # Bytes of the log since the last snapshot, and of that snapshot.
    log_size: int = 0
    snapshot_size: int = 0
    is_stored: bool = False


class History:
    """The revisions of one thread: the current one, and the last that is durable.

    `append` moves the current one on and returns what to write; `commit` and `rollback` say what came of it.
    """

    __slots__ = ("_key", "_type", "current", "durable", "epoch")

    def __init__(self, key: ThreadKey, state_type: StateType, stored: Stored | None) -> None:
        self._key = key
        self._type = state_type
        self.epoch = stored.epoch if stored else secrets.token_hex(8)
        self.durable = self._replay(stored) if stored else Revision(0, UNSET, None)
        self.current = self.durable

    def start(self, state: Any, data: bytes) -> Write:
        """Make `state` the one that the thread begins with, version 0."""
        self.current = Revision(0, state, data, snapshot_size=len(data), is_stored=True)
        return Write(self._key, self.epoch, None, 0, snapshot=data)

    def diff(self, state: Any, data: bytes) -> Sequence[Op]:
        """Return the operations from the current state to `state`, whose JSON is `data`."""
        current = self.current
        if current.json is None:
            return (Op("add", "", state),)
        if current.json == data:
            return ()
        # A state that can be changed in place may have been: what it was is read from its JSON.
        before = current.state if self._type.is_immutable else self._type.decode(current.json)
        return diff(before, state)

    def append(self, ops: Sequence[Op], state: Any, data: bytes, source: str) -> Write:
        """Make `state` the current one and return the write that makes it durable."""
        before = self.current
        version = before.version + 1
        encoded = encode_json(ops)
        if len(encoded) > len(data) + 64:
            encoded = b'[{"op":"replace","path":"","value":%b}]' % data
        log_size = before.log_size + len(encoded)
        rewrite = before.json is None or log_size > max(before.snapshot_size, _SMALL_LOG)
        self.current = Revision(
            version, state, data, *((0, len(data)) if rewrite else (log_size, before.snapshot_size)), is_stored=True
        )
        return Write(
            self._key,
            self.epoch,
            before.version if before.is_stored else None,
            version,
            ChangeRow(version, encoded, source, time.time_ns() // 1000),
            data if rewrite else None,
            version - _KEEP if rewrite and version > _KEEP else None,
        )

    def commit(self, revision: Revision) -> None:
        """Take note that `revision` is durable."""
        self.durable = revision

    def rollback(self) -> None:
        """Go back to the last durable revision."""
        self.current = self.durable

    def _replay(self, stored: Stored) -> Revision:
        try:
            if not stored.changes and stored.snapshot is not None:
                data, log_size = stored.snapshot, 0
            else:
                document = None if stored.snapshot is None else decode_json(stored.snapshot)
                for row in stored.changes:
                    document = apply(document, _decode_ops(row.ops))
                data, log_size = encode_json(document), sum(len(row.ops) for row in stored.changes)
        except (msgspec.DecodeError, PatchError, RecursionError) as error:
            raise CorruptThread(f"{self._key} cannot be read: {error}") from error
        try:
            state = self._type.decode(data)
        except msgspec.DecodeError as error:
            raise CorruptThread(f"{self._key} is stored as another type than its class has: {error}") from error
        return Revision(stored.version, state, data, log_size, len(stored.snapshot or b""), is_stored=True)
