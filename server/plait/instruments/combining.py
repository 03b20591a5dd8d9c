"""Combines the instruments of an app into one object, which calls each of them and logs their exceptions."""

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from plait.instruments.protocol import NO_INSTRUMENTS, Instruments, NoInstruments

__all__ = ["combine_instruments"]

log = logging.getLogger("plait.instruments")

_METHODS: Final = tuple(name for name in vars(Instruments) if not name.startswith("_"))
# The methods with a parent as their last argument, and the methods with a trace as their first.
_WITH_PARENT: Final = frozenset({"turn_began", "step_began", "change_made"})
_WITH_TRACE: Final = frozenset(
    name for name in _METHODS if "trace" in inspect.signature(vars(Instruments)[name]).parameters
)


def combine_instruments(given: Instruments | Iterable[Instruments], own: Sequence[Instruments] = ()) -> Instruments:
    """Return one object for an app's instruments and plait's own, which never raise.

    Raises TypeError for something that is not Instruments.
    """
    each = list(given) if isinstance(given, Iterable) else [given]
    for one in each:
        _check(one)
    instruments = [*own, *(_Guarded(one) for one in each if type(one) is not NoInstruments)]
    if len(instruments) > 1:
        return _Several(instruments)
    return instruments[0] if instruments else NO_INSTRUMENTS


def _check(given: object) -> None:
    if isinstance(given, type):
        raise TypeError(f"instruments must be an object, not the class {given.__name__}: write {given.__name__}()")
    for name in _METHODS:
        method = getattr(given, name, None)
        if not callable(method):
            raise TypeError(f"instruments: {given!r} has no method {name}: subclass plait.NoInstruments")
        if inspect.iscoroutinefunction(method):
            raise TypeError(f"instruments: {type(given).__name__}.{name} must be a plain function, not async")


class _Guarded(NoInstruments):
    """Calls other instruments, and logs the first exception of each method."""

    def __init__(self, instruments: Instruments) -> None:
        for name in _METHODS:
            setattr(self, name, _guard(getattr(instruments, name)))


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    is_logged = False

    def call(*args: Any) -> Any:
        nonlocal is_logged
        try:
            return method(*args)
        except Exception:
            if not is_logged:
                is_logged = True
                log.exception("%s raised, and is not logged again", getattr(method, "__qualname__", method))
            return None

    return call


class _Several(NoInstruments):
    """Calls several instruments; its traces are tuples of their traces."""

    def __init__(self, instruments: Sequence[Instruments]) -> None:
        class Traces(tuple[Any, ...]):
            """The traces of these instruments. Traces of another app are of another class."""

            __slots__ = ()

        nothing = Traces([None] * len(instruments))
        for name in _METHODS:
            setattr(self, name, _combine(name, instruments, nothing))


def _combine(name: str, instruments: Sequence[Instruments], nothing: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a method that calls those of several instruments, each with its own trace or parent."""
    methods, traces = tuple(getattr(each, name) for each in instruments), type(nothing)

    def find_first(trace: Any) -> Any:
        own = trace if type(trace) is traces else nothing
        found = (method(each) for method, each in zip(methods, own, strict=True))
        return next((each for each in found if each is not None), None)

    def pass_parent(*args: Any) -> Any:
        *rest, parent = args
        parents = parent if type(parent) is traces else nothing
        return traces([method(*rest, own) for method, own in zip(methods, parents, strict=True)])

    def pass_trace(trace: Any, *args: Any) -> None:
        for method, own in zip(methods, trace if type(trace) is traces else nothing, strict=True):
            method(own, *args)

    def pass_all(*args: Any) -> Any:
        return traces([method(*args) for method in methods])

    if name == "make_traceparent":
        return find_first
    return pass_parent if name in _WITH_PARENT else pass_trace if name in _WITH_TRACE else pass_all
