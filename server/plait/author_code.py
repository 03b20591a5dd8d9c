"""Calls code of authors, and tells errors of the code from exceptions that must pass.

Three kinds pass: Interrupted, a GeneratorExit that plait has thrown, and a cancellation by others. Every other
BaseException, such as SystemExit, is an error of the code like an Exception, and does not end the server.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from types import CoroutineType
from typing import Any, Final, TypeVar

__all__ = ["NOT_AWAITABLE", "Interrupted", "call", "call_now", "find_error", "guard_tasks", "is_method"]

T = TypeVar("T")

NOT_AWAITABLE: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})
"""The types that most code returns, besides coroutines. Checking them first avoids the slow `inspect.isawaitable`."""

# Whether the running code was called by `call`, or runs in a task that such code has started.
_is_called: Final[ContextVar[bool]] = ContextVar("plait_is_called")


class Interrupted(BaseException):
    """Raised in an agent at its next checkpoint when its run is interrupted; `message` comes from the caller.

    An agent may catch it to end in its own way; the agent's result is then the output of the interruption. Interrupted
    is not an Exception, so that code which handles errors does not catch it.
    """

    def __init__(self, message: Any = None) -> None:
        super().__init__("the run was interrupted")
        self.message = message


def find_error(error: BaseException, name: str, *passing: type[BaseException]) -> BaseException:
    """Return the error of the code `name` after it has raised `error`: an Exception, or one of the types that pass.

    Interrupted is left out of a group that also has other errors.
    """
    if isinstance(error, BaseExceptionGroup):
        interrupts, others = error.split(Interrupted)
        error = error if interrupts is None else others or interrupts
        while others is None and isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    if isinstance(error, (Exception, *passing)) and not isinstance(error, StopIteration):
        return error
    what = f"raised {type(error).__name__}"
    if isinstance(error, asyncio.CancelledError):
        what = "was cancelled, by its own code or with work it awaited"
    made = RuntimeError(f"{name} {what}")
    made.__cause__ = error
    return made


def is_method(value: object) -> bool:
    """Whether an attribute of a class, as `getattr_static` returns it, is a method."""
    return inspect.isfunction(getattr(value, "__func__", value))


def call_now(function: Callable[..., T], *args: Any) -> T:
    """Call a function of an author. Raises an Exception, or an exception that passes."""
    try:
        return function(*args)
    except (Exception, Interrupted):
        raise
    except BaseException as error:
        raise find_error(error, _find_name(function), Interrupted) from error


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of an author, and await its result. Raises an Exception, or an exception that passes."""
    token = _is_called.set(True)
    try:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        made = call_now(function, *args)
        own, is_coroutine = _count(task), type(made) is CoroutineType
        if is_coroutine or (type(made) not in NOT_AWAITABLE and inspect.isawaitable(made)):
            code = _Code(made if is_coroutine else _wait(made), before, function, own)
            made, own = await code, code.own
        if task is not None and task.cancelling() > before:  # The code has cancelled its own task.
            await _Code(asyncio.sleep(0), before, function, own)
        return made
    finally:
        _is_called.reset(token)


def guard_tasks(loop: asyncio.AbstractEventLoop, is_author: Callable[[Context | None], bool]) -> Callable[[], None]:
    """Keep tasks that code of authors starts from ending the loop, until the returned function is called.

    `is_author` returns whether a context, None for the calling one, belongs to such code. Tasks of plait itself need no
    guard.
    """
    former: Any = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        if is_author(context) or (_is_called.get(False) if context is None else _is_called in context):
            coroutine = _Code(coroutine, -1, coroutine)
        return (former or _make_task)(loop, coroutine, **options)

    def leave() -> None:
        if loop.get_task_factory() is make:
            loop.set_task_factory(former)

    loop.set_task_factory(make)
    return leave


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


async def _wait(made: Awaitable[Any]) -> Any:
    return await made


def _find_name(code: Any) -> str:
    return getattr(getattr(code, "func", code), "__qualname__", None) or type(code).__qualname__


class _Code(Coroutine[Any, Any, Any]):
    """A coroutine of an author, which raises an Exception, or an exception that passes; `code` has the name for errors.

    `before` is the number of cancellations of the task before the call, and `own` adds the ones by the code itself:
    while the coroutine runs, up to its next await, only its own code can cancel the task. With -1, the task was started
    by code of an author, which may cancel it.
    """

    __slots__ = ("_before", "_code", "_coroutine", "own")

    def __init__(self, coroutine: Any, before: int, code: Any, own: int = -1) -> None:
        self._coroutine = coroutine
        self._before = before
        self._code = code
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # The stack of the task reads its attributes.

    def __await__(self) -> Any:
        return self

    def close(self) -> None:
        self._coroutine.close()

    def throw(self, *error: Any) -> Any:
        return self.send(None, *error)

    def send(self, value: Any = None, *thrown: Any) -> Any:
        task = asyncio.current_task()
        before = _count(task)
        try:
            try:
                return self._coroutine.throw(*thrown) if thrown else self._coroutine.send(value)
            finally:
                self.own = max(self.own + _count(task) - before, self._before)
        except (Exception, Interrupted):
            raise  # The end of the coroutine is a StopIteration, too.
        except BaseException as error:
            if isinstance(error, GeneratorExit) and error in thrown:
                raise
            if isinstance(error, asyncio.CancelledError) and task is not None:
                if task.cancelling() > self.own:
                    raise
                while task.cancelling() > self._before:
                    task.uncancel()
            raise find_error(error, _find_name(self._code), Interrupted) from error

    __next__ = send


def _count(task: asyncio.Task[Any] | None) -> int:
    """Return the number of cancellations of a task, without the ones by plait."""
    return 0 if task is None else task.cancelling() - getattr(task, "cancellations", 0)
