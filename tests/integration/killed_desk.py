"""The app of `test_execution_kill`: agents that call tools, wait for approvals, hand over and are stopped."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import wraps
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from plait import Agent, Handoff, Messages, Model, Plait, Prompt, Side, Step, Tasks, Thread, Values, rpc, tool
from plait.parts.messages.message import read_own
from plait.store.thread_rows import RecordRange

__all__ = ["Desk", "app"]

_PATH: Final = os.environ.get("DESK_LOG", os.devnull)
_LOG: Final = os.open(_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
# The tools of the questions, which come in turn.
_TOOLS: Final = (("pay",), ("look", "pay"), ("refund",), (), ("hand", "pay"))


def note(*words: object) -> None:
    """Add a line to the file, at once: it stays when the process is killed. Its first word is the process."""
    os.write(_LOG, f"{os.getpid()} {' '.join(map(str, words))}\n".encode())


def count_starts() -> int:
    """Return how many processes have noted that they start."""
    return Path(_PATH).read_text().count(" starts\n")


# What the steps of the loop are called in this process: every second one has other names.
_NAMES: Final = f"v{count_starts() // 2}-"
note("starts")


def rename(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give the steps of the loop, but not those of calls, other names than the server before had."""

    @wraps(method)
    def call(step: Step, name: str, *args: Any, **options: Any) -> Any:
        return method(step, name if name.startswith(("call:", "error:")) else f"{_NAMES}{name}", *args, **options)

    return call


Step.do = rename(Step.do)  # type: ignore[method-assign]
Step.sleep = rename(Step.sleep)  # type: ignore[method-assign]


def find_questions(messages: Sequence[ModelMessage]) -> tuple[list[str], set[str]]:
    """Return the questions without an answer, and those for which tools were called."""
    questions, called = list[str](), set[str]()
    for part in (part for message in messages for part in message.parts):
        match part:
            case UserPromptPart(content=str(text)):
                questions.append(text)
            case ToolCallPart():
                called.add(part.args_as_dict().get("question", ""))
            case TextPart(content=text) if text.startswith("re "):
                answered = text[3:].split(",")
                questions = [each for each in questions if each not in answered]
    return questions, called


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call the tools of each question, and then answer all."""
    await asyncio.sleep(0.002)
    questions, called = find_questions(messages)
    for question in questions:
        names = _TOOLS[int(question[1:]) % len(_TOOLS)]
        if names and question not in called:
            (other,) = {each.name for each in info.function_tools} & {"front", "back"}
            note("asks", *names)
            yield {
                at: DeltaToolCall(
                    other if name == "hand" else name,
                    json.dumps({} if name == "hand" else {"question": question}),
                    tool_call_id=f"{name}-{question}",
                )
                for at, name in enumerate(names)
            }
            return
    note("answers")
    yield "re "
    await asyncio.sleep(0.002)
    yield ",".join(questions)


def read_calls(calls: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the id and the name of each call, and the question of all."""
    made = [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    question = next((arguments["question"] for *_, arguments in made if arguments), "")
    return [[id, "hand" if name in ("front", "back") else name, question] for id, name, _ in made]


class Desk(Thread[dict[str, Any]]):
    """The desk sends itself questions, and approves calls that wait for approval."""

    initial_state = {"sent": 0}  # noqa: RUF012
    idle_timeout = 0.3
    values = Values()
    tasks = Tasks()
    messages = Messages(agent="front", live=True)

    @rpc
    async def send(self) -> int:
        with self.transaction():
            number = self.state["sent"] + 1
            self.set_state({"sent": number})
            self.messages.queue(f"q{number}")
        return number

    @rpc
    async def stop(self) -> None:
        note("stops", self.name)
        await self.messages.stop()

    @rpc
    async def resume(self) -> None:
        await self.messages.resume()

    @rpc
    async def approve(self) -> int:
        """Approve the open calls; return how many questions are not answered, or else how many runs are not over."""
        runs = [each for each in await self.tasks.list() if each.ended_at is None]
        for each in await self.messages.open_calls():
            for run in runs if each["function"]["name"] == "refund" else ():
                self.tasks.send(run.id, f"approval:{each['id']}", {"approved": True})
        history = (await self.messages.list(200, order="desc")).messages
        said = takewhile(lambda each: each.status != "completed" or not (each.content or "").startswith("re "), history)
        return sum(each.role == "user" for each in said) or len(runs)

    @rpc
    async def look(self) -> dict[str, Any]:
        history = (await self.messages.list(100_000)).messages
        return {
            "sent": self.state["sent"],
            "values": dict(await self.values.items()),
            "runs": [(each.id, each.status, each.error) for each in await self.tasks.list()],
            "journals": [each.key for each in await self._actor.records.list(RecordRange("tasks", "j/"))],
            "messages": [
                [each.role, each.content, read_calls(each.tool_calls or ()), each.tool_call_id]
                for each in history
                if each.status == "completed"
            ],
            "agents": [own["execution"]["agent"] for own in map(read_own, history) if "execution" in own],
        }


@tool
async def pay(desk: Desk, question: str) -> str:
    """Pay, at most once."""
    note("pay", desk.name, question)
    await desk.values.push("paid", question)
    await asyncio.sleep(0.03)
    return "paid"


@tool(idempotent=True)
async def look(desk: Desk, question: str) -> str:
    """Look, as often as needed; the first one takes until the server is killed if a test says so."""
    note("look", desk.name, question)
    if (path := os.environ.get("DESK_HANGS")) and not os.path.exists(path):  # noqa: ASYNC240
        os.close(os.open(path, os.O_CREAT))
        await asyncio.Event().wait()
    return "looked"


@tool(needs_approval=True)
async def refund(desk: Desk, question: str) -> str:
    """Pay back, at most once, if a person approves it."""
    note("refund", desk.name, question)
    await desk.values.push("refunded", question)
    await asyncio.sleep(0.03)
    return "refunded"


app = Plait(Desk, store=os.environ.get("PLAIT_STORE", "sqlite:///desk.db"), limits=None)
app.execution(
    Desk,
    agents=[Agent("front", Side("front")), Agent("back", Side("back"))],
    models=[Model("script", FunctionModel(stream_function=say))],
    prompts=[
        Prompt("front", "You are the front office.", "script", [pay, look, refund, Handoff("back")], history=10_000),
        Prompt("back", "You are the back office.", "script", [pay, look, refund, Handoff("front")], history=10_000),
    ],
)
