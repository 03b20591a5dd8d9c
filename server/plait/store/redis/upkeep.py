"""Saves the times of changes after their commits, and removes heads that are not needed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from plait.store.protocol import ThreadKey
from plait.store.redis.engine import DRIVER_ERRORS, explain
from plait.store.redis.layout import Heads, Keys, RedisHead, join
from plait.store.redis.scripts import COMMIT, SAVE
from plait.store.upkeep import HeadUpkeep

__all__ = ["RedisUpkeep"]

# The most threads of one command.
_MOST: Final = 1000


class RedisUpkeep(HeadUpkeep[RedisHead, ThreadKey]):
    """The upkeep of a store in Redis."""

    def __init__(
        self,
        run: Callable[..., Awaitable[list[Any]]],
        keys: Keys,
        heads: Heads,
        changed: dict[ThreadKey, tuple[str, int]],
        is_writing: Callable[[ThreadKey], bool],
    ) -> None:
        super().__init__(heads, changed, is_writing, errors=DRIVER_ERRORS, explain=explain)
        self._run = run
        self._keys = keys

    async def _save(self, changed: Mapping[ThreadKey, tuple[str, int]]) -> None:
        rows = [(join(*key), epoch, at) for key, (epoch, at) in changed.items()]
        for some in _split([(self._keys("h", name), epoch, name, at) for name, epoch, at in rows]):
            await self._run(("EVAL", SAVE, 1, self._keys("changed"), *some))

    async def _remove(self, heads: Sequence[tuple[ThreadKey, RedisHead]]) -> None:
        rows = [(self._keys("h", join(*key)), head) for key, head in heads]
        for some in _split([(key, head.guard, 1, 2, "DEL", key) for key, head in rows]):
            await self._run(("EVAL", COMMIT, 0, *some))


def _split(rows: list[Any]) -> list[list[Any]]:
    """Return the values of rows for several commands."""
    return [[value for row in rows[at : at + _MOST] for value in row] for at in range(0, len(rows), _MOST)]
