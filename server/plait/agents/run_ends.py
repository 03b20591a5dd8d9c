"""Ends runs: the commit, the answer, and the work after the answer."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context as Variables
from functools import partial
from typing import Any, Self

from plait.actor.events import Events
from plait.actor.logs import about
from plait.actor.turn import Turn, find_client_turn
from plait.agents.context import Context
from plait.agents.run import Run
from plait.errors import Destroyed, escape_traceback

__all__ = ["RunEnds"]

log = logging.getLogger("plait.agents")
log.addFilter(escape_traceback)


class RunEnds:
    """Commits the writes of runs; after the answer, calls listeners and waits for background work.

    `leave` is called when all this has ended, and admits the next run of the thread.
    """

    def __init__(self, events: Events, *, leave: Callable[[Run], None]) -> None:
        self._events = events
        self._leave = leave

    async def finish(self, context: Context[Any], error: BaseException | None) -> None:
        """Commit or drop the writes of a run, and begin the work after the answer. Raises the error of the run."""
        run = context._run
        run.is_over = True
        if run.outermost is not run:
            with _Bound(run):
                await self._tell(context, error)
            if error is not None:
                raise error
            return
        error = run.actor.state.find_loss() or error
        if run.actor.is_ending and run.turn not in run.actor.ending_turns:
            error = Destroyed(f"{run.actor.key} was destroyed")  # This replaces the run's own error.
        try:
            if error is not None and (
                run.is_repeated
                or not (run.agent.is_stream or isinstance(error, GeneratorExit | asyncio.CancelledError))
            ):
                run.stage.drop()
            if run.mark is not None:
                run.mark.end(run.stage, is_cut_off=run.is_cut_off)
            failure = await self._commit(run, has_ended=error is None)
            if failure is not None:
                log.error("the writes of %s in %s could not be stored: %s", run.agent.name, run.actor.key, failure)
            if error is None:
                error = failure
        finally:
            self._follow(context, error)
        if error is not None:
            raise error

    async def _commit(self, run: Run, *, has_ended: bool) -> BaseException | None:
        """Commit the writes of a run, and store a new thread even without any; return the error if it failed."""
        actor = run.actor
        try:
            await run.stage.commit(then=run.end_attempt if has_ended else None)
            if not actor.state.history.is_begun and not actor.is_ending:
                await actor.state.store_thread()
        except Destroyed:
            run.stage.drop()  # This run has destroyed the thread, or was cancelled because the thread was destroyed.
        except Exception as error:
            run.stage.drop()
            return error
        except asyncio.CancelledError:
            if run.is_repeated and await run.stage.has_committed():
                return None  # A run whose writes are durable must not be repeated.
            if (loss := actor.state.find_loss()) is None:
                raise  # The agent has returned: the staged writes are stored by the work after the answer.
            run.stage.drop()  # Otherwise the work after the answer would store it.
            return loss
        return None

    def _follow(self, context: Context[Any], error: BaseException | None) -> None:
        """Begin the work after the answer, when the answer is given."""
        run, origin = context._run, find_client_turn()

        def begin(*_: object) -> None:
            if not self._has_more(run, error):
                self._leave(run)
                return
            turn = Turn(
                f"after {run.agent.name}",
                partial(self._do_after, context, error),
                actor=run.actor,
                origin=origin,
                trace=None if run.turn is None else run.turn.trace,
            )
            turn.on_end(lambda *_: self._leave(run))
            run.actor.turns.begin_beside(turn)
            run.begin_background(turn)

        if run.turn is None:
            begin()
        else:
            run.turn.on_end(begin)

    def _has_more(self, run: Run, error: BaseException | None) -> bool:
        """Whether there is work after the answer: listeners, background work, or writes after the commit."""
        events = self._events
        return (
            run.has_background
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
            with _Bound(run) as bound:
                run.cut_rest = bound.cut
                await self._tell(context, error)
                await run.session.complete()
                await self._events.emit("session.completed", run.session)
                await self._wait_for_background(run)
        finally:
            run.cut_rest = None
            context.leave(token)
            if run.background:  # The work took too long, the server is shutting down, or the thread was destroyed.
                for task in run.background:
                    task.cancel()
                await asyncio.wait(run.background)
            await self._commit_after(run, is_last=True)

    async def _wait_for_background(self, run: Run) -> None:
        """Store the writes of each piece of background work when it ends; a piece may begin another one."""
        while run.background:
            ended, _ = await asyncio.wait(run.background, return_when=asyncio.FIRST_COMPLETED)
            run.background -= ended
            if run.background:
                await self._commit_after(run, is_last=False)

    async def _tell(self, context: Context[Any], error: BaseException | None) -> None:
        if error is None:
            await self._events.emit("agent.completed", context)
        else:
            await self._events.emit("agent.errored", context, error)

    async def _commit_after(self, run: Run, *, is_last: bool) -> None:
        try:
            await run.stage.commit(is_last=is_last)
        except Destroyed:
            run.stage.drop()
        except Exception as error:
            run.stage.drop()
            log.error(
                "the writes after the answer of a run of %s could not be stored: %s",
                run.agent.name,
                error,
                exc_info=error,
            )


class _Bound:
    """A block that is cancelled after the agent's `background_timeout`, or by `cut`, and then ends without an error."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        # Why the block was cancelled, if it was.
        self._why = ""
        self._is_over = False

    def __enter__(self) -> Self:
        seconds = self._run.agent.background_timeout
        if seconds is not None:
            why = f"after {seconds:g} s (background_timeout)"
            # An empty context: the loop keeps the context of a timer until its time, even if the timer is cancelled.
            self._timer = asyncio.get_running_loop().call_later(seconds, self._cancel, why, context=Variables())
        return self

    def cut(self) -> None:
        """Cancel the block as soon as the calling code awaits."""
        asyncio.get_running_loop().call_soon(self._cancel, "by an interrupt")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        task, run = self._task, self._run
        if not self._why or task is None or task.uncancel() > 0 or not isinstance(error, asyncio.CancelledError):
            return False
        what = ", ".join(each.get_name() for each in run.background) or "a listener"
        text = "the work after the answer of a run of %s is cancelled %s: %s"
        log.error(text, run.agent.name, self._why, what, extra=about(run.actor.key))
        return True

    def _cancel(self, why: str) -> None:
        if not self._why and not self._is_over and self._task is not None:
            self._why = why
            self._task.cancel()
