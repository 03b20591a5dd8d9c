"""Code of authors: which of its exceptions are its errors, and how plait calls it.

Interrupted, a GeneratorExit that plait has thrown and a cancellation by others pass. Every other BaseException, such as
SystemExit, is an error of the code like an Exception, and does not end the server.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from types import CoroutineType
from typing import Any, Final, TypeVar

__all__ = ["NOT_AWAITABLE", "Interrupted", "call", "call_now", "find_error", "guard_tasks"]

T = TypeVar("T")

NOT_AWAITABLE: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, tuple})
"""The types that most code returns, beside coroutines; `inspect.isawaitable` is slow."""

# Whether code runs that `call` has called, or a task that it has started.
_is_called: Final[ContextVar[bool]] = ContextVar("plait_is_called")


class Interrupted(BaseException):
    """Raised in an agent at its next checkpoint when its run is interrupted; `message` is that of the caller.

    An agent may catch it to end in its own way; its result is then the output of the interruption. It is not an
    Exception, so that code which handles errors does not catch it.
    """

    def __init__(self, message: Any = None) -> None:
        super().__init__("the run was interrupted")
        self.message = message


def find_error(error: BaseException, name: str, *passing: type[BaseException]) -> BaseException:
    """Return the error of the code `name` that has raised `error`: an Exception, or one of the types that pass.

    Interrupted errors are left out of a group with others.
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
        what = "was cancelled, by its own code or with what it awaited"
    made = RuntimeError(f"{name} {what}")
    made.__cause__ = error
    return made


def _may_await(made: object) -> bool:
    """Whether what code has returned is awaitable."""
    return (kind := type(made)) is CoroutineType or (kind not in NOT_AWAITABLE and inspect.isawaitable(made))


def call_now(function: Callable[..., T], *args: Any) -> T:
    """Call a function of an author. Raises an Exception, or what passes."""
    try:
        return function(*args)
    except (Exception, Interrupted):
        raise
    except BaseException as error:
        raise find_error(error, _find_name(function), Interrupted) from error


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of an author, and await what it returns. Raises an Exception, or what passes."""
    token = _is_called.set(True)
    try:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        made = call_now(function, *args)
        if _may_await(made) or (task is not None and task.cancelling() > before):
            made = await _Code(_finish(made, before), before, _find_name(function), _count(task))
        return made
    finally:
        _is_called.reset(token)


def guard_tasks(loop: asyncio.AbstractEventLoop, is_author: Callable[[Context | None], bool]) -> Callable[[], None]:
    """Keep tasks that code of authors starts from ending the loop, until the returned function is called.

    `is_author` tells whether a context, None for the calling one, is that of such code. Tasks of plait itself need not
    come here.
    """
    former: Any = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        if is_author(context) or (_is_called.get(False) if context is None else _is_called in context):
            coroutine = _Code(coroutine, -1, _find_name(coroutine))
        return (former or _make_task)(loop, coroutine, **options)

    def leave() -> None:
        if loop.get_task_factory() is make:
            loop.set_task_factory(former)

    loop.set_task_factory(make)
    return leave


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


async def _finish(made: Any, before: int) -> Any:
    """Await what code has returned; if it has cancelled its own task, that comes here, and not to its caller."""
    result = await made if _may_await(made) else made
    if (task := asyncio.current_task()) is not None and task.cancelling() > before:
        await asyncio.sleep(0)
    return result


def _find_name(code: Any) -> str:
    return getattr(getattr(code, "func", code), "__qualname__", None) or type(code).__qualname__


class _Code(Coroutine[Any, Any, Any]):
    """A coroutine of an author, which raises an Exception, or what passes.

    `before` is how often its task was cancelled before, and `own` adds the cancellations by the code itself. What
    cancels the task while the coroutine runs, up to its next await, is the coroutine itself; with -1, it may, as it is
    a task that code of an author has started.
    """

    __slots__ = ("_before", "_coroutine", "_name", "_own")

    def __init__(self, coroutine: Any, before: int, name: str, own: int = -1) -> None:
        self._coroutine = coroutine
        self._before = before
        self._name = name
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # For the stack of its task.

    def __await__(self) -> "_Code":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def _step(self, go: Callable[..., Any], *given: Any) -> Any:
        task = asyncio.current_task()
        before = _count(task)
        try:
            try:
                return go(*given)
            finally:
                self._own = max(self._own + _count(task) - before, self._before)
        except (Exception, Interrupted):
            raise  # Its end, too, is a StopIteration.
        except BaseException as error:
            if isinstance(error, GeneratorExit) and error in given:
                raise
            if isinstance(error, asyncio.CancelledError) and task is not None:
                if task.cancelling() > self._own:
                    raise
                while task.cancelling() > self._before:
                    task.uncancel()
            raise find_error(error, self._name, Interrupted) from error


def _count(task: asyncio.Task[Any] | None) -> int:
    """Return how often a task was cancelled, without the cancellations by plait."""
    return 0 if task is None else task.cancelling() - getattr(task, "cancellations", 0)
