"""What follows from an answer: pure, from the answer and its results."""

from typing import Any

from tests.cases import each_case
from tests.server.agents.execution.lab import Desk

from plait import Message
from plait.agents.execution.definitions import Agent, Handoff, Prompt, Receiver, Side, Speaker
from plait.agents.execution.stops import START, Next, Notes, Place, find_answer, follow, read_mark
from plait.agents.execution.tools import tool
from plait.parts.messages.message import make_own


@tool
def work(desk: Desk) -> str:
    """Work."""
    return ""


def say(text: str = "", *calls: str) -> Message:
    found = [{"id": each, "function": {"name": each, "arguments": "{}"}} for each in calls]
    return Message(id="a", role="assistant", content=text, tool_calls=found or None)


def result(id: str, status: str = "success", text: str = "done") -> Message:
    return Message(id=id, role="tool", content=text, tool_call_id=id, metadata=make_own({"tool_status": status}))


def step(
    a: Side | None = None,
    b: Side | None = None,
    *results: Message,
    place: Place = START,
    answer: Message | None = None,
    side: Receiver = "a",
    notes: Notes | None = None,
    **options: Any,
) -> Next:
    agent = Agent("desk", a or Side("clerk"), b, **options)
    prompt = Prompt("clerk", "", "test:x", [work, Handoff("billing")])
    found = {each.tool_call_id or "": each for each in results}
    return follow(place, Speaker(agent, side, prompt), answer or say("", *found), found, notes or Notes())


def test_a_text_without_calls_ends_the_run_and_is_its_result() -> None:
    place = Place(1, "a", {"a": 1}, agent="desk")
    assert step(answer=say("Yes.")) == (place, "stop_on_response", "Yes.")
    assert step(answer=say("I look.", "work")).reason is None
    assert step(Side("clerk", stop_on_response=False), answer=say("Yes.")).reason is None


def test_a_call_of_the_stop_tool_ends_the_turn_even_if_it_has_failed() -> None:
    for status in ("success", "error"):
        assert step(Side("clerk", stop_tool="work"), None, result("work", status)).reason == "stop_tool"


def test_a_call_without_a_name_is_no_call_of_a_stop_tool() -> None:
    assert step(answer=say("", ""), side="a").reason is None


@each_case("option", ["session_stop", "session_fail"])
def test_a_successful_call_ends_the_session_with_its_result(option: str) -> None:
    side = Side("clerk", **{option: "work"})  # type: ignore[arg-type]
    assert step(side, None, result("work"))[1:] == (option, "done")
    assert step(side, None, result("work", "error")).reason is None
    assert step(side, Side("other"), result("work"))[1:] == (option, "done")


def test_a_failure_comes_before_a_stop() -> None:
    side = Side("clerk", session_stop="work", session_fail="fail")
    assert step(side, None, result("work"), result("fail")).reason == "session_fail"


def test_the_turns_of_two_sides_alternate() -> None:
    one, two = Side("finder"), Side("critic")
    place, reason, _ = step(one, two, answer=say("a1"))
    assert (place.side, place.turns, reason) == ("b", {"a": 1}, None)
    assert step(one, two, result("work")).place.side == "a"
    place, reason, _ = step(one, two, answer=say("b1"), side="b", place=place)
    assert (place.side, place.turns, place.steps, reason) == ("a", {"a": 1, "b": 1}, {"a": 1, "b": 1}, None)


def test_sides_without_a_stop_condition_alternate_after_each_step() -> None:
    never = Side("finder", stop_on_response=False)
    assert step(never, never, result("work")).place.side == "b"


def test_a_session_has_as_many_turns_of_both_sides_as_the_agent_says() -> None:
    one, two = Side("finder"), Side("critic")
    place = Place(1, "b", {"a": 1}, agent="desk", turns={"a": 1})
    assert step(one, two, answer=say("b1"), side="b", place=place, max_session_turns=1).reason == "max_session_turns"
    assert step(one, two, answer=say("b1"), side="b", place=place, max_session_turns=2).reason is None


def test_a_run_has_250_steps_unless_its_side_has_more() -> None:
    place, more = Place(249, "a", {"a": 249}), Side("clerk", max_steps=251)
    assert step(None, None, result("work"), place=place).reason == "max_steps"
    assert step(more, None, result("work"), place=place).reason is None
    assert step(more, None, result("work"), place=Place(250, "a", {"a": 250})).reason == "max_steps"
    assert (
        step(Side("clerk", max_steps=2), None, result("work"), place=Place(1, "a", {"a": 1}, agent="desk")).reason
        == "max_steps"
    )


def test_eight_equal_errors_in_a_row_end_the_run() -> None:
    place, failed = START, result("work", "error", "no")
    for number in range(1, 8):
        place, reason, _ = step(None, None, failed, place=place)
        assert (place.errors, reason) == (number, None)
    assert step(None, None, failed, place=place).reason == "repeated_tool_error"
    assert step(None, None, result("work", "error", "other"), place=place).place.errors == 1
    assert step(None, None, result("work"), place=place).place.errors == 0


def test_a_handover_goes_on_with_side_a_whatever_else_was_called() -> None:
    side = Side("clerk", stop_tool="work")
    place, reason, _ = step(side, None, result("work"), result("billing"))
    assert (place.side, reason) == ("a", None)
    assert step(side, None, result("work"), result("billing", "error")).reason == "stop_tool"


def test_a_handover_comes_before_a_forced_turn() -> None:
    one, two, forced = Side("finder"), Side("critic"), Notes(forced="b")
    assert step(one, two, result("work"), notes=forced).place.side == "b"
    assert step(one, two, result("work"), result("billing"), notes=forced).place.side == "a"


def test_an_answer_is_found_by_its_run_and_step() -> None:
    def mark(run: str, step: int) -> Message:
        metadata = make_own({"execution": {"run": run, "step": step, "side": "a", "agent": "desk"}})
        return Message(id=f"{run}{step}", role="assistant", metadata=metadata)

    history = [mark("x", 0), mark("y", 0), mark("x", 1)]
    history.append(Message(id="u", role="user", metadata=make_own({"execution": 7})))
    assert find_answer(history, "x", 0) == history[0]
    assert find_answer(history, "x", 1) == history[2]
    assert find_answer(history, "y", 1) is None
    assert read_mark(history[3]) is None


def test_the_steps_of_another_agent_are_not_those_of_a_side_that_gets_the_thread() -> None:
    side = Side("clerk", max_steps=2)
    place = Place(3, "a", {"a": 3}, agent="other")
    place, reason, _ = step(side, None, result("work"), place=place)
    assert (place.own_steps, place.steps, reason) == (1, {"a": 4}, None)
    assert step(side, None, result("work"), place=place).reason == "max_steps"
