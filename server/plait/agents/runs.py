"""Runs agents: one at a time in a thread, in order of arrival, each committed when it ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import current_turn, find_rights
from plait.agents.active_runs import ActiveRuns
from plait.agents.address import session_name
from plait.agents.agent import INTERRUPT, Agent, AgentMethod, Given
from plait.agents.context import Context, find_context
from plait.agents.run import Interruption, Run
from plait.agents.run_ends import RunEnds
from plait.agents.session import Session
from plait.agents.session_names import find_session, remember_session
from plait.parts.attempts import Uncounted
from plait.parts.messages.message_writer import MessageWriter
from plait.spelling import find_nearest

__all__ = ["Runs"]


class Runs(ActiveRuns):
    """The agents of an app and their runs.

    `make_user` returns the `user` of a context, for an id.
    """

    def __init__(self, events: Events, *, make_user: Callable[[str], Any] = lambda _: None) -> None:
        super().__init__(events)
        self.agents: dict[str, Agent] = {}
        # The `kv` of all contexts.
        self.kv: Any = None
        self._make_user = make_user
        # Ends the runs that `enter` has begun.
        self.ends = RunEnds(events, leave=self.leave)

    # Agents

    def add(self, agent: Agent) -> AgentMethod:
        """Add an agent, and return the method by which clients call it. Raises ValueError for a second one."""
        if agent.name in self.agents:
            classes = " and ".join(each.kind.cls.__name__ for each in (self.agents[agent.name], agent))
            raise ValueError(f"there are two agents named {agent.name!r}: of {classes}")
        self.agents[agent.name] = agent
        return AgentMethod(agent, partial(self.stream if agent.is_stream else self.run, agent))

    def make_interrupt_method(self) -> Method:
        """Return the method by which clients interrupt the run of a thread."""

        def interrupt(thread: Thread[Any], message: Any = None) -> bool:
            """Interrupt the run of this thread, or the work after it; return whether there is one."""
            return self.interrupt(thread._actor.key, message, find_rights())

        method = Method(INTERRUPT, INTERRUPT, interrupt, concurrent=True)
        method.action = "stop"
        return method

    def get(self, agent: str | Callable[..., Any]) -> Agent:
        """Return an agent by its name or its function. Raises ValueError."""
        if isinstance(agent, str):
            if agent in self.agents:
                return self.agents[agent]
            near = find_nearest(agent, self.agents)
            hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(self.agents) or 'none'}"
            raise ValueError(f"there is no agent {agent!r}; {hint}")
        found = [each for each in self.agents.values() if each.function is agent]
        name = getattr(agent, "__qualname__", repr(agent))
        if not found:
            raise ValueError(f"{name} is not an agent of this app")
        if len(found) > 1:
            names = " and ".join(repr(each.name) for each in found)
            raise ValueError(f"{name} is the function of the agents {names}: give the name")
        return found[0]

    def find(self, agent: str | Callable[..., Any], kind: str) -> Agent:
        """Return an agent that runs in threads of a kind. Raises ValueError."""
        found = self.get(agent)
        if found.kind.name != kind:
            raise ValueError(f"the agent {found.name!r} runs in threads of the kind {found.kind.name}, not {kind}")
        return found

    # Runs, in a turn of the thread

    async def run(self, agent: Agent, thread: Thread[Any], given: Given, *, begun: Context[Any] | None = None) -> Any:
        """Run an agent when the queue admits it, and return its output, or an Interruption.

        `begun` is its context if `enter` has begun the run. Raises TooMany, Busy, Unavailable, what the agent raises,
        and the error that prevented the commit.
        """
        context = begun or await self.enter(agent, thread, given)
        run, output, error = context._run, None, None
        token, timer = context.enter(), None if agent.timeout is None else asyncio.timeout(agent.timeout)
        try:
            run.check()
            if given.prepare is None or not await given.prepare(context):
                async with timer or nullcontext():
                    output = await agent.call(context, given.input)
                output = agent.check_output(output)
        except BaseException as failure:
            error = run.explain(failure, timer is not None and timer.expired())
        finally:
            context.leave(token)
        await self.ends.finish(context, error)
        return Interruption(run.interrupt_message, output) if run.ends_interrupted else output

    async def stream(
        self, agent: Agent, thread: Thread[Any], given: Given, *, begun: Context[Any] | None = None
    ) -> AsyncGenerator[Any]:
        """Run a streaming agent when the queue admits it; the last chunk is an Interruption if it was interrupted.

        Raises what `run` raises. The writes of the run are committed however it ends, unless it is tried again.
        """
        context = begun or await self.enter(agent, thread, given)
        run, error, timer = context._run, None, asyncio.timeout(agent.timeout)
        try:
            async with timer, _closing(agent.call(context, given.input), context) as chunks:
                if given.prepare is not None:
                    token = context.enter()
                    try:
                        if await given.prepare(context):
                            raise StopAsyncIteration
                    finally:
                        context.leave(token)
                while True:
                    token, interrupted = context.enter(), run.take_interrupt()
                    try:
                        chunk = await (anext(chunks) if interrupted is None else chunks.athrow(interrupted))
                    finally:
                        context.leave(token)
                    yield agent.check_output(chunk)
                    await run.wait_for_store()
        except StopAsyncIteration:
            pass
        except BaseException as failure:
            error = run.explain(failure, timer.expired())
        await self.ends.finish(context, error)
        if run.ends_interrupted:
            yield Interruption(run.interrupt_message)

    # For parts

    def attempt(self, actor: Actor, name: str, queue: object) -> Awaitable[bool]:
        """Run an agent in the calling turn, as `Actor.run_agent` does; the chunks of a stream are dropped."""
        agent = self.find(name, actor.key.kind)
        return self._attempt(actor, agent, Given(input=agent.convert(msgspec.UNSET)), queue)

    async def _attempt(self, actor: Actor, agent: Agent, given: Given, queue: object) -> bool:
        run: Run | None = None
        try:
            session = await find_session(actor.host.store, actor.key)
            user = actor.state.history.user if session is None else session[0]
            begun = await self.enter(agent, actor.thread, given)
            run = begun._run
            run.is_repeated, run.session_user = True, user
            if isinstance(queue, MessageWriter):
                run.stage.attempt, run.end_attempt = queue.attempt, queue.succeed
                run.users = queue.attempt.users = queue.state.senders
                if queue.attempt.is_interrupted:
                    run.interrupt()
            if agent.is_stream:
                async for _ in self.stream(agent, actor.thread, given, begun=begun):
                    pass
            else:
                await self.run(agent, actor.thread, given, begun=begun)
        except (Exception, asyncio.CancelledError) as error:
            if run is None or run.is_interrupted:
                raise Uncounted from error
            raise
        return run.is_interrupted

    # For contexts

    async def call(self, context: Context[Any], agent: str | Callable[..., Any], input: Any) -> Any:
        """Run another agent in the run of a context, and return its output; a list if it streams."""
        found = self.find(agent, context._run.actor.key.kind)
        given = Given(input=found.convert(input))
        if found.is_stream:
            return [chunk async for chunk in self.stream(found, context.thread, given)]
        return await self.run(found, context.thread, given)

    async def stream_for(
        self, context: Context[Any], agent: str | Callable[..., Any], input: Any
    ) -> AsyncGenerator[Any]:
        """Iterate over the chunks of another agent in the run of a context."""
        found = self.find(agent, context._run.actor.key.kind)
        if not found.is_stream:
            raise TypeError(f"the agent {found.name!r} does not stream: use `run`")
        async with aclosing(self.stream(found, context.thread, Given(input=found.convert(input)))) as chunks:
            async for chunk in chunks:
                yield chunk

    # Inside

    async def enter(self, agent: Agent, thread: Thread[Any], given: Given) -> Context[Any]:
        """Begin a run when the queue admits it, and return its context. A run inside of another one does not wait."""
        actor = thread._actor
        assert isinstance(actor, Actor)
        if (holder := self.find_holder(actor)) is None:
            context = await self._enter_queue(agent, actor, given)
        else:
            context = self._enter_run(agent, actor, given, holder)
        run = context._run
        try:
            await self.events.emit("agent.started", context)
        except BaseException:
            if run.outermost is run:
                self.leave(run)
            raise
        run.has_begun = True
        return context

    async def _enter_queue(self, agent: Agent, actor: Actor, given: Given) -> Context[Any]:
        """Wait until a run is admitted, and return its context."""
        turn, calling = current_turn(), find_context()
        session = Session(given.session_id, actor.thread)
        run = Run(agent, actor, session, turn=turn, outer=None, caller=None if calling is None else calling._run)
        context = self._make_context(run, given)
        actor.check_active()
        await self.admit(run)
        try:
            actor.check_active()
            if turn is not None:
                turn.check_rights()
            run.stage.enter()
            await self.recall(run)
            if given.user_id is not None or given.session_id is not None:
                remember_session(actor, given.user_id, given.session_id)
            await self.events.emit("session.started", session)
        except BaseException:
            self.leave(run)
            raise
        return context

    def _enter_run(self, agent: Agent, actor: Actor, given: Given, holder: Run) -> Context[Any]:
        """Return the context of a run inside of `holder`, the admitted run of the thread."""
        _check_same_session(given, holder)
        turn, calling = current_turn(), find_context()
        if calling is not None and calling._run.outermost is holder:
            calling.check_inner(given.user_id, given.attributes)
            run = Run(agent, actor, calling.session, turn=turn, outer=calling._run, caller=calling._run)
            return calling.make_inner(run, self.find_user(given.user_id))
        caller = None if calling is None else calling._run
        run = Run(agent, actor, holder.session, turn=turn, outer=holder, caller=caller)
        context = self._make_context(run, given)
        run.stage.enter()  # The call may have come back through a turn of the mailbox, which has no stage.
        return context

    def _make_context(self, run: Run, given: Given) -> Context[Any]:
        connection, request = (None, None) if run.turn is None else (run.turn.connection, run.turn.request)
        user_id = given.user_id
        if user_id is None and connection is not None and connection.principal is not None:
            user_id = connection.principal.id
        user = self.find_user(user_id)
        return Context(
            run,
            self,
            thread=run.actor.thread,
            user=user,
            kv=self.kv,
            state={},
            request=request,
            connection=connection,
            attributes=given.attributes,
        )

    def find_user(self, id: str | None) -> Any:
        """Return the `user` of a context, for an id."""
        return None if id is None else self._make_user(id)


def _check_same_session(given: Given, holder: Run) -> None:
    """Raise ValueError if the given session is not the session of the run in which an agent is called."""
    id, own = given.session_id, holder.session.id
    # These ids may be the ones in the thread's name.
    if id is None or id == own or session_name(given.user_id, id) == holder.actor.key.name:
        return
    raise ValueError(f"a run inside of another run of its thread has the session {own!r}, not {id!r}")


@asynccontextmanager
async def _closing(chunks: AsyncGenerator[Any], context: Context[Any]) -> AsyncIterator[AsyncGenerator[Any]]:
    """Close a generator in its context, as its `finally` may use the context."""
    try:
        yield chunks
    finally:
        token = context.enter()
        try:
            await chunks.aclose()
        finally:
            context.leave(token)
