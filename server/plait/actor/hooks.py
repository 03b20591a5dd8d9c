"""Runs the author's hooks that are not caused by a socket: when a thread wakes, changes, stops or is destroyed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from plait.actor.connection import Connection, Party, Source
from plait.actor.events import Events
from plait.actor.logs import log_error
from plait.actor.mailbox import EVERYONE
from plait.actor.outcome import make_resolver
from plait.actor.thread import Thread
from plait.actor.turn import Turn, TurnOwner
from plait.actor.turns import TurnRunner
from plait.state.commit import Commit
from plait.state.revision import Revision
from plait.state.source import StateTurn

__all__ = ["Hooks"]

# Maximum runs of `on_state_changed` in a row that make a change themselves.
_MOST_IN_A_ROW: Final = 1000


class _ChangeTurn(Turn):
    """One run of `on_state_changed`."""

    # Whether this run has made a change, and the number of such runs in the row, in a list that the row shares.
    has_changed: bool = False
    row: list[int] = msgspec.field(default_factory=lambda: [0])


class Hooks:
    """Runs hooks of `thread` as turns of `actor`, and tells the app's listeners."""

    __slots__ = ("_actor", "_events", "_thread", "_turns")

    def __init__(self, actor: TurnOwner, thread: Thread[Any], turns: TurnRunner, events: Events) -> None:
        self._actor = actor
        self._thread = thread
        self._turns = turns
        self._events = events

    def has(self, name: str) -> bool:
        """Whether the class overrides a hook."""
        return name in self._thread._kind.overrides

    def post_change(self, commit: Commit) -> None:
        """Queue `on_state_changed` for a change; charge its connection for a message of the same size.

        If the hook has made too many changes in a row, calls `on_error` instead.
        """
        if self._turns.refusal is not None:
            return
        revision, trace = commit.revision, commit.trace
        connection = commit.source if isinstance(commit.source, Connection) else None
        size = len(revision.change.ops) if revision.change is not None else 0
        work = partial(self._call_changed, revision, connection or "server")
        turn = _ChangeTurn("on_state_changed", work, actor=self._actor, connection=connection, trace=trace)
        if (cause := self._find_cause(commit.maker)) is not None:
            turn.row = cause.row
            cause.row[0] += not cause.has_changed
            cause.has_changed = True
            if cause.row[0] > _MOST_IN_A_ROW:
                endless = (
                    f"on_state_changed has made a change {_MOST_IN_A_ROW:,} times in a row, and is not called again"
                )
                self._turns.report(RuntimeError(endless), connection, trace)
                return
        self._turns.begin(turn, partial(self._turns.report_turn, turn), size=size)

    def _call_changed(self, revision: Revision, source: Source) -> Awaitable[None] | None:
        # The type may run code of the author that raises, such as `__post_init__`.
        return self._thread.on_state_changed(self._thread._actor.state.show(revision), source)

    def _find_cause(self, maker: StateTurn | None) -> _ChangeTurn | None:
        """Return the run of `on_state_changed` that is the turn `maker` or waits for it; None without one."""
        chain = maker.chain() if isinstance(maker, Turn) else ()
        return next((turn for turn in chain if isinstance(turn, _ChangeTurn) and turn.actor is self._actor), None)

    async def run(
        self,
        name: Literal["on_start", "on_stop"],
        *,
        party: Party | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Run a hook, after `prepare` in the same turn, for the user of `party`.

        Raises their exceptions, and the error of a lost change: for `on_stop`, of one that they depend on; for
        `on_start`, also of any that they have made.
        """
        if prepare is not None or self.has(name):
            hook, work = getattr(self._thread, name), prepare or (lambda: None)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turn = Turn(name, lambda: (work(), hook())[1], actor=self._actor, party=party or EVERYONE)
            self._turns.begin(turn, make_resolver(future), is_gated=name == "on_start")
            await future

    async def run_last(self, timeout: float | None, *, caller: Turn) -> None:
        """Run `on_destroyed` while no other turn runs, and `on_error` if it raises, then the app's listeners.

        Each of them is cancelled after `timeout`. `caller` is the turn that waits for them: their calls to the threads
        of its chain run nested in that turn.
        """
        events = self._events

        def make(name: str, work: Callable[[], Any], trace: object) -> Turn:
            return Turn(name, work, actor=self._actor, parent=caller, origin=caller.origin, trace=trace)

        if self.has("on_destroyed"):
            turn = make("on_destroyed", self._thread.on_destroyed, caller.trace)
            if (error := await self._run_last(turn, timeout)) is not None:
                turn = make("on_error", partial(self._thread.on_error, error, None), turn.trace)
                if (failure := await self._run_last(turn, timeout)) is not None:
                    log_error(error, self._actor.key, None)
                    log_error(failure, self._actor.key, None)
        if events.has("thread.destroyed"):
            tell = partial(events.emit, "thread.destroyed", self._thread)
            # An error says that the listeners took too long.
            if (error := await self._run_last(make("thread.destroyed", tell, caller.trace), timeout)) is not None:
                log_error(error, self._actor.key, None)

    async def _run_last(self, turn: Turn, timeout: float | None) -> Exception | None:
        """Return the error of a turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        turn.on_end(make_resolver(future))
        expiry = None if timeout is None else loop.call_later(timeout, turn.time_out)
        try:
            self._turns.run_last(turn)
            await future
        except Exception as error:
            return error
        finally:
            if expiry is not None:
                expiry.cancel()
        return None
