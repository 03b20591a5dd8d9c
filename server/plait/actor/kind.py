"""The description of a Thread subclass, read once when the class is defined."""

import copy
import inspect
import logging
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, get_args

from plait.actor.declaration import (
    check_attributes,
    check_hooks,
    find_validated,
    warn_of_near_misses,
    warn_of_undecodable,
)
from plait.actor.endpoints import Endpoints
from plait.actor.per_actor import PerActor
from plait.actor.picture_types import find_undecodable
from plait.actor.rpc import Method, Query, TypedJson, find_methods
from plait.errors import MethodNotFound, NotFound
from plait.limits import Limits
from plait.spelling import find_misspelt, find_nearest
from plait.state.migrations import find_migrations
from plait.state.permissions import Rules
from plait.state.places import FindPlaces, Places, find_places
from plait.state.storable import check_initial_state, find_initial_state, read_state_type

__all__ = ["Kind", "check_name", "kebab_case"]

log = logging.getLogger("plait.kind")

# Longer names of methods are not compared with others.
_LONG: Final = 64
# Control characters, and halves of surrogate pairs.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def kebab_case(name: str) -> str:
    """Return a class name as used in URLs, by the rule of the Cloudflare clients: `GameRoom` becomes `game-room`."""
    if name == name.upper():
        return name.lower().replace("_", "-")
    kebab = re.sub("[A-Z]", lambda match: f"-{match[0].lower()}", name)
    return kebab.removeprefix("-").replace("_", "-").removesuffix("-")


def check_name(name: str) -> str:
    """Return `name` if it is a valid name of a thread. Raises NotFound."""
    if not 1 <= len(name) <= 256:
        raise NotFound(f"a thread's name must have 1 to 256 characters, this one has {len(name)}")
    if name in (".", ".."):
        raise NotFound("a thread's name must not be . or .., which clients remove from URLs")
    if _CONTROL.search(name):
        raise NotFound("a thread's name must not have control characters")
    return name


class Kind:
    """A Thread class, prepared for the server."""

    def __init__(self, cls: type[Any], hooks: type[Any]) -> None:
        self.cls = cls
        self.name = cls.__dict__.get("kind", kebab_case(cls.__name__))
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,127}", self.name):
            raise TypeError(
                f"{cls.__name__}: {self.name!r} is not a valid kind (a-z, 0-9, - and _): set another with `kind = ...`"
            )
        # The tasks that an app adds to the class, by name.
        self.tasks: dict[str, Any] = {}
        # The names of the agents that an app adds: they call models and tools, and may hand a thread over to each
        # other.
        self.agent_names: Collection[str] = ()
        # Finds the agents of a thread; None without agents.
        self.find_agents: Callable[[Any], Any] | None = None
        # The hooks of messages that an app sets; None for the hooks of the class.
        self.message_hooks: Any = None
        self._read_methods(frozenset(dir(hooks)))
        # The endpoints that answer HTTP requests below its threads.
        self.endpoints = Endpoints(cls, frozenset(dir(hooks)))
        # The members that identify the elements of lists, by the JSON pointers of the lists.
        self.list_keys = _read_list_keys(cls)
        self.state_type = read_state_type(cls, _state_argument(cls, hooks), self.list_keys)
        # The places that clients may change, and those that they see, or functions that ask a thread for them; None for
        # everything.
        self.permitted, self.readable = find_places(cls, "can_write"), find_places(cls, "can_read")
        self.state_version: int = cls.state_version
        # Seconds of idleness after which a thread is destroyed; None for never.
        self.expires_after: float | None = cls.expires_after
        self.migrations = find_migrations(cls, self.state_version)
        # The hooks that the class overrides; the others are never called.
        self.overrides = frozenset(
            name
            for name, function in vars(hooks).items()
            if callable(function) and inspect.getattr_static(cls, name) is not function
        )
        check_attributes(cls)
        # The types of the events that clients may emit, by name.
        self.emitted = {name: TypedJson(cls.events.get(name, Any)) for name in cls.clients_may_emit}
        check_hooks(cls, hooks)
        # The further arguments of `validate_state_change`, which are passed by name.
        self.validated = find_validated(cls)
        warn_of_near_misses(cls, hooks, self.attributes, stacklevel=3)
        if (path := find_undecodable(self.state_type.type, self.readable)) is not None:
            warn_of_undecodable(cls, path, stacklevel=3)
        if self.has_initial_state and not callable(initial := find_initial_state(cls)):
            check_initial_state(cls, self.state_type, initial)

    def _read_methods(self, hooks: frozenset[str]) -> None:
        """Read the rpcs of the class, and those of its parts."""
        cls = self.cls
        # The rpcs, by attribute and by name: the ones that clients may call, and the ones for handles only.
        methods = find_methods(cls, hooks)
        self.attributes = {method.attribute: method for method in methods.values()}
        self.methods: dict[str, Method] = {name: each for name, each in methods.items() if each.is_for_clients}
        self._inner_methods = {name: each for name, each in methods.items() if not each.is_for_clients}
        found = (inspect.getattr_static(cls, attribute) for attribute in dir(cls))
        parts = [part for part in found if isinstance(part, PerActor)]
        # The parts with facts for a card.
        self.shown = [part for part in parts if type(part).find_facts is not PerActor.find_facts]
        for part in parts:
            for method in part.make_methods(cls):
                if method.name in self.methods:
                    raise TypeError(f"{cls.__name__} has two parts with a method {method.name!r}")
                self.methods[method.name] = method
        # The queries, which clients follow, by name; clients cannot call them.
        self.queries = {name: each for name, each in self._inner_methods.items() if isinstance(each, Query)}
        # The attributes of rpcs, by their functions in the class and its base classes.
        self._functions = {
            vars(base)[attribute]: attribute
            for base in cls.__mro__
            for attribute in self.attributes
            if inspect.isfunction(vars(base).get(attribute))
        }

    def for_app(self) -> "Kind":
        """Return a copy for one app, which may add methods."""
        kind = copy.copy(self)
        kind.methods = dict(self.methods)
        kind.tasks = {}
        return kind

    def method(self, name: str, *, by_client: bool = True) -> Method:
        """Return an rpc by its name; an rpc for handles only unless `by_client`. Raises MethodNotFound."""
        method = self.methods.get(name)
        if method is None and not by_client:
            method = self._inner_methods.get(name)
        if method is None and name in self.queries:
            raise MethodNotFound(f"{name} is a query: follow it with `query`, or GET …/query/{name}")
        if method is None:
            is_there = name not in self._inner_methods and not name.startswith("_") and hasattr(self.cls, name)
            near = self._find_near(name, by_client=by_client) if len(name) < _LONG else None
            hint = f"; did you mean {near}?" if near else ""
            raise MethodNotFound(f"Method {name} {'is not callable' if is_there else 'does not exist'}{hint}")
        return method

    def query(self, name: str) -> Query:
        """Return a query by its name. Raises MethodNotFound."""
        if (found := self.queries.get(name)) is not None:
            return found
        if name in self.methods:
            raise MethodNotFound(f"{name} is not a query: call it")
        near = find_misspelt(name, self.queries, inflected=True) if len(name) < _LONG else None
        raise MethodNotFound(f"Query {name} does not exist{f'; did you mean {near}?' if near else ''}")

    def find_rpc(self, function: Callable[..., Any]) -> Method:
        """Return the rpc of a function of the class or of a base class.

        If the class overrides an rpc of a base class, this is its own rpc. Raises MethodNotFound.
        """
        attribute = self._functions.get(function)
        if attribute is None:
            name = getattr(function, "__qualname__", repr(function))
            raise MethodNotFound(f"{name} is not an rpc of {self.cls.__name__}")
        return self.attributes[attribute]

    def _find_near(self, name: str, *, by_client: bool) -> str | None:
        if by_client:
            return find_misspelt(name, self.methods, inflected=True)
        return find_nearest(name, [*self.methods, *self._inner_methods])

    def initial_state(self) -> Any:
        """Return the state of a new thread. Call it only if `has_initial_state`."""
        initial = next(vars(each)["initial_state"] for each in self.cls.__mro__ if "initial_state" in vars(each))
        if isinstance(initial, staticmethod | classmethod):
            initial = self.cls.initial_state
        return initial() if callable(initial) else initial

    def check(self, limits: Limits) -> None:
        """Check the endpoints and the initial state, calling `initial_state` if it is a function.

        Raises TypeError or ValueError.
        """
        for endpoint in self.endpoints:
            endpoint.check(limits)
        if not self.has_initial_state:
            return
        try:
            initial = self.initial_state()
        except Exception as error:  # The function may need an object that exists only while the server runs.
            name = f"{self.cls.__name__}.initial_state"
            log.warning("%s raised %s: %s; no new thread can start while it does", name, type(error).__name__, error)
        else:
            check_initial_state(self.cls, self.state_type, initial, limits)

    def rules(self, thread: Any) -> Rules:
        """Return the rules for the changes of a thread."""
        validate = thread.validate_state_change if "validate_state_change" in self.overrides else None
        policy = thread.resolve_conflict if "resolve_conflict" in self.overrides else self.cls.conflict
        return Rules(validate, self.validated, _bind(self.permitted, thread), _bind(self.readable, thread), policy)

    @property
    def has_initial_state(self) -> bool:
        """Whether new threads begin with a state."""
        return hasattr(self.cls, "initial_state")


def _bind(places: Places | FindPlaces | None, thread: Any) -> Places | FindPlaces | None:
    return places if isinstance(places, Places | None) else partial(places, thread)


def _read_list_keys(cls: type[Any]) -> Mapping[str, str]:
    keys: Any = cls.list_keys
    if not isinstance(keys, Mapping):
        raise TypeError(
            f'{cls.__name__}.list_keys must be a mapping such as {{"/columns/*/cards": "slug"}}, not {keys!r}'
        )
    for pointer, member in keys.items():
        if not isinstance(pointer, str) or pointer[:1] not in ("", "/") or not isinstance(member, str):
            raise TypeError(
                f"{cls.__name__}.list_keys: {pointer!r}: {member!r} must be the JSON pointer of a list, in which * is "
                "any part, and the name of a member of its elements"
            )
    return keys


def _state_argument(cls: type, hooks: type) -> Any:
    """Return the `State` of the `Thread[State]` that `cls` derives from; Any without one."""
    for ancestor in cls.__mro__:
        for base in ancestor.__dict__.get("__orig_bases__", ()):
            origin = getattr(base, "__origin__", None)
            if isinstance(origin, type) and issubclass(origin, hooks):
                (argument,) = get_args(base)
                if not hasattr(argument, "__bound__"):
                    return argument
    return Any
