"""The app of `test_tasks_kill`: runs of six steps and more, whose bodies note in a file that they begin and end."""

import asyncio
import os
from functools import partial
from typing import Any

from plait import Plait, Step, Tasks, Thread, Unknown, Values, rpc, task
from plait.store.thread_rows import RecordRange

__all__ = ["Job", "app"]

_LOG = os.open(os.environ.get("TASKS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words: object) -> None:
    """Add a line to the file, at once: it stays when the process is killed."""
    os.write(_LOG, f"{' '.join(map(str, words))}\n".encode())


class Job(Thread[dict[str, Any]]):
    """Its runs sleep, wait for an event, and do two steps at the same time."""

    initial_state = {"sent": 0, "shown": [], "kept": []}  # noqa: RUF012
    idle_timeout = 0.3
    values = Values()
    tasks = Tasks()

    @task
    async def six(self, step: Step, number: int) -> list[Any]:
        async def do(name: str, pause: float = 0.0) -> Any:
            value = await step.do(name, partial(self.work, number, name, pause))
            note("end", self.name, number, name)
            return value

        found = [await do("a")]
        await step.sleep("nap", 1.3 if number % 4 == 0 else 0.05)
        found += await asyncio.gather(do("b"), do("c", 0.03))
        answer = await step.event("go", timeout=3600)
        found.append(await do("d"))
        await step.do("show", partial(self.show, number))
        await step.do("keep", partial(self.keep, step, number))
        try:
            paid = await step.do("pay", partial(self.pay, number), once=True)
        except Unknown:
            paid = "unknown"
        self.values.push("ends", number)  # Outside of steps: stored with the end of the run.
        return [answer, paid, *found]

    async def work(self, number: int, name: str, pause: float) -> str:
        note("begin", self.name, number, name)
        await self.values.push("done", f"{number}.{name}")
        await asyncio.sleep(pause)
        return name * 2

    def show(self, number: int) -> None:
        self.set_state({**self.state, "shown": [*self.state["shown"], number]})

    async def keep(self, step: Step, number: int) -> None:
        await self.values.push("kept", number)
        await asyncio.sleep(0)
        with step.transaction():
            self.set_state({**self.state, "kept": [*self.state["kept"], number]})

    async def pay(self, number: int) -> str:
        note("pay", self.name, number)
        await asyncio.sleep(0.01)
        return "paid"

    @rpc
    async def start(self) -> int:
        with self.transaction():
            number = self.state["sent"] + 1
            self.set_state({**self.state, "sent": number})
            run = self.tasks.run("six", number, key=f"{number}")
        if number % 3 == 0:
            self.tasks.send(run.id, "go", "early")
        return number

    @rpc
    async def approve(self) -> int:
        """Send the event to all runs; return how many are not over."""
        runs = [each for each in await self.tasks.list() if each.ended_at is None]
        for each in runs:
            self.tasks.send(each.id, "go", "late")
        return len(runs)

    @rpc
    async def look(self) -> dict[str, Any]:
        runs = {each.key: [each.status, each.result, each.error] for each in await self.tasks.list()}
        records = await self._actor.records.list(RecordRange("tasks", "j/"))
        return {
            "state": self.state,
            "values": dict(await self.values.items()),
            "runs": runs,
            "journal": [each.key for each in records],
        }


app = Plait(Job, store=os.environ.get("PLAIT_STORE", "sqlite:///tasks.db"), limits=None)
