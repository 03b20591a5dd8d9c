"""The history that a model sees, read again and again while it grows and is changed."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart, repair_messages

from plait.agents.execution.message_format import Known, link, read_history, read_messages, write_message
from plait.parts.messages.message import Message
from plait.parts.messages.model_history import Side, view_history

SYSTEM = Message(id="", role="system", content="You are clerk.")

numbers = count()


def make(**fields: Any) -> Message:
    number = next(numbers)
    return Message(**{"id": f"m{number}", "created_at": number, **fields})


@st.composite
def rounds(draw: st.DrawFn, *, has_own_ids: bool) -> list[Message]:
    """Draw an answer of a model with its results, or what another has said; calls have ids of plait, or of a model."""
    if draw(st.booleans()):
        return [make(role=draw(st.sampled_from(["user", "assistant", "system"])), content="Hi.")]
    ids = draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True))  # Those of a model come again.
    ids = [f"{each}{next(numbers)}" for each in ids] if has_own_ids else ids
    parts: list[Any] = [ToolCallPart("look", {}, tool_call_id=id) for id in ids]
    if draw(st.booleans()) or not ids:
        parts.insert(0, TextPart("I look."))
    if draw(st.booleans()):
        parts.insert(0, ThinkingPart("Hm."))
    name = draw(st.sampled_from([None, "model"]))
    first, *rest = write_message(ModelResponse(parts, model_name=name), is_said=draw(st.booleans()))
    role = draw(st.sampled_from(["assistant", "assistant", "user"]))  # The one of side B.
    answer = make(**{**first, "role": role})
    thoughts = [make(**{**each, "role": role, "metadata": link(each["metadata"], answer.id)}) for each in rest]
    results = [make(role="tool", name="look", content="found", tool_call_id=id) for id in ids if draw(st.booleans())]
    between = [make(role="assistant", content="A note.")] if draw(st.booleans()) else []
    return [answer, *between, *thoughts, *results]


def shorten(history: list[Message], at: int) -> list[Message]:
    return history[at:]


def remove(history: list[Message], at: int) -> list[Message]:
    return [*history[:at], *history[at + 1 :]]


def edit(history: list[Message], at: int) -> list[Message]:
    return [*history[:at], replace(history[at], content=f"changed {next(numbers)}"), *history[at + 1 :]]


def remove_calls(history: list[Message], at: int) -> list[Message]:
    return [*history[:at], replace(history[at], tool_calls=None), *history[at + 1 :]]


Change = Callable[[list[Message], int], list[Message]]
changes: st.SearchStrategy[Change | None] = st.sampled_from([None, None, shorten, remove, edit, remove_calls])


sides: st.SearchStrategy[Side] = st.sampled_from(["a", "a", "b"])


def see(history: Sequence[Message], side: Side, hidden: int | None) -> list[Message]:
    """Return what a model sees, as a hook leaves it, which may hide a message of it."""
    view = view_history(history, side)
    return [SYSTEM, *(each for at, each in enumerate(view) if at != hidden)]


@given(st.data())
def test_a_history_that_grows_and_is_changed_is_always_read_as_it_is_then(data: st.DataObject) -> None:
    has_own_ids, history, known = data.draw(st.booleans()), list[Message](), Known()
    for _ in range(data.draw(st.integers(1, 6))):
        added = data.draw(st.lists(rounds(has_own_ids=has_own_ids), max_size=4))
        history = [*history, *(each for one in added for each in one)]
        change = data.draw(changes)
        if change is not None and history:
            history = change(history, data.draw(st.integers(0, len(history) - 1)))
        side = data.draw(sides)
        seen = see(history, side, data.draw(st.none() | st.integers(0, 20)) if has_own_ids else None)
        assert read_history(seen, known) == repair_messages(read_messages(seen))


def test_rounds_that_stay_as_they_are_are_read_once() -> None:
    question, other = make(role="user", content="Hi."), make(role="user", content="And?")
    answers = [make(role="assistant", content="Hello."), make(role="assistant", content="Well.")]
    known: Known = {}
    before = read_history([SYSTEM, question, answers[0], other], known)
    after = read_history([SYSTEM, replace(question, content="Ho."), answers[0], other, answers[1]], known)
    assert [each is before[at] for at, each in enumerate(after[:3])] == [False, True, True]


def test_a_result_without_its_call_leaves_nothing_between_two_answers() -> None:
    seen = [
        make(role="user", content="Hi."),
        make(role="assistant", content="One."),
        make(role="tool", name="look", content="found", tool_call_id="x"),
        make(role="assistant", content="Two."),
    ]
    assert [len(each.parts) for each in read_history(seen, {})] == [1, 2]
