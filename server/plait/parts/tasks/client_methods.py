"""The methods by which clients use the tasks of a thread, and the runs as they see them."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, Final, get_type_hints

from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.errors import InvalidArguments
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.task import Task
from plait_schemas.task_run import TaskRun as ShownRun

__all__ = ["SEND", "make_methods", "show_run"]

SEND: Final = "tasks:send"
"""The method by which clients send an event to a run."""


def show_run(run: TaskRun, task: Task | None) -> ShownRun:
    """Return a run as clients see it: without arguments and errors, and with its result if they may begin the task."""
    result = run.result if task is not None and task.is_for_clients else None
    return ShownRun(
        id=run.id, name=run.name, status=run.status, value=run.value, result=result, created_at=run.created_at
    )


def make_methods(part: str, tasks: Mapping[str, Task], *, is_live: bool) -> Iterator[Method]:
    """Yield the methods of clients: `task:` and the name of a task begins a run, the others begin with `tasks:`."""

    async def get(thread: Thread[Any], id: str) -> ShownRun | None:
        """Return a run of a task; None if there is none."""
        run = await getattr(thread, part).get(id)
        return None if run is None else show_run(run, tasks.get(run.name))

    def send(thread: Thread[Any], id: str, event: str, data: Any = None) -> bool:
        """Send an event to a run of a task; return whether it was taken."""
        with _checking():
            taken: bool = getattr(thread, part).send(id, event, data).value
        return taken

    def cancel(thread: Thread[Any], id: str) -> bool:
        """Cancel a run of a task; return whether it had not ended."""
        found: bool = getattr(thread, part).cancel(id).value
        return found

    for task in tasks.values():
        if task.is_for_clients:
            yield _make_begin(part, task)
    if is_live:
        yield Method("tasks:get", part, get, concurrent=True)
    for name, function in ((SEND, send), ("tasks:cancel", cancel)):
        method = Method(name, part, function, concurrent=True)
        method.action = "approve"
        yield method


def _make_begin(part: str, task: Task) -> Method:
    """Return the method that begins a run: it has the parameters of the task, and `key`."""
    thread, _, *parameters = inspect.signature(task.function).parameters.values()
    if any(each.name == "key" for each in parameters):
        raise TypeError(f"clients may begin the task {task.name!r}, so no parameter of it may be named key")
    key = Parameter("key", Parameter.KEYWORD_ONLY, default=None)
    signature = inspect.Signature([thread, *parameters, key])

    def begin(*args: Any, **kwargs: Any) -> str:
        given = signature.bind(*args, **kwargs)
        found, *values = given.args
        with _checking():
            receipt = getattr(found, part).run(task.name, *values, **given.kwargs)
        return str(receipt.id)

    begin.__doc__ = task.function.__doc__
    begin.__annotations__ = get_type_hints(task.function, include_extras=True) | {"key": str | None, "return": str}
    vars(begin)["__signature__"] = signature
    return Method(f"task:{task.name}", task.name, begin, concurrent=False, noun="task")


@contextmanager
def _checking() -> Iterator[None]:
    """Raise InvalidArguments in place of the errors of invalid values of a client."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidArguments(str(error)) from error
