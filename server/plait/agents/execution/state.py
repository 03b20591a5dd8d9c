"""The execution of a thread, as its tools, prompts and hooks see it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import NoneType
from typing import Any, Final, Generic, TypeVar

import msgspec

from plait.agents.execution.definitions import Receiver, Speaker
from plait.agents.execution.hooks import Hooks, read_hooks
from plait.agents.execution.stops import Notes, Place
from plait.parts.messages.message import Message
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.tasks.step import Step
from plait_schemas.encoding import encode_given

__all__ = ["ExecutionState", "find_execution", "find_hooks"]

_current: Final[ContextVar["ExecutionState | None"]] = ContextVar("plait_execution", default=None)

T = TypeVar("T")


class _Noted(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """The value of a step, and the notes after it if it has changed them, with their step and number."""

    value: T
    notes: Notes | None = None
    at: tuple[int, int] = (0, 0)


_NULL: Final = b"null"
_decode_notes = msgspec.json.Decoder(Notes).decode
_decode_noted = msgspec.json.Decoder(_Noted[msgspec.Raw]).decode


def find_execution(messages: ThreadMessages) -> "ExecutionState | None":
    """Return the execution that the calling code is a part of, in the thread of some messages."""
    found = _current.get()
    return found if found is not None and found._messages is messages else None


def find_hooks(speaker: Speaker) -> tuple[Hooks, ...]:
    """Return the hooks of a prompt; without any, those of its agent."""
    return read_hooks(speaker.prompt.hooks) or read_hooks(speaker.agent.hooks)


class ExecutionState:
    """A run of an agent that calls a model and tools: `thread.execution` in its tools, prompts and hooks.

    `flow_id` is the id of the run. `context` is a dict of the run, whose values are JSON: a value that a tool puts
    there is stored with its result, and the next tools of the run find it.
    """

    def __init__(self, messages: ThreadMessages, step: Step) -> None:
        self._messages = messages
        self._step = step
        self.flow_id = step.id
        # The step of the run, and the number of the last notes that were stored in it.
        self._noted = (0, 0)
        self.context: dict[str, Any] = {}
        self._speaker: Speaker | None = None
        self._steps: Mapping[str, int] = {}
        self._forced: Receiver | None = None
        # The side in whose step `stop` was called.
        self.stopped_by: Receiver | None = None
        # The prompts that are tools, from the outermost one.
        self._inner: list[Speaker] = []

    @property
    def side(self) -> Receiver:
        """The side that answers."""
        return self._find_speaker().letter

    @property
    def step_count(self) -> int:
        """The calls of models in the run, with the current one."""
        return sum(self._steps.values())

    @property
    def side_a_step_count(self) -> int:
        """The calls of models for side A."""
        return self._steps.get("a", 0)

    @property
    def side_b_step_count(self) -> int:
        """The calls of models for side B."""
        return self._steps.get("b", 0)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self.stopped_by is not None

    @property
    def prompt_path(self) -> list[str]:
        """The name of the prompt that answers, and those of the prompts that work for it as tools."""
        return [self._find_speaker().prompt.name, *(each.prompt.name for each in self._inner)]

    async def history(self) -> Sequence[Message]:
        """Return the newest 200 messages of the history, oldest first, with those that the calling tool has added."""
        return (await self._messages.list(200)).messages

    def force_turn(self, side: Receiver) -> None:
        """Make one side of an agent with two sides answer after this step, whatever else ends the turn.

        Raises ValueError for an agent with one side.
        """
        agent = self._find_speaker().agent
        if agent.b is None or side not in agent.sides:
            raise ValueError(f"the agent {agent.name!r} has no turn of the side {side!r}")
        self._forced = side

    def stop(self) -> None:
        """End the run after the current operation: later calls of its answer are not carried out, no model is asked."""
        self.stopped_by = self.side

    # Called by the loop

    @property
    def speaker(self) -> Speaker | None:
        """The side that answers, with the prompt that works now; None before the first step."""
        return self._inner[-1] if self._inner else self._speaker

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        """The hooks of the prompt that works now; without any, those of its agent."""
        return find_hooks(self.speaker or self._find_speaker())

    def begin(self, speaker: Speaker, place: Place, *, is_asked: bool = True) -> None:
        """Begin a step, in which a side answers, or the queue has called tools."""
        self._speaker, letter = speaker, speaker.letter
        self._steps = {**place.steps, letter: place.steps.get(letter, 0) + is_asked}

    async def do(
        self, name: str, work: Callable[[], Awaitable[T]], *, type: Any = NoneType, attempts: int = 1, **options: Any
    ) -> T:
        """Run a step of the task, and store its value with the notes that tools and hooks have made in it.

        `type` is the type of the value.
        """
        before = encode_given(self.notes)

        async def do() -> _Noted[T]:
            self._load(_decode_notes(before))
            value = await work()
            if (after := encode_given(self.notes)) == before:
                return _Noted(value)
            self._noted = (self._noted[0], self._noted[1] + 1)
            return _Noted(value, _decode_notes(after), self._noted)

        try:
            noted: _Noted[T] = await self._step.do(name, do, type=_Noted[type], attempts=attempts, **options)
        except BaseException:
            self._load(_decode_notes(before))
            raise
        return noted.value

    def resume(self, place: Place) -> None:
        """Continue at a step, with the notes of the task's steps that belong to it, even of earlier passes."""
        self._noted, notes = (place.step, 0), Notes(place.context)
        done = [bytes(each.value) for each in self._step.journal.entries.values() if each.kind == "do"]
        for noted in [_decode_noted(value) for value in done if value != _NULL]:
            if noted.notes is not None and noted.at[0] == place.step and noted.at > self._noted:
                self._noted, notes = noted.at, noted.notes
        self._load(notes)

    @property
    def notes(self) -> Notes:
        """The notes of this step, by its tools and hooks."""
        return Notes(self.context, self._forced, self.stopped_by)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the execution of the calling task, and of the tasks that it starts."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def inside(self, speaker: Speaker) -> Iterator[None]:
        """Make a prompt tool the prompt that answers."""
        self._inner.append(speaker)
        try:
            yield
        finally:
            self._inner.pop()

    def _load(self, notes: Notes) -> None:
        self.context, self._forced, self.stopped_by = dict(notes.context), notes.forced, notes.stopped_by

    def _find_speaker(self) -> Speaker:
        if self._speaker is None:
            raise RuntimeError("no step has begun")
        return self._speaker
