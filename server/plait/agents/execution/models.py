"""Models that agents ask, their answers, and which of them is asked again after a failure. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["FIRST", "Answer", "Model", "ModelFailed", "Progress", "ToolSpec"]

# Microseconds before the second attempt; before each further one, twice as many.
_PAUSE: Final = 1_000_000
# The maximum number of seconds that a model may ask to wait.
_LONGEST: Final = 86_400.0


class Model:
    """A model by a name of your own: its id for Pydantic AI, such as "openai:gpt-5", or one of its `Model`s.

    It is attempted `attempts` times, and then each of `fallback` is. An attempt fails if its first chunk takes longer
    than `first_chunk` seconds, or a later one longer than `next_chunk`.
    """

    def __init__(
        self,
        name: str,
        id: Any,
        *,
        fallback: Sequence[Any] = (),
        attempts: int = 2,
        first_chunk: float = 120.0,
        next_chunk: float = 45.0,
    ) -> None:
        if attempts < 1 or first_chunk <= 0 or next_chunk <= 0:
            raise ValueError(f"the model {name} needs at least one attempt, and time for its chunks")
        self.name = name
        self.ids = (id, *fallback)
        self.attempts = attempts
        self.first_chunk = first_chunk
        self.next_chunk = next_chunk


class ToolSpec(NamedTuple):
    """A tool as a model sees it; `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Answer(NamedTuple):
    """The answer of a model: what `MessageStream.finish` gets, and its thoughts, as arguments of `inject`."""

    text: str
    tool_calls: list[dict[str, Any]] | None
    # With the `model` that has answered, its `usage`, and what only models read.
    metadata: dict[str, Any]
    # Returns the thoughts that belong to the message with this id.
    make_thoughts: Callable[[str], list[dict[str, Any]]]


class Progress(msgspec.Struct, frozen=True):
    """The next attempt to ask a model: it is JSON, so that a task can store it and sleep until it is due."""

    # Which of the model's ids is asked, and how often it has failed.
    number: int = 0
    failed: int = 0
    # When it may be asked, in microseconds since the epoch; 0 for at once.
    due: int = 0
    # What has failed before, and how.
    failures: Sequence[str] = ()

    def fail(
        self, model: Model, failure: str, now: int, *, retry_after: float | None, is_final: bool
    ) -> "Progress | None":
        """Follow a failure, and return the next attempt, if any; one that `is_final` would come again with this id."""
        failures, failed = [*self.failures, failure], self.failed + 1
        if not is_final and failed < model.attempts:
            pause = _PAUSE * 2**self.failed if retry_after is None else int(min(_LONGEST, retry_after) * 1e6)
            return Progress(self.number, failed, now + pause, failures)
        return Progress(self.number + 1, 0, 0, failures) if self.number + 1 < len(model.ids) else None


FIRST: Final = Progress()
"""The first attempt."""


class ModelFailed(Exception):
    """An attempt has failed; the text tells how all so far have, and `retry` is the next one, None after the last."""

    def __init__(self, model: Model, failures: Sequence[str], retry: Progress | None) -> None:
        super().__init__(f"the model {model.name} has failed: {'; '.join(failures)}")
        self.retry = retry
