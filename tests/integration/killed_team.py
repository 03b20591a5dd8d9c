"""The app of `test_subagents_kill`: an agent that has each question answered by another one, in one of three ways."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from plait import Agent, Family, Messages, Model, Plait, Prompt, Side, Subagent, Tasks, Thread, Values, rpc, tool

__all__ = ["Boss", "Helper", "app"]

_LOG: Final = os.open(os.environ.get("TEAM_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def choose(question: str, messages: list[ModelMessage]) -> tuple[str, dict[str, str]]:
    """Return the call for a question: of a new child that is waited for, of one that stays, or of a new one later."""
    match int(question[1:]) % 3:
        case 0:
            return "single", {"message": question}
        case 1:
            found = re.search(r"From the subagent (helper/[\w-]+)", str(messages))
            if found is None:
                return "subagent_create", {"agent": "steady", "name": "Ada", "message": question}
            return "subagent_message", {"reference": found[1], "message": question}
        case _:
            return "later", {"message": question}


async def ask(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Have each question answered, one after the other, and then answer all."""
    await asyncio.sleep(0.002)
    questions, called = list[str](), set[str]()
    for part in (part for message in messages for part in message.parts):
        match part:
            case UserPromptPart(content=str(text)) if re.fullmatch(r"q\d+", text):
                questions.append(text)
            case ToolCallPart():
                called.add(part.args_as_dict()["message"])
            case TextPart(content=text) if text.startswith("re "):
                questions = [each for each in questions if each not in text[3:].split(",")]
    for question in questions:
        if question not in called:
            name, arguments = choose(question, messages)
            yield {0: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"ask-{question}")}
            return
    yield f"re {','.join(questions)}"


async def help_out(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call a tool for the last question, and then answer it."""
    await asyncio.sleep(0.002)
    parts = [part for message in messages for part in message.parts]
    at, question = [(at, str(part.content)) for at, part in enumerate(parts) if isinstance(part, UserPromptPart)][-1]
    if any(isinstance(part, ToolReturnPart) for part in parts[at:]):
        yield f"did {question}"
    else:
        yield {0: DeltaToolCall("work", json.dumps({"question": question}), tool_call_id=f"work-{question}")}


def read_calls(calls: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the id of each call, and its question."""
    return [[call["id"], json.loads(call["function"]["arguments"])["message"]] for call in calls]


class Boss(Thread[dict[str, Any]]):
    initial_state = {"sent": 0}  # noqa: RUF012
    idle_timeout = 0.3
    tasks = Tasks()
    family = Family()
    messages = Messages(agent="boss")

    @rpc
    def where(self) -> int:
        return os.getpid()

    @rpc
    async def send(self) -> int:
        with self.transaction():
            number = self.state["sent"] + 1
            self.set_state({"sent": number})
            self.messages.queue(f"q{number}")
        return number

    @rpc
    async def look(self) -> dict[str, Any]:
        history = (await self.messages.list(100_000, include_silent=True)).messages
        return {
            "sent": self.state["sent"],
            "runs": [(each.status, each.error) for each in await self.tasks.list()],
            "children": {each.name: each.status for each in self.family.children},
            "messages": [
                [each.role, each.content, read_calls(each.tool_calls or ()), each.tool_call_id]
                for each in history
                if each.status == "completed"
            ],
        }


class Helper(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.3
    tasks = Tasks()
    values = Values()
    family = Family()
    messages = Messages(agent="helper")

    @rpc
    async def look(self) -> list[str | None]:
        return [each.content for each in (await self.messages.list(100_000)).messages if each.role == "user"]


@tool
async def work(helper: Helper, question: str) -> str:
    """Work, at most once."""
    os.write(_LOG, f"{question}\n".encode())
    await asyncio.sleep(0.004)
    return "worked"


app = Plait(Boss, Helper, store=os.environ.get("PLAIT_STORE", "sqlite:///team.db"), limits=None)
app.execution(
    Boss,
    agents=[Agent("boss", Side("boss"))],
    models=[Model("ask", FunctionModel(stream_function=ask))],
    prompts=[
        Prompt(
            "boss",
            "You ask others.",
            "ask",
            [
                Subagent("helper", Helper, name="single"),
                Subagent("helper", Helper, name="steady", resumable=True, max_instances=1),
                Subagent("helper", Helper, name="later", blocking=False),
            ],
            history=10_000,
        )
    ],
)
app.execution(
    Helper,
    agents=[Agent("helper", Side("helper"))],
    models=[Model("help", FunctionModel(stream_function=help_out))],
    prompts=[Prompt("helper", "You work.", "help", [work], history=10_000)],
)
