"""Runs agents: one at a time in a thread, in order of arrival, each committed when it ends."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.events import Events
from plait.actor.mailbox import Turn, current_turn, find_client_turn
from plait.actor.rpc import Method
from plait.actor.thread import Thread
from plait.agents.agent import INTERRUPT, Agent, AgentMethod, Given
from plait.agents.context import Context, find_context
from plait.agents.cut_off import is_marked, mark
from plait.agents.run import Interrupted, Interruption, Run
from plait.agents.run_queue import RunQueue
from plait.agents.session import Session
from plait.agents.session_names import remember_session
from plait.errors import Busy, Destroyed, PlaitError, TurnTimeout, Unavailable, escape_traceback
from plait.store.protocol import ThreadKey

__all__ = ["Runs"]

log = logging.getLogger("plait.agents")
log.addFilter(escape_traceback)

# The name of a thread's queue among its parts; no attribute can have it.
_QUEUE: Final = "run queue"


class Runs:
    """The agents of an app and their runs.

    `make_user` returns what a context has as `user`, for an id.
    """

    def __init__(self, events: Events, *, make_user: Callable[[str], Any] = lambda _: None) -> None:
        self.agents: dict[str, Agent] = {}
        self.events = events
        # What contexts have as `kv`.
        self.kv: Any = None
        self._make_user = make_user
        # The queues in which a run is, or waits.
        self._queues: dict[Actor, RunQueue[Run]] = {}
        self._is_draining = self._is_cutting_off = False

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
            """Interrupt the run of this thread at its next checkpoint; answer whether one runs."""
            return self.interrupt(thread._core.key, message)

        return Method(INTERRUPT, INTERRUPT, interrupt, concurrent=True)

    def find(self, name: str, kind: str) -> Agent:
        """Return an agent that runs in threads of a kind. Raises ValueError."""
        agent = self.agents.get(name)
        if agent is None:
            raise ValueError(f"there is no agent {name!r}; there are: {', '.join(self.agents) or 'none'}")
        if agent.kind.name != kind:
            raise ValueError(f"the agent {name!r} runs in threads of the kind {agent.kind.name}, not {kind}")
        return agent

    # Runs, in a turn of the thread

    async def run(self, agent: Agent, thread: Thread[Any], given: Given) -> Any:
        """Run an agent, when it is its turn, and return its output, or an Interruption.

        Raises TooMany, Busy, Unavailable, what the agent raises, and what prevented the commit.
        """
        context = await self._enter(agent, thread, given)
        run, output, error = context._run, None, None
        token, timer = context.enter(), None if agent.timeout is None else asyncio.timeout(agent.timeout)
        try:
            run.check()
            if timer is None:
                output = await agent.call(context, given.input)
            else:
                async with timer:
                    output = await agent.call(context, given.input)
            output = agent.check_output(output)
        except BaseException as failure:
            error = self._explain(run, failure, timer is not None and timer.expired())
        finally:
            context.leave(token)
        await self._finish(context, error)
        return Interruption(run.interrupt_message, output) if self._ends_interrupted(run) else output

    async def stream(self, agent: Agent, thread: Thread[Any], given: Given) -> AsyncGenerator[Any]:
        """Run an agent that streams, when it is its turn; the last chunk is an Interruption if it was interrupted.

        Raises what `run` raises. However it ends, what was written is committed.
        """
        context = await self._enter(agent, thread, given)
        run, error, timer = context._run, None, asyncio.timeout(agent.timeout)
        try:
            async with timer, _closing(agent.call(context, given.input), context) as chunks:
                while True:
                    token, interrupted = context.enter(), run.take_interrupt()
                    try:
                        chunk = await (anext(chunks) if interrupted is None else chunks.athrow(interrupted))
                    finally:
                        context.leave(token)
                    yield agent.check_output(chunk)
        except StopAsyncIteration:
            pass
        except BaseException as failure:
            error = self._explain(run, failure, timer.expired())
        await self._finish(context, error)
        if self._ends_interrupted(run):
            yield Interruption(run.interrupt_message)

    # For contexts

    async def call(self, context: Context[Any], agent: str, input: Any) -> Any:
        """Run another agent in the run of a context, and return its output; of one that streams, a list."""
        found = self.find(agent, context._run.core.key.kind)
        given = Given(input=found.convert(input))
        if found.is_stream:
            return [chunk async for chunk in self.stream(found, context.thread, given)]
        return await self.run(found, context.thread, given)

    async def stream_for(self, context: Context[Any], agent: str, input: Any) -> AsyncGenerator[Any]:
        """Iterate over what another agent yields in the run of a context."""
        found = self.find(agent, context._run.core.key.kind)
        if not found.is_stream:
            raise TypeError(f"the agent {agent!r} does not stream: use `run`")
        async with aclosing(self.stream(found, context.thread, Given(input=found.convert(input)))) as chunks:
            async for chunk in chunks:
                yield chunk

    # From outside

    def interrupt(self, key: ThreadKey, message: Any = None) -> bool:
        """Interrupt the run of a thread at its next checkpoint; return whether one runs."""
        for run in self._active:
            if run.core.key == key and not run.is_over:
                run.interrupt(message)
                return True
        return False

    @property
    def is_running(self) -> bool:
        """Whether any run has not ended."""
        return bool(self._active)

    @property
    def is_calling(self) -> bool:
        """Whether the calling code is a part of a turn of this app, or of a run or what follows that."""
        context = find_context()
        return self._is_within(current_turn(), None if context is None else context._run)

    def refuse(self) -> None:
        """Let no other run begin, as the server shuts down, but those that a turn or a run calls.

        Those that wait raise Unavailable.
        """
        self._is_draining = True
        for queue in self._queues.values():
            queue.refuse(_shutting_down())

    def start(self) -> None:
        """Let runs begin."""
        self._is_draining = self._is_cutting_off = False

    def cut_off(self) -> None:
        """Interrupt all runs, as the server shuts down, also those that wait; their threads are marked."""
        self._is_cutting_off = True
        for run in self._active:
            if not run.is_over:
                run.cut_off()

    # Inside

    @property
    def _active(self) -> list[Run]:
        """The outermost runs that were let in, until what follows their answers has ended."""
        return [queue.current for queue in self._queues.values() if queue.current is not None]

    async def _enter(self, agent: Agent, thread: Thread[Any], given: Given) -> Context[Any]:
        """Wait until it is the run's turn, and return its context. An agent called by another one need not wait."""
        core = thread._core
        assert isinstance(core, Actor)
        turn, calling = current_turn(), find_context()
        queue = self._queue(core)
        caller = None if calling is None else calling._run
        holder = self._find_holder(queue, turn, caller)
        if holder is not None:
            _check_same_session(given, holder)
        if holder is not None and calling is not None and calling._run.outermost is holder:
            _check_same_request(given, calling)
            run = Run(agent, core, calling.session, turn=turn, outer=calling._run, caller=caller)
            return await self._start(run, self._make_context(run, thread, given, calling))
        session = Session(given.session_id, thread) if holder is None else holder.session
        run = Run(agent, core, session, turn=turn, outer=holder, caller=caller)
        context = self._make_context(run, thread, given, None)
        if holder is not None:
            run.stage.enter()  # A turn of the mailbox, through which it came back, has none.
        else:
            await self._wait(queue, run)
            try:
                run.stage.enter()
                await self._recall(run)
                remember_session(core, given.user_id, given.session_id)
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

    def _make_context(self, run: Run, thread: Thread[Any], given: Given, calling: Context[Any] | None) -> Context[Any]:
        turn = run.turn
        if calling is not None:
            context = Context(
                run,
                self,
                thread=thread,
                user=calling.user,
                kv=self.kv,
                state=calling.state,
                request=calling.request,
                connection=calling.connection,
            )
            context.attributes, context._typed = calling.attributes, calling._typed
            return context
        connection, request = (None, None) if turn is None else (turn.connection, turn.request)
        user_id = given.user_id
        if user_id is None and connection is not None and connection.principal is not None:
            user_id = connection.principal.id
        user = None if user_id is None else self._make_user(user_id)
        context = Context(
            run, self, thread=thread, user=user, kv=self.kv, state={}, request=request, connection=connection
        )
        context.put_all(given.attributes)
        return context

    def _queue(self, core: Actor) -> RunQueue[Run]:
        queue: RunQueue[Run] | None = core.parts.get(_QUEUE)
        if queue is None:
            queue = core.parts[_QUEUE] = RunQueue()
        return queue

    def _find_holder(self, queue: RunQueue[Run], turn: Turn | None, caller: Run | None) -> Run | None:
        """Return the run that was let in if the calling code is a part of it, directly or through other threads."""
        holder = queue.current
        if holder is None:
            return None
        while caller is not None:
            if caller.outermost is holder:
                return holder
            caller = caller.outermost.caller
        return holder if turn is not None and any(each is holder.turn for each in turn.chain()) else None

    async def _wait(self, queue: RunQueue[Run], run: Run) -> None:
        agent, core, turn = run.agent, run.core, run.turn
        if self._is_draining and (
            self._is_cutting_off or not self._is_within(None if turn is None else turn.parent, run.caller)
        ):
            raise _shutting_down()
        if queue.current is not None and not queue.current.is_over:
            if agent.multitask == "reject":
                raise Busy(f"another run is running in {core.key}")
            if agent.multitask == "interrupt":
                queue.current.interrupt()
        self._queues[core] = queue
        try:
            if not queue.is_empty:
                if turn is not None:
                    turn.on_abandon = partial(_leave_queue, turn, agent)
                await queue.enter(run, max_waiting=agent.max_waiting, timeout=agent.wait_timeout)
            else:
                queue.current = run
        finally:
            if queue.is_empty:
                self._queues.pop(core, None)
        if turn is not None:
            turn.on_abandon = partial(_lose_caller, run)
        if self._is_cutting_off:
            run.cut_off()

    def _is_within(self, turn: Turn | None, caller: Run | None) -> bool:
        """Whether a turn that runs is one of this app's, or called by one, or a run that calls has not ended."""
        if turn is not None and turn.is_running and any(each.owner.events is self.events for each in turn.chain()):
            return True
        return caller is not None and caller.outermost in self._active

    async def _recall(self, run: Run) -> None:
        """Find out whether the run before this one was cut off."""
        queue = self._queue(run.core)
        if queue.is_fresh:
            run.follows_cut_off = await is_marked(run.core)
            queue.is_fresh = False

    def _explain(self, run: Run, failure: BaseException, has_expired: bool) -> BaseException | None:
        """Return what a run fails with, None if it was interrupted; an inner one passes that on."""
        if isinstance(failure, BaseExceptionGroup):
            failure = _take_out_interrupts(failure)
        if isinstance(failure, Interrupted) or (
            isinstance(failure, asyncio.CancelledError) and run.outermost.is_cut_off
        ):
            return None if run.outermost is run else failure
        if has_expired and isinstance(failure, TimeoutError | asyncio.CancelledError | GeneratorExit):
            return TurnTimeout(f"the agent {run.agent.name} took longer than {run.agent.timeout:g} s")
        if not isinstance(failure, Exception | asyncio.CancelledError | GeneratorExit):
            # It would end the loop, and leave the caller waiting.
            error = RuntimeError(f"the agent {run.agent.name} raised {type(failure).__name__}")
            error.__cause__ = failure
            return error
        return failure

    def _ends_interrupted(self, run: Run) -> bool:
        return run.outermost is run and run.is_interrupted

    async def _finish(self, context: Context[Any], error: BaseException | None) -> None:
        """Commit what a run has written, or drop it, and begin what follows the answer. Raises what the run raises."""
        run = context._run
        run.is_over = True
        if run.outermost is not run:
            await self._tell(context, error)
            if error is not None:
                raise error
            return
        try:
            if not run.agent.is_stream and error is not None and not _is_of_caller(error):
                run.stage.drop()
            if run.is_cut_off:
                mark(run.stage, run.id)
            failure = await self._commit(run)
            if failure is not None:
                log.error("what %s wrote in %s could not be stored: %s", run.agent.name, run.core.key, failure)
            if error is None:
                error = failure
        finally:
            self._follow(context, error)
        if error is not None:
            raise error

    async def _commit(self, run: Run) -> BaseException | None:
        """Commit what a run has written, and begin a new thread even if it wrote nothing; return why it failed."""
        core = run.core
        try:
            await run.stage.commit()
            if not core.pipeline.history.is_begun and not core.is_ending:
                await core.store()
        except Destroyed:
            run.stage.drop()  # By this run, or the run has been cancelled for that.
        except Exception as error:
            run.stage.drop()
            return error
        return None

    def _follow(self, context: Context[Any], error: BaseException | None) -> None:
        """Begin what follows the answer, when that has been given."""
        run, origin = context._run, find_client_turn()

        def begin(*_: object) -> None:
            run.begin_background()
            if not self._has_more(run, error):
                self._leave(run)
                return
            turn = Turn(
                f"after {run.agent.name}",
                partial(self._do_after, context, error),
                owner=run.core,
                origin=origin,
                trace=None if run.turn is None else run.turn.trace,
            )
            turn.on_end(lambda *_: self._leave(run))
            run.core.turns.begin_beside(turn)

        if run.turn is None:
            begin()
        else:
            run.turn.on_end(begin)

    def _has_more(self, run: Run, error: BaseException | None) -> bool:
        """Whether anything follows the answer: listeners, background work, or what was written since the commit."""
        events = self.events
        return (
            bool(run.background)
            or events.has("session.completed")
            or events.has("agent.completed" if error is None else "agent.errored")
            or run.session.has_listeners
            or run.stage.may_be_dirty
        )

    async def _do_after(self, context: Context[Any], error: BaseException | None) -> None:
        run = context._run
        run.stage.enter()
        token = context.enter()
        try:
            await self._tell(context, error)
            await run.session.complete()
            await self.events.emit("session.completed", run.session)
            await self._wait_for_background(run)
        finally:
            context.leave(token)
            if run.background:  # The server shuts down, or the thread was destroyed.
                for task in run.background:
                    task.cancel()
                await asyncio.wait(run.background)
                await self._commit_after(run, is_last=True)

    async def _wait_for_background(self, run: Run) -> None:
        """Store what each piece of background work has written when it ends; a piece may begin another one."""
        while True:
            if run.background:
                ended, _ = await asyncio.wait(run.background, return_when=asyncio.FIRST_COMPLETED)
                run.background -= ended
            await self._commit_after(run, is_last=not run.background)
            if not run.background:
                return

    async def _tell(self, context: Context[Any], error: BaseException | None) -> None:
        if error is None:
            await self.events.emit("agent.completed", context)
        else:
            await self.events.emit("agent.errored", context, error)

    async def _commit_after(self, run: Run, *, is_last: bool) -> None:
        try:
            await run.stage.commit(is_last=is_last)
        except Destroyed:
            run.stage.drop()
        except Exception as error:
            run.stage.drop()
            log.error("what followed a run of %s could not be stored: %s", run.agent.name, error, exc_info=error)

    def _leave(self, run: Run) -> None:
        for task in run.background:  # What follows was cancelled before it began.
            task.cancel()
        run.stage.close()
        run.is_over = True
        queue = self._queue(run.core)
        queue.leave()
        if queue.is_empty:
            self._queues.pop(run.core, None)


def _take_out_interrupts(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the other errors of a group, as a task group raises it, or Interrupted if there are none."""
    interrupts, others = group.split(Interrupted)
    if others is not None:
        return others
    first: BaseException | None = interrupts
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert first is not None
    return first


def _check_same_session(given: Given, holder: Run) -> None:
    if given.session_id is not None and given.session_id != holder.session.id:
        raise ValueError(
            f"a run inside of another one of its thread has the session {holder.session.id!r} of that, "
            f"not {given.session_id!r}"
        )


def _check_same_request(given: Given, calling: Context[Any]) -> None:
    """Raise ValueError for what a run shares with the one that calls it, if it is to be different."""
    user_id = None if calling.user is None else calling.user.id
    if given.user_id is not None and given.user_id != user_id:
        raise ValueError(f"a run inside of another one of its thread has the user {user_id!r}, not {given.user_id!r}")
    is_named = isinstance(given.attributes, Mapping)
    own: Mapping[Any, Any] = calling.attributes if is_named else calling._typed
    wanted: Mapping[Any, Any] = (
        given.attributes if isinstance(given.attributes, Mapping) else {type(each): each for each in given.attributes}
    )
    for key, value in wanted.items():
        if key not in own or own[key] != value:
            raise ValueError(f"a run inside of another one of its thread has its attributes: {key!r} is another")


@asynccontextmanager
async def _closing(chunks: AsyncGenerator[Any], context: Context[Any]) -> AsyncIterator[AsyncGenerator[Any]]:
    """Close a generator in its context, as its `finally` may use that."""
    try:
        yield chunks
    finally:
        token = context.enter()
        try:
            await chunks.aclose()
        finally:
            context.leave(token)


def _is_of_caller(error: BaseException) -> bool:
    """Whether a run ends because its task is cancelled, rather than one that it waited for."""
    task = asyncio.current_task()
    return isinstance(error, GeneratorExit) or (
        isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    )


def _leave_queue(turn: Turn, agent: Agent, is_closed: bool) -> None:
    """End a waiting run whose caller has cancelled it, or to whom it can stream no more."""
    if agent.is_stream or not is_closed:
        turn.cancel()


def _lose_caller(run: Run, _: bool) -> None:
    """Let a run go on whose caller has left, but interrupt one that streams to it."""
    if run.agent.is_stream and not run.is_over:
        run.interrupt()


def _shutting_down() -> PlaitError:
    return Unavailable("the server is shutting down; try again")
