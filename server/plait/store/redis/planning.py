"""Plans the commands of writes from the head of their thread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plait.clock import read_wall_clock
from plait.store.protocol import Write
from plait.store.pruning import find_expired, find_oldest
from plait.store.redis.layout import HEAD, Keys, RedisHead, encode_row, join
from plait.store.redis.line import Command
from plait.store.thread_rows import ChangeRow, Prune, Record

__all__ = ["Log", "Plan"]

# The most values in one command, as a script unpacks it.
_VALUES: Final = 1000


class Log(NamedTuple):
    """The part of a stored log that a write prunes, as far as it must be known."""

    # The version before its first change.
    base: int = 0
    # Those that a bound may divide: the first ones up to one that is young, and the last ones with so many bytes.
    changes: Sequence[ChangeRow] = ()
    snapshots: Sequence[int] = ()
    # When each client has pushed last.
    clients: Mapping[str, int] = {}


class Plan:
    """The commands of the coalesced writes of one thread, and its head after them.

    `log` is the stored one if they prune it. Making a plan raises UnicodeEncodeError and TypeError.
    """

    def __init__(self, keys: Keys, before: RedisHead, writes: Sequence[Write], log: Log) -> None:
        self.key = key = writes[0].key
        self.before = before
        self.after = before._replace(writes=before.writes + 1)
        self.writes = writes
        self.log = log
        self.commands: list[Command] = []
        # When the thread has changed; None if that is stored, or did not happen.
        self.changed_at: int | None = None
        self._keys = keys
        self._member = join(*key)
        self.head_key, self._changes, self._snapshots, self._clients, self._records, self._order = keys.thread(
            key, "hcslro"
        )

        for write in writes:
            if write.is_deletion:
                self._delete()
            else:
                self._put(write)
        if self.after.stored is None:
            self.commands.append(("HSET", self.head_key, "w", self.after.writes))

    # Inside

    def _put(self, write: Write) -> None:
        fields: list[Any] = ["v", write.version, "w", self.after.writes]
        is_new, log = self.after.stored is None, self.log
        if is_new:
            fields += self._create(write)
            log = Log(write.begins_at)
        else:
            self._mark(write, fields)
        if write.records or is_new:
            fields += ["m", f"{self.after.fence}.{self.after.writes}"]
        self._put_rows(write)
        if write.prune is not None:
            fields += self._prune(log, write, write.prune)
        self.commands.append(("HSET", self.head_key, *fields))
        self.after = self.after._replace(epoch=write.epoch, version=write.version)

    def _delete(self) -> None:
        keys, user = self._keys, self.after.user
        self.commands.append(("UNLINK", self._changes, self._snapshots, self._clients, self._records, self._order))
        self.commands.append(("HDEL", self.head_key, *HEAD))
        lists = ["names", "created", "changed", "due"]
        for each in (*map(keys, lists), *(() if user is None else (keys("user", user.encode()),))):
            self.commands.append(("ZREM", each, self._member))
        self.after = self.after._replace(epoch=None, version=None, user=None)
        self.changed_at = None

    def _create(self, write: Write) -> list[Any]:
        """Return the fields of a new thread, and add it to the lists."""
        keys = self._keys
        changed_at = read_wall_clock() if write.changed_at is None else write.changed_at
        fields = ["e", write.epoch.encode(), "sv", write.state_version or 1, "s", write.secret]
        fields += ["x", int(write.is_stateless), "due", write.due or 0, "b", write.begins_at]
        fields += ["cr", write.created_at, "ch", changed_at]
        self.commands.append(("ZADD", keys("names"), 0, self._member))
        self.commands.append(("ZADD", keys("created"), write.created_at, self._member))
        self.commands.append(("ZADD", keys("changed"), changed_at, self._member))
        if write.due:
            self.commands.append(("ZADD", keys("due"), write.due, self._member))
        if write.user is not None:
            fields += ["u", write.user.encode()]
            self.commands.append(("ZADD", keys("user", write.user.encode()), 0, self._member))
            self.after = self.after._replace(user=write.user)
        return fields

    def _mark(self, write: Write, fields: list[Any]) -> None:
        if write.state_version is not None:
            fields += ["sv", write.state_version]
        if write.due is not None:
            fields += ["due", write.due]
            due = self._keys("due")
            self.commands.append(("ZADD", due, write.due, self._member) if write.due else ("ZREM", due, self._member))
        if write.changes or write.records or write.changed_at is not None:
            self.changed_at = read_wall_clock() if write.changed_at is None else write.changed_at

    def _put_rows(self, write: Write) -> None:
        rows = [encode_row((row.version, _check(row.ops), row.source, row.at)) for row in write.changes]
        self._add("RPUSH", self._changes, rows)
        self._add("HSET", self._snapshots, (value for each in write.snapshots for value in (each.version, each.state)))
        clients = {row.client.encode(): encode_row((row.ref, row.refused, row.at)) for row in write.clients}
        self._add("HSET", self._clients, (value for pair in clients.items() for value in pair))
        if write.records:
            self._put_records({join(each.part, each.key): each for each in write.records})

    def _put_records(self, records: dict[bytes, Record]) -> None:
        kept = {name: _check(each.value) for name, each in records.items() if each.value is not None}
        gone = [name for name, each in records.items() if each.value is None]
        self._add("HSET", self._records, (value for pair in kept.items() for value in pair))
        self._add("ZADD", self._order, (value for name in kept for value in (0, name)))
        self._add("HDEL", self._records, gone)
        self._add("ZREM", self._order, gone)

    def _prune(self, log: Log, write: Write, prune: Prune) -> list[Any]:
        """Return the fields of a log that is pruned after a write."""
        now = read_wall_clock()
        snapshots = {*log.snapshots, *(each.version for each in write.snapshots)}
        oldest = find_oldest([*log.changes, *write.changes], snapshots, prune, now)
        clients = {**log.clients, **{row.client: row.at for row in write.clients}}
        self._add("HDEL", self._clients, (id.encode() for id in find_expired(clients, now)))
        if oldest <= log.base:
            return []
        self.commands.append(("LTRIM", self._changes, oldest - log.base, -1))
        self._add("HDEL", self._snapshots, (at for at in snapshots if at < oldest))
        return ["b", oldest]

    def _add(self, command: str, key: bytes, values: Iterable[Any]) -> None:
        found = list(values)
        for at in range(0, len(found), _VALUES):
            self.commands.append((command, key, *found[at : at + _VALUES]))


def _check(value: bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a value must be bytes, not {type(value).__name__}")
    return value
