"""Threads whose task does what a test tells it to."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.server.parts.workshop import FlakyStore, Workshop, open_workshop, until

from plait.actor.connection import Connection
from plait.actor.thread import Thread
from plait.parts.schedule.schedule import Schedule
from plait.parts.tasks import waits
from plait.parts.tasks.rows import TaskRow, TaskRun
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import task
from plait.parts.tasks.thread_tasks import Tasks
from plait.parts.values import Values
from plait.store.thread_rows import RecordRange, ThreadKey

__all__ = ["KEY", "Desk", "Script", "find_row", "keys", "open_desk", "rest_at_once", "sleeps", "tell"]

KEY = ThreadKey("desk", "one")

Script = Callable[["Desk", Step], Awaitable[Any]]


class Desk(Thread[int]):
    """Runs the script of a test."""

    initial_state = 0
    values = Values()
    schedule = Schedule()
    tasks = Tasks()
    script: Script
    # What has happened, in order, in all instances.
    seen: list[str]
    errors: list[str]
    ended: list[TaskRun]

    @task
    async def work(self, step: Step) -> Any:
        return await type(self).script(self, step)

    @task(timeout=60)
    async def hurry(self, step: Step) -> Any:
        return await type(self).script(self, step)

    @task
    async def keep(self, step: Step, text: str) -> Any:
        return await type(self).script(self, step)

    @task
    async def add(self, step: Step, first: int, second: int = 10) -> int:
        return first + second

    @task
    async def total(self, step: Step, rows: list[Any]) -> int:
        return len(rows)

    def on_task_end(self, run: TaskRun) -> None:
        self.ended.append(run)

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")


def tell(script: Script) -> None:
    """Have tasks run a script from now on."""
    Desk.script = staticmethod(script)
    Desk.seen, Desk.errors, Desk.ended = [], [], []


@asynccontextmanager
async def open_desk(store: FlakyStore, script: Script | None = None) -> AsyncIterator[tuple[Workshop, Desk]]:
    """Run a node with one desk, whose tasks run a script if it is given."""
    if script is not None:
        tell(script)
    async with open_workshop(store, Desk) as shop:
        yield shop, await shop.thread(Desk)


def rest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs leave the memory as soon as their calls wait."""
    monkeypatch.setattr(waits, "_REST", 0.0)


def find_row(desk: Desk, id: str) -> TaskRow:
    """Return the row of a run that has not ended."""
    return desk.tasks._runner.agenda.rows[id]


async def sleeps(desk: Desk, id: str) -> None:
    """Wait until a run has left the memory."""
    await until(lambda: find_row(desk, id).asleep_since > 0 and not desk.tasks._runner.has(id))


async def keys(store: FlakyStore) -> list[str]:
    """Return the keys of the stored records of the tasks, without the ids of runs."""
    found = [each.key.split("/") for each in await store.records(KEY, RecordRange("tasks"))]
    return ["/".join(parts[:1] + parts[2:]) for parts in found]
