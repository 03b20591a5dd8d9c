"""The table of threads: the phase of each thread in this process, the tasks that work on it, and its actor.

The phases of a thread:

    asleep    It is only in the store. It has no slot in the table.
    waking    A task loads it and runs `on_start`. Callers wait, and resume in order of arrival.
    awake     Callers get its actor. No task works on it.
    stopping  A task runs `on_stop`, or waits for the turns of a thread that has lost a write. Callers wait, and then
              wake it.
    filling   A task stores what an import or a fork makes the thread of. Callers are refused.
    ending    A task runs `on_destroyed` and deletes what is stored. Callers wait, and then wake a new thread.

Who moves a thread from one phase to another:

    asleep   → waking    `Lifecycle.wake`, for a caller of `Node.actor`
    asleep   → stopping  `Transfers.remove_incomplete`
    asleep   → filling   `Transfers.import_thread` and `Transfers.fork_thread`
    asleep   → ending    `Endings.destroy_sleeping`, for `Node.destroy` and `Alarms`
    waking   → awake     the task, when `on_start` has returned
    awake    → stopping  `Lifecycle.stop`, for `Sweeper`, `Moving`, `Node.stop`; `Lifecycle.drop`, after a lost write
    waking, awake, stopping → ending  `Endings.destroy`, in a turn of the thread
    waking, stopping, filling, ending → asleep  the table, when the last task has ended, however it did

`ThreadTable._move` makes all of these changes, and fails for any other. `Moving` stops the threads that move to another
node.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

from plait.actor.actor import Actor
from plait.errors import Unavailable
from plait.store.thread_rows import ThreadKey

__all__ = ["SHUTTING_DOWN", "Phase", "Slot", "ThreadTable", "start_task", "wait_for_task"]

SHUTTING_DOWN: Final = "the server is shutting down"

T = TypeVar("T")


class Phase(Enum):
    """The phase of a thread in this process."""

    ASLEEP = "asleep"
    WAKING = "waking"
    AWAKE = "awake"
    STOPPING = "stopping"
    FILLING = "filling"
    ENDING = "ending"


_NEXT: Final = {
    Phase.ASLEEP: {Phase.WAKING, Phase.STOPPING, Phase.FILLING, Phase.ENDING},
    Phase.WAKING: {Phase.AWAKE, Phase.ENDING, Phase.ASLEEP},
    Phase.AWAKE: {Phase.STOPPING, Phase.ENDING},
    Phase.STOPPING: {Phase.ENDING, Phase.ASLEEP},
    Phase.FILLING: {Phase.ASLEEP},
    Phase.ENDING: {Phase.ASLEEP},
}
# The phases of threads that count for `Limits.awake_threads`.
_COUNTED: Final = {Phase.WAKING, Phase.AWAKE}


class Slot:
    """One thread in the table. Only `ThreadTable` changes its phase and its tasks."""

    __slots__ = ("actor", "fence", "has_woken", "key", "phase", "tasks", "waiters")

    def __init__(self, key: ThreadKey) -> None:
        self.key = key
        self.phase = Phase.ASLEEP
        # The task that works on the thread. If its `on_start` or `on_stop` destroys the thread, a second task does so,
        # and the first one waits for it.
        self.tasks: tuple[asyncio.Task[object], ...] = ()
        # Set when the thread is loaded, even if only to be destroyed.
        self.actor: Actor | None = None
        # The number of the thread's owner, which is released when the thread goes to sleep; 0 before the claim.
        self.fence = 0
        self.has_woken = False
        # Callers that have not resumed, in order of arrival; None without callers, to save memory.
        self.waiters: dict[asyncio.Future[BaseException | None], None] | None = None

    async def wait(self) -> BaseException | None:
        """Wait until the thread is awake or asleep; return the error of the task that has ended, if it failed.

        If the thread is already awake, wait until the earlier callers have resumed.
        """
        future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        waiters = self.waiters = {} if self.waiters is None else self.waiters
        waiters[future] = None
        try:
            if self.phase is Phase.AWAKE:
                # The loop resumes tasks in order, and the tasks of earlier callers are already scheduled.
                await asyncio.sleep(0)
                return None
            return await future
        finally:
            del waiters[future]
            if not waiters:
                self.waiters = None

    def use(self, *, is_used: bool = True) -> Actor:
        """Return the actor of a thread that is awake, to use it or only to read it, and reset its idle timer."""
        assert self.actor is not None
        self.actor.usage.renew(is_used=is_used)
        return self.actor


class ThreadTable:
    """The slots of the threads that are not asleep; `on_asleep` is called with each slot that is removed."""

    def __init__(self, on_asleep: Callable[[Slot], None]) -> None:
        self._on_asleep = on_asleep
        self._slots: dict[ThreadKey, Slot] = {}
        # The number of threads that are waking or awake.
        self.count = 0
        # Destroyed threads whose last turns have not ended, each with the task that waits for these turns. They have no
        # slot: a new thread of the same name may be awake.
        self.destroyed: dict[Actor, asyncio.Task[None]] = {}

    def find(self, key: ThreadKey) -> Slot:
        """Return the slot of a thread. For a sleeping thread, a new one, which enters the table with its next phase."""
        return self._slots.get(key) or Slot(key)

    def find_unfilled(self, key: ThreadKey) -> Slot:
        """Return the slot of a thread. Raises Unavailable while it is being filled."""
        slot = self.find(key)
        if slot.phase is Phase.FILLING:
            raise Unavailable(f"{key} is being imported or forked: try again when that is complete")
        return slot

    def find_awake(self, key: ThreadKey) -> Actor | None:
        """Return the actor of a thread if it is awake."""
        slot = self._slots.get(key)
        return slot.actor if slot is not None and slot.phase is Phase.AWAKE else None

    def slots(self) -> list[Slot]:
        """Return the slots of all threads that are not asleep."""
        return list(self._slots.values())

    def actors(self, *phases: Phase) -> list[Actor]:
        """Return the actors of the threads in some phases."""
        found = (slot.actor for slot in self._slots.values() if slot.phase in phases)
        return [actor for actor in found if actor is not None]

    def begin(self, slot: Slot, phase: Phase, task: asyncio.Task[object]) -> None:
        """Begin a phase in which `task` works on a thread."""
        if slot.phase is not phase:
            self._move(slot, phase)
        slot.tasks += (task,)
        task.add_done_callback(partial(self._finish, slot))

    def set_awake(self, slot: Slot) -> None:
        """Make a thread available to callers."""
        slot.has_woken = True
        self._move(slot, Phase.AWAKE)
        _resume(slot, None)

    @property
    def tasks(self) -> list[asyncio.Task[object]]:
        """All tasks that have not ended."""
        return [*(task for slot in self._slots.values() for task in slot.tasks), *self.destroyed.values()]

    def keep(self, actor: Actor) -> None:
        """Wait for the last turns of a destroyed thread, in a task."""
        task = self.destroyed[actor] = start_task(actor.finish(), f"last turns of {actor.key}")
        task.add_done_callback(lambda _: self.destroyed.pop(actor))

    # Inside

    def _finish(self, slot: Slot, task: asyncio.Task[object]) -> None:
        slot.tasks = tuple(each for each in slot.tasks if each is not task)
        # This also marks the exception as retrieved, as the caller may be cancelled.
        error = Unavailable(SHUTTING_DOWN) if task.cancelled() else task.exception()
        if slot.tasks or slot.phase is Phase.AWAKE:
            return
        self._move(slot, Phase.ASLEEP)
        self._on_asleep(slot)
        _resume(slot, error)

    def _move(self, slot: Slot, phase: Phase) -> None:
        """Change the phase of a thread. Nothing else does."""
        assert phase in _NEXT[slot.phase], f"{slot.key} cannot become {phase.value} while it is {slot.phase.value}"
        self.count += (phase in _COUNTED) - (slot.phase in _COUNTED)
        slot.phase = phase
        if phase is Phase.ASLEEP:
            del self._slots[slot.key]
        else:
            self._slots[slot.key] = slot


def start_task(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task with an empty context, as its work must not count as caused by the running turn."""
    return asyncio.create_task(work, name=name, context=Context())


def _resume(slot: Slot, outcome: BaseException | None) -> None:
    for waiter in slot.waiters or ():
        if not waiter.done():
            waiter.set_result(outcome)


async def wait_for_task(task: asyncio.Task[T]) -> T:
    """Return the outcome of a task, which outlives a cancelled caller. Raises Unavailable for a cancelled task."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Unavailable(SHUTTING_DOWN) from None
        raise
