"""Tasks of threads that another node owns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.nodes import Nodes, open_nodes

from plait import NotFound, Plait, Step, TaskRun, Tasks, Thread, task


class Desk(Thread[None]):
    tasks = Tasks()

    @task
    async def ask(self, step: Step, what: str) -> Any:
        return [what, await step.event("answer")]


def make() -> Plait:
    return Plait(Desk, store="memory://")


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(make) as opened:
        yield opened


async def test_a_handle_begins_waits_for_and_cancels_runs_at_the_owner(nodes: Nodes) -> None:
    tasks = nodes.handle(Desk, 1).tasks
    run = await tasks.run("ask", "why", key="k")
    assert isinstance(run, TaskRun)
    assert (await tasks.run("ask", "why", key="k")).id == run.id
    waiting = asyncio.create_task(tasks.wait(run.id))
    assert await tasks.send(run.id, "answer", {"a": 1})
    ended = await waiting
    assert (ended.status, ended.result) == ("done", ["why", {"a": 1}])
    assert await tasks.get(run.id) == ended
    other = await tasks.run("ask", "who")
    assert await tasks.cancel(other.id)
    assert [each.status for each in await tasks.list()] == ["done", "cancelled"]
    assert await tasks.retry(other.id)
    assert [each.id for each in await tasks.list(status="done")] == [run.id]
    with pytest.raises(NotFound):
        await tasks.wait("none")
