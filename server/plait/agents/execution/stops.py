"""The steps of an execution: the marks of their answers, and which one is next. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from plait.agents.execution.definitions import Handoff, Receiver, Side, Speaker
from plait.parts.messages.message import MARK, STATUS, Message, find_run, read_call, read_own

__all__ = [
    "BLOCKED",
    "MARK",
    "REMOVED",
    "START",
    "TOOL",
    "Below",
    "Mark",
    "Next",
    "Notes",
    "Place",
    "Reason",
    "find_answer",
    "find_results",
    "follow",
    "is_asked",
    "read_mark",
    "skip",
]

TOOL: Final = "tool"
"""The member of plait's metadata of a queued message that is a call of a tool, and of the answer that it becomes."""

BLOCKED: Final = "hook_blocked"
"""The member of plait's metadata of an answer by a hook, for which no model was asked."""

REMOVED: Final = "calls_removed"
"""The member of plait's metadata of an answer whose calls a hook has removed."""

_MOST_STEPS: Final = 250
_MOST_ERRORS: Final = 8

Reason = Literal[
    "session_fail",
    "session_stop",
    "stop_on_response",
    "stop_tool",
    "max_steps",
    "max_session_turns",
    "repeated_tool_error",
    "hook_blocked",
    "stopped",
]
"""The reason for the end of a run, or of the turn of a side."""


class Mark(msgspec.Struct, frozen=True):
    """The run and the step of an answer, and which agent and side has given it."""

    run: str
    step: int
    side: Receiver
    agent: str


class Below(NamedTuple):
    """The place of the messages of a prompt tool: nested under the call's result."""

    call_id: str
    parent_id: str
    depth: int


class Notes(msgspec.Struct, frozen=True):
    """The words of tools and hooks to their execution, as they are stored with a result."""

    context: Mapping[str, Any] = {}
    # The side that must answer after this step, and the one in whose step the run was stopped.
    forced: Receiver | None = None
    stopped_by: Receiver | None = None


class Place(msgspec.Struct, frozen=True):
    """A step of a run, and the counts before it: stored as a checkpoint."""

    step: int = 0
    # Which side answers; None before the first step.
    side: Receiver | None = None
    # The steps of each side, and the steps that other agents made before the agent got the thread.
    steps: Mapping[str, int] = {}
    before: Mapping[str, int] = {}
    agent: str = ""
    # The turns of each side.
    turns: Mapping[str, int] = {}
    # The last result, if it was an error, and how often the error came in a row.
    error: str = ""
    errors: int = 0
    # The dict of the run that its tools share.
    context: Mapping[str, Any] = {}

    @property
    def own_steps(self) -> int:
        """The steps that the side has made for the agent."""
        side = self.side or "a"
        return self.steps.get(side, 0) - self.before.get(side, 0)


START: Final = Place()
"""The first step."""


class Next(NamedTuple):
    """The step after another one, or the end with its reason."""

    place: Place
    reason: Reason | None = None
    # The return value of the run: the text of the answer, or the result of the call that has ended the session.
    text: str = ""


def read_mark(message: Message) -> Mark | None:
    """Return the step that a message answers; None if the message is not an answer of an execution."""
    if (mark := read_own(message).get(MARK)) is None:
        return None
    try:
        return msgspec.convert(mark, Mark)
    except msgspec.ValidationError:
        return None


def find_answer(history: Sequence[Message], run: str, step: int) -> Message | None:
    """Return the answer of a step of a run; None if the model must still be asked."""
    for message in reversed(history):
        if (
            message.metadata
            and find_run(message) == run
            and (mark := read_mark(message)) is not None
            and mark.step <= step
        ):
            return message if mark.step == step else None
    return None


def find_results(history: Sequence[Message], answer: Message) -> dict[str, Message]:
    """Return the results of the calls of an answer in a history, by the ids of the calls."""
    ids = answer.tool_call_ids
    after = takewhile(lambda each: each.position > answer.position, reversed(history))
    return {each.tool_call_id: each for each in after if each.tool_call_id in ids}


def is_asked(answer: Message) -> bool:
    """Whether an answer comes from a model, not from a hook or the queue."""
    return read_own(answer).keys().isdisjoint((TOOL, BLOCKED))


def follow(place: Place, speaker: Speaker, answer: Message, results: Mapping[str, Message], notes: Notes) -> Next:
    """Return the step after an answer of a side, given the results of its calls by their ids, and notes."""
    agent, side, prompt = speaker
    calls = [(name, results.get(id)) for id, name, _ in map(read_call, answer.tool_calls or ())]
    succeeded = {name: result for name, result in calls if result is not None and not _is_error(result)}
    if place.agent != agent.name:
        place = replace(place, agent=agent.name, before=place.steps, turns={})
    steps = {**place.steps, side: place.steps.get(side, 0) + is_asked(answer)}
    place = replace(place, step=place.step + 1, side=side, steps=steps, context=notes.context)
    place = _count_errors(place, calls)
    own, text = speaker.side, answer.content or ""
    if BLOCKED in read_own(answer):
        return Next(place, "hook_blocked", text)
    if place.errors >= _MOST_ERRORS:
        return Next(place, "repeated_tool_error", text)
    if (result := succeeded.get(own.session_fail)) is not None:
        return Next(place, "session_fail", result.content or "")
    if (result := succeeded.get(own.session_stop)) is not None:
        return Next(place, "session_stop", result.content or "")
    if notes.stopped_by is not None:
        return Next(place, "stopped", text)
    if any(isinstance(prompt.tools.get(name), Handoff) for name in succeeded):
        return _limit(replace(place, side="a"), None, text)
    reason = _end_turn(own, answer, {name for name, _ in calls})
    if notes.forced is not None:
        return _limit(replace(place, side=notes.forced), agent.side(notes.forced).max_steps, text)
    if agent.b is None:
        return Next(place, reason, text) if reason else _limit(place, own.max_steps, text)
    if reason or not (own.stop_on_response or own.stop_tool):
        turns = {**place.turns, side: place.turns.get(side, 0) + 1}
        place = replace(place, side="b" if side == "a" else "a", turns=turns)
        if agent.max_session_turns is not None and min(turns.get("a", 0), turns.get("b", 0)) >= agent.max_session_turns:
            return Next(place, "max_session_turns", text)
    return _limit(place, agent.side(place.side or side).max_steps, text)


def skip(place: Place, speaker: Speaker, notes: Notes) -> Next:
    """Return the step after a deleted answer: the side is asked again, if it may make another step."""
    steps = {**place.steps, speaker.letter: place.steps.get(speaker.letter, 0) + 1}
    place = replace(place, step=place.step + 1, steps=steps, context=notes.context)
    return _limit(place, speaker.side.max_steps, "")


def _end_turn(side: Side, answer: Message, called: set[str]) -> Reason | None:
    """Return why the turn of a side ends with an answer; None if it goes on."""
    if side.stop_on_response and not answer.tool_calls and REMOVED not in read_own(answer):
        return "stop_on_response"
    return "stop_tool" if side.stop_tool and side.stop_tool in called else None


def _limit(place: Place, most: int | None, text: str) -> Next:
    """Return a step, or the end if its side has made `most` steps, or the run too many."""
    is_over = place.step >= max(_MOST_STEPS, most or 0) or (most is not None and place.own_steps >= most)
    return Next(place, "max_steps" if is_over else None, text)


def _count_errors(place: Place, calls: Iterable[tuple[str, Message | None]]) -> Place:
    """Return a place after the results of an answer, in the order of its calls."""
    for name, result in calls:
        error = f"{name}: {result.content}" if result is not None and _is_error(result) else ""
        place = replace(place, error=error, errors=(place.errors if error == place.error else 0) + (error != ""))
    return place


def _is_error(result: Message) -> bool:
    return bool(read_own(result).get(STATUS) == "error")
