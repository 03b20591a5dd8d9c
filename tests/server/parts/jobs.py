"""A small part whose work `AttemptRunner` attempts: jobs, which do what a test tells them to."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.thread import Thread, ThreadActor
from plait.clock import read_due_clock
from plait.parts.attempt_runner import AttemptRunner, Work
from plait.parts.attempts import Attempts, RetryPolicy
from plait.parts.part import Part
from plait.state.commit import Commit
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["KEY", "Desk", "Jobs", "ThreadJobs", "decode_job"]

KEY = ThreadKey("desk", "one")

decode_job = msgspec.json.Decoder(Attempts).decode


class Jobs(Part["ThreadJobs"]):
    """Declares jobs."""

    def bind(self, actor: ThreadActor) -> "ThreadJobs":
        assert isinstance(actor, Actor)
        return ThreadJobs(actor, self.name)

    def ranges(self) -> Sequence[RecordRange]:
        return (RecordRange(self.name, limit=100),)

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor).load(records[0])


class ThreadJobs(Work[Attempts]):
    """The jobs of one thread, by name."""

    def __init__(self, actor: Actor, part: str) -> None:
        self.actor = actor
        self.part = part
        self.jobs: dict[str, Attempts] = {}
        self.runner = AttemptRunner(actor, self)
        # What has happened, in order.
        self.seen: list[str] = []
        actor.timer.add(self)

    def load(self, records: Sequence[Record]) -> None:
        for record in records:
            self.jobs[record.key] = decode_job(record.value or b"").recover(self.actor.host.process)

    def add(self, id: str, job: Attempts | None = None) -> Commit:
        """Add a job that is due now."""
        return self.store(id, job or Attempts(due=read_due_clock()))

    def store(self, id: str, job: Attempts | None) -> Commit:
        """Store a job, or remove it."""
        before = self.jobs.get(id)
        self._set(id, job)
        record = Record(self.part, id, None if job is None else encode_json(job))
        return self.actor.records.write([record], undo=lambda: self._set(id, before))

    def _set(self, id: str, job: Attempts | None) -> None:
        if job is None:
            self.jobs.pop(id, None)
        else:
            self.jobs[id] = job

    # Called by the timer

    @property
    def times(self) -> tuple[int, int]:
        waiting = [job.due for id, job in self.jobs.items() if id not in self.runner.running]
        return min((job.due for job in self.jobs.values()), default=0), min(waiting, default=0)

    @property
    def keeps(self) -> bool:
        return bool(self.jobs)

    def on_due(self, now: int) -> None:
        for id in [id for id, job in self.jobs.items() if job.due <= now and id not in self.runner.running]:
            self.runner.begin(id, f"job {id}")

    def terminate(self) -> None:
        self.runner.cancel(self.runner.running)

    # The work of `AttemptRunner`

    def find(self, id: str) -> Attempts | None:
        return self.jobs.get(id)

    def retries(self, id: str) -> RetryPolicy:
        return RetryPolicy(3, 10.0, 60.0, is_random=False)

    def put(self, id: str, attempts: Attempts) -> Commit:
        return self.store(id, attempts)

    async def attempt(self, id: str) -> None:
        self.seen.append(f"begin {id}")
        await Desk.do(self, id)
        self.store(id, None)

    def give_up(self, id: str, error: BaseException) -> Commit:
        self.seen.append(f"give up {id}")
        return self.store(id, None)

    def ended(self, id: str, unstored: Attempts | None) -> None:
        self.seen.append(f"end {id}")
        if unstored is not None:
            self._set(id, unstored)


class Desk(Thread[int]):
    """Has jobs."""

    initial_state = 0
    jobs = Jobs()
    # What a job does.
    do: Callable[[ThreadJobs, str], Awaitable[None]]
    errors: list[str]

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(str(error))
