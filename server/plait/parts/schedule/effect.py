"""`@effect`, which marks the methods of a Thread that its schedule may call."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, overload

import msgspec

from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.parts.attempts import Retries

__all__ = ["Effect", "effect", "find_effects"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__plait_effect__"

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Options(msgspec.Struct, frozen=True):
    retries: Retries
    timeout: float | None


@overload
def effect(function: F, /) -> F: ...
@overload
def effect(
    *, attempts: int = 3, base: float = 0.5, most: float = 60.0, timeout: float | None = None
) -> Callable[[F], F]: ...
def effect(
    function: F | None = None,
    /,
    *,
    attempts: int = 3,
    base: float = 0.5,
    most: float = 60.0,
    timeout: float | None = None,
) -> F | Callable[[F], F]:
    """Mark a method of a Thread that its schedule may call.

    A run that raises is repeated, up to `attempts` times in all: after about `base` seconds, then twice as long each
    time, at most `most`. An attempt that takes longer than `timeout` seconds is logged with its stack, cancelled, and
    counts as one that has raised; None means never. Arguments are JSON, and are converted to their annotations.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"attempts must be an integer of at least 1, not {attempts!r}")
    if not (base > 0 and most > 0):
        raise ValueError(f"base and most must be above 0, not {base!r} and {most!r}")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout must be above 0, or None for never, not {timeout!r}")

    def mark(function: F) -> F:
        setattr(function, _MARK, _Options(Retries(attempts, base, most), timeout))
        return function

    return mark if function is None else mark(function)


class Effect:
    """One method that a schedule may call: its retries, and the decoders of its arguments."""

    def __init__(self, name: str, function: Callable[..., Any], options: _Options) -> None:
        self.name = name
        self.function = function
        self.retries = options.retries
        self.timeout = options.timeout
        self._method = Method(name, name, function, concurrent=False, noun="effect")
        if self._method.is_stream:
            raise TypeError(f"the effect {name!r} must not stream: there is no reader")

    def decode(self, args: bytes, *, depth: int) -> list[Any]:
        """Return the arguments of a JSON array. Raises InvalidArguments."""
        found: Sequence[Any] = self._method.arguments(_decode_array(args), depth=depth)[0]
        return list(found)


def find_effects(cls: type[Thread[Any]]) -> dict[str, Effect]:
    """Return the effects of a class, by name. Raises TypeError."""
    found: dict[str, Effect] = {}
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        options = getattr(function, _MARK, None)
        if isinstance(options, _Options):
            if hasattr(Thread, name):
                raise TypeError(f"{cls.__name__}.{name} is an attribute of Thread and cannot be an effect")
            found[name] = Effect(name, function, options)
    return found
