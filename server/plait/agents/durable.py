"""Durable agents: a task runs the agent, so that its steps are not repeated after a crash or a long wait."""

import asyncio
from typing import Any, Final

import msgspec

from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import find_rights
from plait.agents.agent import Agent, Given
from plait.agents.runs import Runs
from plait.author_code import call
from plait.errors import Busy, CallFailed, InvalidArguments, TooMany, Unavailable
from plait.limits import Limits
from plait.parts.attempts import Uncounted
from plait.parts.messages.caller import FAILED, QUEUE, TaskCaller
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.parts.part import find_parts, find_role, require_role
from plait.parts.tasks.rows import EndedRun, TaskRow
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import Task
from plait.parts.tasks.thread_tasks import find_tasks_part

__all__ = ["CONTINUE", "STOP", "AgentTask", "QueueTask", "make_stop_methods"]

STOP: Final = "run:stop"
"""The method by which clients stop the durable agents of a thread."""

CONTINUE: Final = "run:continue"
"""The method by which clients resume the durable agent of a queue after a stop."""

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class AgentTask(Task):
    """The task of a durable agent: each pass is a run, which holds the run queue of the thread while it is in memory.

    Raises TypeError if the class of the threads declares no tasks.
    """

    def __init__(self, agent: Agent, runs: Runs, name: str = "") -> None:
        part = find_tasks_part(agent.kind.cls)
        if part is None:
            raise TypeError(f"the agent {agent.name!r} is durable: {agent.kind.cls.__name__} needs `tasks = Tasks()`")
        super().__init__(name or agent.name, self._run, timeout=agent.timeout)
        self._part = part
        self._agent = agent
        self._runs = runs
        kind = agent.kind
        # The agents that may take the messages for this one, and the names of the parts with the queues.
        self._agents = kind.agent_names if agent.name in kind.agent_names else (agent.name,)
        parts = find_parts(kind.cls).items()
        self.queues = [name for name, part in parts if isinstance(part, Messages) and part.agent in self._agents]

    async def call(self, thread: Thread[Any], given: Given) -> Any:
        """Begin a run of its own for a caller, and return its output.

        Raises CallFailed if the run was cancelled, and RuntimeError if it failed; clients do not see its error.
        """
        tasks = self._part.of(thread._actor)
        run = await tasks.wait((await tasks.run(self.name, given.input)).id)
        if run.status == "cancelled":
            raise CallFailed(f"the agent {self.name} was cancelled")
        if run.error is not None:
            raise RuntimeError(f"the agent {self.name} has failed: {run.error}")
        return run.result

    def decode(self, args: bytes, *, limits: Limits) -> list[Any]:
        """Return the input of the agent, from a JSON array."""
        given = _decode_array(args)
        return [self._agent.decode(given[0] if given else msgspec.Raw(), limits=limits)]

    def find_identity(self, thread: Thread[Any], key: str | None) -> tuple[str, str | None]:
        """Return the queue's run for each agent of an execution, and for another agent whose queue it is.

        Raises InvalidArguments if another agent has the thread, or if it was stopped.
        """
        if not self.queues or (key != QUEUE and self.name not in thread._actor.kind.agent_names):
            return self.name, key
        queue = _find_queue(thread, self.queues[0])
        assert queue.caller is not None
        if self.name != queue.agent and (self.name, key) != (queue.caller.agent, QUEUE):
            what = f"the agent {self.name!r} cannot run in {thread._actor.key}"
            raise InvalidArguments(f"{what}: the agent {queue.agent!r} has the thread")
        if queue.is_stopped and key != QUEUE:
            what = "`messages.resume()`, or a message of a user, has it go on"
            raise InvalidArguments(f"the agent {self.name!r} was stopped in {thread._actor.key}: {what}")
        return self.queues[0], QUEUE

    def find_users(self, thread: Thread[Any], key: str | None) -> set[str]:
        queues = [_find_queue(thread, name) for name in self.queues] if key == QUEUE else []
        return {*super().find_users(thread, key)}.union(*(each.senders for each in queues))

    async def _run(self, thread: Thread[Any], step: Step, input: Any) -> Any:
        agent, runs = self._agent, self._runs
        try:
            context = await runs.enter(agent, thread, Given(input=input))
        except (Busy, TooMany, Unavailable) as refusal:
            raise Uncounted from refusal
        run, output = context._run, None
        error: BaseException | None = None
        run.is_repeated, run.users = True, step.users
        context.give_steps(step)
        token = context.enter()
        try:
            output = agent.check_output(await call(agent.call, context, input))
        except asyncio.CancelledError as failure:
            if step.is_closed:  # The run leaves the memory, or was cancelled.
                runs.leave(run)
                raise
            error = failure
        except BaseException as failure:
            error = run.explain(failure, False)
        finally:
            context.leave(token)
        await runs.ends.finish(context, error)
        return output


class QueueTask(AgentTask):
    """The task of a queue, which has one run: stored under its name, whichever agent has the thread."""

    def find_identity(self, thread: Thread[Any], key: str | None) -> tuple[str, str | None]:
        return self.name, QUEUE

    def adopts(self, row: TaskRow, *, is_known: bool) -> bool:
        """Whether a run is the queue's, stored under the name of an agent that may be gone."""
        is_of_agent = not is_known and bytes(row.args) in (b"[]", b"[null]")
        return row.key == QUEUE and (is_of_agent or row.effect in self._agents)

    def follow_end(self, thread: Thread[Any], ended: EndedRun) -> None:
        queue = _find_queue(thread, self.name)
        assert isinstance(queue.caller, TaskCaller)
        queue.caller.follow_end(ended.status)
        if ended.status == "cancelled" and thread._actor.kind.find_agents is not None:
            thread.agents.cancel_creation()
        if (family := find_role(type(thread), "family")) is not None:
            is_over = ended.status == "done" and not queue.is_stopped
            if ended.status == "cancelled":
                family.of(thread._actor).cancel_calls(ended.row.id)
            family.of(thread._actor).end_work(None if is_over else FAILED if ended.error else "it was stopped")


def make_stop_methods() -> dict[str, Method]:
    """Return the methods by which clients stop and resume durable agents."""

    async def stop(thread: Thread[Any]) -> bool:
        """Cancel the runs of this thread's durable agents; begin none until a user writes or they are resumed."""
        if (rights := find_rights()) is not None:
            require_role(type(thread), "tasks").of(thread._actor).check_end(thread._actor.kind.tasks, rights)
        return any([await each.stop() for each in _list_queues(thread)])

    async def go_on(thread: Thread[Any]) -> bool:
        """Resume the durable agents of this thread after a stop; return whether there was one."""
        return any([await each.resume() for each in _list_queues(thread)])

    methods = [Method(name, name, each, concurrent=True) for name, each in ((STOP, stop), (CONTINUE, go_on))]
    for each in methods:
        each.action = "stop"
    return {each.name: each for each in methods}


def _find_queue(thread: Thread[Any], name: str) -> ThreadMessages:
    found: ThreadMessages = find_parts(type(thread))[name].of(thread._actor)
    return found


def _list_queues(thread: Thread[Any]) -> list[ThreadMessages]:
    """Return the messages of a thread that durable agents take."""
    parts, tasks = find_parts(type(thread)).items(), thread._actor.kind.tasks
    return [part.of(thread._actor) for name, part in parts if isinstance(part, Messages) and name in tasks]
