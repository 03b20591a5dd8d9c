"""What instruments are told of tasks: the runs, the attempts at steps, and the time asleep."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry
from tests.server.instruments.test_prometheus import read
from tests.server.recorder import Recorder

from plait import GiveUp, MemoryStore, Plait, Step, Tasks, Thread, rpc, task
from plait.instruments.otel import OpenTelemetry
from plait.instruments.prometheus import Metrics
from plait.testing import Served, serve

DAY = 86400
ONE = ("desk", "one")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


class Desk(Thread[int]):
    initial_state = 0
    tasks = Tasks()
    tracer: Any = None
    # How often something was fetched, in all instances.
    fetched = 0

    @task
    async def collect(self, step: Step) -> int:
        found: int = await step.do("fetch", self.fetch)
        await step.sleep("rest", DAY)
        await step.do("show", lambda: self.set_state(found))
        return found

    @task
    async def fail(self, step: Step) -> None:
        await step.do("fetch", self.give_up)

    async def fetch(self) -> int:
        with self.tracer.start_as_current_span("own"):
            Desk.fetched += 1
            if Desk.fetched == 1:
                raise ValueError("try again")
        return Desk.fetched

    async def give_up(self) -> None:
        raise GiveUp("never")

    @rpc
    async def begin(self, name: str) -> str:
        return (await self.tasks.run(name)).id


class Told:
    """An app with tasks, and all instruments that there are."""

    def __init__(self) -> None:
        self.recorder, self.metrics, self.exporter = Recorder(), Metrics(CollectorRegistry()), InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        Desk.fetched = 0
        Desk.tracer = provider.get_tracer("the author's")
        instruments = [self.recorder, self.metrics, OpenTelemetry(provider)]
        self.app = Plait(Desk, store=MemoryStore(), instruments=instruments)

    def read(self) -> dict[tuple[str, ...], float]:
        """Return the metrics of tasks."""
        found = read(self.metrics.read()[0].decode())
        return {labels: value for labels, value in found.items() if labels[0].startswith("plait_task_")}


@asynccontextmanager
async def told() -> AsyncIterator[tuple[Told, Served, Any]]:
    """Run an app; yields a handle of a desk, too."""
    found = Told()
    async with serve(found.app) as t:
        yield found, t, t.app.thread(Desk, "one")


async def run(t: Served, desk: Any, name: str, *, seconds: float = 3 * DAY) -> None:
    """Begin a run of a task, and have time pass."""
    await desk.call("begin", name)
    await t.clock.advance(seconds)


async def test_each_attempt_at_a_step_is_told_with_its_outcome_and_a_replay_is_none() -> None:
    async with told() as (found, t, desk):
        await run(t, desk, "collect")
    began = [each for each in found.recorder.events if each.name == "step_began"]
    assert [each.arguments for each in began] == [(*ONE, "collect", step) for step in ("fetch", "fetch", "show")]
    assert [found.recorder.ended("step_ended", each.trace)[0] for each in began] == ["error", "ok", "ok"]
    assert [next(found.recorder.causes(each)).arguments for each in began] == [(*ONE, "task collect")] * 3


async def test_the_runs_the_steps_and_the_time_asleep_are_metrics() -> None:
    async with told() as (found, t, desk):
        await run(t, desk, "collect")
        await run(t, desk, "fail")
        await desk.call("begin", "collect")
        await t.clock.advance(60)
        (waiting,) = await desk.part(Desk.tasks).list(status="sleeping")
        await desk.part(Desk.tasks).cancel(waiting.id)
        await t.clock.settle()
        metrics = found.read()
    assert {labels[2:]: value for labels, value in metrics.items() if labels[0] == "plait_task_runs_total"} == {
        ("collect", "done"): 1,
        ("collect", "cancelled"): 1,
        ("fail", "failed"): 1,
    }
    assert metrics["plait_task_steps_total", "desk", "collect", "ok"] == 3
    assert metrics["plait_task_steps_total", "desk", "collect", "error"] == 1
    assert metrics["plait_task_steps_total", "desk", "fail", "error"] == 1
    assert metrics["plait_task_step_seconds_count", "desk", "collect"] == 4
    assert metrics["plait_task_asleep_seconds_count", "desk", "collect"] == 1
    assert metrics["plait_task_asleep_seconds_sum", "desk", "collect"] == pytest.approx(DAY, abs=2)


async def test_an_attempt_at_a_step_is_a_span_of_its_turn_and_the_current_one_of_its_function() -> None:
    async with told() as (found, t, desk):
        await run(t, desk, "collect")
    spans = {each.context.span_id: each for each in found.exporter.get_finished_spans() if each.context is not None}
    steps = [each for each in spans.values() if each.name == "step collect desk"]
    assert [dict(each.attributes or {}) for each in steps] == [
        {"plait.kind": "desk", "plait.thread": "one", "plait.task": "collect", "plait.step": step, "plait.outcome": how}
        for step, how in (("fetch", "error"), ("fetch", "ok"), ("show", "ok"))
    ]
    assert [each.status.status_code for each in steps] == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]
    assert {spans[each.parent.span_id].name for each in steps if each.parent} == {"task collect desk"}
    own = [each for each in spans.values() if each.name == "own"]
    assert [spans[each.parent.span_id].name for each in own if each.parent] == ["step collect desk"] * 2
    (change,) = [each for each in spans.values() if each.name == "change desk"]
    assert change.parent is not None


async def test_the_names_of_steps_are_no_labels() -> None:
    async with told() as (found, t, desk):
        await run(t, desk, "collect")
        assert "fetch" not in found.metrics.read()[0].decode()
