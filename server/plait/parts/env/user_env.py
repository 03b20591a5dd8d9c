"""The variables of a user, or of a thread of another process: their values travel encrypted."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from plait.actor.turn import begin_write
from plait.parts.env.app_env import AppEnv
from plait.parts.env.secret import Secret, VariableType, check_variable

__all__ = ["UserEnv"]


class UserEnv:
    """The variables of a user, which the threads of the user find after their own.

    The methods that write begin when they are called, and awaiting the result waits until it is durable. They raise the
    errors of the methods of `ThreadEnv`.
    """

    def __init__(self, app: AppEnv, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._app = app
        # Calls a method of the `ThreadEnv`, in whatever process that is.
        self._call = call

    async def get(self, name: str) -> Secret:
        """Return the value of a variable of the user, or else of the app. Raises NotFound if neither has it."""
        return self._app.open(name, await self._call("find", name))

    async def type_of(self, name: str) -> VariableType:
        """Return `text` for a variable that may be shown; `secret` for any other, even if it is set nowhere."""
        found = await self._call("find", name)
        return "secret" if found is None else found.type

    async def redact(self, text: str, *, most: int | None = None) -> str:
        """Return a text, or its first `most` characters, with `***` in place of all secrets that `get` returns."""
        return await self._app.redact(text, await self._call("find_all"), most=most)

    def set(self, name: str, value: str | Secret, *, type: VariableType | None = None) -> Awaitable[None]:
        """Set a variable. Without `type`, it keeps its type; a new one is a `secret`."""
        check_variable(name, type)
        return begin_write(self._call("put", name, self._app.seal(name, value), type))

    def delete(self, name: str) -> Awaitable[None]:
        """Remove a variable, if it is set."""
        check_variable(name)
        return begin_write(self._call("delete", name))
