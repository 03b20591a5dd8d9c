"""`@tool`, which makes a function that a model may call, and the results of such functions."""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from plait.actor.outcome import limit_time
from plait.actor.rpc import Method
from plait.author_code import call
from plait.errors import InvalidArguments, PlaitError
from plait.limits import Limits
from plait.parts.encoding import encode_named
from plait.parts.files.paths import clean_path
from plait.parts.stage import Stage, do_nothing, find_stage
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given

__all__ = [
    "CREATE",
    "HANDED_OVER",
    "MESSAGE",
    "NO_ARGUMENTS",
    "Checked",
    "Refused",
    "Tool",
    "ToolResult",
    "ToolSpec",
    "Variable",
    "check_timeouts",
    "check_tool_name",
    "check_type",
    "decode_arguments",
    "fail",
    "read_result",
    "tell_error",
    "tool",
]

CREATE: Final = "subagent_create"
"""The tool that makes an instance of a resumable subagent."""

MESSAGE: Final = "subagent_message"
"""The tool that sends a message to such an instance."""

T = TypeVar("T")

# All providers accept these names.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_type(what: str, value: object, type: Any) -> None:
    """Check the type of a value that an author has given. Raises TypeError, which does not show the value."""
    try:
        msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise TypeError(f"{what}: {error}") from None


class Checked(msgspec.Struct, frozen=True):
    """A definition. Raises TypeError if a field has another type than its annotation."""

    def __post_init__(self) -> None:
        for what, name, type in _find_types(self.__class__):
            check_type(what, getattr(self, name), type)


@cache
def _find_types(definition: type[Checked]) -> list[tuple[str, str, Any]]:
    return [
        (f"{definition.__name__}({each.name}=…)", each.name, each.type) for each in msgspec.structs.fields(definition)
    ]


def check_tool_name(name: object) -> str:
    """Return a name under which a model may call something. Raises ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a tool: use {_NAME.pattern}")
    if name in (CREATE, MESSAGE):
        raise ValueError(f"{name!r} cannot be the name of a tool: it is one of the tools for subagents")
    return name


def check_timeouts(where: str, **seconds: float | None) -> None:
    """Raise ValueError for a number of seconds that is infinite, or not above 0."""
    for option, value in seconds.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} of {where} must be above 0, not {value!r}")


class Variable(Checked, frozen=True):
    """A variable of the `env` of its thread that a subagent needs.

    A `scoped` variable is not handed down to a thread that declares it; its own children get it.
    """

    name: str
    type: str = "secret"
    required: bool = True
    scoped: bool = False
    description: str = ""


class ToolResult(Checked, frozen=True):
    """The result of a tool: the text for the model, and the paths of files of the thread.

    With `is_error` the model is told that the call has failed, without an exception. Raises ValueError for a path that
    no file can have.
    """

    text: str = ""
    attachments: Sequence[str] = ()
    is_error: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.attachments:
            clean_path(each)


class ToolSpec(NamedTuple):
    """A tool as a model sees it; `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool without arguments."""

_FAILED: Final = "Failed to execute tool: "

HANDED_OVER: Final = ToolResult("The conversation is handed over.")
"""The result of a `Handoff`."""


def read_result(value: Any) -> ToolResult:
    """Return the value that a tool has returned as its result: a text as it is, and all else as JSON."""
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult("The tool has returned nothing.")
    return ToolResult(value if isinstance(value, str) else encode_given(value).decode())


def tell_error(error: BaseException) -> str:
    """Describe an error for models and clients: its class, and the text only of a PlaitError."""
    return f"{type(error).__name__}: {error}" if isinstance(error, PlaitError) else type(error).__name__


class Refused(Exception):
    """A call that is not carried out; the text tells the model why."""


def fail(why: object) -> ToolResult:
    """Return the result of a call that has failed."""
    return ToolResult(f"{_FAILED}{why}", is_error=True)


def decode_arguments(name: str, arguments: str, type: type[T]) -> T:
    """Return the arguments of a call, which are a JSON object. Raises Refused."""
    try:
        return msgspec.json.decode(arguments or "{}", type=type)
    except NOT_JSON as error:
        raise Refused(f"{name}: the arguments do not fit: {error}") from None


class Tool:
    """A function that a model may call, with a thread as its first argument. It can still be called as a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        idempotent: bool = False,
        needs_approval: bool = False,
        approval_timeout: float | None = None,
        timeout: float | None = None,
    ) -> None:
        if isinstance(function, Tool) or not callable(function):
            raise TypeError(f"{function!r} is no function: use @tool, or @tool(name=…)")
        check_type("tool(description=…)", description, str | None)
        self.name = check_tool_name(function.__name__ if name is None else name)
        self.description = inspect.cleandoc((function.__doc__ if description is None else description) or "")
        if not self.description:
            raise ValueError(f"the tool {self.name!r} needs a docstring or a description, which tells models its use")
        check_type("tool(timeout=…)", timeout, float | None)
        check_type("tool(approval_timeout=…)", approval_timeout, float | None)
        check_timeouts(f"the tool {self.name!r}", timeout=timeout, approval_timeout=approval_timeout)
        self.function = function
        self.idempotent = idempotent
        self.needs_approval = needs_approval
        self.approval_timeout = approval_timeout
        self.timeout = timeout
        self._method = Method(self.name, self.name, function, concurrent=False, noun="tool")
        if self._method.is_stream:
            raise TypeError(f"the tool {self.name!r} must not stream: models read results as a whole")
        self.schema = self._method.describe_arguments()

    def __call__(self, thread: Any, *args: Any, **kwargs: Any) -> Any:
        return self.function(thread, *args, **kwargs)

    def decode(self, arguments: str | bytes, *, limits: Limits) -> dict[str, Any]:
        """Return the arguments of a call, by name, from a JSON object. Raises InvalidArguments with the path."""
        try:
            given = _decode_object(arguments or b"{}")
        except NOT_JSON as error:
            message, path = parse_json_error(error)
            raise InvalidArguments(f"{self.name}: the arguments{path}: {message}", path=path) from None
        return self._method.arguments([], given, limits=limits)[1]

    async def invoke(self, thread: Any, arguments: str | bytes) -> Any:
        """Call the tool, outside of a step, with arguments that are JSON, within its time.

        Its writes to parts are stored when it returns, and dropped if it fails. Raises what `decode` and `call` raise.
        """
        decoded, outer = self.decode(arguments, limits=thread._actor.limits), find_stage(thread._actor)
        stage = Stage(thread._actor, do_nothing if outer is None else outer.check)
        with stage.use():
            async with limit_time(self.timeout):
                result = await self.call(thread, decoded)
            await stage.commit(is_last=True)
        return result

    async def call(self, thread: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the function, and return its value, if that can be stored. Raises Terminated, and what `run` raises."""
        thread._actor.check_active()
        result = await self.run(thread, arguments)
        encode_named(self.name, result)
        return result

    async def run(self, thread: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the function, and return its value. Raises the errors of the function."""
        return await call(partial(self.function, thread, **arguments))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    needs_approval: bool = False,
    approval_timeout: float | None = None,
    timeout: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool, which models call by its name: `async def find_order(desk: Desk, number: int) -> str`.

    The first parameter is the thread; the others are described to the model by their annotations, and the tool by its
    docstring. A crash during a call that is not `idempotent` is told to the model, because the tool may have had its
    effect; an idempotent tool is called again. With `needs_approval`, a person must approve each call within
    `approval_timeout` seconds. A call may take `timeout` seconds.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, **options)

    return make if function is None else make(function)
