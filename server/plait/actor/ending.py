"""How a thread ends: it is terminated, and can still be read, or it is destroyed, in a turn of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from plait.actor.mailbox import EVERYONE
from plait.actor.outcome import make_resolver
from plait.actor.turn import Turn
from plait.actor.turns import TurnActor
from plait.clock import read_wall_clock
from plait.errors import Destroyed, PlaitError, StoreError, Terminated, Unavailable
from plait.state.commit import Commit
from plait.state.transaction import Transaction
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import decode_json, encode_json

__all__ = ["MARK", "Cause", "Ending", "Termination"]

# No attribute of a class can have this name.
_PART: Final = "thread-life"
_KEY: Final = "terminated"

MARK: Final = RecordRange(_PART)
"""The records of the thread itself, which are read when it wakes: the mark of a terminated one, and its card."""


class Termination:
    """Terminates one thread, and tells whether that has happened."""

    __slots__ = ("_actor", "at")

    def __init__(self, actor: TurnActor) -> None:
        self._actor = actor
        # When it was terminated, in microseconds since the epoch; None if it was not.
        self.at: int | None = None

    def load(self, records: Sequence[Record]) -> None:
        """Read the mark from the stored records of a waking thread."""
        for record in records:
            if record.key == _KEY:
                assert record.value is not None
                self._set(decode_json(record.value)["at"])

    def check(self) -> None:
        """Raise Terminated if the thread takes no new work."""
        if self.at is not None:
            raise Terminated(f"{self._actor.key} was terminated")

    def begin(self, then: Callable[[], None]) -> Commit:
        """Mark the thread and remove its later work, as one write; call `then` when that is durable.

        Does nothing if the thread is already terminated.
        """
        with Transaction(self._actor.state, self._actor.key) as transaction:
            is_first = self.at is None
            if is_first:
                at = read_wall_clock()
                mark = Record(_PART, _KEY, encode_json({"at": at}))
                self._actor.records.write([mark], undo=lambda: self._set(None))
                self._set(at)
                for part in self._actor.timer.parts:
                    part.terminate()
        commit = transaction.commit
        assert commit is not None
        if is_first:
            commit.then(lambda failure: then() if failure is None else None)
        return commit

    def _set(self, at: int | None) -> None:
        self.at = at


class Cause(NamedTuple):
    """The cause of a destruction: the turn that waits for it, the client's turn that started it, and their trace."""

    parent: Turn | None = None
    origin: Turn | None = None
    trace: object = None


class Ending:
    """Destroys the thread of an actor, once."""

    __slots__ = ("_actor", "callers", "is_begun")

    def __init__(self, actor: TurnActor) -> None:
        self._actor = actor
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
        turn.party = EVERYONE
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
            if actor.relatives is not None:
                await actor.relatives.flush()
            before = actor.state.begin_deletion(callers[0])
            if before is not None:
                await before
            await self._actor.run_last(callers[0])
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
