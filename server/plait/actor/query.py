"""`@query`: methods that only read; clients follow their results."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from plait_schemas.rpc import RPC_MARK, RpcOptions

__all__ = ["query"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def query(function: F, /) -> F: ...
@overload
def query(*, name: str | None = None) -> Callable[[F], F]: ...
def query(function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Allow clients to follow the result of a method of a Thread, by `name` or else by the method's own name.

    The method is a plain function that reads the state, values and tables of its thread. It runs again when something
    that it has read is changed, and its readers get what differs. Readers with equal arguments share a result, unless
    the method reads `current().principal`: then each principal has its own. Raises TypeError for a coroutine function,
    which could be overtaken by a change.
    """

    def mark(function: F) -> F:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            what = getattr(function, "__qualname__", repr(function))
            raise TypeError(f"{what} is a query, which must not await anything: make it a plain function, `def`")
        setattr(function, RPC_MARK, RpcOptions(name, concurrent=True, clients=False, is_query=True))
        return function

    return mark if function is None else mark(function)
