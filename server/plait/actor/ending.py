"""The destruction of a thread, in a turn of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from plait.actor.connections import Connections
from plait.actor.outcome import make_resolver
from plait.actor.timer import Timer
from plait.actor.turn import Turn
from plait.actor.turns import TurnActor, TurnRunner
from plait.errors import Destroyed, PlaitError, StoreError, Unavailable
from plait.state.pipeline import Pipeline

__all__ = ["Cause", "Ending"]


class Cause(NamedTuple):
    """The cause of a destruction: the turn that waits for it, the client's turn that started it, and their trace."""

    parent: Turn | None = None
    origin: Turn | None = None
    trace: object = None


class EndingActor(TurnActor, Protocol):
    """The part of an actor that its destruction uses."""

    timer: Timer

    @property
    def sockets(self) -> Connections:
        """The connections, which are closed."""
        ...

    @property
    def state(self) -> Pipeline:
        """The state, which is deleted."""
        ...

    @property
    def turns(self) -> TurnRunner:
        """Runs the turn that destroys the thread, and ends the others."""
        ...


class Ending:
    """Destroys the thread of an actor, once. `run_last` runs `on_destroyed`, inside of the given turn."""

    __slots__ = ("_actor", "_run_last", "callers", "is_begun")

    def __init__(self, actor: EndingActor, run_last: Callable[[Turn], Awaitable[None]]) -> None:
        self._actor = actor
        self._run_last = run_last
        self.is_begun = False
        # The turn that destroys the thread, and the turns that wait for it; empty if there is none.
        self.callers: Sequence[Turn] = ()

    async def begin(self, work: Callable[[Sequence[Turn]], Awaitable[None]], cause: Cause) -> None:
        """Call `work` in a turn of its own, after the earlier turns, and wait for its result.

        From then on no other turn begins, except those that are called inside of it. `work` gets the turn, and the
        turns that wait for it. Raises Destroyed if an earlier turn has destroyed the thread, and the StoreError for
        which the thread was dropped.
        """
        actor = self._actor

        def begin() -> Awaitable[None]:
            if actor.state.lost is not None:
                raise actor.state.lost
            if self.is_begun:
                raise Destroyed(f"{actor.key} is already being destroyed")
            self.is_begun = True
            actor.turns.hold()
            actor.timer.stop()
            actor.sockets.close(Unavailable("the thread is being destroyed"))
            self.callers = tuple(turn.chain())
            return work(self.callers)

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = Turn("destroy", begin, actor=actor, parent=cause.parent, origin=cause.origin, trace=cause.trace)
        actor.turns.begin(turn, make_resolver(future), is_gated=True)
        try:
            await future
        except asyncio.CancelledError:
            turn.skip()
            raise

    async def run(self, callers: Sequence[Turn]) -> None:
        """Run `on_destroyed`, delete the stored thread, then close the sockets and end all turns but the callers.

        The first of the callers is the turn that destroys the thread. Raises StoreError if the thread could not be
        deleted, and Unavailable if this task or `on_destroyed` is cancelled. In all cases, the actor is unusable then.
        """
        actor = self._actor
        refusal: PlaitError = Unavailable("the server is shutting down")
        try:
            before = actor.state.begin_deletion(callers[0])
            if before is not None:
                await before
            await self._run_last(callers[0])
            await actor.state.delete()
            refusal = Destroyed(f"{actor.key} was destroyed")
        except StoreError as error:
            refusal = error
            raise
        except asyncio.CancelledError:
            raise refusal from None
        finally:
            actor.state.abandon_deletion(refusal)
            actor.turns.refuse(refusal, besides=callers)
            actor.sockets.expel(refusal)
            actor.sockets.presence.close()
