"""Reads the function of an rpc for its callers: its name for clients, and the type of its result."""

import collections.abc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from plait_schemas.codec import convert

__all__ = ["RPC_MARK", "Rpc", "RpcOptions", "find_result_type", "is_stream_type", "read_rpc"]

RPC_MARK: Final = "__plait_rpc__"
"""The attribute of a function in which `@rpc` keeps its options."""

_STREAMS: Final = (AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)


class RpcOptions(msgspec.Struct, frozen=True):
    """The options of `@rpc`, or of `@query`."""

    name: str | None = None
    concurrent: bool = False
    clients: bool = True
    is_query: bool = False


class Rpc(NamedTuple):
    """An rpc as its callers know it: the type is that of its result, or of each chunk of one that streams."""

    name: str
    result_type: Any = Any
    is_stream: bool = False

    def convert(self, value: Any) -> Any:
        """Return a result, which is JSON values, as its type. Raises msgspec.ValidationError."""
        return value if self.result_type is Any else convert(value, self.result_type, str_keys=True)


def read_rpc(method: str | Callable[..., Any]) -> Rpc:
    """Return an rpc by its name for clients or its function."""
    return Rpc(method) if isinstance(method, str) else _read_function(method)


@lru_cache(1024)
def _read_function(function: Callable[..., Any]) -> Rpc:
    options = getattr(function, RPC_MARK, None)
    name = options.name if isinstance(options, RpcOptions) else None
    returned = _find_returned(function)
    is_stream = inspect.isasyncgenfunction(function) or is_stream_type(returned)
    return Rpc(name or function.__name__, find_result_type(returned, is_stream=is_stream), is_stream)


def _find_returned(function: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function; Any if that has a name that only type checkers import."""
    annotated = {"return": getattr(function, "__annotations__", {}).get("return", Any)}
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__=annotated), getattr(inspect.unwrap(function), "__globals__", {})
        )["return"]
    except (NameError, AttributeError):
        return Any


def is_stream_type(returned: Any) -> bool:
    """Whether a function with this return annotation streams its values."""
    return get_origin(returned) in _STREAMS


def find_result_type(returned: Any, *, is_stream: bool = False) -> Any:
    """Return the type of an awaited value, or of each chunk, from the return annotation of a method."""
    if is_stream:
        return get_args(returned)[0] if is_stream_type(returned) else Any
    origin = get_origin(returned) or returned
    if not (isinstance(origin, type) and issubclass(origin, Awaitable)):
        return returned
    arguments = get_args(returned)
    return arguments[0] if arguments else _find_awaited(origin)


def _find_awaited(cls: type) -> Any:
    """Return the type of the awaited value for a class, such as a subclass of Result[str]."""
    for base in getattr(cls, "__orig_bases__", ()):
        if get_args(base):
            return get_args(base)[0]
    return Any
