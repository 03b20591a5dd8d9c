"""Checks new and changed messages, and calls the author's functions before and after such writes."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, get_args

from msgspec.structs import replace

from plait.actor.logs import about
from plait.author_code import call_now
from plait.parts.encoding import read_back
from plait.parts.messages.message import Message, Role, check_own, check_size, keep_own, measure_message

__all__ = ["NO_HOOKS", "MessageHooks", "check_message"]

log = logging.getLogger("plait.thread")

_ROLES: Final = get_args(Role)

# The fields that plait sets.
_OWN: Final = ("id", "position", "created_at", "status", "sender", "taken", "revision")


def check_message(message: Message) -> Message:
    """Return a message as it will be read. Raises TypeError or ValueError that names the invalid field."""
    if isinstance(message.role, str) and message.role not in _ROLES:
        raise ValueError(f"role must be one of {', '.join(_ROLES)}, not {message.role!r}")
    check_own(message.metadata)
    return read_back(message, Message)


class MessageHooks(NamedTuple):
    """Functions that are called before and after messages are made or changed, in runs and outside of them.

    Each gets the thread first. Those before a write are plain functions; each may return a replacement.
    """

    # With a message: when it is made, which the function may refuse by raising, and when a stream has its whole text.
    before_create_message: Callable[[Any, Message], Message | None] | None = None
    # With the stored message, in a turn of its own.
    after_create_message: Callable[[Any, Message], Awaitable[object] | object] | None = None
    # With the id of a message, and its new `content` or more `metadata`, or both; an error is logged.
    before_update_message: Callable[[Any, str, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    # With the stored message, in a turn of its own.
    after_update_message: Callable[[Any, Message], Awaitable[object] | object] | None = None

    def check(self) -> None:
        """Raise TypeError for a value that cannot be called, or not at once."""
        for name, hook in self._asdict().items():
            if hook is not None and (not callable(hook) or (name[0] == "b" and inspect.iscoroutinefunction(hook))):
                raise TypeError(f"{name} must be a function{' without async' if name[0] == 'b' else ''}, not {hook!r}")

    def create(self, thread: Any, message: Message, most: int) -> Message:
        """Return a message that is made, or whose text is complete, as its hook wants it: of `most` bytes."""
        if self.before_create_message is None:
            return message
        made = call_now(self.before_create_message, thread, message)
        if made is None or made is message:
            return message
        if not isinstance(made, Message):
            raise TypeError(f"before_create_message must return a message or None, not {type(made).__name__}")
        own = {name: getattr(message, name) for name in _OWN}
        made = check_message(replace(made, **own, metadata=keep_own(message.metadata, made.metadata)))
        check_size(measure_message(made), most)
        return made

    def update(self, thread: Any, added: Message) -> Message:
        """Return the new content and metadata of a message as its hook wants them; an error is logged."""
        if self.before_update_message is None:
            return added
        given: dict[str, Any] = {} if added.content is None else {"content": added.content}
        if added.metadata:
            given["metadata"] = added.metadata
        try:
            found = call_now(self.before_update_message, thread, added.id, given)
            if found is None:
                return added
            changed = {**found, "metadata": keep_own(added.metadata, found.get("metadata", {}))}
            return check_message(Message(id=added.id, role=added.role, **changed))
        except Exception:
            log.exception(
                "before_update_message has raised; the update stays as it was", extra=about(thread._actor.key)
            )
            return added

    def find_after(
        self, thread: Any, created: Iterable[Message], updated: Iterable[Message]
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield the names and the calls of the functions after a write."""
        for name, hook, messages in (
            ("after_create_message", self.after_create_message, created),
            ("after_update_message", self.after_update_message, updated),
        ):
            if hook is not None:
                yield from ((name, partial(hook, thread, message)) for message in messages)


NO_HOOKS: Final = MessageHooks()
"""No functions."""
