"""An agent: a named function that runs in threads."""

import collections.abc
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import GenericAlias
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from plait.actor.kind import Kind
from plait.actor.rpc import Arguments, Method
from plait.errors import InvalidArguments, escape_traceback
from plait.limits import Limits, check_json
from plait.state.types import parse_json_error
from plait_schemas.codec import NOT_JSON, UNENCODABLE, encode_json, make_decoder
from plait_schemas.encoding import encode_crossing
from plait_schemas.models import find_times

__all__ = ["INTERRUPT", "Agent", "AgentMethod", "Given", "Multitask"]

log = logging.getLogger("plait.agents")
log.addFilter(escape_traceback)

Multitask = Literal["enqueue", "reject", "interrupt"]
"""The policy for a run while another one is running: wait, be refused, or interrupt the other one and wait."""

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,127}")
_STREAMS: Final = (AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)
INTERRUPT: Final = "run:interrupt"
"""The method by which clients interrupt a thread's run."""

# No agent may have one of these names.
_RESERVED: Final = ("interrupt", "stop", "continue")


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a run, besides its agent and thread."""

    input: Any = None
    session_id: str | None = None
    user_id: str | None = None
    # By name or by type.
    attributes: Mapping[str | type, Any] = {}
    # Awaited with the context before the agent begins, as a part of the run; returns whether the agent need not begin.
    prepare: Callable[[Any], Awaitable[bool]] | None = None


class Agent:
    """One agent: its function, the type of its input, and how its runs are queued.

    `max_waiting` is the number of runs that may wait in one thread, and `wait_timeout` the seconds that each may wait.
    `timeout` is the seconds that a run may take, and `background_timeout` those of the work after its answer; None is
    no limit.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        kind: Kind,
        *,
        input: Any = msgspec.UNSET,
        output: Any = msgspec.UNSET,
        multitask: Multitask = "enqueue",
        max_waiting: int = 1000,
        wait_timeout: float = 60.0,
        timeout: float | None = None,
        background_timeout: float | None = 300.0,
        durable: bool = False,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            taken = ", ".join(_RESERVED)
            raise ValueError(f"{name!r} cannot be the name of an agent: use {_NAME.pattern}, and none of {taken}")
        self.is_stream = inspect.isasyncgenfunction(function)
        if not (self.is_stream or inspect.iscoroutinefunction(function)):
            raise TypeError(f"the agent {name!r} must be an `async def`, not {function!r}")
        if multitask not in get_args(Multitask):
            raise ValueError(f"multitask must be one of {', '.join(get_args(Multitask))}, not {multitask!r}")
        for option, value, is_optional in (
            ("max_waiting", max_waiting, False),
            ("wait_timeout", wait_timeout, False),
            ("timeout", timeout, True),
            ("background_timeout", background_timeout, True),
        ):
            # This refuses NaN, too.
            if not ((is_optional and value is None) or (isinstance(value, int | float) and value >= 0)):
                raise ValueError(f"{option} of the agent {name!r} must be a number from 0 on, not {value!r}")
        self.name = name
        self.function = function
        self.kind = kind
        self.multitask = multitask
        self.max_waiting = max_waiting
        self.wait_timeout = wait_timeout
        self.timeout = timeout
        self.background_timeout = background_timeout
        self.is_durable = durable
        if durable and self.is_stream:
            raise TypeError(f"the durable agent {name!r} must not stream: it is called again after a crash")
        self._read_signature(input, output)

    def decode(self, data: msgspec.Raw | bytes, *, limits: Limits) -> Any:
        """Return the input from JSON that a client sent, which is empty if there is none.

        Raises InvalidArguments with the path, and TooLarge.
        """
        if not len(data):
            return self.convert(msgspec.UNSET)
        if not self.takes_input and bytes(data) != b"null":
            raise InvalidArguments(f"{self.name} takes no input", path="")
        check_json(f"{self.name}: the input", data, limits, self._times)
        return self._decode_input(data)

    def convert(self, value: Any) -> Any:
        """Return the input from a value that server code passed, by its JSON if the agent's input has a type.

        Raises InvalidArguments with the path, and TypeError or ValueError for a value that is not JSON.
        """
        if value is msgspec.UNSET and (value := self._make_default()) is not None:
            return value
        if not self.takes_input and value is not None:
            raise InvalidArguments(f"{self.name} takes no input", path="")
        if not self.takes_input or self.input_type is Any:
            return value
        return self._decode_input(encode_crossing(f"the input of {self.name}", value))

    def check_output(self, value: Any) -> Any:
        """Return an output of the agent, by its JSON if it has a type.

        Raises TypeError, and ValueError for a number that is infinite or NaN, which JSON does not have.
        """
        what = "yielded" if self.is_stream else "returned"
        if self.output_type is not Any:
            data = encode_crossing(f"what the agent {self.name} {what}", value)
            try:
                return self._decode_output(data)
            except NOT_JSON as error:
                raise TypeError(
                    f"the agent {self.name} {what} a value that does not fit its annotation: {error}"
                ) from None
        with suppress(TypeError):  # Only server code gets a value that is not JSON.
            encode_crossing(f"what the agent {self.name} {what}", value)
        return value

    def call(self, context: Any, input: Any) -> Any:
        """Call the function."""
        return self.function(context, input) if self.takes_input else self.function(context)

    def _decode_input(self, data: msgspec.Raw | bytes) -> Any:
        try:
            return self._decode(data)
        except NOT_JSON as error:
            message, path = parse_json_error(error)
            raise InvalidArguments(f"{self.name}: the input{path}: {message}", path=path) from None
        except BaseException as error:  # The type may run the author's code, such as `__post_init__`.
            log.error("the type of the input of %s raised %s", self.name, type(error).__name__, exc_info=error)
            raise InvalidArguments(f"{self.name}: the input is refused by its type", path="") from None

    def _read_signature(self, input: Any, output: Any) -> None:
        hints = get_type_hints(self.function, include_extras=True)
        parameters = list(inspect.signature(self.function).parameters.values())
        if not 1 <= len(parameters) <= 2:
            raise TypeError(f"the agent {self.name!r} must take a context and an input: (ctx, input)")
        self.takes_input = len(parameters) == 2
        annotated = hints.get(parameters[1].name, Any) if self.takes_input else None
        returned = hints.get("return", Any)
        if self.is_stream and get_origin(returned) in _STREAMS:
            returned = get_args(returned)[0]
        self.input_type: Any = annotated if input is msgspec.UNSET else input
        self.output_type: Any = returned if output is msgspec.UNSET else output
        self._decode, self._times = make_decoder(self.input_type), find_times(self.input_type)
        self._decode_output = make_decoder(self.output_type)
        self.parameter = parameters[1].name if self.takes_input else "input"
        default = parameters[1].default if self.takes_input else None
        self._make_default = self._read_default(None if default is inspect.Parameter.empty else default)

    def _read_default(self, default: Any) -> Callable[[], Any]:
        """Return a function that makes the default for each run: a copy, if JSON can make one."""
        try:
            data = encode_json(default)
            if self._decode(data) == default:
                return partial(self._decode, data)
        except (*NOT_JSON, *UNENCODABLE):
            pass  # The default need not be of the type.
        return lambda: default


class AgentMethod(Method):
    """The method by which clients call an agent: `run:` and its name, with the input as its only argument."""

    is_run = True

    def __init__(self, agent: Agent, function: Callable[..., Any]) -> None:
        self.agent = agent
        self.name = self.attribute = f"run:{agent.name}"
        self.function = function
        self.is_generator = self.is_stream = agent.is_stream
        self.is_concurrent = True
        self.stream_parameter = None
        self.returns_value = True

    def arguments(
        self, args: Sequence[msgspec.Raw], kwargs: Mapping[str, msgspec.Raw] | None = None, *, limits: Limits
    ) -> Arguments:
        """Decode the input. Raises InvalidArguments."""
        return [Given(input=self.agent.decode(self._find_input(args, kwargs or {}, msgspec.Raw()), limits=limits))], {}

    def convert(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the run that is called with an input. Raises InvalidArguments."""
        return [Given(input=self.agent.convert(self._find_input(args, kwargs, msgspec.UNSET)))], {}

    def read_types(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the agent's function, and the types of its input and of its output."""
        agent = self.agent
        types = dict.fromkeys(list(inspect.signature(agent.function).parameters)[1:], agent.input_type)
        types["return"] = GenericAlias(AsyncIterator, (agent.output_type,)) if agent.is_stream else agent.output_type
        return agent.function, types

    def _find_input(self, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any) -> Any:
        given, name = [*args, *kwargs.values()], self.agent.parameter
        if len(given) > 1 or (kwargs and [*kwargs] != [name]):
            raise InvalidArguments(f"{self.name} takes one argument, {name!r}")
        return given[0] if given else default
