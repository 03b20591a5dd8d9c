"""A thread's current and durable revisions, its epoch, and its recent changes. No I/O."""

import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from plait.clock import read_wall_clock
from plait.errors import CorruptThread
from plait.limits import Limits
from plait.state.retention import DEFAULT_RETENTION, Retention
from plait.state.revision import Revision
from plait.state.source import HasUser
from plait.state.types import UNDECODED, StateType, explain_invalid_state
from plait.store.protocol import StoredThread, Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, Snapshot, ThreadKey
from plait_schemas.codec import NOT_JSON, decode_json, encode_json, printable
from plait_schemas.diff import MOST_OPS, diff
from plait_schemas.patch import Op, Owned, PatchError, apply, decode_ops
from plait_schemas.text_patch import TextDiff

__all__ = ["StateHistory", "replay_document", "replay_json", "replay_steps"]

_SMALL_LOG: Final = 4096
_IN_LIST: Final = re.compile(r"/\d+(?:/|$)")
_WORTH_IT: Final = 16 * 1024
# Recent changes are kept in memory for pushes with an old base, and for readers that are slow or reconnect.
_RECENT_CHANGES: Final = 256
_RECENT_BYTES: Final = 64 * 1024
# Operations to replay before other tasks may run.
_AT_ONCE: Final = 100


class StateHistory:
    """The current and the last durable revision of one thread, and its recent changes.

    `append` makes a revision the current one and returns the write for it; `mark_durable` or `rollback` follow when the
    write has succeeded or failed.
    """

    __slots__ = (
        "_on_stored",
        "_owner",
        "_recent",
        "_recent_bytes",
        "_retention",
        "_state_version",
        "_texts",
        "_type",
        "created_at",
        "current",
        "durable",
        "epoch",
        "fence",
        "find_user",
        "is_begun",
        "is_stored",
        "key",
        "secret",
        "user",
    )

    def __init__(
        self,
        key: ThreadKey,
        state_type: StateType,
        stored: StoredThread | None,
        *,
        retention: Retention = DEFAULT_RETENTION,
        state_version: int = 1,
        fence: int = 0,
        on_stored: Callable[[], None] = lambda: None,
    ) -> None:
        self.key = key
        # The number of the thread's owner, for its writes.
        self.fence = fence
        self._type = state_type
        self._retention = retention
        self._state_version = state_version
        # None until the first change: most awake threads are only read.
        self._texts: TextDiff | None = None
        self._recent: deque[ChangeRow] | None = None
        self._recent_bytes = 0
        fresh = b"" if stored else secrets.token_bytes(8 + 16)
        self.epoch = stored.epoch if stored else fresh[:8].hex()
        # Never sent; connection ids are derived from it.
        self.secret = stored.secret if stored else fresh[8:]
        # The time of the thread's creation, in microseconds since the epoch, 0 before its first write; and the id of
        # its user: the owner, or else the creator, who is known with the first write.
        self.created_at = stored.created_at if stored else 0
        self.user = self._owner = stored.user if stored else None
        # Returns the user of the calling code; set by the node for threads of the app.
        self.find_user: Callable[[], str | None] = lambda: None
        # `is_begun`: whether a write that creates the thread was made. `is_stored`: whether this write is durable;
        # `on_stored` is called then. A thread may be created without a state.
        self._on_stored = on_stored if stored is None else None
        self.is_stored = self.is_begun = stored is not None
        self.durable = self._replay(stored) if stored and stored.has_state else Revision(state_type)
        self.current = self.durable

    def start(self, state: Any, data: bytes) -> None:
        """Make `state` the initial state, version 0, of a new thread; the first write stores it."""
        self.current = self.durable = Revision(self._type, json=data, tree=state)
        self.current.snapshot_size = len(data)

    def diff(self, before: Revision, state: Any, data: bytes, limits: Limits, *, most: int = MOST_OPS) -> Sequence[Op]:
        """Return the operations from a revision to `state`, whose JSON is `data`.

        If there would be more than `most`, the result is one operation that replaces the whole.

        Raises InvalidState or TooLarge, as StateType.diff does.
        """
        if not before.has_state:
            return (Op("add", "", self._type.read_new(data, limits)),)
        if self._texts is None:
            self._texts = TextDiff(self._type.keys)
        return self._type.diff((before.base, before.require_json()), (state, data), limits, self._texts, most)

    def set_owner(self, user: str | None) -> None:
        """Set the user of a thread that is not stored yet, in place of its creator."""
        self.user = self._owner = user

    def append(
        self,
        ops: Sequence[Op],
        source: str,
        after: Revision,
        client: ClientRow | None = None,
        records: Sequence[Record] = (),
        *,
        by: HasUser | str = "server",
    ) -> Write:
        """Make `after`, the result of `ops`, the current revision, and return the write that makes it durable.

        `source` is stored with the change. A new thread is created for the user of `by`.
        """
        before = self.current
        encoded = encode_json(ops)
        # Store the whole state if the operations are much longer; most changes are too small to check.
        size = len(encoded)
        if not before.is_stored or (size > _WORTH_IT and size > after.size and size > _max_ops_size(ops, after.size)):
            encoded = b'[{"op":"replace","path":"","value":%b}]' % after.require_json()
            size = len(encoded)
        version = after.version = before.version + 1
        change = after.change = ChangeRow(version, encoded, source, read_wall_clock())
        log_size = after.log_size = before.log_size + size
        after.snapshot_size = before.snapshot_size
        is_rewritten = not before.has_state or (log_size > _SMALL_LOG and log_size > before.snapshot_size)
        if is_rewritten:
            after.log_size, after.snapshot_size = 0, len(after.require_json())
        self.current = after
        if self._recent is None:
            self._recent = deque()
        self._recent.append(change)
        self._recent_bytes += size
        self._forget()
        is_begun = self.is_begun
        follows, secret, first = (before.version, b"", ()) if is_begun else self._begin(by)
        last = (Snapshot(version, after.require_json()),) if is_rewritten else ()
        return Write(
            self.key,
            self.epoch,
            follows,
            version,
            (change,),
            (*first, *last) if first else last,
            self._prune(after) if is_rewritten else None,
            () if client is None else (client,),
            self._state_version if first or not before.has_state else None,
            secret,
            records,
            self.fence,
            created_at=0 if is_begun else self.created_at,
            user=None if is_begun else self.user,
        )

    def put(self, records: Sequence[Record], *, by: HasUser | str = "server") -> Write:
        """Return the write of records with the current revision; without records, the write creates the thread."""
        version = self.current.version
        if self.is_begun:
            return Write(self.key, self.epoch, version, version, records=records, fence=self.fence)
        after, secret, first = self._begin(by)
        return Write(
            self.key,
            self.epoch,
            after,
            version,
            snapshots=first,
            state_version=self._state_version if first else None,
            secret=secret,
            records=records,
            fence=self.fence,
            created_at=self.created_at,
            user=self.user,
        )

    def delete(self) -> Write | None:
        """Return the write that deletes the thread after the earlier writes; None if none of them has created it."""
        if not self.is_begun:
            return None
        version = self.current.version
        return Write(self.key, self.epoch, version, version, fence=self.fence, is_deletion=True)

    def mark_durable(self, revision: Revision) -> None:
        """Record that `revision` is durable."""
        if not self.is_stored:
            self.is_stored, on_stored, self._on_stored = True, self._on_stored, None
            assert on_stored is not None
            on_stored()
        if revision is self.durable:
            return
        self.durable = revision
        revision.hold_once()
        self._forget()

    def rollback(self) -> None:
        """Go back to the last durable revision."""
        self.is_begun = self.is_stored
        if not self.is_begun:
            self.created_at, self.user = 0, self._owner
        self.durable.discard_edits()
        self.current = self.durable
        while self._recent and self._recent[-1].version > self.durable.version:
            self._recent_bytes -= len(self._recent.pop().ops)

    def since(self, version: int, to: int, older: Iterable[ChangeRow] = ()) -> list[ChangeRow] | None:
        """Return the changes after `version`, up to `to`; None if some of them are missing.

        Changes that are not in memory are taken from `older`: changes read from the store, in order.
        """
        if version >= to:
            return []
        recent = self._recent
        if recent and recent[0].version <= version + 1:
            first = recent[0].version
            return list(islice(recent, version + 1 - first, to + 1 - first))
        found = [row for row in older if version < row.version <= to]
        if not found or found[0].version > version + 1:
            return None
        newer = self.since(found[-1].version, to)
        return None if newer is None else found + newer

    def recent(self, to: int) -> list[ChangeRow]:
        """Return the changes up to `to` that are in memory."""
        return [row for row in self._recent or () if row.version <= to]

    def forget(self) -> None:
        """Drop the recent changes, and the cache for comparing states, unless some changes are not durable yet."""
        if self.current is self.durable:
            self._recent = self._texts = self.current.change = None
            self._recent_bytes = 0

    def release(self) -> None:
        """Keep the states only as JSON, as the thread ends: late readers decode it."""
        self.current.release()
        self.durable.release()

    # Inside

    def _begin(self, by: HasUser | str) -> tuple[None, bytes, tuple[Snapshot, ...]]:
        """Return the special fields of the first write: no earlier version, the secret, and a snapshot of the state."""
        self.is_begun = True
        # A user id with half of a surrogate pair cannot be stored.
        creator = self.find_user() if isinstance(by, str) else by.user
        if self._owner is None and creator and printable(creator) == creator:
            self.user = creator
        self.created_at = read_wall_clock()
        initial = self.durable
        return None, self.secret, (Snapshot(0, initial.require_json()),) if initial.has_state else ()

    def _forget(self) -> None:
        """Drop changes that exceed the bounds from memory, but keep all that are not durable yet."""
        recent = self._recent
        while recent and (len(recent) > _RECENT_CHANGES or self._recent_bytes > _RECENT_BYTES):
            if recent[0].version > self.durable.version:
                break
            self._recent_bytes -= len(recent.popleft().ops)

    def _prune(self, revision: Revision) -> Prune:
        keep = self._retention
        assert revision.change is not None
        return Prune(
            version=0 if keep.changes is None else max(0, revision.version - keep.changes),
            at=0 if keep.age is None else revision.change.at - int(keep.age * 1e6),
            bytes=keep.bytes,
        )

    def _replay(self, stored: StoredThread) -> Revision:
        data = replay_json(self.key, stored)
        try:
            # Decode plain states, too: a state that cannot be decoded must prevent the thread from waking.
            state = self._type.decode(data)
            if self._type.is_document:
                state, now = UNDECODED, data if self._type.is_plain else self._type.encode(state, data)
            else:
                now = encode_json(state)
        except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
            what = f"{self.key}: the stored state does not fit its class's type"
            raise CorruptThread(what, detail=explain_invalid_state(error)) from error
        revision = Revision(self._type, json=now, tree=state)
        revision.version = stored.version
        revision.log_size = sum(len(row.ops) for row in stored.changes)
        revision.snapshot_size = len(stored.snapshot or b"")
        # The type may have a new field; operations on this field would not fit the stored document.
        revision.is_stored = now == data or not diff(decode_json(data), decode_json(now))
        return revision


def _max_ops_size(ops: Iterable[Op], size: int) -> int:
    """Return the maximum size of stored operations, above which the whole state, of `size` bytes, is stored instead.

    Pushes and undos are rebased over the stored operations: a whole state does not show the moves of elements in lists
    and of places in texts.
    """
    worth = _WORTH_IT if all(op.op == "replace" for op in ops) else 4 * _WORTH_IT
    return max(worth, 3 * size) if any(op.op == "splice" or _IN_LIST.search(op.path) for op in ops) else worth


def replay_json(key: ThreadKey, stored: StoredThread) -> bytes:
    """Return the stored state as JSON; a snapshot is returned without decoding it. Raises CorruptThread."""
    if not stored.changes and stored.snapshot is not None:
        return stored.snapshot
    return encode_json(replay_document(key, stored))


def replay_document(key: ThreadKey, stored: StoredThread) -> Any:
    """Return the stored state as a tree of dicts and lists. Raises CorruptThread."""
    return deque(replay_steps(key, stored), maxlen=1).pop()


def replay_steps(key: ThreadKey, stored: StoredThread) -> Iterator[Any]:
    """Yield the document after every 100 replayed operations, and the stored state last. Raises CorruptThread."""
    try:
        document = None if stored.snapshot is None else decode_json(stored.snapshot)
        yield document
        ops = (op for row in stored.changes for op in decode_ops(row.ops))
        owned: Owned = {}
        while some := list(islice(ops, _AT_ONCE)):
            document = apply(document, some, owned)
            yield document
    except (*NOT_JSON, PatchError) as error:
        raise CorruptThread(f"{key} cannot be read", detail=str(error)) from error
