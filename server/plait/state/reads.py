"""Notes of the names that a query reads, made before it reads: a write of one of them runs it again."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from copy import copy, deepcopy
from functools import lru_cache
from time import thread_time
from typing import Any, Final, TypeVar

import msgspec

from plait.author_code import call_now
from plait.state.principal import Principal

__all__ = ["ALL", "STATE", "WHOLE", "Noted", "QueryRun", "find_query", "run_query"]

STATE: Final = ""
"""The part that stands for the state; its names are the members of the state."""

ALL: Final = "*"
"""The name of everything in a part."""

WHOLE: Final = "."
"""The name in a part whose writes do not tell what they change."""

T = TypeVar("T")

Note = Callable[[str], None]


class QueryRun:
    """One run of a query: what it has read so far, and for whom it runs. It runs without an `await`."""

    __slots__ = ("_began", "_is_followed", "_principal", "has_asked", "is_running", "reads", "thread")

    def __init__(self, thread: object, principal: Principal | None = None, *, is_followed: bool = True) -> None:
        self.thread = thread
        self._principal = principal
        # Whether what it reads matters after it.
        self._is_followed = is_followed
        # Whether it has asked for whom it runs.
        self.has_asked = False
        # Whether its code runs; tasks that the code has started may outlive it.
        self.is_running = False
        # The names in each part.
        self.reads: dict[str, set[str]] = {}
        self._began = thread_time()

    def ask(self) -> Principal | None:
        """Return for whom it runs, and note that it has asked."""
        self.has_asked = True
        return self._principal

    def note(self, part: str, name: str) -> bool:
        """Note that it reads a name in a part; return False if that was noted."""
        names = self.reads.setdefault(part, set())
        is_new = name not in names
        names.add(name)
        return is_new

    def narrow(self, part: str, names: Iterable[str], *, is_vague: bool) -> None:
        """Note names in a part; if `is_vague`, they replace ALL, which the caller has noted."""
        if is_vague:
            self.reads[part].discard(ALL)
        self.reads[part].update(names)

    def show(self, state: Any) -> Any:
        """Return the state, so that the members that are read are noted; a state without members is noted whole."""
        if not self._is_followed:
            return state
        if type(state) is dict:
            return NotedObject(state, self._note_member)
        type_: type = type(state)
        if names := _find_names(type_):
            return NotedFields(state, names, self._note_member)
        self._note_member(ALL)
        return state

    def find_seconds_left(self, most: float) -> float:
        """Return the rest of `most` seconds of processor time, which all statements of the run share."""
        return max(most - (thread_time() - self._began), 0.0)

    def _note_member(self, name: str) -> None:
        self.note(STATE, name)


_running: Final[ContextVar[QueryRun | None]] = ContextVar("plait_query", default=None)


def find_query() -> QueryRun | None:
    """Return the run of a query that runs the calling code; None without one."""
    run = _running.get()
    return run if run is not None and run.is_running else None


def run_query(state: Any, run: QueryRun, function: Callable[..., T], *args: Any) -> T:
    """Call a function that reads a thread, whose pipeline is `state`. Raises an Exception."""
    outer, state.query, token, run.is_running = state.query, run, _running.set(run), True
    try:
        return call_now(function, *args)
    finally:
        state.query, run.is_running = outer, False
        _running.reset(token)


class Noted:
    """The state as a query reads it; `whole` notes all of it."""

    __slots__ = ()

    def whole(self) -> Any:
        """Return the state itself."""
        raise NotImplementedError

    def __copy__(self) -> Any:
        return copy(self.whole())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self.whole(), memo)


class NotedObject(Noted, Mapping[Any, Any]):
    """A state that is a dict: each member is noted before it is read."""

    __slots__ = ("_note", "_state")

    def __init__(self, state: dict[Any, Any], note: Note) -> None:
        self._state = state
        self._note = note

    def whole(self) -> dict[Any, Any]:
        self._note(ALL)
        return self._state

    def __getitem__(self, name: Any) -> Any:
        self._note(str(name))
        return self._state[name]

    def get(self, name: Any, default: Any = None) -> Any:
        self._note(str(name))
        return self._state.get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(str(name))
        return name in self._state

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**self.whole(), **other}

    def copy(self) -> dict[Any, Any]:
        """Return a shallow copy, as a dict has it."""
        return self.whole().copy()

    def __repr__(self) -> str:
        return repr(self.whole())


class NotedFields(Noted):
    """A state that is a Struct or a dataclass: each field is noted before it is read."""

    __slots__ = ("_names", "_note", "_state")

    def __init__(self, state: Any, names: Mapping[str, str], note: Note) -> None:
        self._state = state
        self._names = names
        self._note = note

    def whole(self) -> Any:
        self._note(ALL)
        return self._state

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._state)

    def __getattr__(self, name: str) -> Any:
        self._note(self._names.get(name, ALL))
        return getattr(self._state, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.whole() == (other.whole() if isinstance(other, Noted) else other))

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())


@lru_cache(256)
def _find_names(type_: type) -> Mapping[str, str]:
    """Return the members of the JSON of a type by its fields; empty for a type whose JSON may have others."""
    if issubclass(type_, msgspec.Struct):
        if type_.__struct_config__.array_like:
            return {}
        return {field.name: field.encode_name for field in msgspec.structs.fields(type_)}
    return {field.name: field.name for field in dataclasses.fields(type_)} if dataclasses.is_dataclass(type_) else {}
