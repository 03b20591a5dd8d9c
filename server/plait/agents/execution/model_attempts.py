"""The attempts to ask a model: its answer, or its failure and the next attempt. No I/O."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plait.agents.execution.definitions import Model
from plait.parts.messages.message import OwnMetadata
from plait.parts.tasks.step_errors import GiveUp

__all__ = ["FIRST", "Answer", "CallPiece", "ModelFailed", "Piece", "Progress", "Thought"]

# Microseconds before the second attempt; before each further one, twice as many.
_PAUSE: Final = 1_000_000
# The maximum number of seconds that a model may ask to wait.
_LONGEST: Final = 86_400.0


class Thought(NamedTuple):
    """Text that a model adds to its thoughts."""

    text: str


class CallPiece(NamedTuple):
    """Text that a model adds to the arguments of a call: of the part `at` of its answer; the first piece has a name."""

    at: int
    text: str
    name: str = ""


Piece = str | Thought | CallPiece
"""A piece of an answer, as it comes; a str is text."""


class Answer(NamedTuple):
    """The answer of a model: the arguments of `MessageStream.finish`, and its thoughts, as arguments of `inject`."""

    text: str
    tool_calls: list[dict[str, Any]] | None
    # With the `model` that has answered, its `usage`, and data that only models read.
    metadata: OwnMetadata
    # Returns the thoughts that belong to the message with this id.
    make_thoughts: Callable[[str], list[dict[str, Any]]]


class Progress(msgspec.Struct, frozen=True):
    """The next attempt to ask a model: it is JSON, so that a task can store it and sleep until it is due."""

    # Which of the model's ids is asked, and how often it has failed.
    number: int = 0
    failed: int = 0
    # When the model may be asked, in microseconds since the epoch; 0 for at once.
    due: int = 0
    # The failures so far.
    failures: Sequence[str] = ()

    def fail(
        self, model: Model, failure: str, now: int, *, retry_after: float | None, is_final: bool
    ) -> "Progress | None":
        """Return the attempt after a failure, if any; a failure that `is_final` would come again with this id."""
        failures, failed = [*self.failures, failure], self.failed + 1
        if not is_final and failed < model.attempts:
            pause = _PAUSE * 2**self.failed if retry_after is None else int(min(_LONGEST, retry_after) * 1e6)
            return Progress(self.number, failed, now + pause, failures)
        return Progress(self.number + 1, 0, 0, failures) if self.number < len(model.fallback) else None


FIRST: Final = Progress()
"""The first attempt."""


class ModelFailed(GiveUp):
    """An attempt has failed; the text tells all failures so far, and `retry` is the next one, None after the last."""

    def __init__(self, model: Model, failures: Sequence[str], retry: Progress | None) -> None:
        super().__init__(f"the model {model.name} has failed: {'; '.join(failures)}")
        self.retry = retry
