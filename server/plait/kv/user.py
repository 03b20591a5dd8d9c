"""The values of a user, which all threads share."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from plait.actor.thread import Thread
from plait.actor.turn import begin_write
from plait.kv.user_names import user_prefix
from plait.parts.encoding import encode_named
from plait.parts.env.app_env import AppEnv
from plait.parts.env.env import Env
from plait.parts.env.user_env import UserEnv
from plait.parts.values import Values
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import decode_json

__all__ = ["USER", "User", "UserThread"]

T = TypeVar("T")

USER: Final = "plait-user"
"""The kind of the threads that hold the values of users."""


class UserThread(Thread[Any]):
    """Holds the values and variables of one user."""

    kind = USER
    values = Values()
    env = Env()


class User:
    """The values of a user, which all threads share: JSON by key, together at most `Limits.record` bytes (1 MiB).

    The methods that write begin when they are called. A value is durable when awaiting the result returns, even in a
    run that raises later. To change a value that depends on the current one, use `update` or `push`, which are atomic.
    In a run, each call is a checkpoint. The methods raise StoreError. `id` is the user's id; an empty one raises
    NotFound.
    """

    def __init__(
        self,
        id: str,
        call_part: Callable[..., Coroutine[Any, Any, Any]],
        check: Callable[[], None] = lambda: None,
        *,
        env: AppEnv,
    ) -> None:
        self.id = id
        self._key = ThreadKey(USER, user_prefix(id))
        self._call_part = call_part
        # Called by each method; raises Interrupted in a run that is interrupted.
        self._check = check
        # The user's variables, beside the values.
        self.env = UserEnv(env, self._call_env)

    # Reading

    def get(self, key: str, default: Any = None) -> Coroutine[Any, Any, Any]:
        """Return the value of a key, or `default`."""
        return self._call("get", key, default)

    def has(self, key: str) -> Coroutine[Any, Any, bool]:
        """Whether there is a value, which may be None, for a key."""
        return self._call("has", key)

    def keys(self) -> Coroutine[Any, Any, list[str]]:
        """Return the keys, in order of insertion."""
        return self._call("keys")

    def values(self) -> Coroutine[Any, Any, list[Any]]:
        """Return the values, in the order of `keys`."""
        return self._call("values")

    def items(self) -> Coroutine[Any, Any, list[tuple[str, Any]]]:
        """Return the keys and values, in the order of `keys`."""
        return self._call("items")

    def size(self) -> Coroutine[Any, Any, int]:
        """Return the number of keys."""
        return self._call("size")

    def metadata(self) -> Coroutine[Any, Any, dict[str, Any]]:
        """Return the metadata, `{}` if none was set."""
        return self._call("metadata")

    # Writing

    def set(self, key: str, value: Any) -> Awaitable[None]:
        """Set a value: anything that encodes as JSON. Raises TypeError, ValueError and TooLarge."""
        return self._begin("set", key, _copy(key, value))

    def delete(self, key: str) -> Awaitable[None]:
        """Remove a key, if there is one."""
        return self._begin("delete", key)

    def clear(self) -> Awaitable[None]:
        """Remove all keys; the metadata stays."""
        return self._begin("clear")

    def push(self, key: str, value: Any, max_records: int | None = None) -> Awaitable[None]:
        """Append to a list, creating it if needed, and keep its last `max_records` elements.

        Raises TypeError if the value is not a list.
        """
        return self._begin("push", key, _copy(key, value), max_records)

    def update(self, key: str, change: Callable[[Any], T], default: Any = None) -> Awaitable[T]:
        """Replace a value with `change(value)`, or `change(default)` if there is none, and return the new value."""
        return self._begin("update", key, change, default)

    def set_metadata(self, metadata: dict[str, Any]) -> Awaitable[None]:
        """Replace the whole metadata."""
        return self._begin("set_metadata", _copy("metadata", metadata))

    def __repr__(self) -> str:
        return f"<User {self.id!r}>"

    # Inside

    def _begin(self, method: str, *args: Any) -> Awaitable[Any]:
        return begin_write(self._call(method, *args))

    def _call(self, method: str, *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a method of the values of the user's thread."""
        self._check()
        return self._call_part(self._key, "values", method, *args)

    def _call_env(self, method: str, *args: Any) -> Coroutine[Any, Any, Any]:
        self._check()
        return self._call_part(self._key, "env", method, *args)


def _copy(name: str, value: object) -> Any:
    """Return a copy of a value, because the caller may change it before the user's thread has it."""
    return decode_json(encode_named(name, value))
