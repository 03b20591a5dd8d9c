"""What Cloudflare's workflows do to the state of their agent, as steps: each change is one write with its step."""

import msgspec
import pytest
from msgspec.structs import replace
from tests.server.parts.tasks.desks import rest_at_once
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import Step, Tasks, Thread, task


class Work(msgspec.Struct, frozen=True):
    status: str = "idle"
    progress: int = 0


class Processing(Thread[Work]):
    initial_state = Work()
    tasks = Tasks()

    @task
    async def process(self, step: Step) -> None:
        await step.do("update", lambda: self.set_state(Work("processing")))
        await step.do("merge", lambda: self.set_state(lambda state: replace(state, progress=50)))
        step.status({"percent": 0.5})
        if not (await step.approval("go on")).approved:
            await step.do("reset", lambda: self.set_state(Work()))


async def test_a_change_of_the_state_is_made_once_and_stored_with_its_step(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    async with open_workshop(store, Processing) as shop:
        processing = await shop.thread(Processing)
        run = await processing.tasks.run("process")
        await until(lambda: processing.tasks._runner.agenda.rows[run.id].status == "sleeping")
        assert processing.state == Work("processing", 50)
        # Another change in between is not undone by the replay, which repeats no step.
        await processing.set_state(Work("changed", 70))
        assert await processing.tasks.send(run.id, "go on", {"approved": False, "reason": "wrong file"})
        ended = await processing.tasks.wait(run.id)
        assert (ended.status, ended.value, processing.state) == ("done", {"percent": 0.5}, Work())
        for step, version in (("update", 1), ("merge", 2), ("reset", 4)):
            (write,) = [each for each in shop.store.writes if [change.version for change in each.changes] == [version]]
            assert f"j/{run.id}/s/{step}" in [record.key for record in write.records]
