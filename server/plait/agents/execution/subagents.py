"""Subagents: calls of tools that agents answer in threads of their own, which are children of the thread."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeVar

import msgspec

from plait.actor.thread import Thread
from plait.agents.execution.definitions import Agent, AnyTool, Prompt, Subagent
from plait.agents.execution.hooks import ToolCall, call_hooks, has_hook
from plait.agents.execution.state import ExecutionState
from plait.agents.execution.stops import Reason, read_mark
from plait.agents.execution.tools import CREATE, MESSAGE, Refused, ToolResult, ToolSpec, decode_arguments, fail
from plait.clock import read_wall_clock
from plait.errors import NotFound
from plait.parts.family.calls import RESULT
from plait.parts.family.rows import Birth, Call, Child, Question, Report
from plait.parts.messages.message import Message, read_own
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.part import find_role, require_role
from plait.parts.tasks.step import Step
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["VARIABLES", "Put", "SubagentCall", "describe_subagents", "find_immediate", "is_for_subagent", "make_report"]

VARIABLES: Final = "plait:variables:"
"""The event that supplies the variables for a child: this, and the id of the call."""

_NO_ANSWER: Final = "The subagent has ended without an answer:"
# The reasons for which a run ends in the midst of its work.
_CUT_OFF: Final[Mapping[str, str]] = {"stopped": "it was stopped", "max_steps": "it has made all of its steps"}

_TEXT: Final = {"type": "string", "minLength": 1}
_ASKED: Final = {
    "message": _TEXT,
    "attachments": {"type": "array", "items": {"type": "string"}, "description": "Paths of files, which are copied."},
}

Put = Callable[..., Awaitable[None]]
"""Adds the result of a call to the history, with a `subagent_id`."""

Tools = Mapping[str, AnyTool]

Variables = dict[str, tuple[str, str]]
"""The types of variables, and their encrypted values."""

T = TypeVar("T")


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1)]
    attachments: list[str] = []


class _Create(_Asked, kw_only=True, forbid_unknown_fields=True):
    agent: str
    name: Annotated[str, msgspec.Meta(min_length=1)]


class _Message(_Asked, kw_only=True, forbid_unknown_fields=True):
    reference: str


_TYPES: Final[Mapping[str, type[_Asked]]] = {CREATE: _Create, MESSAGE: _Message}


class _Begun(msgspec.Struct, frozen=True):
    """The child that works for a call, and whether the run waits for its report."""

    child: str = ""
    waits: bool = False


class _Told(msgspec.Struct, frozen=True):
    """The report of a child, as an event."""

    text: str
    is_error: bool
    attachments: list[str]


async def describe_subagents(thread: Thread[Any], prompt: Prompt) -> list[ToolSpec]:
    """Return the subagents of a prompt as tools; one tool makes all resumable ones, and another asks them."""
    found = [each for each in _find_all(prompt.tools) if await _is_on(thread, each)]
    specs = [ToolSpec(each.name, _say(each), _make_schema()) for each in found if not each.resumable]
    if resumable := [each for each in found if each.resumable]:
        told = "\n".join(f"{each.name}: {_say(each)}" for each in resumable)
        schema = _make_schema(agent={"enum": [each.name for each in resumable]}, name=_TEXT)
        specs.append(ToolSpec(CREATE, f"Create a subagent, which can be sent further messages.\n{told}", schema))
        if live := _find_live(thread):
            schema = _make_schema(reference={"enum": [each.reference for each in live]})
            specs.append(ToolSpec(MESSAGE, f"Send a message to one of your subagents: {_list(live)}.", schema))
    return specs


async def find_immediate(thread: Thread[Any], prompt: Prompt, message: str) -> list[dict[str, str]]:
    """Return the calls of subagents that begin before the first step, except of resumable ones that live."""
    calls = list[dict[str, str]]()
    for each in _find_all(prompt.tools):
        is_new = not each.resumable or each.name not in {child.title for child in _find_live(thread)}
        if each.immediate and is_new and await _is_on(thread, each):
            asked = {"message": message}
            name = CREATE if each.resumable else each.name
            if each.resumable:
                asked |= {"agent": each.name, "name": each.name}
            calls.append({"name": name, "arguments": encode_json(asked).decode()})
    return calls


def is_for_subagent(tools: Tools, name: str) -> bool:
    """Whether a subagent answers a call."""
    tool = tools.get(name)
    if name in (CREATE, MESSAGE):
        return any(each.resumable for each in _find_all(tools))
    return isinstance(tool, Subagent) and not tool.resumable


class SubagentCall:
    """A call that a child answers, in a pass of a run. The names of its steps must never change. Raises Refused."""

    def __init__(
        self, thread: Thread[Any], step: Step, state: ExecutionState, *, tools: Tools, call: ToolCall, put: Put
    ) -> None:
        self._thread = thread
        self._step = step
        self._state = state
        self._tools = tools
        self._id = call.id
        self._put = put
        self._asked = asked = self.decode(call.name, call.arguments)
        is_create = isinstance(asked, _Create)
        # The name of the subagent that the call uses, and the subagent; None if there is none.
        self._wanted = asked.agent if isinstance(asked, _Create) else call.name
        found = tools.get(self._wanted)
        self._tool = found if isinstance(found, Subagent) and found.resumable is is_create else None

    @staticmethod
    def decode(name: str, arguments: str) -> _Asked:
        """Return the arguments of a call. Raises Refused."""
        return decode_arguments(name, arguments, _TYPES.get(name, _Asked))

    async def answer(self) -> None:
        """Send a message to a child, and wait for its report if it blocks. Raises Refused and StepFailed."""
        id, asked = self._id, self._asked
        variables = await self._wait_for_variables()
        begun = await self._state.do(f"call:{id}", partial(self._begin, variables), type=_Begun)
        if begun.child and not isinstance(asked, _Message):
            await self._tell_hooks(begun.child)
        if begun.waits:
            told = await self._wait(f"{RESULT}{id}", _Told)
            is_named = isinstance(asked, _Create | _Message)
            text = f"{told.text}\n\n(From the subagent {begun.child}.)" if is_named else told.text
            result = ToolResult(text, told.attachments, told.is_error)
            await self._state.do(f"answer:{id}", partial(self._put, result, subagent_id=begun.child))

    # Inside

    async def _wait_for_variables(self) -> Variables:
        """Wait for variables that a new child needs and would not find, and return them, encrypted."""
        tool = self._tool
        if tool is None or not any(each.required for each in tool.variables):
            return {}
        look = partial(self._find_missing, tool)
        if not await self._state.do(f"needs:{self._id}", look, attempts=3, type=list[str]):
            return {}
        given = await self._wait(f"{VARIABLES}{self._id}", dict[str, str])
        types = {each.name: each.type for each in tool.variables}
        return {name: (types[name], data) for name, data in given.items() if name in types}

    async def _tell_hooks(self, reference: str) -> None:
        hooks = self._state.hooks

        async def tell() -> None:
            child = await _find_family(self._thread).child(reference)
            await call_hooks("after_subagent_created", hooks, self._thread, child)

        if has_hook("after_subagent_created", hooks):
            await self._state.do(f"created:{self._id}", tell)

    async def _wait(self, event: str, type: type[T]) -> T:
        try:
            found: T = await self._step.wait_for_event(event, type=type)
        except msgspec.ValidationError:
            raise Refused("what the call has waited for cannot be read") from None
        return found

    async def _find_missing(self, tool: Subagent) -> list[str]:
        """Return the names of the variables that must be supplied, and show them in the run."""
        if not await _is_on(self._thread, tool):
            return []
        env = require_role(type(self._thread), "env").of(self._thread._actor)
        missing = [
            each.name
            for each in tool.variables
            if each.required and not await env.has_for_child(each.name, is_scoped=each.scoped)
        ]
        if missing:
            self._step.status({"needs": {"call": self._id, "agent": tool.agent, "variables": missing}})
        return missing

    async def _begin(self, variables: Variables) -> _Begun:
        if variables:
            self._step.status(None)
        try:
            child = await self._ask(variables)
        except Refused as refusal:
            await self._put(fail(refusal))
            return _Begun()
        if not child.blocking:
            text = f"The subagent {child.reference} works on it, and reports later."
            await self._put(ToolResult(text), subagent_id=child.reference)
        return _Begun(child.reference, bool(child.blocking))

    async def _ask(self, variables: Variables) -> Child:
        """Send the message to a new child, or to an existing one."""
        if isinstance(self._asked, _Message):
            return self._send(self._asked)
        if self._tool is not None and _is_too_deep(self._thread, self._tool):
            raise Refused(f"this subagent can be nested {self._tool.max_depth} deep")
        if self._tool is None or not await _is_on(self._thread, self._tool):
            raise Refused(f"there is no subagent {self._wanted!r}")
        self._check_room(self._tool)
        return self._spawn(self._tool, variables)

    def _send(self, asked: _Message) -> Child:
        child = next((each for each in _find_live(self._thread) if each.reference == asked.reference), None)
        tools = [each for each in _find_all(self._tools) if child is not None and each.name == child.title]
        if child is None or not tools:
            raise Refused(f"there is no subagent {asked.reference!r}, or it was terminated")
        question = Question(asked.message, self._make_call(tools[0]), asked.attachments)
        _find_family(self._thread).ask(child.reference, question)
        return child

    def _check_room(self, tool: Subagent) -> None:
        made = [each for each in _find_family(self._thread).children if each.title == tool.name and each.is_live]
        # A child that is not resumable ends after its report.
        live = [each for each in made if each.resumable or each.status != "idle"]
        if tool.max_instances is not None and len(live) >= tool.max_instances:
            many = f"there are {len(live)} of at most {tool.max_instances} instances of {tool.name}"
            what = f"send one of them a message with {MESSAGE}" if tool.resumable else "wait until one has reported"
            raise Refused(f"{many}: {_list(live)}; {what}")

    def _spawn(self, tool: Subagent, variables: Variables) -> Child:
        asked = self._asked
        # Another thread may have a call of this id, too.
        name = f"{self._id}-{blake2b(str(self._thread._actor.key).encode(), digest_size=6).hexdigest()}"
        child = Child(
            reference=str(ThreadKey(tool.thread._kind.name, name)),
            name=name,
            title=tool.name,
            description=tool.description,
            created_at=read_wall_clock(),
            thread_name=asked.name if isinstance(asked, _Create) else None,
            resumable=tool.resumable,
            blocking=tool.blocking,
            spawn_group_id=self._step.id,
            parent_communication="implicit" if tool.report else "explicit",
        )
        call = self._make_call(tool)
        birth = Birth(child=child, message=asked.message, files=asked.attachments, call=call, variables=variables)
        _find_family(self._thread).spawn_agent(tool.thread, birth)
        return child

    def _make_call(self, tool: Subagent) -> Call:
        run = self._step.id if tool.blocking else ""
        return Call(self._id, run, "user" if tool.receives == "a" else "assistant", tool.agent)


async def make_report(
    thread: Thread[Any], step: Step, messages: ThreadMessages, *, agent: Agent, reason: Reason, text: str
) -> None:
    """Report the end of a run to the parent of a thread that works for its calls."""
    if find_role(type(thread), "family") is None or not _find_family(thread).works:
        return
    stops = [each for side in agent.sides.values() for each in (side.session_stop, side.session_fail) if each]
    has_failed = reason in ("session_fail", "repeated_tool_error") or (bool(stops) and reason != "session_stop")

    async def report() -> None:
        history = (await messages.list(1000)).messages
        answer = text or (history[-1].content or "" if reason == "stop_tool" else "")
        said = next((each for each in reversed(history) if (each.content or "") == answer), None)
        files = [each["path"] for each in said.attachments] if said is not None else []
        calls = _find_calls(history, step.id)
        # The text beside calls is no answer.
        is_cut_off = not answer or (reason in _CUT_OFF and said is not None and bool(said.tool_calls))
        told = f"{answer}\n\n{_NO_ANSWER} {_CUT_OFF.get(reason, reason)}".strip() if is_cut_off else answer
        _find_family(thread).report(Report(told, calls, has_failed or is_cut_off, files))

    await step.do("report", report)


def _find_calls(history: Sequence[Message], run: str) -> list[str]:
    """Return the parent's calls whose messages a run has taken: the calls after the last answer in another run."""
    calls = list[str]()
    for message in reversed(history):
        if (mark := read_mark(message)) is not None and mark.run != run:
            break
        if isinstance(call := read_own(message).get("call"), str):
            calls.append(call)
    return calls


def _find_family(thread: Thread[Any]) -> Any:
    return require_role(type(thread), "family").of(thread._actor)


def _find_live(thread: Thread[Any]) -> list[Child]:
    return [each for each in _find_family(thread).children if each.resumable and each.is_live]


def _find_all(tools: Tools) -> list[Subagent]:
    return [each for each in tools.values() if isinstance(each, Subagent)]


async def _is_on(thread: Thread[Any], tool: Subagent) -> bool:
    """Whether a subagent is a tool: an optional one only if its variable says so, and no subagent that is too deep."""
    if _is_too_deep(thread, tool):
        return False
    if not tool.optional:
        return True
    env = require_role(type(thread), "env").of(thread._actor)
    try:
        value = (await env.get(tool.optional)).reveal()
    except NotFound:
        return False
    return value.strip().lower() in ("true", "1", "yes")


def _is_too_deep(thread: Thread[Any], tool: Subagent) -> bool:
    return bool(_find_family(thread).depth >= tool.max_depth)


def _say(tool: Subagent) -> str:
    return tool.description or f"Have the agent {tool.agent} work on a message."


def _list(children: Sequence[Child]) -> str:
    return ", ".join(
        f"{each.reference} ({each.thread_name})" if each.thread_name else each.reference for each in children
    )


def _make_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**properties, **_ASKED},
        "required": [*properties, "message"],
        "additionalProperties": False,
    }
