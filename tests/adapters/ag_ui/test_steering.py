"""What people say over AG-UI while a plain agent answers: its model sees it at the next call, once and in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.adapters.ag_ui.lab import Gate
from tests.adapters.ag_ui.streams import begun
from tests.integration.socket_client import http
from tests.running import running
from tests.server.parts.workshop import until

from plait import Context, Messages, Plait, Principal, Thread
from plait.adapters.ag_ui import AgUi
from plait.adapters.pydantic_ai import run_agent


class Room(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    messages = Messages(live=True)


class Lab:
    def __init__(self, folder: Path) -> None:
        self.app = Plait(Room, secret="s", store=f"sqlite:///{folder / 'plait.db'}", authenticate=lambda _: ADA)
        self.gate, self.seen, self.errors = Gate(), list[list[str]](), list[Exception]()
        assistant = Agent(FunctionModel(stream_function=self._say, model_name="m"))
        self.web: Any = None
        # How often the agent has begun.
        self.runs = 0

        @assistant.tool_plain
        async def work() -> str:
            await self.gate.wait()
            if self.errors:
                raise self.errors.pop()
            return "done"

        @self.app.agent("clerk", thread=Room)
        async def clerk(ctx: Context[Room], text: str) -> Any:
            self.runs += 1
            return await run_agent(ctx, assistant, messages=ctx.thread.messages)

        @self.app.agent("parrot", thread=Room)
        async def parrot(ctx: Context[Room], text: str) -> str:
            self.seen.append([text])
            await self.gate.wait()
            return text

        self.app.mount("/ag-ui", AgUi(self.app, messages="messages"))

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        parts = [part for each in messages for part in each.parts]
        said = [part.content for part in parts if isinstance(part, UserPromptPart)]
        self.seen.append([str(text) for each in said for text in ([each] if isinstance(each, str) else each)])
        if any(isinstance(part, ToolReturnPart) for part in parts):
            yield f"You said {', '.join(self.seen[-1])}."
        else:
            yield {0: DeltaToolCall("work", "{}", tool_call_id="c")}

    async def texts(self) -> list[str]:
        found = (await self.app.thread(Room, "one").part(Room.messages).list()).messages
        return [f"{each.role} {each.status} {each.content}" for each in found]

    def say(self, id: str, *texts: str, agent: str = "clerk") -> Any:
        said = [{"id": f"{at}", "role": "user", "content": text} for at, text in enumerate(texts)]
        return begun(self.web, f"{agent}/one", messages=said, runId=id)


ADA = Principal("ada")


@asynccontextmanager
async def open_lab(folder: Path) -> AsyncIterator[Lab]:
    lab = Lab(folder)
    async with running(lab.app) as address, http(address) as lab.web:
        yield lab


async def test_what_is_said_while_an_agent_works_is_seen_at_its_next_call_and_not_answered_twice(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path) as lab:
        async with lab.say("1", "first") as one:
            await until(lambda: len(lab.seen) == 1)
            async with lab.say("2", "first", "second") as two:
                await until(lambda: is_pending(lab))
                lab.gate.open(3)
                await one.rest()
                assert (await two.rest())[-1] == "RUN_FINISHED"
                (snapshot,) = [each["messages"] for each in two.events if each["type"] == "MESSAGES_SNAPSHOT"][-1:]
                assert [each["content"] for each in snapshot if each["role"] == "user"] == ["first", "second"]
                assert snapshot[-1]["content"] == "You said first, second."
        assert lab.seen == [["first"], ["first", "second"]]
        assert lab.runs == 1
    async with open_lab(tmp_path) as lab:
        assert await lab.texts() == [
            "user completed first",
            "assistant completed None",
            "tool completed done",
            "user completed second",
            "assistant completed You said first, second.",
        ]
        found = (await lab.app.thread(Room, "one").part(Room.messages).list()).messages
        assert [each.sender for each in found if each.role == "user"] == ["ada", "ada"]


async def is_pending(lab: Lab) -> bool:
    return "user pending second" in await lab.texts()


async def test_a_message_that_was_answered_before_is_answered_again_after_the_run_under_way(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        async with lab.say("1", "first") as one:
            await until(lambda: len(lab.seen) == 1)
            lab.gate.open(3)
            await one.rest()
        lab.gate = Gate()
        other = [{"id": "other", "role": "user", "content": "other"}]
        async with begun(lab.web, "parrot/one", messages=other, runId="2") as two:
            await until(lambda: lab.seen[-1] == ["other"])
            await lab.app.thread(Room, "one").part(Room.messages).inject("assistant", "Well.")
            async with lab.say("3", "first", agent="parrot") as three:
                lab.gate.open(3)
                await two.rest()
                await three.rest()
        assert lab.seen[-1] == ["first"]


async def test_an_agent_that_takes_nothing_answers_each_message_in_a_run_of_its_own(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        async with lab.say("1", "first", agent="parrot") as one:
            await until(lambda: len(lab.seen) == 1)
            async with lab.say("2", "first", "second", agent="parrot") as two:
                await until(lambda: is_pending(lab))
                lab.gate.open(3)
                await one.rest()
                await two.rest()
        assert lab.seen == [["first"], ["second"]]
        assert await lab.texts() == ["user completed first", "user completed second"]


async def test_what_a_failed_run_has_taken_is_answered_by_the_next_one(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        lab.errors.append(LookupError("no work"))
        async with lab.say("1", "first") as one:
            await until(lambda: len(lab.seen) == 1)
            async with lab.say("2", "first", "second") as two:
                await until(lambda: is_pending(lab))
                lab.gate.open(3)
                assert (await one.rest())[-1] == "RUN_ERROR"
                assert (await two.rest())[-1] == "RUN_FINISHED"
        assert lab.seen[-1] == ["first", "second"]
        assert [each for each in await lab.texts() if each.startswith("user")] == [
            "user completed first",
            "user completed second",
        ]
