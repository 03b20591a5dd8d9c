"""Methods that answer HTTP requests below their thread: `@endpoint`, arguments, and the search for a method."""

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plait.actor.url_patterns import UrlPattern, decode_segments
from plait.errors import InvalidArguments, escape_traceback
from plait.limits import Limits, check_json
from plait.state.types import SCALAR_TYPES, parse_json_error
from plait_schemas.codec import NOT_JSON, make_decoder
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.models import check_type, find_times
from plait_schemas.rpc import RPC_MARK, RpcOptions

__all__ = ["EndpointMethod", "Endpoints", "HttpMethod", "Parameter", "endpoint"]

log = logging.getLogger("plait.endpoint")
log.addFilter(escape_traceback)

F = TypeVar("F", bound=Callable[..., Any])

HttpMethod = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
"""The HTTP methods that an endpoint may answer; an endpoint for GET also answers HEAD."""

_MARK: Final = "__plait_endpoint__"
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
# The requests that plait answers itself, whatever the class.
_OWN: Final = tuple(
    (method, UrlPattern(path))
    for method, path in (
        ("GET", "/"),
        ("PUT", "/"),
        ("DELETE", "/"),
        ("GET", "/changes"),
        ("POST", "/rpc/{method}"),
        ("POST", "/run/{agent}"),
        ("POST", "/interrupt"),
        ("GET", "/mcp"),
        ("POST", "/mcp"),
        ("DELETE", "/mcp"),
        ("GET", "/chat"),
        ("POST", "/chat"),
        ("GET", "/chat/{path:path}"),
        ("POST", "/chat/{path:path}"),
        ("GET", "/files/{path:path}"),
        ("PUT", "/files/{path:path}"),
        ("DELETE", "/files/{path:path}"),
    )
)
# And those of a class with queries.
_OF_QUERIES: Final = ("GET", UrlPattern("/query/{name}"))
# The types in a path or a query, which contain no bytes.
_SCALARS: Final = tuple(each for each in SCALAR_TYPES if each is not msgspec.inspect.BytesType)


class EndpointOptions(NamedTuple):
    """The options of `@endpoint`."""

    method: str
    pattern: UrlPattern
    concurrent: bool
    limit: int | None


def endpoint(method: HttpMethod, path: str, *, concurrent: bool = False, limit: int | None = None) -> Callable[[F], F]:
    """Answer HTTP requests at a path below the thread's URL with a method of a Thread.

    The path may have parameters, such as `/report/{year:int}`. Arguments of these names come from the path, other
    numbers and texts from the query, and an argument of another type from the body: JSON, or anything for `bytes`. A
    parameter that is annotated `Request` gets Starlette's request. A Starlette response is sent as it is, and any other
    result as JSON. A request is a turn, and turns run one at a time, unless `concurrent`. `limit` is the maximum bytes
    of the body, in place of `Limits.frame`; only a body that is taken as `bytes` or by the `Request` may have more.
    """
    if method not in get_args(HttpMethod):
        raise ValueError(f"@endpoint({method!r}, …): the method is one of {', '.join(get_args(HttpMethod))}")
    if limit is not None and limit < 1:
        raise ValueError(f"@endpoint({method!r}, {path!r}): limit={limit!r} must be at least 1")
    options = EndpointOptions(method, UrlPattern(path), concurrent, limit)

    def mark(function: F) -> F:
        setattr(function, _MARK, options)
        return function

    return mark


class Parameter(NamedTuple):
    """A parameter of an endpoint: where its argument comes from, and its type."""

    name: str
    place: Literal["path", "query", "body", "request"]
    type: Any
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether every request must have the parameter."""
        return self.default is inspect.Parameter.empty

    @property
    def is_list(self) -> bool:
        """Whether the query may contain the parameter several times."""
        return self.place == "query" and _is_list(self.type)


class EndpointMethod:
    """One endpoint of a Thread class. Raises TypeError for a signature that cannot be called."""

    def __init__(self, owner: str, attribute: str, function: Callable[..., Any], options: EndpointOptions) -> None:
        self.method, self.pattern, self.is_concurrent, self.limit = options
        self.attribute = attribute
        self.function = function
        # The method's name in the author's code, for errors.
        self._owner = f"{owner}.{attribute}"
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{self._owner} is an endpoint, which must not yield: return a StreamingResponse")
        hints = get_type_hints(function, include_extras=True)
        # The type of its result; UNSET without an annotation.
        self.result_type = hints.get("return", msgspec.UNSET)
        signature = list(inspect.signature(function).parameters.values())
        self.parameters = [self._read(each, hints.get(each.name, msgspec.UNSET)) for each in signature[1:]]
        if missing := self.pattern.parameters.keys() - {each.name for each in self.parameters}:
            raise TypeError(f"{self._owner} needs the parameter {min(missing)!r} of its path {self.pattern.text!r}")
        bodies = [each for each in self.parameters if each.place == "body"]
        if len(bodies) > 1:
            raise TypeError(f"{self._owner}: only one of {', '.join(each.name for each in bodies)} can be the body")
        # The parameter that gets the body, if there is one, and the decoder of the body; None for bytes.
        self.body = bodies[0] if bodies else None
        self._decode = None if self.body is None or self.body.type is bytes else make_decoder(self.body.type)
        self._times = 1 if self.body is None else find_times(self.body.type)

    @property
    def has_result(self) -> bool:
        """Whether None is sent as null, as the method is annotated to return something."""
        return self.result_type is not msgspec.UNSET and self.result_type is not type(None)

    @property
    def is_response(self) -> bool:
        """Whether the method is annotated to return a response of its own."""
        return isinstance(self.result_type, type) and issubclass(self.result_type, Response)

    @property
    def is_json(self) -> bool:
        """Whether the body is decoded as JSON."""
        return self._decode is not None

    def check(self, limits: Limits) -> None:
        """Raise TypeError for a `limit` of a body that would take too long to decode."""
        if self.is_json and self.limit is not None and self.limit > limits.frame:
            raise TypeError(
                f"{self._owner}: limit={self.limit} is more than Limits.frame, which is {limits.frame}: only a body "
                "that is not decoded, as bytes or Request, may have more"
            )

    def arguments(self, values: Mapping[str, Any], request: Request, body: bytes, *, limits: Limits) -> dict[str, Any]:
        """Return the arguments for a request with these values in its path. Raises InvalidArguments."""
        found: dict[str, Any] = {}
        for each in self.parameters:
            match each.place:
                case "request":
                    found[each.name] = request
                case "path":
                    found[each.name] = self._convert(each, values[each.name])
                case "body" if body or each.is_required:
                    found[each.name] = body if self._decode is None else self._read_body(each, body, limits)
                case "query" if each.name in request.query_params:
                    given = request.query_params.getlist(each.name)
                    found[each.name] = self._convert(each, given if each.is_list else given[-1])
                case "query" if each.is_required:
                    raise InvalidArguments(f"the query needs {each.name!r}", path=f"/{each.name}")
        return found

    # Inside

    def _read(self, parameter: inspect.Parameter, type_: Any) -> Parameter:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{self._owner}: *args, **kwargs and positional-only parameters are not supported")
        is_text = type_ is msgspec.UNSET
        made = Parameter(name, "query", str if is_text else type_, parameter.default)
        if isinstance(type_, type) and issubclass(type_, Request):
            return made._replace(place="request")
        if name in self.pattern.parameters:
            # Without an annotation, the argument is the value that the converter makes.
            return made._replace(place="path", type=Any if is_text else type_)
        check_type(type_)
        if is_text or _are_scalars(_find_alternatives(type_)) or (self.method not in _WITH_BODY and _is_list(type_)):
            return made
        if self.method not in _WITH_BODY:
            raise TypeError(f"{self._owner}: a {self.method} has no body, and {name!r} cannot be in a query")
        return made._replace(place="body")

    def _convert(self, parameter: Parameter, value: Any) -> Any:
        name = parameter.name
        try:
            made = msgspec.convert(value, parameter.type, strict=False)
        except msgspec.ValidationError as error:
            message, path = parse_json_error(error)
            raise InvalidArguments(f"{name}{path}: {message}", path=f"/{name}{path}") from None
        try:
            encode_given(made)
        except EncodeError as error:
            raise InvalidArguments(f"{name}: {error}", path=f"/{name}{error.path}") from None
        return made

    def _read_body(self, parameter: Parameter, body: bytes, limits: Limits) -> Any:
        assert self._decode is not None
        check_json("the body", body, limits, self._times)
        try:
            return self._decode(body)
        except NOT_JSON as error:
            message, path = parse_json_error(error)
            raise InvalidArguments(f"the body{path}: {message}", path=path) from None
        except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
            text = "the type of %s of %s raised %s"
            log.error(text, parameter.name, self._owner, type(error).__name__, exc_info=error)
            raise InvalidArguments("the body: refused by its type", path="") from None


class Endpoints:
    """The endpoints of a Thread class, in the order in which they are tried. Raises TypeError.

    `reserved` are the attributes of Thread, which an endpoint must not replace.
    """

    def __init__(self, cls: type, reserved: Collection[str] = ()) -> None:
        self._methods = sorted(_find(cls, reserved), key=lambda each: each.pattern.rank)
        # Whether any endpoint has a limit of its own for bodies.
        self.has_limits = any(each.limit is not None for each in self._methods)
        own = [*_OWN, _OF_QUERIES] if _has_queries(cls) else [*_OWN]
        earlier = [*own]
        for each in self._methods:
            for method, pattern in earlier:
                if method == each.method and pattern.covers(each.pattern):
                    whose = "plait answers" if (method, pattern) in own else "another endpoint answers"
                    what = f"{each.method} {each.pattern.text!r}"
                    raise TypeError(
                        f"{cls.__name__}.{each.attribute} would never be called: {whose} {what} first, by "
                        f"{pattern.text!r}"
                    )
            earlier.append((each.method, each.pattern))

    def __iter__(self) -> Iterator[EndpointMethod]:
        return iter(self._methods)

    def find(self, method: str, rest: str) -> tuple[EndpointMethod, dict[str, Any]] | None:
        """Return the endpoint for a path after the thread, still encoded, and the values in the path; None without one.

        Raises NotFound for a path that is not valid.
        """
        if not self._methods:
            return None
        path = decode_segments(rest)
        wanted = "GET" if method == "HEAD" else method
        for each in self._methods:
            if each.method == wanted and (values := each.pattern.match(path)) is not None:
                return each, values
        return None


def _find(cls: type, reserved: Collection[str]) -> list[EndpointMethod]:
    found: list[EndpointMethod] = []
    for attribute in dir(cls):
        function = inspect.getattr_static(cls, attribute)
        options = getattr(function, _MARK, None)
        if isinstance(options, EndpointOptions):
            if attribute in reserved:
                raise TypeError(f"{cls.__name__}.{attribute} is an attribute of Thread and cannot be an endpoint")
            found.append(EndpointMethod(cls.__name__, attribute, function, options))
    return found


def _has_queries(cls: type) -> bool:
    found = (getattr(inspect.getattr_static(cls, attribute), RPC_MARK, None) for attribute in dir(cls))
    return any(isinstance(each, RpcOptions) and each.is_query for each in found)


def _is_list(type_: Any) -> bool:
    """Whether a type, besides None, is a list, a set or a tuple of any length, with elements that fit a query."""
    lists = [each for each in _find_alternatives(type_) if not isinstance(each, msgspec.inspect.NoneType)]
    if len(lists) != 1 or not isinstance(lists[0], msgspec.inspect.CollectionType):
        return False
    return _are_scalars(_list_alternatives(lists[0].item_type))


def _are_scalars(alternatives: Collection[msgspec.inspect.Type]) -> bool:
    return bool(alternatives) and all(isinstance(each, _SCALARS) for each in alternatives)


def _find_alternatives(type_: Any) -> list[msgspec.inspect.Type]:
    """Return the types of a union, or the type itself; no types if msgspec does not know it."""
    try:
        return _list_alternatives(msgspec.inspect.type_info(type_))
    except (TypeError, NotImplementedError):
        return []


def _list_alternatives(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    return [*info.types] if isinstance(info, msgspec.inspect.UnionType) else [info]
