"""What agents that execute cost beside their model: a step with a call of a tool, and a chunk of an answer."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvloop
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from benchmarks.contest import Effort
from benchmarks.records import Reading
from plait import Agent, Messages, Model, Plait, Prompt, Side, SqliteStore, Tasks, Thread, tool
from plait.limits import DEFAULT_LIMITS
from plait.store.protocol import Write
from plait.web.lifespan import collect_rarely

__all__ = ["execution"]

# The steps of a run, each with a call of a tool but the last; the messages of a long history; and the chunks of an
# answer.
STEPS = 25
LONG = 200
STREAMS = 20
CHUNKS = 500
# Milliseconds and commits of a step, and microseconds of a chunk.
STEP_AIM = 3
COMMIT_AIM = 5
CHUNK_AIM = 50

_CHUNK = "some words "


class _Desk(Thread[dict[str, Any]]):
    kind = "desk"
    initial_state = {}  # noqa: RUF012
    idle_timeout = None
    tasks = Tasks()
    messages = Messages(agent="desk", live=True)


@tool
async def look(desk: _Desk, number: int) -> str:
    """Look something up."""
    return f"found {number}"


class _Script:
    """A model that calls a tool in each step but the last, or answers in many chunks."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._calls = 0
        self.seen: list[tuple[list[ModelMessage], AgentInfo]] = []
        self.model = FunctionModel(stream_function=self._say)

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.seen.append((messages, info))
        self._calls += 1
        if self._calls % self._steps:
            number = self._calls
            yield {0: DeltaToolCall("look", json.dumps({"number": number}), tool_call_id=f"c{number}")}
            return
        for _ in range(CHUNKS if self._steps == 1 else 1):
            await asyncio.sleep(0)
            yield _CHUNK

    async def repeat(self) -> float:
        """Return the processor time of the same requests without a thread."""
        seen, self.seen, self._calls = self.seen, [], 0

        async def request(messages: list[ModelMessage], info: AgentInfo) -> None:
            parameters = ModelRequestParameters(function_tools=info.function_tools)
            async with model_request_stream(self.model, messages, model_request_parameters=parameters) as stream:
                async for _ in stream:
                    pass
                stream.get()

        used = time.process_time()
        if self._steps == 1:
            await asyncio.gather(*(request(*each) for each in seen))
        else:
            for each in seen:
                await request(*each)
        self.seen = []
        return time.process_time() - used


class _CountingStore(SqliteStore):
    """A store that counts the writes."""

    writes = 0

    def submit(self, write: Write) -> asyncio.Future[int]:
        self.writes += 1
        return super().submit(write)


def execution(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Measure in each round."""
    readings = [
        Reading("a step with a call of a tool, processor time beside the model: ms", [], STEP_AIM),
        Reading("the same, commits", [], COMMIT_AIM),
        Reading("the same, the model: ms", []),
        Reading(f"a step with a history of {LONG} messages, beside the model: ms", [], STEP_AIM),
        Reading(f"a chunk, {STREAMS} streams, processor time beside the model: µs", [], CHUNK_AIM),
        Reading("the same, the model: µs", []),
    ]
    for number in range(effort.rounds):
        with collect_rarely():  # As a server does.
            found = (
                *uvloop.run(_measure_steps(folder / f"steps-{number}.db")),
                *uvloop.run(_measure_chunks(folder / f"chunks-{number}.db")),
            )
        for reading, value in zip(readings, found, strict=True):
            reading.rounds.append(value)
            tell(f"{reading.title}: {value:.2f}")
    return readings


def _make_app(store: SqliteStore, script: _Script) -> Plait:
    app = Plait(_Desk, store=store, limits=DEFAULT_LIMITS, secret="bench")
    app.execution(
        _Desk,
        agents=[Agent("desk", Side("clerk"))],
        models=[Model("script", script.model)],
        prompts=[Prompt("clerk", "You help customers.", "script", [look])],
    )
    return app


async def _ask(app: Plait, count: int, prefix: str = "") -> None:
    """Ask a question in each of some threads, and wait until all are answered."""

    async def ask(name: str) -> None:
        desk = (await app._node.actor(app.thread(_Desk, name)._key)).thread
        assert isinstance(desk, _Desk)
        before = {run.id for run in await desk.tasks.list()}
        await desk.messages.queue("What is there?")
        while not (begun := {run.id for run in await desk.tasks.list()} - before):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        run = await desk.tasks.wait(begun.pop())
        assert run.status == "done", run

    await asyncio.gather(*(ask(f"{prefix}{number}") for number in range(count)))


async def _measure_steps(path: Path) -> tuple[float, float, float, float]:
    script = _Script(STEPS)
    store = _CountingStore(path)
    async with _make_app(store, script) as app:
        await _ask(app, 1, "other")  # Modules are imported.
        await script.repeat()
        store.writes, used = 0, time.process_time()
        await _ask(app, 1)
        used, writes = time.process_time() - used, store.writes
        model = await script.repeat()
        for _ in range(LONG // (2 * STEPS)):
            await _ask(app, 1)
        await script.repeat()
        long = time.process_time()
        await _ask(app, 1)
        long = time.process_time() - long
        long -= await script.repeat()
    return (used - model) / STEPS * 1e3, writes / STEPS, model / STEPS * 1e3, long / STEPS * 1e3


async def _measure_chunks(path: Path) -> tuple[float, float]:
    script = _Script(1)
    async with _make_app(SqliteStore(path), script) as app:
        await _ask(app, STREAMS)
        await script.repeat()
        used = time.process_time()
        await _ask(app, STREAMS)
        used = time.process_time() - used
        model = await script.repeat()
    each = 1e6 / (STREAMS * CHUNKS)
    return (used - model) * each, model * each
