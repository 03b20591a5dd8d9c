"""Methods that clients may call: `@rpc`, the decoding of arguments, and streams."""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_type_hints, overload

import msgspec

from plait.errors import InvalidArguments, escape_traceback
from plait.limits import Limits, check_json
from plait.state.reads import QueryRun, run_query
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, encode_json, make_decoder
from plait_schemas.models import check_type, find_times
from plait_schemas.rpc import RPC_MARK, RpcOptions
from plait_schemas.schema import components

__all__ = ["Arguments", "Asked", "Method", "Query", "Sent", "Stream", "StreamSink", "TypedJson", "find_methods", "rpc"]

log = logging.getLogger("plait.rpc")
log.addFilter(escape_traceback)

F = TypeVar("F", bound=Callable[..., Any])

Sent = Literal["chunk", "end", "error"]
"""The kind of a stream's output: a chunk, the end, or the error that ends it."""

Arguments = tuple[list[Any], dict[str, Any]]
"""The positional and the keyword arguments of a call, converted to the method's annotations."""

StreamSink = Callable[[Sent, Any], Callable[[], None]]
"""Takes an output of a stream, and returns a function that sends it. Raises TypeError or ValueError for a value that
cannot be JSON."""


@overload
def rpc(function: F, /) -> F: ...
@overload
def rpc(*, name: str | None = None, concurrent: bool = False, clients: bool = True) -> Callable[[F], F]: ...
def rpc(
    function: F | None = None, /, *, name: str | None = None, concurrent: bool = False, clients: bool = True
) -> F | Callable[[F], F]:
    """Allow clients to call a method of a Thread, by `name` or else by the method's own name.

    With `clients=False`, only handles of server code call it. Arguments are converted to their annotations. Calls are
    turns, which run one at a time, unless `concurrent`. An async generator streams the values that it yields; a method
    with a parameter annotated `Stream` sends chunks through that parameter. Streams run concurrently with other turns.
    """

    if isinstance(function, str):
        raise TypeError(f"@rpc({function!r}): the name is a keyword, @rpc(name={function!r})")

    def mark(function: F) -> F:
        setattr(function, RPC_MARK, RpcOptions(name, concurrent, clients))
        return function

    return mark if function is None else mark(function)


class Stream:
    """A streamed response. After `end` or `error`, nothing more may be sent."""

    __slots__ = ("_emit_to", "is_ended")

    def __init__(self, emit: Callable[[Sent, Any], None]) -> None:
        self._emit_to = emit
        self.is_ended = False

    def send(self, value: object) -> None:
        """Send a chunk."""
        self._emit("chunk", value)

    def end(self, value: object = msgspec.UNSET) -> None:
        """End the stream, with a last value if one is given."""
        self._emit("end", value)

    def error(self, message: str) -> None:
        """End the stream with an error."""
        self._emit("error", message)

    def _emit(self, what: Sent, value: object) -> None:
        if self.is_ended:
            raise RuntimeError("the stream has ended")
        self._emit_to(what, value)
        self.is_ended = what != "chunk"


class TypedJson:
    """The decoder of one type. Raises TypeError for a type that cannot be decoded."""

    __slots__ = ("_decode", "_times")

    def __init__(self, type_: Any) -> None:
        self._decode = make_decoder(type_)
        # The weight of the type, as a multiple of JSON without one.
        self._times = find_times(type_)

    def decode(self, what: str, raw: msgspec.Raw, limits: Limits, *, path: str = "") -> Any:
        """Return the value of JSON; `what` and `path` name it in errors. Raises InvalidArguments and TooLarge."""
        if self._times > 1 or len(raw) > limits.depth:  # Shorter JSON is not nested deeper.
            check_json(what, raw, limits, self._times, path=path)
        try:
            return self._decode(raw)
        except NOT_JSON as error:
            message, place = parse_json_error(error)
            raise InvalidArguments(f"{what}{place}: {message}", path=path + place) from None
        except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
            log.error("the type of %s raised %s", what, type(error).__name__, exc_info=error)
            raise InvalidArguments(f"{what}: refused by its type", path=path) from None


class Method:
    """One rpc of a Thread class, or another method called with JSON: its names, and the decoders of its arguments."""

    # Whether the method runs an agent; other callers may wait for the run.
    is_run = False

    # Whether the method is a query.
    is_query = False

    # Whether clients may call the method, and the action that they need for it. "stop" needs "call", and also "approve"
    # if others have begun the run that it ends; "send" needs that, too, at the question of another user.
    is_for_clients = True
    action: Literal["call", "approve", "stop", "send", "messages"] = "call"

    def __init__(
        self,
        name: str,
        attribute: str,
        function: Callable[..., Any],
        *,
        concurrent: bool,
        noun: str = "rpc",
        leading: int = 1,
    ) -> None:
        # The name for clients, and the name in the class.
        self.name = name
        self.attribute = attribute
        self.function = function
        self._noun = noun
        # The number of leading parameters that callers do not pass.
        self._leading = leading
        self.is_generator = inspect.isasyncgenfunction(function)
        self._positional: list[str] = []
        self._required: set[str] = set()
        # The number of required positional arguments; None if a keyword-only argument is required.
        self._enough: int | None = 0
        # The decoders of the arguments.
        self._decode: dict[str, TypedJson] = {}
        # The parameter that takes a Stream, if there is one.
        self.stream_parameter: str | None = None
        self._stream_place = 0
        self._read_signature()
        self.is_stream = self.is_generator or self.stream_parameter is not None
        # Whether calls run concurrently with the thread's turns.
        self.is_concurrent = concurrent or self.is_stream

    def arguments(
        self, args: Sequence[msgspec.Raw], kwargs: Mapping[str, msgspec.Raw] | None = None, *, limits: Limits
    ) -> Arguments:
        """Decode the positional and keyword arguments, within the limits. Raises InvalidArguments and TooLarge."""
        if len(args) > len(self._positional):
            raise InvalidArguments(f"{self.name} takes {len(self._positional)} arguments, {len(args)} were given")
        positional = [self._convert(name, raw, limits) for name, raw in zip(self._positional, args, strict=False)]
        if not kwargs and self._enough is not None and len(args) >= self._enough:
            return positional, {}
        values = dict(zip(self._positional, positional, strict=False))
        for name, raw in (kwargs or {}).items():
            if name in values or name not in self._decode:
                what = "is given twice" if name in values else "is not an argument"
                raise InvalidArguments(f"{self.name}: {name!r} {what}", path=f"/{name}")
            values[name] = self._convert(name, raw, limits)
        if missing := self._required - values.keys():
            raise InvalidArguments(f"{self.name}: {min(missing)!r} is missing", path=f"/{min(missing)}")
        return [], values

    def convert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a handle's call, converted from the given ones."""
        return [*args], {**kwargs}

    def read_types(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the author's function, and the types of its parameters without the first, which clients do not pass.

        The type of the result is under the key "return".
        """
        return self.function, get_type_hints(self.function, include_extras=True)

    def describe_arguments(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments as an object, by name. Raises TypeError if a type has no schema."""
        types = self.read_types()[1]
        schemas, named = components([types.get(name, Any) for name in self._decode])
        schema: dict[str, Any] = {
            "type": "object",
            "properties": dict(zip(self._decode, schemas, strict=True)),
            "required": [name for name in self._decode if name in self._required],
            "additionalProperties": False,
        }
        return {**schema, "$defs": named} if named else schema

    def insert_stream(self, args: list[Any], kwargs: dict[str, Any], stream: Stream) -> Arguments:
        """Return the arguments with `stream` inserted for its parameter."""
        assert self.stream_parameter is not None
        if len(args) > self._stream_place:
            return [*args[: self._stream_place], stream, *args[self._stream_place :]], kwargs
        return args, {**kwargs, self.stream_parameter: stream}

    def _convert(self, name: str, raw: msgspec.Raw, limits: Limits) -> Any:
        return self._decode[name].decode(f"{self.name}: {name}", raw, limits, path=f"/{name}")

    def _read_signature(self) -> None:
        hints = get_type_hints(self.function, include_extras=True)
        # A method with a return annotation answers null for None; other methods answer without a result.
        self.returns_value = hints.get("return", type(None)) is not type(None)
        check_type(hints.get("return"))
        for parameter in list(inspect.signature(self.function).parameters.values())[self._leading :]:
            annotation = hints.get(parameter.name, Any)
            if annotation is Stream:
                self.stream_parameter = parameter.name
                self._stream_place = len(self._positional)
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                what = "*args, **kwargs and positional-only parameters are not supported"
                raise TypeError(f"{self._noun} {self.name!r}: {what}")
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positional.append(parameter.name)
            if parameter.default is parameter.empty:
                self._required.add(parameter.name)
                self._enough = None if parameter.kind is parameter.KEYWORD_ONLY else len(self._positional)
            self._decode[parameter.name] = TypedJson(annotation)


class Asked(NamedTuple):
    """A query with its arguments, as the JSON that the client has sent."""

    query: "Query"
    json: bytes

    def arguments(self, limits: Limits) -> Arguments:
        """Return the decoded arguments, each time other objects. Raises InvalidArguments and TooLarge."""
        args, kwargs = _decode_asked(self.json)
        return self.query.arguments(args, kwargs, limits=limits)


_decode_asked: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]).decode


class Query(Method):
    """One query of a Thread class: clients follow it, and only handles call it."""

    is_query = True

    def __init__(self, name: str, attribute: str, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(name, attribute, function, noun="query", **options)
        if self.is_stream:
            raise TypeError(f"query {name!r}: a query returns its result, it does not stream")
        self.reads, self.function = function, self._read
        # Whether it has asked for whom it runs: then no result is shared.
        self.is_personal = False

    def ask(
        self, args: Sequence[msgspec.Raw], kwargs: Mapping[str, msgspec.Raw] | None = None, *, limits: Limits
    ) -> Asked:
        """Return the query with these arguments. Raises InvalidArguments and TooLarge."""
        asked = Asked(self, encode_json((args, kwargs or {})))
        asked.arguments(limits)
        return asked

    def read_types(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        return self.reads, get_type_hints(self.reads, include_extras=True)

    def _read(self, thread: Any, *args: Any, **kwargs: Any) -> Any:
        run = QueryRun(thread, is_followed=False)
        return run_query(thread._actor.state, run, partial(self.reads, thread, *args, **kwargs))


def find_methods(cls: type, reserved: Collection[str] = ()) -> dict[str, Method]:
    """Return the rpcs and queries of a Thread class, by their names for clients. Raises TypeError.

    `reserved` are the attributes of Thread, which they must not replace.
    """
    found: dict[str, Method] = {}
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        options = getattr(function, RPC_MARK, None)
        if isinstance(options, RpcOptions):
            if attribute in reserved:
                raise TypeError(
                    f"{cls.__name__}.{attribute} is an attribute of Thread and cannot be an rpc: give the method "
                    f"another name, and @rpc(name={attribute!r}) if clients should call it by this name"
                )
            _check_self(f"{cls.__name__}.{attribute}", cls, function)
            make = Query if options.is_query else Method
            method = make(options.name or attribute, attribute, function, concurrent=options.concurrent)
            method.is_for_clients = options.clients
            if method.name in found:
                raise TypeError(f"{cls.__name__} has two rpcs named {method.name!r}")
            found[method.name] = method
    return found


def _check_self(name: str, cls: type, function: Callable[..., Any]) -> None:
    """Raise TypeError for an rpc without `self`: its first parameter, if any, is of another type."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    hint = None if first is None or first.name == "self" else get_type_hints(function).get(first.name)
    if first is None or (isinstance(hint, type) and not issubclass(cls, hint)):
        raise TypeError(f"{name} is an rpc, so its first parameter is the thread: def {function.__name__}(self, …)")
