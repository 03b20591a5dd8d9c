"""Messages as the parts of UI messages, and the chunks between two pictures of an answer."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from plait.parts.messages.message import STATUS, Message, make_call, make_own
from plait.web.http.chat.parts import Part, encode_chunks
from plait.web.http.chat.rendering import Shown, find_chunks, render, render_page, split

QUESTION = Message(id="q", role="user", content="hello", position=1)
SAID = Message(id="a", role="assistant", content="Hi", position=2)
CALLS = Message(
    id="c", role="assistant", position=2, tool_calls=[make_call("1", "look", '{"n": 1}'), make_call("2", "pay", "{}")]
)


def link(path: str) -> str:
    return f"/files/{path}"


def shown(*messages: Message, awaited: Sequence[str] = ()) -> list[Shown]:
    """Return the parts of an answer."""
    return render(messages, awaited, link)


def kinds(*messages: Message, awaited: Sequence[str] = ()) -> list[Any]:
    """Return the types of the parts of an answer, with their text or state."""
    parts = [each.part for each in shown(*messages, awaited=awaited)]
    return [(each.type, each.text or each.state) if each.type != "step-start" else "step" for each in parts]


def result(call: str, text: str, position: int = 3, **fields: Any) -> Message:
    """Return the result of a call."""
    return Message(id=f"r{call}", role="tool", content=text, tool_call_id=call, position=position, **fields)


def differ(before: Sequence[Shown], after: Sequence[Shown]) -> list[Any]:
    """Return the types of the chunks from one picture to another, with the text of those that have one."""
    found = find_chunks(before, after)
    assert found is not None
    lines = encode_chunks(found[0]).decode().split("\n\n")[:-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    return [(each["type"], each["delta"]) if "delta" in each else each["type"] for each in chunks]


# Groups


def ids(messages: Sequence[Message]) -> tuple[list[Any], list[str]]:
    """Return the ids of the groups of a conversation, and of the questions that wait."""
    groups, waiting = split(messages)
    return [(each.question and each.question.id, [one.id for one in each.messages]) for each in groups], [
        each.id for each in waiting
    ]


def test_an_answer_lies_between_a_question_and_the_next() -> None:
    other = replace(QUESTION, id="other", position=5)
    found = [other, replace(SAID, position=3), QUESTION, replace(SAID, id="b", position=6)]
    assert ids(found) == ([(None, []), ("q", ["a"]), ("other", ["b"])], [])


def test_a_question_that_a_run_has_taken_stands_before_what_it_streams() -> None:
    pending = replace(QUESTION, status="pending", position=9)
    streaming = replace(SAID, status="streaming", position=4, taken=["q"])
    thought = replace(streaming, id="t", position=5, depth=1, parent_id="a", name="reasoning")
    for found in ([pending, streaming, thought], [thought, streaming, pending]):
        assert ids(found) == ([(None, []), ("q", ["a", "t"])], [])
    assert ids([pending]) == ([(None, [])], ["q"])


def test_a_failed_attempt_at_a_question_that_waits_is_not_a_part_of_the_answer_before_it() -> None:
    waiting = replace(QUESTION, id="other", status="pending", position=4)
    found = [QUESTION, SAID, replace(SAID, id="b", status="failed", position=3), waiting]
    failed = replace(SAID, id="c", status="failed", position=5)
    assert ids([*found, failed]) == ([(None, []), ("q", ["a", "b"])], ["other"])


@pytest.mark.parametrize("fields", [{"depth": 1}, {"subagent_id": "child"}])
def test_a_nested_message_and_a_report_begin_no_group(fields: dict[str, Any]) -> None:
    other = replace(QUESTION, id="other", position=3, **fields)
    found = [QUESTION, SAID, other, replace(SAID, id="b", position=4)]
    assert ids(found) == ([(None, []), ("q", ["a", "other", "b"])], [])


# Parts


def test_the_parts_of_a_message_are_its_thoughts_its_text_its_files_and_its_calls() -> None:
    thought = Message(id="t", role="assistant", name="reasoning", content="hm", parent_id="a", depth=1, position=3)
    message = replace(SAID, attachments=[{"path": "x y"}, {"other": 1}], tool_calls=[make_call("1", "look", "{}")])
    parts = [each.part for each in shown(message, thought)]
    assert [each.type for each in parts] == ["step-start", "reasoning", "text", "file", "tool-look"]
    assert parts[3].url == "/files/x y"


def test_a_failed_attempt_before_a_later_one_is_not_shown() -> None:
    failed = replace(SAID, status="failed")
    assert kinds(failed) == ["step", ("text", "Hi")]
    assert kinds(failed, replace(SAID, id="b", content="Hello", position=3)) == ["step", ("text", "Hello")]


def test_silent_and_nested_messages_are_not_shown() -> None:
    assert kinds(replace(SAID, silent=True), replace(SAID, id="b", depth=1, parent_id="x")) == []


def test_a_call_is_shown_when_those_before_it_have_results() -> None:
    assert kinds(CALLS) == ["step", ("tool-look", "input-available")]
    assert kinds(CALLS, result("1", "found"), awaited=["2"]) == [
        "step",
        ("tool-look", "output-available"),
        ("tool-pay", "approval-requested"),
    ]


def test_results_are_outputs_errors_or_refusals() -> None:
    error = make_own({STATUS: "error"})
    refused = result("2", "Failed: a person has refused the call: no", metadata=error)
    parts = [each.part for each in shown(CALLS, result("1", '{"a": 1}'), refused)]
    assert (parts[1].input, parts[1].output) == ({"n": 1}, {"a": 1})
    assert (parts[2].state, parts[2].approval and parts[2].approval.approved) == ("output-denied", False)
    failed = shown(CALLS, result("1", "no such order", metadata=error))[1]
    assert (failed.part.state, failed.part.error_text) == ("output-error", "no such order")


@pytest.mark.parametrize("text", ["{", "[not json", "[" * 5_000])
def test_input_and_output_that_only_look_like_json_stay_text(text: str) -> None:
    calls = replace(CALLS, tool_calls=[make_call("1", "look", text)])
    (_, call) = shown(calls, result("1", text))
    assert (call.part.input, call.part.output) == (text, text)


def test_a_page_has_an_answer_under_the_id_of_its_question() -> None:
    greeting = Message(id="g", role="assistant", content="Welcome", position=1)
    question = replace(QUESTION, position=2, metadata={"user": "ann", "secret": 1}, created_at=1_700_000_000_000_000)
    pending = replace(QUESTION, id="p", status="pending", position=9)
    found = render_page([greeting, question, pending], (), link, {"q": [question, pending]})
    assert [(each.id, each.role) for each in found] == [
        ("g", "assistant"),
        ("q", "user"),
        ("q.answer", "assistant"),  # Begun, before the question that waits.
        ("p", "user"),
    ]
    assert found[1].metadata == {"createdAt": 1_700_000_000_000, "user": "ann", "siblings": ["q", "p"]}


# Chunks


def test_a_text_grows_and_ends() -> None:
    begun = shown(replace(SAID, status="streaming", content="H"))
    assert differ([], begun) == ["start-step", "text-start", ("text-delta", "H")]
    grown = shown(replace(SAID, status="streaming"))
    assert differ(begun, grown) == [("text-delta", "i")]
    assert differ(grown, shown(SAID)) == ["text-end"]
    assert differ(shown(SAID), shown(SAID)) == []


def test_a_step_that_vanishes_is_reset_and_not_started_again() -> None:
    step = shown(replace(SAID, status="streaming", content="Hel"))
    again = shown(replace(SAID, id="b", status="streaming", content="He"))
    assert differ(step, []) == ["reset-step"]
    found = find_chunks(step, [])
    assert found is not None
    assert differ(found[1], again) == ["text-start", ("text-delta", "He")]
    assert differ(step, again) == ["reset-step", "text-start", ("text-delta", "He")]


def test_only_the_last_step_can_be_reset() -> None:
    first, second = SAID, replace(SAID, id="b", content="More", position=3)
    both = shown(first, second)
    assert differ(both, shown(first)) == ["reset-step"]
    assert find_chunks(both, shown(second)) is None
    assert find_chunks(both, []) is None


def test_the_states_of_a_call_follow_each_other() -> None:
    writing = replace(CALLS, status="streaming", tool_calls=[make_call("1", "look", '{"n"')])
    states = [
        shown(writing),
        shown(replace(writing, tool_calls=[make_call("1", "look", '{"n": 1')])),
        shown(CALLS),
        shown(CALLS, awaited=["1"]),
        shown(CALLS),
        shown(CALLS, result("1", "found")),
    ]
    assert [differ(*pair) for pair in zip([[], *states], states, strict=False)] == [
        ["start-step", "tool-input-start", "tool-input-delta"],
        ["tool-input-delta"],
        ["tool-input-available"],
        ["tool-approval-request"],
        ["tool-input-available"],
        ["tool-output-available", "tool-input-available"],
    ]


def test_a_page_that_has_answered_a_call_gets_what_follows() -> None:
    page = [
        Shown("", Part(type="step-start")),
        Shown("", Part(type="tool-look", tool_call_id="1", state="input-available")),
    ]
    assert differ(page, shown(CALLS)) == []
    assert differ(page, shown(CALLS, result("1", "found"))) == ["tool-output-available", "tool-input-available"]


def test_a_text_of_an_earlier_stream_is_not_continued() -> None:
    page = [Shown("", Part(type="step-start")), Shown("", Part(type="text", text="H", state="done"))]
    assert differ(page, shown(SAID)) == ["reset-step", "text-start", ("text-delta", "Hi"), "text-end"]
    whole = [page[0], Shown("", Part(type="text", text="Hi", state="done"))]
    assert differ(whole, shown(SAID)) == []
    assert differ(whole, shown(replace(SAID, status="streaming")))[:2] == ["reset-step", "text-start"]
