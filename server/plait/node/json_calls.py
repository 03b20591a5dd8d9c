"""The arguments and results of rpcs, which travel between threads as JSON, even within one process."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from plait.actor.rpc import Arguments, Method
from plait.limits import Limits
from plait_schemas.codec import NOT_JSON, decode_json, make_decoder
from plait_schemas.encoding import encode_crossing
from plait_schemas.rpc import find_result_type

__all__ = [
    "EncodedArguments",
    "decode_arguments",
    "decode_value",
    "encode_arguments",
    "find_decoder",
    "find_method_result",
    "pass_arguments",
    "pass_result",
]


class EncodedArguments(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of a call, each as JSON."""

    positional: list[bytes] = []
    named: dict[str, bytes] = {}


# Arguments


def encode_arguments(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedArguments:
    """Return the arguments of a call as JSON. Raises TypeError and ValueError."""
    positional = [encode_crossing(f"argument {place} of {method}", value) for place, value in enumerate(args, 1)]
    named = {name: encode_crossing(f"{name!r} of {method}", value) for name, value in kwargs.items()}
    return EncodedArguments(positional, named)


def decode_arguments(method: Method, given: EncodedArguments, limits: Limits) -> Arguments:
    """Return the arguments of a call, converted to the method's annotations. Raises InvalidArguments."""
    return method.arguments(
        [msgspec.Raw(each) for each in given.positional],
        {name: msgspec.Raw(each) for name, each in given.named.items()},
        limits=limits,
    )


def pass_arguments(method: Method, args: Sequence[Any], kwargs: Mapping[str, Any], limits: Limits) -> Arguments:
    """Return the arguments of a call as they arrive at a thread of the same process."""
    return decode_arguments(method, encode_arguments(method.name, args, kwargs), limits)


# Results


def pass_result(method: Method, value: object) -> Any:
    """Return a result, or a chunk, as it arrives in the same process. Raises TypeError and ValueError."""
    return decode_value(encode_crossing(f"the result of {method.name}", value), find_method_result(method), method.name)


@lru_cache(4096)
def find_method_result(method: Method) -> Any:
    """Return the type of the result of an rpc or an agent, or of each chunk if it streams."""
    _, types = method.read_types()
    return find_result_type(types.get("return", Any), is_stream=method.is_stream)


# Values


def decode_value(data: bytes, type_: Any, method: str) -> Any:
    """Return a result as a value of its annotation. Raises TypeError if it does not fit."""
    try:
        return find_decoder(type_)(data)
    except NOT_JSON as error:
        raise TypeError(f"{method} has returned a value that does not fit its annotation: {error}") from None


@lru_cache(4096)
def find_decoder(type_: Any) -> Callable[[bytes], Any]:
    """Return the decoder for values of a type."""
    try:
        return make_decoder(type_)
    except TypeError:  # Values of a type without JSON, such as a type variable, travel as plain JSON.
        return decode_json
