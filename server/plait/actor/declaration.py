"""The attributes and hooks of a Thread class, checked when the class is defined."""

import inspect
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from msgspec.inspect import type_info

from plait.author_code import is_method
from plait.spelling import find_misspelt, is_camel_case, suggest
from plait.state.conflicts import Policy
from plait.state.retention import Retention
from plait.state.storable import accepts_arguments

__all__ = ["HOOKS", "check_attributes", "check_hooks", "find_validated", "warn_of_near_misses", "warn_of_undecodable"]

HOOKS: Final = (
    "card",
    "validate_state_change",
    "resolve_conflict",
    "on_state_changed",
    "on_start",
    "on_stop",
    "on_destroyed",
    "on_terminated",
    "on_task_end",
    "on_connect",
    "on_message",
    "on_close",
    "on_error",
    "on_request",
    "connection_tags",
    "should_be_readonly",
    "should_send_protocol_messages",
)
"""The methods that plait calls."""

# The hooks that are called while a change is made.
_OF_CHANGES: Final = frozenset(("card", "validate_state_change", "resolve_conflict", "can_write", "can_read"))

# The attributes that may be methods, with the parameters of these methods.
_RULES: Final = {"can_write": ("state", "viewer"), "can_read": ("state", "viewer")}

# The names of similar hooks in other libraries, and plait's names for them.
_FOREIGN: Final = {
    "onStateUpdate": "on_state_changed",
    "onOpen": "on_connect",
    "onConnection": "on_connect",
    "onDisconnect": "on_close",
    "onDestroy": "on_destroyed",
    "getConnectionTags": "connection_tags",
    "shouldConnectionBeReadonly": "should_be_readonly",
    "on_state_update": "on_state_changed",
    "on_connection": "on_connect",
    "on_disconnect": "on_close",
    "on_destroy": "on_destroyed",
}


def check_attributes(cls: Any) -> None:
    """Raise TypeError for an attribute of plait that has an invalid value."""
    for name, is_right, what in (
        ("send_identity", _is_bool, "True or False"),
        ("clients_may_destroy", _is_bool, "True or False"),
        ("listed", _is_bool, "True or False"),
        ("merge_whole_states", _is_bool, "True or False"),
        ("idle_timeout", _is_seconds, "a number of seconds, or None for never"),
        ("expires_after", _is_seconds, "a number of seconds, or None for never"),
        (
            "turn_timeout",
            lambda own: own != 0 and _is_seconds(own),
            "a number of seconds above 0, or None for never",
        ),
        ("conflict", lambda own: own in get_args(Policy), f"one of {', '.join(map(repr, get_args(Policy)))}"),
        (
            "retention",
            lambda own: isinstance(own, Retention),
            "a Retention, for example Retention(changes={number})",
        ),
        (
            "events",
            lambda own: isinstance(own, Mapping),
            'a dict of names and types, for example {{"moved": Move}}',
        ),
        ("clients_may_emit", _is_names, 'a tuple of names of events, for example ("moved",)'),
    ):
        if not is_right(value := getattr(cls, name)):
            number = value if type(value) is int and value > 0 else 1000
            hint = suggest(value, get_args(Policy)) if name == "conflict" and isinstance(value, str) else ""
            raise TypeError(f"{cls.__name__}.{name} must be {what.format(number=number)}, not {value!r}{hint}")
    if cls.expires_after is not None and (cls.idle_timeout is None or cls.expires_after < cls.idle_timeout):
        raise TypeError(
            f"{cls.__name__}.expires_after is {cls.expires_after!r}, below its idle_timeout of {cls.idle_timeout!r}: a "
            "thread must go to sleep before it can expire"
        )
    for event, type_ in cls.events.items():
        try:
            is_type = isinstance(event, str) and type_info(type_) is not None
        except (TypeError, NameError, NotImplementedError):
            is_type = False
        if not is_type:
            raise TypeError(
                f"{cls.__name__}.events must be a dict of names and types, "
                f'for example {{"moved": Move}}: {event!r}: {type_!r} is not'
            )
    for name in cls.clients_may_emit:
        if cls.events and name not in cls.events:
            raise TypeError(f"{cls.__name__}.clients_may_emit has {name!r}, which {cls.__name__}.events does not have")


def check_hooks(cls: type, thread: type) -> None:
    """Raise TypeError for an attribute that overrides a hook or another part of Thread with something unusable."""
    options = _find_options(thread)
    for name, original in vars(thread).items():
        if name.startswith("_") or name in options or (own := inspect.getattr_static(cls, name)) is original:
            continue
        if name in HOOKS:
            _check_hook(cls, name, own, [*inspect.signature(original).parameters][1:])
        elif not callable(own) and not hasattr(own, "__get__"):
            remedy = "name it `initial_state`" if name == "state" else "give it another name"
            raise TypeError(f"{cls.__name__}.{name} is an attribute of Thread and cannot be {own!r}: {remedy}")
    for name, parameters in _RULES.items():
        if is_method(own := inspect.getattr_static(cls, name)):
            _check_hook(cls, name, own, parameters)


def find_validated(cls: type) -> frozenset[str]:
    """Return the ones of "ops" and "before" that `validate_state_change` takes as parameters, and gets by name."""
    own = inspect.getattr_static(cls, "validate_state_change")
    if not is_method(own):
        return frozenset()
    function = getattr(own, "__func__", own)
    found = inspect.signature(function).parameters.keys() & {"ops", "before"}
    return frozenset(found) if accepts_arguments(function, 3 - isinstance(own, staticmethod), *found) else frozenset()


def warn_of_near_misses(cls: type, thread: type, rpcs: Collection[str], *, stacklevel: int) -> None:
    """Warn about attributes that plait does not use, but that have names similar to hooks or options."""
    options = _find_options(thread)
    for name, value in _read_own_attributes(cls, thread):
        if name.startswith("_") or hasattr(thread, name) or name in options:
            continue
        is_foreign = is_camel_case(name)
        if name in rpcs and not is_foreign:
            continue
        hook = _FOREIGN.get(name) or find_misspelt(name, HOOKS, inflected=True)
        if hook is not None and callable(getattr(value, "__func__", value)):
            if is_foreign or inspect.getattr_static(cls, hook) is vars(thread)[hook]:
                _warn(f"{cls.__name__}.{name} is not called by plait: the hook is named {hook}", stacklevel)
            continue
        option = find_misspelt(name, options, inflected=False)
        if option is not None and (is_foreign or not _has_own(cls, thread, option)):
            _warn(f"{cls.__name__}.{name} is not read by plait: the attribute is named {option}", stacklevel)


def warn_of_undecodable(cls: type, path: str, *, stacklevel: int) -> None:
    """Warn about a member without a default that not all clients see."""
    where = f"{cls.__name__}.can_read hides {path} from some clients"
    _warn(f"{where}: give it a default, as they cannot decode a state without it", stacklevel)


def _find_options(thread: type) -> list[str]:
    """Return the names of the attributes that plait reads: the ones that Thread and its settings declare."""
    return [name for each in thread.__mro__ for name in inspect.get_annotations(each) if not name.startswith("_")]


def _warn(message: str, stacklevel: int) -> None:
    warnings.warn(message, UserWarning, stacklevel=stacklevel + 2)


def _read_own_attributes(cls: type, thread: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class and its mixins; the attributes of its Thread base classes are already checked."""
    known = {ancestor for base in cls.__bases__ if issubclass(base, thread) for ancestor in base.__mro__}
    for ancestor in cls.__mro__:
        if ancestor not in known and ancestor is not object:
            yield from vars(ancestor).items()


def _has_own(cls: type, thread: type, name: str) -> bool:
    return any(name in vars(ancestor) for ancestor in cls.__mro__ if ancestor not in thread.__mro__)


def _check_hook(cls: type, name: str, own: Any, parameters: Sequence[str]) -> None:
    function = getattr(own, "__func__", own)
    if not callable(function):
        raise TypeError(f"{cls.__name__}.{name} must be a method, not {own!r}")
    if not inspect.isfunction(function):
        return
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{cls.__name__}.{name} must not contain yield: it would never run")
    if name in _OF_CHANGES and inspect.iscoroutinefunction(function):
        raise TypeError(f"{cls.__name__}.{name} must not be `async def`: a change is made without awaiting")
    if name == "validate_state_change" and find_validated(cls):
        return
    if not accepts_arguments(function, len(parameters) + 1 - isinstance(own, staticmethod)):
        raise TypeError(f"{cls.__name__}.{name} must accept these arguments: {name}({', '.join(parameters)})")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_names(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)
