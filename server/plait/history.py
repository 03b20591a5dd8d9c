"""Where a thread stands: its current state, its version and epoch, and what of it is durable. No I/O."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from plait.errors import CorruptThread
from plait.limits import Limits
from plait.state import UNDECODED, StateType
from plait.store.protocol import ChangeRow, Stored, ThreadKey, Write
from plait_schemas.codec import NOT_JSON, decode_json, encode_json
from plait_schemas.patch import Op, PatchError, apply
from plait_schemas.text_patch import TextDiff

__all__ = ["History", "Revision"]

_KEEP: Final = 1000
_SMALL_LOG: Final = 4096

_decode_ops = msgspec.json.Decoder(list[Op]).decode


class Revision:
    """A state and its version. `json` is None where there is no state yet."""

    __slots__ = ("_shown", "_type", "base", "json", "log_size", "snapshot_size", "version")

    def __init__(
        self,
        version: int,
        json: bytes | None,
        state: Any,
        type_: StateType,
        *,
        log_size: int = 0,
        snapshot_size: int = 0,
    ) -> None:
        self.version = version
        self.json = json
        # Bytes of the log since the last snapshot, and of that snapshot; without one nothing is stored yet.
        self.log_size = log_size
        self.snapshot_size = snapshot_size
        self._type = type_
        # As it was made, for comparing, and as it is shown to authors.
        self.base = state
        self._shown = state if type_.is_immutable or json is None else UNDECODED

    @property
    def state(self) -> Any:
        """The state for authors. Where they could change it in place, it is a copy of its own, made on first use."""
        if self._shown is UNDECODED:
            assert self.json is not None
            self._shown = self._type.decode(self.json)
        return self._shown

    def copy(self) -> Any:
        """Return the state for somebody else: an object of its own, where it could be changed in place."""
        return self._shown if self.json is None or self._type.is_immutable else self._type.decode(self.json)

    def show_anew(self) -> None:
        """Undo what authors may have changed in place."""
        if not self._type.is_immutable and self.json is not None:
            self._shown = UNDECODED


class History:
    """The revisions of one thread: the current one, and the last that is durable.

    `append` moves the current one on and returns what to write; `commit` and `rollback` say what came of it.
    """

    __slots__ = ("_key", "_texts", "_type", "current", "durable", "epoch")

    def __init__(self, key: ThreadKey, state_type: StateType, stored: Stored | None) -> None:
        self._key = key
        self._type = state_type
        self._texts = TextDiff()
        self.epoch = stored.epoch if stored else secrets.token_hex(8)
        self.durable = self._replay(stored) if stored else Revision(0, None, None, state_type)
        self.current = self.durable

    def start(self, state: Any, data: bytes) -> Write:
        """Make `state` the one that the thread begins with, version 0."""
        self.current = Revision(0, data, state, self._type, snapshot_size=len(data))
        return Write(self._key, self.epoch, None, 0, snapshot=data)

    def diff(self, state: Any, data: bytes, limits: Limits) -> Sequence[Op]:
        """Return the operations from the current state to `state`, whose JSON is `data`.

        Raises InvalidState or TooLarge, as StateType.diff does.
        """
        current = self.current
        if current.json is None:
            return (Op("add", "", self._type.read(data, limits)),)
        return self._type.diff((current.base, current.json), (state, data), limits, self._texts)

    def append(self, ops: Sequence[Op], state: Any, data: bytes, source: str) -> Write:
        """Make `state` the current one and return the write that makes it durable."""
        before = self.current
        version = before.version + 1
        encoded = encode_json(ops)
        if len(encoded) > len(data) + 64:
            encoded = b'[{"op":"replace","path":"","value":%b}]' % data
        log_size = before.log_size + len(encoded)
        rewrite = before.json is None or log_size > max(before.snapshot_size, _SMALL_LOG)
        sizes = (0, len(data)) if rewrite else (log_size, before.snapshot_size)
        self.current = Revision(version, data, state, self._type, log_size=sizes[0], snapshot_size=sizes[1])
        return Write(
            self._key,
            self.epoch,
            before.version if before.json is not None else None,
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
        self.durable.show_anew()
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
        except (*NOT_JSON, PatchError) as error:
            raise CorruptThread(f"{self._key} cannot be read: {error}") from error
        try:
            state = self._type.decode(data)
        except NOT_JSON as error:
            raise CorruptThread(f"{self._key} is stored as another type than its class has: {error}") from error
        snapshot_size = len(stored.snapshot or b"")
        if self._type.is_plain:
            state = UNDECODED
        return Revision(stored.version, data, state, self._type, log_size=log_size, snapshot_size=snapshot_size)
