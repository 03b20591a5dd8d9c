"""`@task`, which marks the methods of a Thread that its tasks may run."""

import gc
import inspect
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Any, Final, TypeVar, overload

import msgspec

from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import find_user
from plait.limits import Limits
from plait.parts.encoding import check_seconds
from plait.parts.tasks.rows import EndedRun, TaskRow
from plait_schemas.rpc import RPC_MARK

__all__ = ["Task", "find_tasks", "task"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__plait_task__"

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _TaskOptions(msgspec.Struct, frozen=True):
    timeout: float | None
    clients: bool


@overload
def task(function: F, /) -> F: ...
@overload
def task(*, timeout: float | None = None, clients: bool = False) -> Callable[[F], F]: ...
def task(function: F | None = None, /, *, timeout: float | None = None, clients: bool = False) -> F | Callable[[F], F]:
    """Mark an `async def` of a Thread as a task: `async def f(self, step: Step, …)`, which `tasks.run("f", …)` runs.

    The method is called again after a crash, a restart or a long wait; its finished steps are not repeated, but all
    code outside of steps is. A run that has not ended `timeout` seconds after its beginning fails; None means never.
    Clients may begin it only with `clients`. Arguments are JSON, and are converted to their annotations.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0, or None for never, not {timeout!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, _TaskOptions(timeout, clients))
        return function

    return mark if function is None else mark(function)


class Task:
    """One method that tasks run, and the decoders of its arguments."""

    # The queues whose runs also belong to this task, and are stored under their names.
    queues: Sequence[str] = ()

    def __init__(
        self, name: str, function: Callable[..., Any], *, timeout: float | None = None, clients: bool = False
    ) -> None:
        self.name = name
        self.function = function
        self.timeout = timeout
        self.is_for_clients = clients
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"the task {name!r} must be an async def, as it awaits its steps")
        _, *places = inspect.signature(function).parameters.values()
        if not places or any(each.kind is Parameter.KEYWORD_ONLY for each in places):
            raise TypeError(f"the task {name!r} must have a step, and no parameter that is given by name only")
        self._method = Method(name, name, function, concurrent=False, noun="task", leading=2)

    def adopts(self, row: TaskRow, *, is_known: bool) -> bool:
        """Whether a run that an earlier version has stored under another name is one of this task."""
        return False

    def find_identity(self, thread: Thread[Any], key: str | None) -> tuple[str, str | None]:
        """Return the name and the key of a run that is begun. Raises InvalidArguments if the run must not begin."""
        return self.name, key

    def find_users(self, thread: Thread[Any], key: str | None) -> Iterable[str]:
        """Return the ids of the principals that begin a run."""
        return [] if (user := find_user()) is None else [user]

    def follow_end(self, thread: Thread[Any], ended: EndedRun) -> None:
        """Write the consequences of the end of a run, in the same write."""

    def check(self, args: bytes, *, limits: Limits) -> None:
        """Raise InvalidArguments for the JSON array of arguments that do not fit."""
        is_collecting = gc.isenabled()
        gc.disable()  # The garbage collector need not walk objects that are dropped at once.
        try:
            self.decode(args, limits=limits)
        finally:
            if is_collecting:
                gc.enable()

    def decode(self, args: bytes, *, limits: Limits) -> list[Any]:
        """Return the arguments of a JSON array. Raises InvalidArguments."""
        found: Sequence[Any] = self._method.arguments(_decode_array(args), limits=limits)[0]
        return list(found)


def find_tasks(cls: type[Thread[Any]]) -> dict[str, Task]:
    """Return the tasks of a class, by name. Raises TypeError."""
    found: dict[str, Task] = {}
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        options = getattr(function, _MARK, None)
        if isinstance(options, _TaskOptions):
            if hasattr(Thread, name):
                raise TypeError(f"{cls.__name__}.{name} is an attribute of Thread and cannot be a task")
            if hasattr(function, RPC_MARK):
                raise TypeError(f"{cls.__name__}.{name} is a task and an rpc: it can only be one of them")
            found[name] = Task(name, function, timeout=options.timeout, clients=options.clients)
    return found
