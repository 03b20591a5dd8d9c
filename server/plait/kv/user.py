"""The values of a user, which all threads share."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from plait.actor.thread import Thread
from plait.kv.user_names import user_prefix
from plait.parts.values import Values
from plait.store.protocol import ThreadKey

__all__ = ["USER", "User", "UserThread"]

T = TypeVar("T")

USER: Final = "plait-user"
"""The kind of the threads that hold the values of users."""


class UserThread(Thread[Any]):
    """Holds the values of one user."""

    kind = USER
    values = Values()


class User:
    """The values of a user, which all threads share: JSON by key, together at most `Limits.record` bytes (1 MiB).

    A value that is written or read is durable when the call returns, even in a run that raises later. To change a value
    that depends on the current one, use `update` or `push`, which are atomic. In a run, each call is a checkpoint. The
    methods raise StoreError. `id` is the user's id; an empty one raises NotFound.
    """

    def __init__(
        self, id: str, call_part: Callable[..., Awaitable[Any]], check: Callable[[], None] = lambda: None
    ) -> None:
        self.id = id
        self._key = ThreadKey(USER, user_prefix(id))
        self._call_part = call_part
        # Called by each method; raises Interrupted in a run that is interrupted.
        self._check = check

    # Reading

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        return await self._call("get", key, default)

    async def has(self, key: str) -> bool:
        """Whether there is a value, which may be None, for a key."""
        found: bool = await self._call("has", key)
        return found

    async def keys(self) -> list[str]:
        """Return the keys, in order of insertion."""
        found: list[str] = await self._call("keys")
        return found

    async def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        found: list[Any] = await self._call("values")
        return found

    async def items(self) -> list[tuple[str, Any]]:
        """Return the keys and values, in the order of `keys`."""
        found: list[tuple[str, Any]] = await self._call("items")
        return found

    async def size(self) -> int:
        """Return the number of keys."""
        found: int = await self._call("size")
        return found

    async def metadata(self) -> dict[str, Any]:
        """Return the metadata, `{}` if none was set."""
        found: dict[str, Any] = await self._call("metadata")
        return found

    # Writing

    async def set(self, key: str, value: Any) -> None:
        """Set a value: anything that encodes as JSON. Raises TypeError, ValueError and TooLarge."""
        await self._call("set", key, value)

    async def delete(self, key: str) -> None:
        """Remove a key, if there is one."""
        await self._call("delete", key)

    async def clear(self) -> None:
        """Remove all keys; the metadata stays."""
        await self._call("clear")

    async def push(self, key: str, value: Any, max_records: int | None = None) -> None:
        """Append to a list, creating it if needed, and keep its last `max_records` elements.

        Raises TypeError if the value is not a list.
        """
        await self._call("push", key, value, max_records)

    async def update(self, key: str, change: Callable[[Any], T], default: Any = None) -> T:
        """Replace a value with `change(value)`, or `change(default)` if there is none, and return the new value."""
        value: T = await self._call("update", key, change, default)
        return value

    async def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the whole metadata."""
        await self._call("set_metadata", metadata)

    def __repr__(self) -> str:
        return f"<User {self.id!r}>"

    # Inside

    async def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the values of the user's thread."""
        self._check()
        return await self._call_part(self._key, "values", method, *args)
