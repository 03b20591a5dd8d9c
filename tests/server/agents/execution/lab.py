"""An app whose agents call a model that says what a test wants."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import ToolDefinition
from tests.server.parts.workshop import until

from plait import Message, Messages, Plait, SqliteStore, Store, StoreError, Tasks, Thread, Values, rpc
from plait.agents.execution.definitions import Agent, Model, Prompt, Side
from plait.parts.tasks.ended import ENDED
from plait.store.protocol import Write

__all__ = ["Desk", "HeldEnd", "Hold", "Lab", "Said", "Script", "call", "make_prompt", "open_lab"]

Said = str | list[tuple[str, dict[str, Any]]]
"""What a model says: a text, or calls of tools by their names and arguments."""


class Desk(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.05
    values = Values()
    tasks = Tasks()
    messages = Messages(agent="desk")

    @rpc
    async def nothing(self) -> None: ...

    @rpc
    def is_at_rest(self) -> bool:
        return self.execution is None

    @rpc
    async def queue(self, name: str, args: dict[str, Any]) -> list[str]:
        """Queue a tool, and return what was noted before it ran."""
        await self.agents.queue_tool(name, args)
        return [each.role for each in (await self.messages.list(include_silent=True)).messages if each.role == "tool"]

    @rpc
    async def pass_on(self, metadata: dict[str, Any]) -> None:
        await self.messages.queue("Hi.", metadata=metadata)

    @rpc
    async def invoke(self, name: str, args: dict[str, Any]) -> Any:
        return await self.agents.invoke_tool(name, args)


def call(name: str, /, **arguments: Any) -> Said:
    """Return one call of a tool."""
    return [(name, arguments)]


class Hold:
    """A tool or a model that waits for a test."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def wait(self, said: Said = "") -> Said:
        self.begun.set()
        await self.go.wait()
        return said

    async def until_begun(self) -> None:
        async with asyncio.timeout(10):
            await self.begun.wait()


class HeldEnd(SqliteStore):
    """A store that does not store the end of a run, or a step of it."""

    def __init__(self, path: Path, step: str = "") -> None:
        super().__init__(path)
        self.hold = Hold()
        self._step_name = step

    def submit(self, write: Write) -> asyncio.Future[int]:
        keys = [each.key for each in write.records]
        if not any(key.endswith(f"/s/{self._step_name}") if self._step_name else key.startswith(ENDED) for key in keys):
            return super().submit(write)
        self.hold.begun.set()
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreError("the disk is full"))
        return failed


class Script:
    """A model that says one thing after the other, and notes what it has seen.

    What it says may be a function of the number of its call.
    """

    def __init__(
        self, *said: Said | Exception | Callable[[], Awaitable[Said]], name: str = "script", attempts: int = 1
    ) -> None:
        self._said = said
        self.seen: list[list[ModelMessage]] = []
        # The tools that it could call, for each call of it.
        self.tools: list[list[ToolDefinition]] = []
        self.model = Model(name, FunctionModel(stream_function=self._stream, model_name=name), attempts=attempts)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        number = len(self.seen)
        self.seen.append([*messages])
        self.tools.append(info.function_tools)
        said = self._said[min(number, len(self._said) - 1)]
        if isinstance(said, Exception):
            yield "Half"
            raise said
        if callable(said):
            said = await said()
        if isinstance(said, str):
            for at in range(0, len(said), 4):
                yield said[at : at + 4]
            return
        yield {
            at: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"c{number}-{at}")
            for at, (name, arguments) in enumerate(said)
        }

    def texts(self, number: int = -1) -> list[str]:
        """Return what the model has seen in a call."""
        whole: list[Any] = ModelMessagesTypeAdapter.dump_python(self.seen[number], mode="json")
        return [f"{part['part_kind']} {part.get('content')}" for each in whole for part in each["parts"]]


def make_prompt(name: str, *tools: Any, model: str = "script", **options: Any) -> Prompt:
    return Prompt(name, f"You are {name}.", model, tools, **options)


class Lab:
    def __init__(self, app: Plait, cls: type[Thread[Any]] = Desk) -> None:
        self.app = app
        self.handle: Any = app.thread(cls, "one")

    async def ask(self, text: str, **options: Any) -> None:
        await self.handle.messages.queue(text, **options)

    async def history(self) -> list[Message]:
        return (await self.handle.messages.list(1000, include_silent=True)).messages

    async def texts(self, *statuses: str) -> list[str]:
        """Return the texts of the messages with a status, and the names of the tools that they call."""
        return [
            f"{each.role} {each.content or [call['function']['name'] for call in each.tool_calls or ()]}"
            for each in await self.history()
            if each.status in (statuses or ("completed",))
        ]

    async def is_running(self) -> bool:
        return await self.statuses() == ["running"]

    async def statuses(self) -> list[str]:
        return [run.status for run in await self.handle.tasks.list()]

    async def rest(self, *statuses: str) -> None:
        """Wait until the runs have these statuses, and nothing is queued."""

        async def look() -> bool:
            return await self.statuses() == [*(statuses or ("done",))] and not await self.handle.messages.pending()

        await until(look)


@asynccontextmanager
async def open_lab(
    folder: Path,
    *scripts: Script,
    agents: Sequence[Agent] = (Agent("desk", Side("clerk")),),
    prompts: Sequence[Prompt] = (),
    tools: Sequence[Any] = (),
    store: Store | str | None = None,
) -> AsyncIterator[Lab]:
    app = Plait(Desk, store=store or f"sqlite:///{folder / 'plait.db'}", shutdown_timeout=0.1)
    app.execution(
        Desk,
        agents=agents,
        prompts=prompts or [make_prompt("clerk", *tools)],
        models=[each.model for each in scripts],
    )
    async with app:
        yield Lab(app)
