"""The admitted and the waiting runs of an app: they run one at a time in a thread, and can be interrupted."""

from functools import partial
from typing import Any, Final

from plait.actor.actor import Actor, find_actor
from plait.actor.connection import Rights
from plait.actor.events import Events
from plait.actor.per_actor import PerActor
from plait.actor.turn import Turn, current_turn
from plait.agents.agent import Agent
from plait.agents.context import find_context
from plait.agents.run import Mark, Marks, Run
from plait.agents.run_queue import RunQueue, find_party
from plait.errors import Busy, PlaitError, Unavailable
from plait.store.thread_rows import ThreadKey

__all__ = ["ActiveRuns"]

# The name of a thread's queue among its parts; no attribute can have it.
_QUEUE: Final = PerActor[RunQueue[Run]](lambda _: RunQueue())


class ActiveRuns:
    """Admits runs to their threads; `events` are those of the app."""

    def __init__(self, events: Events) -> None:
        self.events = events
        # The queues with an admitted or waiting run.
        self._queues: dict[Actor, RunQueue[Run]] = {}
        self.is_draining = self._is_cutting_off = False
        self._marks = Marks()
        self._mark = PerActor[Mark](lambda actor: Mark(actor, self._marks))

    # Called by runs

    def find_holder(self, actor: Actor) -> Run | None:
        """Return the admitted run of a thread if the calling code is a part of it, directly or through others."""
        if (holder := _QUEUE.of(actor).current) is None:
            return None
        turn, caller = current_turn(), _find_caller()
        while caller is not None:
            if caller.outermost is holder:
                return holder
            caller = caller.outermost.caller
        return holder if turn is not None and any(each is holder.turn for each in turn.chain()) else None

    async def admit(self, run: Run) -> None:
        """Wait until a run may begin; the run must then `leave`. Raises TooMany, Busy and Unavailable."""
        agent, actor, turn = run.agent, run.actor, run.turn
        queue = _QUEUE.of(actor)
        if self.is_draining and (
            self._is_cutting_off or not self._is_within(None if turn is None else turn.parent, run.caller)
        ):
            raise _shutting_down()
        if queue.current is not None and not queue.current.is_over:
            if agent.multitask == "reject":
                raise Busy(f"another run is running in {actor.key}")
            if agent.multitask == "interrupt":
                queue.current.interrupt()
        self._queues[actor] = queue
        if queue.is_empty:
            queue.current = run
        else:
            await self._wait(run, queue)
        if turn is not None:
            turn.on_abandon = partial(_lose_caller, run)
        if self._is_cutting_off:
            run.cut_off()

    async def recall(self, run: Run) -> None:
        """Find out whether an earlier run was cut off, and mark the thread if this run takes long."""
        mark = run.mark = self._mark.of(run.actor)
        run.follows_cut_off = await mark.begin()

    def leave(self, run: Run) -> None:
        """Admit the next run of a thread, as this one and the work after it have ended."""
        for task in run.background:  # The work after the answer was cancelled before it began.
            task.cancel()
        run.stage.close()
        run.is_over = True
        queue = _QUEUE.of(run.actor)
        queue.leave()
        if queue.is_empty:
            self._queues.pop(run.actor, None)
        if run.mark is not None:
            run.mark.leave(is_last=queue.is_empty)

    # From outside

    def interrupt(self, key: ThreadKey, message: Any = None, rights: Rights | None = None) -> bool:
        """Interrupt a thread's run at its next checkpoint, or cancel the work after it; return whether there is one.

        Raises Forbidden if a client's `rights` do not allow that.
        """
        found = next((run for run in self._active if run.actor.key == key), None)
        if found is not None and rights is not None:
            rights.check_end(found.users)
        return found is not None and _interrupt(found, message)

    @property
    def is_calling(self) -> bool:
        """Whether the calling code is a part of a turn of this app, or of a run or the work after it."""
        return self._is_within(current_turn(), _find_caller())

    @property
    def threads(self) -> list[ThreadKey]:
        """The threads with a run, or one that waits."""
        return [actor.key for actor in self._queues]

    def refuse(self) -> None:
        """Refuse further runs, except those that a turn or a run calls, as the server is shutting down.

        Waiting runs raise Unavailable.
        """
        self.is_draining = True
        for queue in self._queues.values():
            queue.refuse(_shutting_down())

    def start(self) -> None:
        """Accept runs."""
        self.is_draining = self._is_cutting_off = False
        self._marks = Marks()  # The timer belongs to one loop.

    def has_run(self, thread: ThreadKey | None = None) -> bool:
        """Whether a run of the thread, or of any one, has not ended; a waiting run counts only for its thread."""
        return bool(self._active) if thread is None else thread in self.threads

    def cut_off(self, thread: ThreadKey | None = None) -> None:
        """Interrupt the run of a thread that moves, or at shutdown all, even waiting ones; mark their threads."""
        self._is_cutting_off = self._is_cutting_off or thread is None
        for run in self._active:
            if thread in (None, run.actor.key) and not run.is_over:
                run.cut_off()

    def terminate(self, actor: Actor) -> None:
        """Interrupt the run of a terminated thread, unless the calling code is a part of it.

        Waiting runs raise Terminated when they are admitted.
        """
        run = _QUEUE.of(actor).current
        if run is not None and self.find_holder(actor) is not run:
            _interrupt(run)

    def interrupt_attempt(self, actor: Actor, attempt: object) -> None:
        """Interrupt the run that is an attempt at a queue of a thread, if it has begun."""
        run = _QUEUE.of(actor).current
        if run is not None and run.stage.attempt is attempt and not run.is_over:
            run.interrupt()

    # Inside

    async def _wait(self, run: Run, queue: RunQueue[Run]) -> None:
        """Wait in the queue of a thread; a run whose caller leaves also leaves the queue."""
        agent, turn = run.agent, run.turn
        if turn is not None:
            turn.on_abandon = partial(_leave_queue, turn, agent)
            turn.is_waiting = True
        try:
            await queue.enter(
                run,
                max_waiting=agent.max_waiting,
                timeout=agent.wait_timeout,
                party=None if turn is None else find_party(turn),
                most_of_party=run.actor.limits.waiting_runs,
            )
        finally:
            if turn is not None:
                turn.is_waiting = False
            if queue.is_empty:
                self._queues.pop(run.actor, None)

    @property
    def _active(self) -> list[Run]:
        """The admitted outermost runs, until the work after their answers has ended."""
        return [queue.current for queue in self._queues.values() if queue.current is not None]

    def _is_within(self, turn: Turn | None, caller: Run | None) -> bool:
        """Whether a running turn belongs to this app or is called by such a turn, or a calling run has not ended."""
        events = self.events
        if turn is not None and turn.is_running:
            actors = [find_actor(each) for each in turn.chain()]
            # A turn without an actor runs at another node of this app.
            if any(actor is None or actor.events is events for actor in actors):
                return True
        return caller is not None and caller.outermost in self._active


def _find_caller() -> Run | None:
    """Return the run that the calling code is a part of."""
    context = find_context()
    return None if context is None else context._run


def _interrupt(run: Run, message: Any = None) -> bool:
    """Interrupt a run, or cancel the work after it; return False if that is not running."""
    if not run.is_over:
        run.interrupt(message)
    elif run.cut_rest is not None:
        run.cut_rest()
    else:
        return False
    return True


def _leave_queue(turn: Turn, agent: Agent, is_closed: bool) -> None:
    """End a waiting run if its caller has cancelled it, or its stream has lost its reader."""
    if agent.is_stream or not is_closed:
        turn.cancel()


def _lose_caller(run: Run, _: bool) -> None:
    """Continue a run whose caller has left, but interrupt it if it streams."""
    if run.agent.is_stream and not run.is_over:
        run.interrupt()


def _shutting_down() -> PlaitError:
    return Unavailable("the server is shutting down; try again")
