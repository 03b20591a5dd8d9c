"""A thread with a task that does what a test says, and tells what happened to it."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.server.parts.workshop import Workshop

from plait import Messages, Step, TaskRun, Tasks, Thread, Values, task
from plait.errors import Reject
from plait.store.thread_rows import RecordRange

__all__ = ["Desk", "Do", "records", "run"]

Do = Callable[["Desk", Step], Awaitable[Any]]


class Desk(Thread[dict[str, Any]]):
    """Its task does what `do` says."""

    initial_state = {"count": 0}  # noqa: RUF012
    values = Values()
    messages = Messages()
    tasks = Tasks()

    do: Do
    # What has happened in all threads.
    seen: list[Any]
    ends: list[TaskRun]
    errors: list[BaseException]

    @task
    async def work(self, step: Step) -> Any:
        return await type(self).do(self, step)

    def count(self, by: int = 1) -> None:
        """Change the state."""
        self.set_state(lambda state: {"count": state["count"] + by})

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        if next_state["count"] < 0:
            raise Reject("the count is negative")

    def on_task_end(self, run: TaskRun) -> None:
        self.ends.append(run)

    def on_error(self, error: BaseException, connection: object) -> None:
        self.errors.append(error)

    @classmethod
    def clear(cls) -> None:
        """Forget what has happened."""
        cls.seen, cls.ends, cls.errors = [], [], []


async def run(shop: Workshop, do: Do) -> TaskRun:
    """Run the task of a thread to its end."""
    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    desk = await shop.thread(Desk)
    return await desk.tasks.wait((await desk.tasks.run("work")).id)


async def records(desk: Thread[Any], prefix: str = "") -> list[str]:
    """Return the keys of the stored records of the tasks."""
    return [each.key for each in await desk._actor.records.list(RecordRange("tasks", prefix, limit=100_000))]
