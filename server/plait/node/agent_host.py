"""The methods of an app for its agents."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from plait.actor.events import Event, Events, Listener
from plait.actor.handle import Handle
from plait.actor.kind import Kind
from plait.actor.per_actor import PerActor
from plait.actor.thread import Thread
from plait.agents.address import make_thread_id, session_name
from plait.agents.agent import INTERRUPT, Agent, Given, Multitask
from plait.agents.context import Context, check_interrupt, read_attributes
from plait.agents.durable import AgentTask, QueueTask, make_stop_methods
from plait.agents.execution.definitions import Agent as AgentDefinition
from plait.agents.execution.definitions import Model, Prompt, Subagent
from plait.agents.execution.hooks import has_hook, make_message_hooks
from plait.agents.execution.loop import make_loop
from plait.agents.execution.registry import Execution
from plait.agents.execution.thread_agents import SUPPLY, ThreadAgents, make_supply_method
from plait.agents.run import Interruption
from plait.agents.runs import Runs
from plait.cluster.owners import ALONE, Owners
from plait.instruments.protocol import Instruments
from plait.kv.kv import KV
from plait.kv.namespace import Namespace
from plait.kv.user import USER, User, UserThread
from plait.kv.user_names import user_prefix
from plait.limits import Limits
from plait.node.node import Node
from plait.parts.env.app_env import AppEnv
from plait.parts.env.secret import Variable
from plait.parts.messages.thread_messages import Messages
from plait.parts.part import find_parts
from plait.parts.tasks.task import find_tasks
from plait.store.protocol import Store
from plait.store.thread_rows import ThreadKey

__all__ = ["AgentHost"]

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Listener)
T = TypeVar("T", bound=Thread[Any])
Input = TypeVar("Input")
Output = TypeVar("Output")

Target = str | Handle[Any] | Thread[Any] | ThreadKey
"""A thread: its name, a handle to it, itself, or its key."""


class RunOptions(TypedDict, total=False):
    """The options of `run` and `stream`."""

    thread: Target | None
    user_id: str | None
    session_id: str | None
    attributes: Mapping[Any, Any] | Iterable[Any]


class AgentHost:
    """Adds agents to threads, runs and interrupts them, and calls listeners."""

    kv: KV
    """Durable namespaces, which `ctx.kv` has in runs."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        store: Store,
        limits: Limits,
        instruments: Instruments,
        *,
        owners: Owners = ALONE,
        env: AppEnv,
    ) -> None:
        self._events = Events()
        self._runs = Runs(self._events, make_user=self.user)
        inner = (Namespace._kind, UserThread._kind)
        self._owners = owners
        self._node = node = Node(
            kinds, store, limits, inner_kinds=inner, owners=owners, runs=self._runs, instruments=instruments, env=env
        )
        env.read_user = self._read_variables
        # The agents that call models, by the class of their threads.
        self._executions: dict[type[Thread[Any]], Execution] = {}
        self.kv = self._runs.kv = KV(store, node.actor, node.everywhere, limits=limits, check=check_interrupt)

    def agent(
        self,
        name: str,
        *,
        thread: type[Thread[Any]],
        input: Any = msgspec.UNSET,
        output: Any = msgspec.UNSET,
        multitask: Multitask = "enqueue",
        max_waiting: int = 1000,
        wait_timeout: float = 60.0,
        timeout: float | None = None,
        background_timeout: float | None = 300.0,
        durable: bool = False,
    ) -> Callable[[F], F]:
        """Add the agent `name`, a function that runs in threads of a class: `async def support(ctx, input)`.

        An async generator streams the values that it yields. Inputs and outputs are checked against the annotations, or
        against `input` and `output`. Runs of one thread run one at a time, in order of arrival; `multitask` decides
        about a run that arrives while another is running. At most `max_waiting` runs wait in a thread, each for
        `wait_timeout` seconds; a run that takes longer than `timeout` seconds ends with TurnTimeout. The listeners and
        background work after its answer are cancelled after `background_timeout` seconds; None means never.
        """

        def add(function: F) -> F:
            kind = self._node.kind(self._node.find_kind(thread).name)  # Not one of plait's own.
            agent = Agent(
                name,
                function,
                kind,
                input=input,
                output=output,
                multitask=multitask,
                max_waiting=max_waiting,
                wait_timeout=wait_timeout,
                timeout=timeout,
                background_timeout=background_timeout,
                durable=durable,
            )
            method = self._runs.add(agent)
            if durable:
                task = AgentTask(agent, self._runs)
                self._add_task(task, kind)
                for queue in task.queues:
                    kind.tasks.setdefault(queue, QueueTask(agent, self._runs, queue))
                kind.methods.update(make_stop_methods())
                method.function = task.call
            kind.methods[method.name] = method
            kind.methods.setdefault(INTERRUPT, self._runs.make_interrupt_method())
            return function

        return add

    def execution(
        self,
        thread: type[Thread[Any]],
        *,
        agents: Iterable[AgentDefinition],
        prompts: Iterable[Prompt],
        models: Iterable[Model] = (),
    ) -> None:
        """Make agents that call a model and tools answer the queued messages in threads of a class.

        Each is a durable agent of the app under its name. Raises TypeError, ValueError or NotFound if a part or a name
        is missing. Names in `Subagent`s are checked when the app starts, all others when it is made.
        """
        if thread in self._executions:
            raise ValueError(f"{thread.__name__} has an execution: give it all agents, prompts and models at once")
        execution = Execution(thread, agents=agents, prompts=prompts, models=models)
        execution.check_parts()
        kind = self._node.find_kind(thread)
        threads = PerActor(partial(ThreadAgents, execution))
        kind.agent_names, kind.find_agents = execution.agents, threads.of
        if any(isinstance(each, Subagent) and each.variables for each in execution.tools.values()):
            kind.methods[SUPPLY] = make_supply_method()
        kind.message_hooks = make_message_hooks(execution.hooks)
        if has_hook("after_thread_created", execution.hooks):
            self._events.add("thread.created", partial(_follow_creation, threads))
        for name in execution.agents:
            self.agent(name, thread=thread, durable=True)(make_loop(execution))
        self._executions[thread] = execution

    @overload
    async def run(
        self, agent: Callable[[Context[Any], Input], AsyncIterator[Output]], input: Input, **options: Unpack[RunOptions]
    ) -> list[Output | Interruption]: ...
    @overload
    async def run(
        self, agent: Callable[[Context[Any]], AsyncIterator[Output]], **options: Unpack[RunOptions]
    ) -> list[Output | Interruption]: ...
    @overload
    async def run(
        self, agent: Callable[[Context[Any], Input], Awaitable[Output]], input: Input, **options: Unpack[RunOptions]
    ) -> Output | Interruption: ...
    @overload
    async def run(
        self, agent: Callable[[Context[Any]], Awaitable[Output]], **options: Unpack[RunOptions]
    ) -> Output | Interruption: ...
    @overload
    async def run(self, agent: str, input: Any = ..., **options: Unpack[RunOptions]) -> Any: ...
    async def run(
        self,
        agent: Any,
        input: Any = msgspec.UNSET,
        *,
        thread: Target | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        attributes: Mapping[Any, Any] | Iterable[Any] = (),
    ) -> Any:
        """Run an agent in a thread, and return its output once it is durable: a list, if the agent streams.

        The agent is given by its function, `run(support, Question("Hello?"))`, or its name. Without `thread`, the run
        is in the thread of the user's session, or, without a session, in a new thread. `attributes` are a mapping from
        names and types, or values that are found by their types. Returns an Interruption if the run was interrupted.
        Raises the exception of the agent, InvalidArguments, TooMany if too many runs wait, Busy, Unavailable and
        StoreError. If the caller is cancelled, a waiting run leaves the queue and a streaming run is interrupted; any
        other run continues.
        """
        found = self._runs.get(agent)
        if found.is_stream:
            parts = self.stream(
                agent, input, thread=thread, user_id=user_id, session_id=session_id, attributes=attributes
            )
            return [chunk async for chunk in parts]
        given = _give(found, input, user_id, session_id, attributes)
        key = self._find_thread(found, thread, user_id, session_id)
        calls = self._node.everywhere.find(found.kind, key)
        return await calls.call(found.kind.method(f"run:{found.name}"), [given], {})

    @overload
    def stream(
        self, agent: Callable[[Context[Any], Input], AsyncIterator[Output]], input: Input, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Output | Interruption]: ...
    @overload
    def stream(
        self, agent: Callable[[Context[Any]], AsyncIterator[Output]], **options: Unpack[RunOptions]
    ) -> AsyncGenerator[Output | Interruption]: ...
    @overload
    def stream(self, agent: str, input: Any = ..., **options: Unpack[RunOptions]) -> AsyncGenerator[Any]: ...
    async def stream(
        self,
        agent: Any,
        input: Any = msgspec.UNSET,
        *,
        thread: Target | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        attributes: Mapping[Any, Any] | Iterable[Any] = (),
    ) -> AsyncGenerator[Any]:
        """Iterate over the values that an agent yields, otherwise as `run`; leaving the loop interrupts the agent."""
        found = self._runs.get(agent)
        if not found.is_stream:
            raise TypeError(f"the agent {found.name!r} does not stream: use `run`")
        given = _give(found, input, user_id, session_id, attributes)
        key = self._find_thread(found, thread, user_id, session_id)
        calls = self._node.everywhere.find(found.kind, key)
        chunks = calls.stream(found.kind.method(f"run:{found.name}"), [given], {})
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def interrupt(self, thread: Handle[Any] | Thread[Any] | ThreadKey, message: Any = None) -> bool:
        """Interrupt the run of a thread at its next checkpoint; return whether there is one.

        The agent finds the message in `ctx.interrupt_message`. The writes of the run are committed.
        """
        return await self._node.everywhere.interrupt(_key_of(thread), message)

    def session(self, thread: type[T], session_id: str, *, user_id: str | None = None) -> Handle[T]:
        """Return a handle to the thread of a user's session. Raises NotFound for an empty id."""
        return self._node.handle(thread, session_name(user_id, session_id))

    def user(self, user_id: str) -> User:
        """Return the values of a user, which `ctx.user` has in runs. Raises NotFound for an empty id."""
        return User(user_id, self._node.everywhere.call_part, check_interrupt, env=self._node.env)

    @overload
    def on(self, event: Event, listener: L) -> L: ...
    @overload
    def on(self, event: Event) -> Callable[[L], L]: ...
    def on(self, event: Event, listener: L | None = None) -> L | Callable[[L], L]:
        """Call a function when something happens: `app.on("thread.created", tell)`, or as a decorator.

        Listeners are called in order and awaited; their exceptions are logged. See `Event` for their arguments.
        """

        def add(listener: L) -> L:
            self._events.add(event, listener)
            return listener

        return add if listener is None else add(listener)

    # Inside

    async def _read_variables(self, user: str) -> Mapping[str, Variable]:
        """Return the variables of a user, encrypted."""
        found: Mapping[str, Variable] = await self._node.everywhere.call_part(
            ThreadKey(USER, user_prefix(user)), "env", "own"
        )
        return found

    def _check_executions(self) -> None:
        """Raise NotFound if an agent is missing that another one calls, and TypeError for an unusable tool."""
        for execution in self._executions.values():
            execution.check_subagents(self._executions)
            execution.check_tools()

    def _add_task(self, task: AgentTask, kind: Kind) -> None:
        is_queue = isinstance(find_parts(kind.cls).get(task.name), Messages)
        if task.name in find_tasks(kind.cls) or is_queue:
            what = "messages" if is_queue else "a task"
            raise ValueError(f"{kind.cls.__name__} has {what} named {task.name!r}: give the agent another name")
        kind.tasks[task.name] = task

    def _find_thread(
        self, agent: Agent, thread: Target | None, user_id: str | None, session_id: str | None
    ) -> ThreadKey:
        kind = agent.kind.name
        if thread is None:
            if session_id is not None:
                return ThreadKey(kind, session_name(user_id, session_id))
            owners = self._owners
            return ThreadKey(kind, make_thread_id(lambda id: owners.owns(ThreadKey(kind, id))))
        if isinstance(thread, str):
            return self._node.handle(agent.kind.cls, thread)._key
        key = _key_of(thread)
        if key.kind != kind:
            raise ValueError(f"the agent {agent.name!r} runs in threads of the kind {kind}, not {key.kind}")
        return key


async def _follow_creation(agents: PerActor[ThreadAgents], thread: Thread[Any]) -> None:
    if thread._actor.kind.find_agents == agents.of:
        await agents.of(thread._actor).follow_creation()


def _key_of(thread: Handle[Any] | Thread[Any] | ThreadKey) -> ThreadKey:
    match thread:
        case ThreadKey():
            return thread
        case Handle():
            return thread._key
        case Thread():
            return thread._actor.key
        case _:
            raise TypeError(f"a thread is given as a handle, a Thread or a ThreadKey, not {thread!r}")


def _give(
    agent: Agent,
    input: Any,
    user_id: str | None,
    session_id: str | None,
    attributes: Mapping[Any, Any] | Iterable[Any],
) -> Given:
    if session_id == "":
        raise ValueError("a session id must not be empty")
    given = agent.convert(input)
    return Given(input=given, session_id=session_id, user_id=user_id, attributes=read_attributes(attributes))
