"""Runs the tasks of a thread: each pass calls the method again, and its finished steps are not repeated."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.outcome import limit_time
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import PlaitError, TooMany, TurnTimeout
from plait.parts.attempts import RetryPolicy
from plait.parts.encoding import encode_named
from plait.parts.part import ALL
from plait.parts.schedule.row_runner import RowRunner
from plait.parts.schedule.rules import LATEST
from plait.parts.stage import Stage, do_nothing
from plait.parts.tasks.ended import ENDED, KeptRuns
from plait.parts.tasks.journal import Journal, find_prefix
from plait.parts.tasks.rows import NULL, EndedRun, Status, TaskRow, TaskRun, decode_ended
from plait.parts.tasks.step import Step
from plait.parts.tasks.step_errors import describe
from plait.parts.tasks.task import Task
from plait.parts.tasks.waits import StepRunner
from plait.state.commit import Commit
from plait.state.thread_records import Changes, apply
from plait.state.transaction import Transaction
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import encode_json

__all__ = ["MOST_EVENTS", "ROWS", "TaskRunner", "Viewer"]

ROWS: Final = "r/"

MOST_EVENTS: Final = 1_000
"""The maximum number of events of a run since its last checkpoint."""

Viewer = Callable[[TaskRun], None]

# A method that raises outside of its steps would raise again.
_NEVER: Final = RetryPolicy(1, 1.0, 300.0)


class TaskRunner(RowRunner[TaskRow], StepRunner):
    """The runs of one thread that have not ended: stores them, and runs the due ones."""

    noun = "task"

    def __init__(self, actor: Actor, part: str, tasks: Mapping[str, Task]) -> None:
        super().__init__(actor, part, tasks, TaskRow, prefix=ROWS)
        self._tasks = tasks
        # The steps of the runs in memory, and how many of these only wait.
        self._steps: dict[str, Step] = {}
        self._resting = 0
        self.kept = KeptRuns(actor, part)
        # Called with each change of the status or the value of a run; and with each change of what it waits for, too.
        self.viewers: list[Viewer] = []
        self.followers: list[Viewer] = []

    # Rows

    def set_loaded(self, row: TaskRow) -> None:
        row = self._adopt(row)
        if row.identity is not None and (other := self.agenda.find(row.identity)) is not None:
            # An earlier version has begun two runs for a queue: the second one waits until the thread wakes without it.
            row = min(row, other, key=lambda each: each.created_at)
            self.agenda.set(other.id, None)
        self.agenda.set(row.id, row)

    def store(self, rows: Mapping[str, TaskRow | None], more: Changes = ()) -> Commit:
        before = {id: self.agenda.rows.get(id) for id in rows} if self.viewers or self.followers else {}
        commit = super().store(rows, more)
        for id, old in before.items():
            if (row := self.agenda.rows.get(id)) is not None:
                is_shown = old is None or (old.status, old.value) != (row.status, row.value)
                commit.then(partial(self._tell, row.show(), is_shown))
        return commit

    def end(self, id: str, status: Status, *, result: msgspec.Raw = NULL, error: str | None = None) -> Commit:
        """Store the end of a run. The journal of a run that may be retried is kept."""
        step = self._steps.get(id)
        row = replace(self.agenda.rows[id], events=(), awaits=())
        ended = EndedRun(row, status, read_wall_clock(), result, error)
        more = [*self.kept.add({id: status}), Record(self._part, ENDED + id, encode_json(ended))]
        if step is not None:
            more += step.journal.clear() if status == "done" else ()
            step.waits.close()
        with Transaction(self._actor.state, self._actor.key):
            commit = self.store({id: None}, more)
            if (task := self._tasks.get(ended.row.effect)) is not None:
                task.follow_end(self._actor.thread, ended)
        commit.then(partial(self._tell_end, ended.show()))
        return commit

    def cancel(self, id: str) -> Commit | None:
        """End a run, and cancel its work; None if it has ended."""
        if id not in self.agenda.rows:
            return None
        commit = self.end(id, "cancelled")
        self._runner.cancel([id])
        return commit

    def send(self, id: str, event: str, data: msgspec.Raw) -> Commit | None:
        """Store an event for a run; None if the run has ended, or already has an event of this name. Raises TooMany."""
        row, step = self.agenda.rows.get(id), self._steps.get(id)
        if row is None or not self.takes(row, event):
            return None
        if len(row.events) >= MOST_EVENTS:
            raise TooMany(
                f"the run {id} has got {MOST_EVENTS:,} events since its last checkpoint, and no more may come"
            )
        journal = self._find_journal(id)
        row = journal.advance(row).receive(event, read_due_clock())
        row.check_room(self._actor.limits.record)
        commit = self.store({id: row}, journal.receive(event, data))
        if step is not None:
            step.waits.end(event)
        return commit

    def takes(self, row: TaskRow, event: str) -> bool:
        """Whether no event of a name has come to a run since its last checkpoint."""
        return not self._find_journal(row.id).has_come(event, row)

    async def retry(self, id: str) -> Commit | None:
        """Begin a run that has failed or was cancelled again, from its journal, without the steps that have failed.

        Returns None if there is no such run, or another one has its key. Raises ValueError if there is no such task.
        """
        ended, journal = await self.read_ended(id), Journal(self._part, id)
        if ended is None or ended.status == "done":
            return None
        await self._read(journal, id)
        failed = journal.drop_failed()
        row = self._adopt(ended.row).retry([*journal.events], read_due_clock())
        if id not in self.kept or (row.identity is not None and self.agenda.find(row.identity) is not None):
            return None
        return self.store({id: row}, [Record(self._part, ENDED + id, None), *failed, *self.kept.remove([id])])

    async def read_ended(self, id: str) -> EndedRun | None:
        """Return a run that has ended. Raises StoreError."""
        data = await self._actor.records.read(self._part, ENDED + id)
        return None if data is None else decode_ended(data)

    def clear(self) -> Sequence[Record]:
        # The rest of their journals is removed with the ended runs.
        ends, _ = apply(self.kept.add(dict.fromkeys(self.agenda.rows, "cancelled")))
        return [*super().clear(), *ends]

    # The timer of the thread

    @property
    def busy(self) -> int:
        return super().busy - self._resting

    def terminate(self) -> None:
        for id in [*self.agenda.rows]:
            self.cancel(id)

    # The work of `AttemptRunner`

    def retries(self, id: str) -> RetryPolicy:
        return _NEVER

    def put(self, id: str, attempts: TaskRow) -> Commit:
        if attempts.process and (since := self.agenda.rows[id].asleep_since):
            seconds = max(0, read_due_clock() - since) / 1e6
            self._actor.instruments.task_slept(self._actor.key.kind, attempts.effect, seconds)
        return super().put(id, attempts)

    async def attempt(self, id: str) -> None:
        """Call the method, until it has ended or its run leaves the memory."""
        row = self.agenda.rows[id]
        # The journal is made before it is read, because an event may come in between.
        journal = Journal(self._part, id)
        step = self._steps[id] = Step(self._actor, row, journal, self)
        stage = Stage(self._actor, do_nothing)
        try:
            with stage.use():
                await self._read(journal, id)
                result = await self._call(step, row)
                if not step.is_closed:
                    data = msgspec.Raw(encode_named("result", result))
                    await stage.commit(is_last=True, end=partial(self.end, id, "done", result=data))
                else:
                    stage.drop()
        finally:
            step.waits.close()
            del self._steps[id]
        row_after = self.agenda.rows.get(id)
        if step.waits.left is not None and row_after is not None and row_after.process:
            until, awaits = step.waits.left
            await self.put(id, row_after.sleep(min(until, self._find_deadline(row)), awaits, read_due_clock()))

    def give_up(self, id: str, error: BaseException) -> Commit:
        return self.end(id, "failed", error=describe(error))

    def is_within(self, id: str) -> bool:
        """Whether the calling code is a part of a run."""
        return self._runner.is_within(id)

    # Inside

    def _find_journal(self, id: str) -> Journal:
        """Return the journal of a run; without one in memory, an empty one, because all its entries are stored."""
        step = self._steps.get(id)
        return Journal(self._part, id) if step is None else step.journal

    def _adopt(self, row: TaskRow) -> TaskRow:
        """Return a run under the name of its task."""
        if not row.key:
            return row
        is_known = row.effect in self._tasks
        adopting = (name for name, task in self._tasks.items() if task.adopts(row, is_known=is_known))
        return replace(row, effect=next(adopting, row.effect))

    def count_resting(self, change: int) -> None:
        self._resting += change
        if change > 0:
            self._actor.timer.arm(self)

    async def _read(self, journal: Journal, id: str) -> None:
        records = await self._actor.records.list(RecordRange(self._part, find_prefix(id), limit=ALL))
        journal.load(records, self._actor.key)

    async def _call(self, step: Step, row: TaskRow) -> Any:
        """Call the method of a run, within its time; return None if the run has ended before."""
        task, current = self._tasks[row.effect], asyncio.current_task()
        assert current is not None
        args = task.decode(bytes(row.args), limits=self._actor.limits)
        left = (self._find_deadline(row) - read_due_clock()) / 1e6
        late = f"the run has taken longer than {task.timeout} s"
        if left <= 0:
            raise TurnTimeout(late)
        try:
            async with limit_time(None if task.timeout is None else left, late):
                return await task.function(self._actor.thread, step, *args)
        except asyncio.CancelledError:
            if not step.is_closed or current.cancelling() > (step.waits.left is not None):
                raise
            return None
        finally:
            if step.waits.left is not None:
                current.uncancel()

    def _find_deadline(self, row: TaskRow) -> int:
        timeout = self._tasks[row.effect].timeout
        return LATEST if timeout is None else min(row.at + round(timeout * 1e6), LATEST)

    def _tell(self, run: TaskRun, is_shown: bool, failure: PlaitError | None) -> None:
        if failure is None:
            for viewer in (*(self.viewers if is_shown else ()), *self.followers):
                viewer(run)

    def _tell_end(self, run: TaskRun, failure: PlaitError | None) -> None:
        self._tell(run, True, failure)
        actor = self._actor
        if failure is None:
            actor.instruments.task_ended(actor.key.kind, run.name, run.status)
            if actor.hooks.has("on_task_end"):
                actor.turns.post("on_task_end", run)
