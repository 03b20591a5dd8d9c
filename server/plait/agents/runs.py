"""Runs agents: one at a time in a thread, in order of arrival, each committed when it ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec

from plait.actor.actor import Actor, find_actor
from plait.actor.events import Events
from plait.actor.per_actor import PerActor
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.actor.turn import Turn, current_turn
from plait.agents.address import session_name
from plait.agents.agent import INTERRUPT, Agent, AgentMethod, Given
from plait.agents.context import Context, find_context
from plait.agents.cut_off import Mark, Marks
from plait.agents.run import Interruption, Run
from plait.agents.run_ends import RunEnds
from plait.agents.run_queue import RunQueue
from plait.agents.session import Session
from plait.agents.session_names import find_session, remember_session
from plait.errors import Busy, PlaitError, Unavailable, is_outage
from plait.spelling import find_nearest
from plait.store.protocol import ThreadKey

__all__ = ["Runs"]

# The names of a thread's queue and mark among its parts; no attribute can have them.
_QUEUE: Final = PerActor[Actor, RunQueue[Run]](lambda _: RunQueue())


def _ignore(_: object) -> None:
    pass


class Runs:
    """The agents of an app and their runs.

    `make_user` returns the `user` of a context, for an id.
    """

    def __init__(self, events: Events, *, make_user: Callable[[str], Any] = lambda _: None) -> None:
        self.agents: dict[str, Agent] = {}
        self.events = events
        # The `kv` of all contexts.
        self.kv: Any = None
        self._make_user = make_user
        # The queues with an admitted or waiting run.
        self._queues: dict[Actor, RunQueue[Run]] = {}
        self._is_draining = self._is_cutting_off = False
        self._marks = Marks()
        self._mark = PerActor[Actor, Mark](lambda actor: Mark(actor, self._marks))
        self._ends = RunEnds(events, leave=self._leave)

    # Agents

    def add(self, agent: Agent) -> AgentMethod:
        """Add an agent, and return the method by which clients call it. Raises ValueError for a second one."""
        if agent.name in self.agents:
            raise ValueError(f"there are two agents named {agent.name!r}")
        self.agents[agent.name] = agent
        return AgentMethod(agent, partial(self.stream if agent.is_stream else self.run, agent))

    def make_interrupt_method(self) -> Method:
        """Return the method by which clients interrupt the run of a thread."""

        def interrupt(thread: Thread[Any], message: Any = None) -> bool:
            """Interrupt the run of this thread, or the work after it; return whether there is one."""
            return self.interrupt(thread._actor.key, message)

        return Method(INTERRUPT, INTERRUPT, interrupt, concurrent=True)

    def find(self, name: str, kind: str) -> Agent:
        """Return an agent that runs in threads of a kind. Raises ValueError."""
        agent = self.agents.get(name)
        if agent is None:
            near = find_nearest(name, self.agents)
            hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(self.agents) or 'none'}"
            raise ValueError(f"there is no agent {name!r}; {hint}")
        if agent.kind.name != kind:
            raise ValueError(f"the agent {name!r} runs in threads of the kind {agent.kind.name}, not {kind}")
        return agent

    # Runs, in a turn of the thread

    async def run(
        self, agent: Agent, thread: Thread[Any], given: Given, *, on_begin: Callable[[Run], object] = _ignore
    ) -> Any:
        """Run an agent when the queue admits it, and return its output, or an Interruption.

        `on_begin` is called when the run begins. Raises TooMany, Busy, Unavailable, what the agent raises, and the
        error that prevented the commit.
        """
        context = await self._enter(agent, thread, given)
        on_begin(run := context._run)
        output, error = None, None
        token, timer = context.enter(), None if agent.timeout is None else asyncio.timeout(agent.timeout)
        try:
            run.check()
            if given.prepare is not None:
                await given.prepare(context)
            if timer is None:
                output = await agent.call(context, given.input)
            else:
                async with timer:
                    output = await agent.call(context, given.input)
            output = agent.check_output(output)
        except BaseException as failure:
            error = run.explain(failure, timer is not None and timer.expired())
        finally:
            context.leave(token)
        await self._ends.finish(context, error)
        return Interruption(run.interrupt_message, output) if run.ends_interrupted else output

    async def stream(
        self, agent: Agent, thread: Thread[Any], given: Given, *, on_begin: Callable[[Run], object] = _ignore
    ) -> AsyncGenerator[Any]:
        """Run a streaming agent when the queue admits it; the last chunk is an Interruption if it was interrupted.

        Raises what `run` raises. Its writes are committed, however it ends.
        """
        context = await self._enter(agent, thread, given)
        on_begin(run := context._run)
        error, timer = None, asyncio.timeout(agent.timeout)
        try:
            async with timer, _closing(agent.call(context, given.input), context) as chunks:
                if given.prepare is not None:
                    token = context.enter()
                    try:
                        await given.prepare(context)
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
        await self._ends.finish(context, error)
        if run.ends_interrupted:
            yield Interruption(run.interrupt_message)

    # For parts

    def begin(self, actor: Actor, name: str, done: Callable[[BaseException | None, bool], None]) -> None:
        """Begin a run in a turn of its own, as `Actor.begin_run` does; the chunks of a stream are dropped."""
        agent = self.find(name, actor.key.kind)
        given = Given(input=agent.convert(msgspec.UNSET))
        begun: list[Run] = []

        async def work() -> None:
            session = await find_session(actor.host.store, actor.key)
            user = actor.state.history.user if session is None else session[0]

            def note(run: Run) -> None:
                begun.append(run)
                run.is_repeated = run.stage.is_attempt = True
                run.session_user = user

            if agent.is_stream:
                async for _ in self.stream(agent, actor.thread, given, on_begin=note):
                    pass
            else:
                await self.run(agent, actor.thread, given, on_begin=note)

        def finish(_: object, error: BaseException | None) -> None:
            is_cut = not begun or begun[0].is_interrupted or (error is not None and is_outage(error))
            done(error, is_cut)

        actor.begin(f"rpc run:{name}", work, finish)

    def terminate(self, actor: Actor) -> None:
        """Interrupt the run of a terminated thread, unless the calling code is a part of it.

        Waiting runs raise Terminated when they are admitted.
        """
        calling = find_context()
        queue = self._queues.get(actor)
        if queue is None or (run := queue.current) is None:
            return
        if self._find_holder(queue, current_turn(), None if calling is None else calling._run) is run:
            return
        if not run.is_over:
            run.interrupt()
        elif run.cut_rest is not None:
            run.cut_rest()

    # For contexts

    async def call(self, context: Context[Any], agent: str, input: Any) -> Any:
        """Run another agent in the run of a context, and return its output; a list if it streams."""
        found = self.find(agent, context._run.actor.key.kind)
        given = Given(input=found.convert(input))
        if found.is_stream:
            return [chunk async for chunk in self.stream(found, context.thread, given)]
        return await self.run(found, context.thread, given)

    async def stream_for(self, context: Context[Any], agent: str, input: Any) -> AsyncGenerator[Any]:
        """Iterate over the chunks of another agent in the run of a context."""
        found = self.find(agent, context._run.actor.key.kind)
        if not found.is_stream:
            raise TypeError(f"the agent {agent!r} does not stream: use `run`")
        async with aclosing(self.stream(found, context.thread, Given(input=found.convert(input)))) as chunks:
            async for chunk in chunks:
                yield chunk

    # From outside

    def interrupt(self, key: ThreadKey, message: Any = None) -> bool:
        """Interrupt the run of a thread at its next checkpoint, or cancel the work after it; return if there is one."""
        for run in self._active:
            if run.actor.key == key:
                if not run.is_over:
                    run.interrupt(message)
                elif run.cut_rest is not None:
                    run.cut_rest()
                else:
                    return False  # The run has answered, and the work after it is not running.
                return True
        return False

    @property
    def is_running(self) -> bool:
        """Whether a run has not ended."""
        return bool(self._active)

    @property
    def is_calling(self) -> bool:
        """Whether the calling code is a part of a turn of this app, or of a run or the work after it."""
        context = find_context()
        return self._is_within(current_turn(), None if context is None else context._run)

    @property
    def threads(self) -> list[ThreadKey]:
        """The threads with a run, or one that waits."""
        return [actor.key for actor in self._queues]

    def cut_off_thread(self, key: ThreadKey) -> None:
        """Interrupt the run of a thread, and mark the thread, as it moves to another node."""
        for run in self._active:
            if run.actor.key == key and not run.is_over:
                run.cut_off()

    def refuse(self) -> None:
        """Refuse further runs, except those that a turn or a run calls, as the server is shutting down.

        Waiting runs raise Unavailable.
        """
        self._is_draining = True
        for queue in self._queues.values():
            queue.refuse(_shutting_down())

    def start(self) -> None:
        """Accept runs."""
        self._is_draining = self._is_cutting_off = False
        self._marks = Marks()  # The timer belongs to one loop.

    def cut_off(self) -> None:
        """Interrupt all runs, even waiting ones, and mark their threads, as the server is shutting down."""
        self._is_cutting_off = True
        for run in self._active:
            if not run.is_over:
                run.cut_off()

    # Inside

    @property
    def _active(self) -> list[Run]:
        """The admitted outermost runs, until the work after their answers has ended."""
        return [queue.current for queue in self._queues.values() if queue.current is not None]

    async def _enter(self, agent: Agent, thread: Thread[Any], given: Given) -> Context[Any]:
        """Wait until the run is admitted, and return its context. A run inside of another one does not wait."""
        actor = thread._actor
        assert isinstance(actor, Actor)
        turn, calling = current_turn(), find_context()
        queue = _QUEUE.of(actor)
        caller = None if calling is None else calling._run
        holder = self._find_holder(queue, turn, caller)
        if holder is not None:
            _check_same_session(given, holder)
        if holder is not None and calling is not None and calling._run.outermost is holder:
            calling.check_inner(given.user_id, given.attributes)
            run = Run(agent, actor, calling.session, turn=turn, outer=calling._run, caller=caller)
            return await self._start(run, calling.make_inner(run, self.find_user(given.user_id)))
        session = Session(given.session_id, thread) if holder is None else holder.session
        run = Run(agent, actor, session, turn=turn, outer=holder, caller=caller)
        context = self._make_context(run, thread, given)
        if holder is not None:
            run.stage.enter()  # A turn of the mailbox through which the call came back has no stage.
        else:
            actor.check_active()
            await self._wait(queue, run)
            try:
                actor.check_active()
                run.stage.enter()
                await self._recall(run)
                remember_session(actor, given.user_id, given.session_id)
                await self.events.emit("session.started", session)
            except BaseException:
                self._leave(run)
                raise
        return await self._start(run, context)

    async def _start(self, run: Run, context: Context[Any]) -> Context[Any]:
        try:
            await self.events.emit("agent.started", context)
        except BaseException:
            if run.outermost is run:
                self._leave(run)
            raise
        run.has_begun = True
        return context

    def _make_context(self, run: Run, thread: Thread[Any], given: Given) -> Context[Any]:
        connection, request = (None, None) if run.turn is None else (run.turn.connection, run.turn.request)
        user_id = given.user_id
        if user_id is None and connection is not None and connection.principal is not None:
            user_id = connection.principal.id
        user = self.find_user(user_id)
        return Context(
            run,
            self,
            thread=thread,
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

    def _find_holder(self, queue: RunQueue[Run], turn: Turn | None, caller: Run | None) -> Run | None:
        """Return the admitted run if the calling code is a part of it, directly or through other threads."""
        holder = queue.current
        if holder is None:
            return None
        while caller is not None:
            if caller.outermost is holder:
                return holder
            caller = caller.outermost.caller
        return holder if turn is not None and any(each is holder.turn for each in turn.chain()) else None

    async def _wait(self, queue: RunQueue[Run], run: Run) -> None:
        agent, actor, turn = run.agent, run.actor, run.turn
        if self._is_draining and (
            self._is_cutting_off or not self._is_within(None if turn is None else turn.parent, run.caller)
        ):
            raise _shutting_down()
        if queue.current is not None and not queue.current.is_over:
            if agent.multitask == "reject":
                raise Busy(f"another run is running in {actor.key}")
            if agent.multitask == "interrupt":
                queue.current.interrupt()
        self._queues[actor] = queue
        try:
            if not queue.is_empty:
                if turn is not None:
                    turn.on_abandon = partial(_leave_queue, turn, agent)
                    turn.is_waiting = True
                await queue.enter(
                    run,
                    max_waiting=agent.max_waiting,
                    timeout=agent.wait_timeout,
                    party=None if turn is None else turn.party_of_runs,
                    most_of_party=actor.limits.waiting_runs,
                )
            else:
                queue.current = run
        finally:
            if turn is not None:
                turn.is_waiting = False
            if queue.is_empty:
                self._queues.pop(actor, None)
        if turn is not None:
            turn.on_abandon = partial(_lose_caller, run)
        if self._is_cutting_off:
            run.cut_off()

    def _is_within(self, turn: Turn | None, caller: Run | None) -> bool:
        """Whether a running turn belongs to this app or is called by such a turn, or a calling run has not ended."""
        events = self.events
        if turn is not None and turn.is_running:
            actors = [find_actor(each) for each in turn.chain()]
            # A turn without an actor runs at another node of this app.
            if any(actor is None or actor.events is events for actor in actors):
                return True
        return caller is not None and caller.outermost in self._active

    async def _recall(self, run: Run) -> None:
        """Find out whether an earlier run was cut off, and mark the thread if this run takes long."""
        mark = run.mark = self._mark.of(run.actor)
        run.follows_cut_off = await mark.begin()

    def _leave(self, run: Run) -> None:
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


def _check_same_session(given: Given, holder: Run) -> None:
    """Raise ValueError if another session is given than that of the run in which an agent is called."""
    id, own = given.session_id, holder.session.id
    # The ids may be those that name the thread.
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
