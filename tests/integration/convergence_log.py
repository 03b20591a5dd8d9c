"""The changes of a thread in a store file at the end, with the state after each change."""

from collections.abc import AsyncIterator, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from plait.state.state_history import replay_json
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ChangeRow, ThreadKey
from plait_schemas.codec import decode_json
from plait_schemas.patch import Op, apply, decode_ops

__all__ = ["Log", "Logs", "canonical", "logs"]


def canonical(state: Any) -> bytes:
    """Return the same text for the same state."""
    return msgspec.json.encode(state, order="sorted")


class Log:
    """All changes of a thread. The constructor checks that they are dense, and lead to the restarted state."""

    def __init__(self, key: ThreadKey, secret: bytes, rows: list[ChangeRow], first: bytes, last: bytes) -> None:
        # The thread's secret, from which connection ids are made.
        self.secret = secret
        self.rows = rows
        self.ops: list[list[Op]] = [decode_ops(row.ops) for row in rows]
        # By version.
        self.states: list[Any] = [decode_json(first)]
        for ops in self.ops:
            self.states.append(apply(self.states[-1], ops))
        assert [row.version for row in rows] == [*range(1, len(rows) + 1)], f"{key}: versions are not dense"
        assert canonical(self.states[-1]) == canonical(decode_json(last)), f"{key}: the log leads elsewhere"

    @property
    def version(self) -> int:
        """The last version."""
        return len(self.rows)

    def puts(self, *, without: Collection[str] = ()) -> dict[str, int]:
        """Return how often each text was put into the list, by others than these sources."""
        puts: dict[str, int] = {}
        for row, ops in zip(self.rows, self.ops, strict=True):
            for op in ops if row.source not in without else ():
                if op.path.startswith("/list/") and isinstance(op.value, str):
                    puts[op.value] = puts.get(op.value, 0) + 1
        return puts

    def check_tokens(
        self, tokens: Mapping[int, str], outcomes: Mapping[int, str], *, without: Collection[str] = ()
    ) -> None:
        """Check that each push was applied once if it was acknowledged, and otherwise not at all."""
        puts = self.puts(without=without)
        wrong = {
            number: (outcomes[number], puts.get(token, 0))
            for number, token in tokens.items()
            if puts.get(token, 0) != (outcomes[number] == "ack")
        }
        assert not wrong, f"outcomes, and how often the log has their tokens: {wrong}"
        unknown = puts.keys() - set(tokens.values())
        assert not unknown, f"nobody has put in {unknown}"

    def check_removals(self, meant: Mapping[str, AbstractSet[str]]) -> None:
        """Check that what these clients, by their connections' ids, took from the list is what they meant to.

        Or what another client had put in its place: the last writer wins.
        """
        before_it: dict[str, str] = {}
        for row, ops, before, after in zip(self.rows, self.ops, self.states, self.states[1:], strict=False):
            for token in set(before["list"]) - set(after["list"]) if row.source in meant else ():
                chain = [token]
                while chain[-1] in before_it:
                    chain.append(before_it[chain[-1]])
                is_meant = not meant[row.source].isdisjoint(chain)
                assert is_meant, f"version {row.version} by {row.source} took {token}: {ops}"
            for op in ops:
                if op.op == "replace" and op.path.startswith("/list/"):
                    before_it[op.value] = before["list"][int(op.path.removeprefix("/list/"))]


class Logs:
    """The logs in one file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def read(self, key: ThreadKey) -> Log:
        """Return the log of a thread."""
        rows = await self._store.changes(key, after=0, limit=100_000)
        first, last = await self._store.load(key, version=0), await self._store.load(key)
        assert first is not None
        assert last is not None
        return Log(key, last.secret, rows, replay_json(key, first), replay_json(key, last))


@asynccontextmanager
async def logs(path: Path) -> AsyncIterator[Logs]:
    """Open a store file to look at it."""
    async with SqliteStore(path, readonly=True) as store:
        yield Logs(store)
