from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pytest
from tests.cases import each_case

from plait import Env, Family, InvalidArguments, Limits, Messages, NotFound, Plait, Tasks, Thread
from plait.agents.execution.definitions import Agent, Handoff, Model, Prompt, PromptTool, Side, Subagent
from plait.agents.execution.registry import Execution
from plait.agents.execution.tools import Tool, ToolResult, Variable, tool
from plait.limits import DEFAULT_LIMITS
from plait.parts.part import find_role


class Desk(Thread[dict[str, Any]]):
    pass


class Research(Thread[dict[str, Any]]):
    pass


class Order(msgspec.Struct):
    number: int
    note: str = ""


@tool
async def find_order(
    desk: Desk, number: Annotated[int, msgspec.Meta(description="As printed.")], deep: bool = False
) -> str:
    """Find an order by its number."""
    return f"{number} {deep}"


@tool(name="book", idempotent=True, needs_approval=True, approval_timeout=60)
def book_order(desk: Desk, order: Order) -> str:
    """Book an order.

    It is paid later.
    """
    return order.note


def build(
    *,
    agents: Sequence[Agent] = (Agent("desk", Side("clerk")),),
    models: Sequence[Model] = (Model("fast", "test"),),
    tools: Sequence[Any] = (),
    model: str = "fast",
) -> Execution:
    prompts = [Prompt("clerk", "You help.", model, tools), Prompt("other", "You help, too.", "openai:gpt-5")]
    return Execution(Desk, agents=agents, prompts=prompts, models=models)


def test_a_tool_is_described_by_its_docstring_and_its_annotations() -> None:
    assert (find_order.name, find_order.description) == ("find_order", "Find an order by its number.")
    assert find_order.schema == {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "As printed."}, "deep": {"type": "boolean"}},
        "required": ["number"],
        "additionalProperties": False,
    }
    assert (book_order.name, book_order.description) == ("book", "Book an order.\n\nIt is paid later.")
    assert book_order.schema["properties"] == {"order": {"$ref": "#/$defs/Order"}}
    assert book_order.schema["$defs"]["Order"]["required"] == ["number"]


async def test_a_tool_can_be_called_as_the_function_that_it_was() -> None:
    assert await find_order(None, 3) == "3 False"
    assert book_order(None, Order(1, "now")) == "now"


async def test_a_call_has_the_arguments_of_its_json() -> None:
    assert (
        await find_order.run(None, find_order.decode('{"number": 4, "deep": true}', limits=DEFAULT_LIMITS)) == "4 True"
    )
    assert (
        await book_order.run(None, book_order.decode('{"order": {"number": 1, "note": "x"}}', limits=DEFAULT_LIMITS))
        == "x"
    )


@each_case(
    ("arguments", "path", "text"),
    [
        ('{"number": "four"}', "/number", "number"),
        ("{}", "/number", "'number' is missing"),
        ("", "/number", "'number' is missing"),
        ('{"number": 1, "more": 2}', "/more", "'more' is not an argument"),
        ("[1]", "", "the arguments"),
        ("{", "", "the arguments"),
    ],
)
def test_a_call_with_wrong_arguments_says_what_is_wrong_and_where(arguments: str, path: str, text: str) -> None:
    with pytest.raises(InvalidArguments, match=text) as caught:
        find_order.decode(arguments, limits=DEFAULT_LIMITS)
    assert caught.value.path == path


def test_arguments_nested_too_deep_are_refused() -> None:
    with pytest.raises(InvalidArguments, match="nested more than 5 deep"):
        book_order.decode('{"order": ' + "[" * 9 + "]" * 9 + "}", limits=Limits(depth=5))


def silent(desk: Desk) -> str:
    return ""


async def chatty(desk: Desk) -> Any:
    """Stream."""
    yield 1


def loose(desk: Desk, *all: int) -> str:
    """Take any."""
    return ""


@each_case(
    ("make", "error", "text"),
    [
        (lambda: tool(silent), ValueError, "needs a docstring"),
        (lambda: tool(name="a b")(find_order.function), ValueError, "cannot be the name of a tool"),
        (lambda: tool(chatty), TypeError, "must not stream"),
        (lambda: tool(loose), TypeError, "not supported"),
        (lambda: Tool(find_order.function, timeout=0), ValueError, "timeout"),
        (lambda: Prompt("p", "", "fast", [silent]), TypeError, "use @tool"),  # type: ignore[list-item]
        (lambda: Prompt("p", "", "fast", [3]), TypeError, "3 is no tool"),  # type: ignore[list-item]
        (lambda: Prompt("p", "", "fast", [find_order, find_order]), ValueError, "two tools named 'find_order'"),
        (lambda: Prompt("p", 3, "fast"), TypeError, "must be a str"),  # type: ignore[arg-type]
        (lambda: Prompt("p", "", "fast", history=0), ValueError, "history"),
        (lambda: Side("p", max_steps=0), ValueError, "max_steps"),
        (lambda: Agent("a", Side("p"), max_session_turns=2), ValueError, "two sides"),
        (lambda: Agent("a", Side("p"), Side("p"), max_session_turns=0), ValueError, "at least 1"),
        (lambda: Subagent("r", Research, max_instances=0), ValueError, "max_instances"),
        (lambda: Handoff("to the other"), ValueError, "cannot be the name"),
        (
            lambda: build(agents=[Agent("a", Side("clark"))]),
            NotFound,
            "side a of the agent 'a': .*did you mean 'clerk'",
        ),
        (lambda: build(agents=[Agent("a", Side("clerk"), Side("no"))]), NotFound, "side b of the agent 'a'"),
        (lambda: build(agents=[Agent("a", Side("clerk", stop_tool="done"))]), ValueError, "stop_tool is 'done'"),
        (lambda: build(agents=[Agent("a", Side("clerk", session_fail="x"))]), ValueError, "session_fail is 'x'"),
        (lambda: build(agents=[Agent("a", Side("clerk"))] * 2), ValueError, "two agents named 'a'"),
        (lambda: build(model="fas"), NotFound, "the prompt 'clerk': .*did you mean 'fast'"),
        (lambda: build(tools=[Handoff("billing")]), NotFound, "no agent named 'billing'"),
        (lambda: build(tools=[PromptTool("sum")]), NotFound, "no prompt named 'sum'"),
        (
            lambda: build(
                agents=[Agent("a", Side("clerk")), Agent("two", Side("other"), Side("other"))], tools=[Handoff("two")]
            ),
            ValueError,
            "use Subagent",
        ),
        (lambda: build(models=[Model("", "test")]), ValueError, "must not be empty"),
        (lambda: build(models=["fast"]), TypeError, "'fast' is no Model"),  # type: ignore[list-item]
        (lambda: tool("name"), TypeError, "'name' is no function"),  # type: ignore[call-overload]
        (lambda: tool(find_order), TypeError, "is no function: use @tool"),
        (lambda: tool(name="subagent_create")(find_order.function), ValueError, "one of the tools for subagents"),
        (lambda: Tool(find_order.function, approval_timeout=float("inf")), ValueError, "approval_timeout"),
    ],
)
def test_a_wrong_definition_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@each_case(
    ("make", "name", "value"),
    [
        (Model, "name", None),
        (Model, "fallback", "openai:gpt-5"),
        (Model, "settings", [1]),
        (Model, "attempts", True),
        (Model, "attempts", 1.5),
        (Model, "first_chunk", None),
        (Prompt, "name", 3),
        (Prompt, "model", Model("m", "test")),
        (Prompt, "env", ["A"]),
        (Prompt, "history", True),
        (Prompt, "settings", [1]),
        (Side, "prompt", find_order),
        (Side, "stop_tool", find_order),
        (Side, "stop_on_response", "no"),
        (Side, "max_steps", 1.5),
        (Agent, "b", "clerk"),
        (Agent, "env", {"A": 3}),
        (Agent, "max_session_turns", True),
        (Handoff, "agent", Agent("billing", Side("p"))),
        (Subagent, "thread", "Research"),
        (Subagent, "receives", "c"),
        (Subagent, "optional", True),
        (Subagent, "variables", ["A"]),
        (PromptTool, "prompt", None),
        (Tool, "timeout", "3"),
        (Tool, "description", 3),
        (Variable, "required", "yes"),
        (ToolResult, "text", 3),
        (ToolResult, "attachments", "a.png"),
    ],
)
def test_a_definition_has_the_types_of_its_annotations(make: Any, name: str, value: Any) -> None:
    given: dict[Any, dict[str, Any]] = {
        Model: {"name": "fast", "model": "test"},
        Prompt: {"name": "clerk", "text": "", "model": "fast"},
        Side: {"prompt": "clerk"},
        Agent: {"name": "desk", "a": Side("clerk")},
        Handoff: {"agent": "desk"},
        Subagent: {"agent": "desk", "thread": Desk},
        PromptTool: {"prompt": "clerk"},
        Tool: {"function": find_order.function},
        Variable: {"name": "A"},
        ToolResult: {},
    }
    make(**given[make])
    with pytest.raises(TypeError, match=rf"\({name}=…\): .*Expected|\({name}=…\): Invalid"):
        make(**{**given[make], name: value})


def test_a_model_is_attempted_twice_and_has_two_minutes_for_its_first_chunk_and_45_seconds_for_the_next() -> None:
    model = Model("fast", "test")
    assert (model.attempts, model.first_chunk, model.next_chunk) == (2, 120, 45)


def test_definitions_are_found_by_name() -> None:
    execution = build(
        agents=[Agent("desk", Side("clerk")), Agent("billing", Side("other"))], tools=[Handoff("billing")]
    )
    assert execution.agents["billing"].a.prompt == "other"
    assert execution.prompts["clerk"].tools.keys() == {"billing"}
    assert execution.load_model("fast").model == "test"
    assert execution.load_model("openai:gpt-5") == Model("openai:gpt-5", "openai:gpt-5")
    with pytest.raises(NotFound, match=r"there is no model named 'nothing'"):
        execution.load_model("nothing")


def test_two_prompts_may_share_a_tool_but_not_a_name() -> None:
    prompts = [Prompt("a", "", "test:x", [find_order]), Prompt("b", "", "test:x", [find_order])]
    assert Execution(Desk, agents=[], prompts=prompts).tools == {"find_order": find_order}
    other = Prompt("c", "", "test:x", [tool(name="find_order", description="Other.")(silent)])
    with pytest.raises(ValueError, match="a different tool named 'find_order'"):
        Execution(Desk, agents=[], prompts=[*prompts, other])


def test_a_subagent_must_be_one_of_the_other_class() -> None:
    execution = build(tools=[Subagent("finder", Research)])
    there = Execution(Research, agents=[Agent("finder", Side("f"))], prompts=[Prompt("f", "", "test:x")])
    execution.check_subagents({Desk: execution, Research: there})
    lacking: list[dict[type[Thread[Any]], Execution]] = [{Desk: execution}, {Research: build()}]
    for others in lacking:
        with pytest.raises(NotFound, match="Research: there is no agent named 'finder'"):
            execution.check_subagents(others)
    with pytest.raises(ValueError, match="the agent 'finder' has no side 'b'"):
        build(tools=[Subagent("finder", Research, receives="b")]).check_subagents({Desk: execution, Research: there})


def test_a_class_with_agents_has_one_messages_with_an_agent() -> None:
    class Noted(Thread[dict[str, Any]]):
        initial_state = {}  # noqa: RUF012
        tasks = Tasks()
        notes = Messages()
        talk = Messages(agent="desk")

    class Torn(Noted):
        more = Messages(agent="billing")

    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("clerk"))]
    defined: Any = {"agents": agents, "prompts": [Prompt("clerk", "", "test:x")]}
    Execution(Noted, **defined).check_parts()
    with pytest.raises(TypeError, match="Torn may have one Messages with an agent, and has more and talk"):
        Execution(Torn, **defined).check_parts()
    assert find_role(Noted, "messages") is Noted.talk


def test_two_classes_with_an_agent_of_one_name_are_refused_by_their_names() -> None:
    class Chat(Thread[dict[str, Any]]):
        initial_state = {}  # noqa: RUF012
        tasks = Tasks()
        messages = Messages(agent="desk")

    class Room(Chat):
        pass

    app = Plait(Chat, Room, store="memory://")
    defined: Any = {"agents": [Agent("desk", Side("clerk"))], "prompts": [Prompt("clerk", "", "test:x")]}
    app.execution(Chat, **defined)
    with pytest.raises(ValueError, match="two agents named 'desk': of Chat and Room"):
        app.execution(Room, **defined)


@each_case(("optional", "text"), [("WITH_RESEARCH", "Mother has no Env"), ("a b", "the name of a variable")])
def test_the_variable_of_an_optional_subagent_must_be_one(optional: str, text: str) -> None:
    class Mother(Thread[None]):
        family = Family()

    class House(Mother):
        env = Env()

    thread = House if " " in optional else Mother
    prompts = [Prompt("clerk", "", "test:x", [Subagent("finder", House, optional=optional)])]
    with pytest.raises((TypeError, ValueError), match=text):
        Execution(thread, agents=[], prompts=prompts).check_tools()
