"""The hooks of prompts and agents, which see what a run does and may change it."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plait.actor.logs import about
from plait.actor.thread import Thread
from plait.agents.execution.tools import ToolResult
from plait.author_code import call, call_now
from plait.parts.messages.message import Message, read_own
from plait.parts.messages.message_hooks import MessageHooks
from plait.spelling import suggest

__all__ = ["Block", "Hooks", "ToolCall", "call_hooks", "has_hook", "make_message_hooks", "read_hooks"]

log = logging.getLogger("plait.agents")

Text = Awaitable[str | None] | str | None
Seen = Awaitable[Sequence[Message] | None] | Sequence[Message] | None
Outcome = Awaitable[ToolResult | None] | ToolResult | None


class Block(Exception):
    """Raised by `prefilter_llm_history`: the model is not asked, the text is the answer, and the run ends."""


class ToolCall(NamedTuple):
    """A call of a tool; `arguments` is the JSON text that the model has written."""

    id: str
    name: str
    arguments: str


class Hooks:
    """The hooks of a prompt or an agent: a subclass overrides those that it needs, by their names.

    Each gets the thread first, and may be `async`, except those before a message is created or updated. The return
    value replaces the last argument of the hook; None keeps it. An error is logged, and the argument stays; only an
    error of `before_create_message` goes on to the code that makes the message, which is not stored.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, function in vars(cls).items():
            if name.startswith(("after_", "before_", "filter_", "prefilter_")) and name not in _NAMES:
                raise TypeError(f"{cls.__name__}.{name} is no hook{suggest(name, _NAMES)}")
            if name in _AT_ONCE and inspect.iscoroutinefunction(function):
                raise TypeError(f"{cls.__name__}.{name} must be a function without async")

    def after_thread_created(self, thread: Any) -> Awaitable[None] | None:
        """Called once for a new thread, before a run."""

    def after_subagent_created(self, thread: Any, child: Any) -> Awaitable[None] | None:
        """Called in the thread that has made a child to work for it; `child` is a handle."""

    def after_system_message(self, thread: Any, text: str) -> Text:
        """Return the system prompt for a call of the model."""

    def filter_messages(self, thread: Any, messages: Sequence[Message]) -> Seen:
        """Return the messages of the history from which a call of the model is made; the stored messages stay."""

    def prefilter_llm_history(self, thread: Any, messages: Sequence[Message]) -> Seen:
        """Return the input of the model: the system prompt, and the history as its side sees it. May raise Block."""

    def before_create_message(self, thread: Any, message: Message) -> Message | None:
        """Return the message to store; an answer comes twice, first without text. Raising refuses the message."""

    def after_create_message(self, thread: Any, message: Message) -> Awaitable[None] | None:
        """Called with a stored message, in a turn of its own."""

    def before_update_message(self, thread: Any, id: str, updates: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the new `content` and the new `metadata` of a message."""

    def after_update_message(self, thread: Any, message: Message) -> Awaitable[None] | None:
        """Called with a message that was changed, in a turn of its own."""

    def before_store_tool_result(self, thread: Any, call: ToolCall, result: ToolResult) -> Outcome:
        """Return the result that is stored, and that the model is told."""

    def after_tool_call_success(self, thread: Any, call: ToolCall, result: ToolResult) -> Outcome:
        """Return the result of a call that has succeeded; None removes the call and its result from the history."""

    def after_tool_call_failure(self, thread: Any, call: ToolCall, result: ToolResult) -> Outcome:
        """Return the result of a call that has failed; None removes the call and its result from the history."""


_NAMES: Final = tuple(name for name in vars(Hooks) if not name.startswith("_"))
_AT_ONCE: Final = ("before_create_message", "before_update_message")
# Their return values are not used.
_TOLD: Final = ("after_thread_created", "after_subagent_created", "after_create_message", "after_update_message")
_REMOVING: Final = ("after_tool_call_success", "after_tool_call_failure")


def read_hooks(given: object) -> tuple[Hooks, ...]:
    """Return the hooks of a definition in their order, from one or several. Raises TypeError."""
    found: tuple[Any, ...] = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in found:
        if not isinstance(each, Hooks):
            raise TypeError(f"hooks must be an instance of a subclass of Hooks, or a list of them, not {each!r}")
    return found


async def call_hooks(name: str, hooks: Iterable[Hooks], thread: Thread[Any], *given: Any) -> Any:
    """Call the hooks of a name in order, each with the result of the one before, and return the last value.

    Returns None if one has removed the call of a tool. Raises Block.
    """
    *first, value = given or (None,)
    for hook in _find(name, hooks):
        try:
            made = await call(hook, thread, *first, *([value] if given else []))
            if name not in _TOLD and (made is not None or name in _REMOVING):
                value = _check(name, made, value)
        except Exception as error:
            if isinstance(error, Block) and name == "prefilter_llm_history":
                raise
            _log(name, thread)
        if value is None and name in _REMOVING:
            break
    return value


def has_hook(name: str, hooks: Iterable[Hooks]) -> bool:
    """Whether one of some hooks overrides a name."""
    return any(True for _ in _find(name, hooks))


def make_message_hooks(defined: Iterable[Hooks]) -> MessageHooks | None:
    """Return the hooks of the messages of a class of threads: those that the agents of a thread have at that time.

    Returns None if no hooks of the class are for messages.
    """
    overridden = [name for name in MessageHooks._fields if has_hook(name, defined)]

    def create(thread: Any, message: Message) -> Message:
        for hook in _find("before_create_message", thread.agents.find_hooks()):
            made = call_now(hook, thread, message)
            message = message if made is None else made
        return message

    def update(thread: Any, id: str, updates: Mapping[str, Any]) -> Mapping[str, Any]:
        for hook in _find("before_update_message", thread.agents.find_hooks()):
            try:
                made = call_now(hook, thread, id, updates)
                updates = updates if made is None else _check("before_update_message", made, updates)
            except Exception:
                _log("before_update_message", thread)
        return updates

    def after(name: str) -> Callable[[Any, Message], Awaitable[object]]:
        return lambda thread, message: call_hooks(name, thread.agents.find_hooks(), thread, message)

    functions: dict[str, Any] = {
        "before_create_message": create,
        "after_create_message": after("after_create_message"),
        "before_update_message": update,
        "after_update_message": after("after_update_message"),
    }
    return MessageHooks(**{name: functions[name] for name in overridden}) if overridden else None


def _find(name: str, hooks: Iterable[Hooks]) -> Iterator[Callable[..., Any]]:
    """Yield the methods of a name that are overridden."""
    return (getattr(each, name) for each in hooks if getattr(type(each), name) is not getattr(Hooks, name))


def _check(name: str, made: Any, value: Any) -> Any:
    """Return the result of a hook. Raises TypeError if it cannot take the place of its argument."""
    if isinstance(value, list):
        if isinstance(made, Sequence) and all(isinstance(each, Message) for each in made):
            given = {each.id: each for each in value}
            for each in made:
                if each is not given.get(each.id):
                    _check_message(each, given.get(each.id))
            return list(made)
    else:
        expected = type(value) if isinstance(value, str | ToolResult | Message) else Mapping
        if isinstance(made, expected) or (made is None and name in _REMOVING):
            return made
    raise TypeError(f"{name} has returned {type(made).__name__}, which cannot take the place of its argument")


def _check_message(made: Message, given: Message | None) -> None:
    """Raise msgspec.ValidationError or ValueError for a message that a hook has made, or made of another one."""
    msgspec.convert(msgspec.to_builtins(made), Message)
    own = read_own(made)
    if own and (given is None or own != read_own(given)):
        what = "changed what only plait writes" if given else "copied what only plait writes to a new message"
        raise ValueError(f"the hook has {what}: the metadata of the message {made.id!r}")


def _log(name: str, thread: Thread[Any]) -> None:
    log.exception("%s has raised; its argument stays as it was", name, extra=about(thread._actor.key))
