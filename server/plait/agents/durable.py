"""Durable agents: a task runs the agent, so that its steps are not repeated after a crash or a long wait."""

import asyncio
from collections.abc import Collection
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
from plait.parts.tasks.rows import EndedRun
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import Task
from plait.parts.tasks.thread_tasks import TaskReceipt, ThreadTasks, find_tasks_part

__all__ = ["CONTINUE", "STOP", "AgentTask", "begin_run", "make_stop_methods"]

STOP: Final = "run:stop"
"""The method by which clients stop the durable agents of a thread."""

CONTINUE: Final = "run:continue"
"""The method by which clients have the durable agent of a queue go on after a stop."""

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class AgentTask(Task):
    """The task of a durable agent: each pass is a run, which holds the run queue of the thread while it is in memory.

    Raises TypeError if the class of the threads declares no tasks.
    """

    def __init__(self, agent: Agent, runs: Runs) -> None:
        part = find_tasks_part(agent.kind.cls)
        if part is None:
            raise TypeError(f"the agent {agent.name!r} is durable: {agent.kind.cls.__name__} needs `tasks = Tasks()`")
        super().__init__(agent.name, self._run, timeout=agent.timeout)
        self._part = part
        self._agent = agent
        self._runs = runs

    async def call(self, thread: Thread[Any], given: Given) -> Any:
        """Begin a run of its own for a caller, and return its output.

        Raises CallFailed if it was cancelled, and RuntimeError with its error, which clients do not see, if it failed.
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
        """Return the queue's own run for each agent of an execution.

        The queue has the name of the class's agent, also after the thread was handed over. Raises InvalidArguments if
        another agent has the thread, or if it was stopped, and not the queue itself begins the run.
        """
        if self.name not in (names := thread._actor.kind.agent_names):
            return self.name, key
        (queue,) = _find_queues(thread, names)
        assert queue.caller is not None
        if self.name != queue.agent and (self.name, key) != (queue.caller.agent, QUEUE):
            what = f"the agent {self.name!r} cannot run in {thread._actor.key}"
            raise InvalidArguments(f"{what}: the agent {queue.agent!r} has the thread")
        if queue.is_stopped and key != QUEUE:
            what = "`messages.resume()`, or a message of a user, has it go on"
            raise InvalidArguments(f"the agent {self.name!r} was stopped in {thread._actor.key}: {what}")
        return queue.caller.agent, QUEUE

    def find_users(self, thread: Thread[Any], key: str | None) -> set[str]:
        queues = _find_queues(thread, thread._actor.kind.agent_names or (self.name,)) if key == QUEUE else []
        return {*super().find_users(thread, key)}.union(*(each.senders for each in queues))

    def follow_end(self, thread: Thread[Any], ended: EndedRun) -> None:
        queues = _find_queues(thread, (self.name,)) if ended.row.key == QUEUE else []
        for queue in queues:
            assert isinstance(queue.caller, TaskCaller)
            queue.caller.follow_end(ended.status)
            if ended.status == "cancelled" and thread._actor.kind.find_agents is not None:
                thread.agents.cancel_creation()
        if queues and (family := find_role(type(thread), "family")) is not None:
            is_over = ended.status == "done" and not any(queue.is_stopped for queue in queues)
            if ended.status == "cancelled":
                family.of(thread._actor).cancel_calls(ended.row.id)
            family.of(thread._actor).end_work(None if is_over else FAILED if ended.error else "it was stopped")

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
        await runs.finish(context, error)
        return output


def begin_run(tasks: ThreadTasks, agent: Agent, input: Any) -> TaskReceipt:
    """Begin a run of a durable agent; without an input, it is that of the queue, also one that has not ended."""
    return tasks.run(agent.name, input) if agent.takes_input else tasks.run(agent.name, key=QUEUE)


def make_stop_methods() -> dict[str, Method]:
    """Return the methods by which clients stop durable agents, and have them go on."""

    async def stop(thread: Thread[Any]) -> bool:
        """Cancel the runs of this thread's durable agents, and begin none until a user writes or they are to go on."""
        if (rights := find_rights()) is not None:
            require_role(type(thread), "tasks").of(thread._actor).check_end(thread._actor.kind.tasks, rights)
        return any([await each.stop() for each in _find_queues(thread, thread._actor.kind.tasks)])

    async def go_on(thread: Thread[Any]) -> bool:
        """Have the durable agents of this thread go on after a stop; return whether there was one."""
        return any([await each.resume() for each in _find_queues(thread, thread._actor.kind.tasks)])

    methods = [Method(name, name, each, concurrent=True) for name, each in ((STOP, stop), (CONTINUE, go_on))]
    for each in methods:
        each.action = "stop"
    return {each.name: each for each in methods}


def _find_queues(thread: Thread[Any], agents: Collection[str]) -> list[ThreadMessages]:
    """Return the messages of a thread that some durable agents take."""
    parts = find_parts(type(thread)).values()
    return [part.of(thread._actor) for part in parts if isinstance(part, Messages) and part.agent in agents]
