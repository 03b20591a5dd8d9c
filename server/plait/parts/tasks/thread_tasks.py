"""`tasks = Tasks()`: methods of a thread that survive kills, restarts and long waits."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.begun import Begun
from plait.actor.connection import Rights
from plait.actor.rpc import Method
from plait.actor.thread import Thread, ThreadActor
from plait.clock import read_due_clock, read_wall_clock
from plait.errors import NotFound, TooMany, Unavailable
from plait.parts.encoding import check_type, encode_named, read_back
from plait.parts.part import ALL, Part, check_writable, find_parts
from plait.parts.schedule.row_runner import RowChange
from plait.parts.stage import begin_staged
from plait.parts.tasks.client_methods import make_methods
from plait.parts.tasks.ended import ENDED, ENDS
from plait.parts.tasks.journal import check_event
from plait.parts.tasks.rows import Status, TaskRow, TaskRun, decode_ended, decode_row
from plait.parts.tasks.running import ROWS, TaskRunner, Viewer
from plait.parts.tasks.task import Task, find_tasks
from plait.parts.written import STAGED, Result
from plait.store.record_checks import is_key
from plait.store.thread_rows import Record, RecordRange

__all__ = ["MOST_RUNS", "TaskReceipt", "Tasks", "ThreadTasks", "find_tasks_part"]

MOST_RUNS: Final = 10_000
"""The maximum number of runs of a thread that have not ended."""

# The maximum bytes of all arguments, as a multiple of the maximum bytes of a record.
_MOST_RECORDS: Final = 8


class TaskReceipt(Result[TaskRun]):
    """The result of `run`: awaiting it returns the run when it is durable."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The id of the run, even before it is durable."""
        return self.value.id


class Tasks(Part["ThreadTasks"]):
    """Declares tasks: `tasks = Tasks()` gives each thread a `ThreadTasks`. With `live`, clients see the runs."""

    role: ClassVar = "tasks"
    reading: ClassVar = frozenset({"list", "get", "wait"})
    inner: ClassVar = frozenset(
        {
            "watch",
            "wait_until",
            "find",
            "is_running",
            "find_waiting",
            "newest",
            "cancel_all",
            "find_awaited",
            "awaited",
            "deliver",
            "release",
            "follow",
            "only_waits",
        }
    )

    def __init__(self, *, live: bool = False) -> None:
        super().__init__()
        self.is_live = live
        self._tasks: dict[type[Thread[Any]], Mapping[str, Task]] = {}

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        find_tasks(owner)  # Raises for an invalid task.

    def make_methods(self, cls: type[Any]) -> Iterable[Method]:
        return make_methods(self.name, find_tasks(cls), is_live=self.is_live)

    def bind(self, actor: ThreadActor) -> "ThreadTasks":
        assert isinstance(actor, Actor)
        cls = type(actor.thread)
        if (tasks := self._tasks.get(cls)) is None:
            tasks = self._tasks[cls] = find_tasks(cls)
        return ThreadTasks(actor, self.name, {**tasks, **actor.kind.tasks} if actor.kind.tasks else tasks)

    def ranges(self) -> Sequence[RecordRange]:
        return [RecordRange(self.name, prefix, limit=ALL) for prefix in (ROWS, ENDS)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        runner = self.of(actor)._runner
        runner.load(records[0])
        runner.kept.load(records[1])

    def unload(self, actor: ThreadActor) -> None:
        self.of(actor)._stop_waiting()

    def leave_work(self, actor: ThreadActor) -> Sequence[Record]:
        return self.of(actor)._runner.clear()


def find_tasks_part(cls: type[Thread[Any]]) -> Tasks | None:
    """Return the tasks that a class declares; None if there are none."""
    return next((part for part in find_parts(cls).values() if isinstance(part, Tasks)), None)


class ThreadTasks:
    """The tasks of one thread.

    The methods that write do so when they are called; awaiting the result waits until the write is durable. `retry`
    reads first, so it only begins when it is called, and cannot be used in a transaction. In a run of an agent, an
    effect or a task, writes are staged, and stored with the run, or with the step of the task. The methods raise
    Readonly and Destroyed as `set_state` does.
    """

    def __init__(self, actor: Actor, part: str, tasks: Mapping[str, Task]) -> None:
        self._actor = actor
        self._part = part
        self._tasks = tasks
        self._runner = TaskRunner(actor, part, tasks)
        # The calls of `wait`.
        self._waiting: set[asyncio.Future[TaskRun]] = set()
        actor.timer.add(self._runner, part)
        actor.timer.add(self._runner.kept, part)

    # Writing

    def run(self, name: str, *args: Any, key: str | None = None) -> TaskReceipt:
        """Begin a run of a task, unless a run with the `key` has not ended; return the receipt of the run.

        Raises ValueError for an unknown task, InvalidArguments for arguments that do not fit, TooLarge, TooMany, and
        Terminated.
        """
        check_writable(self._actor)
        self._actor.check_active()
        row, draft = self._make_row(name, args, key), self._runner.use_draft()
        finder = self._runner.agenda if draft is None else draft
        same = None if row.identity is None else finder.find(row.identity)
        if same is not None:
            return TaskReceipt(same.show(), STAGED if draft is not None else self._runner.written(None))
        if len(finder) >= MOST_RUNS:
            raise TooMany(f"{self._actor.key} has {MOST_RUNS:,} runs of tasks, and no more may be begun")
        if finder.size + len(row.args) > (most := _MOST_RECORDS * self._actor.limits.record):
            raise TooMany(f"{self._actor.key} has runs of tasks whose arguments have {most:,} bytes, and no more may")
        add = partial(self._runner.add, row)
        if draft is None:
            return TaskReceipt(row.show(), self._runner.written(add()))
        draft.add(RowChange(add, row))
        return TaskReceipt(row.show(), STAGED)

    def send(self, id: str, event: str, data: Any = None) -> Result[bool]:
        """Send a run an event, whose data is JSON; the run may ask for it later. Return whether the event was taken.

        It is not taken if the run has ended, or has an event of this name since its last checkpoint. Raises TooMany.
        """
        check_type("event", event, str)
        check_event(event)
        return self.deliver(id, event, data)

    def deliver(self, id: str, event: str, data: Any = None) -> Result[bool]:
        """Do what `send` does, but also with an event of plait itself."""
        check_writable(self._actor)
        if not is_key(event) or len(event.encode()) > 400:
            raise ValueError(f"the name of an event must have 1 to 400 bytes, and no control characters, not {event!r}")
        raw = msgspec.Raw(encode_named("data", data))
        check_type("id", id, str)
        send = partial(self._runner.send, id, event, raw)
        return self._runner.do(id, send, may=lambda row: self._runner.takes(row, event))

    def cancel(self, id: str) -> Result[bool]:
        """End a run, and cancel its work; return whether it had not ended. `retry` begins it again."""
        check_writable(self._actor)
        check_type("id", id, str)
        return self._runner.do(id, partial(self._runner.cancel, id))

    def retry(self, id: str) -> Begun[bool]:
        """Begin a run that has failed or was cancelled again; return whether there is one.

        Its finished steps are not repeated, but its failed ones are. Raises Terminated.
        """
        check_writable(self._actor)
        check_type("id", id, str)
        self._actor.check_active()
        return begin_staged(self._actor, self._retry(id))

    async def _retry(self, id: str) -> bool:
        commit = await self._runner.retry(id)
        if commit is not None:
            await commit
        return commit is not None

    # Reading

    async def get(self, id: str) -> TaskRun | None:
        """Return a run, also after its end; None if there is none."""
        check_type("id", id, str)
        await self._actor.state.wait_for_shown()
        if (row := self._runner.rows.get(id)) is not None:
            return row.show()
        ended = await self._runner.read_ended(id)
        return None if ended is None else ended.show()

    async def list(self, name: str | None = None, status: Status | None = None) -> list[TaskRun]:
        """Return the runs in the order in which they were begun, or only those of a task or with a status."""
        await self._actor.state.wait_for_shown()
        # Runs may end while others are read, or be tried again.
        runs = {row.id: row.show() for row in self._runner.rows.values()}
        ended = await self._actor.records.list(RecordRange(self._part, ENDED, limit=ALL))
        runs.update((run.id, run) for run in (decode_ended(record.value or b"").show() for record in ended))
        runs.update((row.id, row.show()) for row in self._runner.rows.values())
        names = [name, *(task.queues if (task := self._tasks.get(name or "")) is not None else ())]
        fitting = [run for run in runs.values() if (name is None or run.name in names) and status in (None, run.status)]
        return sorted(fitting, key=lambda run: run.created_at)

    async def newest(self, limit: int) -> AsyncIterator[TaskRun]:
        """Yield the durable runs, the newest first: those that have not ended, and the last `limit` ones that have.

        Each is read when it is asked for. Raises StoreError.
        """
        rows = sorted(self._runner.agenda.rows.values(), key=lambda row: row.created_at, reverse=True)
        ids, last = [row.id for row in rows], self._runner.kept.last(limit)
        for id in ids:
            if (data := await self._actor.records.read(self._part, ROWS + id)) is not None:
                yield decode_row(data).show()
            elif (ended := await self._runner.read_ended(id)) is not None:  # The run has ended in between.
                yield ended.show()
        for id in last:
            if (ended := await self._runner.read_ended(id)) is not None:
                yield ended.show()

    async def wait(self, id: str) -> TaskRun:
        """Return a run when it has ended.

        Raises NotFound if there is none, RuntimeError for the calling run and for one that this has only staged, and
        Unavailable if the thread stops.
        """
        return await self.wait_until(id, lambda run: run.ended_at is not None)

    async def wait_until(self, id: str, is_wanted: Callable[[TaskRun], bool]) -> TaskRun:
        """Return a run when it fulfils a condition. Raises the errors of `wait`."""
        if self._runner.is_within(id):
            raise RuntimeError(f"the run {id} waits for its own end")
        if id not in self._runner.agenda.rows and id in self._runner.rows:
            raise RuntimeError(f"the run {id} begins when what has begun it commits: wait for it after that")
        future: asyncio.Future[TaskRun] = self._actor.loop.create_future()

        def look(run: TaskRun) -> None:
            if run.id == id and not future.done() and is_wanted(run):
                future.set_result(run)

        stop = self.follow(look)
        self._waiting.add(future)
        try:
            if (run := await self.get(id)) is None:
                raise NotFound(f"there is no run {id} of a task")
            look(run)
            return await future
        finally:
            self._waiting.discard(future)
            stop()

    def watch(self, viewer: Viewer) -> Callable[[], None]:
        """Call a function for each change of the status or value of a run, in order, when it is durable.

        Returns a function that ends this.
        """
        return _add(self._runner.viewers, viewer)

    def follow(self, viewer: Viewer) -> Callable[[], None]:
        """Do what `watch` does, also for each change of what a run waits for."""
        return _add(self._runner.followers, viewer)

    def is_running(self, name: str, key: str) -> bool:
        """Whether there is a run of a task with a key that has not ended."""
        return self._runner.agenda.find((name, key, None)) is not None

    def find_waiting(self, name: str, key: str) -> Collection[str] | None:
        """Return the events that the run of a task with a key waits for; None if there is no run."""
        row = self._runner.agenda.find((name, key, None))
        return None if row is None else row.awaits

    def find_awaited(self, id: str) -> Sequence[str]:
        """Return the events that a run waits for, and that have not come."""
        row = self._runner.agenda.rows.get(id)
        return () if row is None else row.awaits

    @property
    def awaited(self) -> Mapping[str, Sequence[str]]:
        """The events that runs wait for, and that have not come, by the ids of these runs."""
        return {row.id: row.awaits for row in self._runner.agenda.rows.values() if row.awaits}

    def only_waits(self, id: str) -> bool:
        """Whether a run has not ended, and all its step calls wait."""
        row = self._runner.agenda.rows.get(id)
        return row is not None and row.only_waits(read_due_clock())

    def release(self, id: str) -> None:
        """Send an event without data for each event that a run waits for."""
        for event in self.find_awaited(id):
            self.deliver(id, event)

    def cancel_all(self, names: Collection[str]) -> bool:
        """Cancel the runs of some tasks, in the open transaction; return whether there are any."""
        ids = [row.id for row in self._runner.agenda.rows.values() if row.effect in names]
        for id in ids:
            self._runner.cancel(id)
        return bool(ids)

    def check_end(self, names: Collection[str], rights: Rights) -> None:
        """Raise Forbidden if a client may not end the runs of these tasks."""
        for row in self._runner.rows.values():
            if row.effect in names:
                rights.check_end(row.users)

    def find(self, name: str) -> Task | None:
        """Return a task of the class."""
        return self._tasks.get(name)

    # Inside

    def _make_row(self, name: str, args: Sequence[Any], key: str | None) -> TaskRow:
        check_type("key", key, str, NoneType)
        if (task := self._tasks.get(name)) is None:
            raise ValueError(f"there is no task {name!r}; there are: {', '.join(self._tasks) or 'none'}")
        if key is not None and not (is_key(key) and len(key.encode()) <= 400):
            raise ValueError(f"a key must have 1 to 400 bytes, and no control characters, not {key!r}")
        name, key = task.find_identity(self._actor.thread, key)
        data = encode_named("args", args)
        task.check(data, limits=self._actor.limits)
        now, created_at = read_due_clock(), max(read_wall_clock(), self._runner.newest + 1)
        self._runner.newest = created_at
        id, users = secrets.token_hex(12), (*{*task.find_users(self._actor.thread, key)},)
        times: dict[str, Any] = {"created_at": created_at, "at": now, "due": now}
        row = TaskRow(id=id, effect=name, args=msgspec.Raw(data), key=key or "", users=users, **times)
        row.check_room(self._actor.limits.record)
        return read_back(row, TaskRow)

    def _stop_waiting(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable("the thread has been stopped: get it from the app again"))


def _add(viewers: list[Viewer], viewer: Viewer) -> Callable[[], None]:
    viewers.append(viewer)
    return lambda: viewers.remove(viewer)
