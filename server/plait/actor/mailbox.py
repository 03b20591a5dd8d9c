"""Runs the turns of one thread one at a time. No I/O.

Waiting turns run in rounds. In each round, each party has one turn, in the order of the party's turns. Plait and server
code together count as one party, which runs all of its waiting turns in a round: so hooks such as `on_state_changed`
keep up with the turns of many parties.
A turn that calls back into the thread of one of its callers runs at once, nested in that caller, instead of waiting for
it forever.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable
from contextvars import Context
from typing import Final

from plait.actor.connection import Party
from plait.actor.turn import Turn
from plait.actor.turn_task import TurnTask
from plait.errors import TooMany
from plait.limits import Limits

__all__ = ["EVERYONE", "Mailbox"]

EVERYONE: Final = "everyone"
"""The party of a turn that runs after all turns that are waiting when it is posted."""

# After this many turns, or after a turn that has set context variables, the rest run in a new task.
_TURNS_AT_ONCE: Final = 64


class Mailbox:
    """Runs turns one at a time, the turns of each party in order of arrival."""

    __slots__ = (
        "_loop",
        "_nested_ended",
        "_queues",
        "_refusal",
        "_served",
        "is_held",
        "nested",
        "running",
        "started",
        "task",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The waiting turns of each party, the next party first; None without waiting turns, to save memory. A turn of
        # EVERYONE is in all queues, and runs when it leaves the last queue.
        self._queues: dict[Hashable, deque[Turn]] | None = None
        # The number of turns of plait and server code that still run in this round.
        self._served = 0
        # The task that runs turns; None while no turns run.
        self.task: TurnTask | None = None
        self.running: Turn | None = None
        # Turns that run nested in the running one, and a future that is done when one of them has ended.
        self.nested: tuple[Turn, ...] = ()
        self._nested_ended: asyncio.Future[None] | None = None
        # Whether no turn begins except nested ones.
        self.is_held = False
        # The error with which all turns end; None while turns may run.
        self._refusal: BaseException | None = None
        # The time at which the running turn began, by the loop's clock.
        self.started = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no turn is running or waiting."""
        return self.task is None

    @property
    def length(self) -> int:
        """The number of waiting turns."""
        return sum(map(len, (self._queues or {}).values()))

    def find_excess(self, party: Hashable, limits: Limits) -> TooMany | None:
        """Return the error if no other turn of a party may wait; None if it may."""
        queue = () if self._queues is None else self._queues.get(party, ())
        if (count := len(queue)) < limits.waiting_turns and count < limits.waiting_turns_per_address:
            return None
        is_address = isinstance(party, Party) and party.user is None
        most = limits.waiting_turns_per_address if is_address else limits.waiting_turns
        if count < most or sum(turn.party is not None for turn in queue) < most:  # Hooks are not charged.
            return None
        limit = "waiting_turns_per_address" if is_address else "waiting_turns"
        whose = "calls and messages of your address" if is_address else "of your calls and messages"
        many = f"{most} {whose} wait in this thread, and no more may; try again later"
        return TooMany(many, limit=limit, retry_after=1.0)

    def post(self, turn: Turn, party: Hashable = None) -> None:
        """Run `turn` after the earlier turns of `party`, or at once if its caller holds this mailbox.

        A `party` of None stands for plait and server code.
        """
        if self._refusal is not None:
            turn.end(None, self._refusal)
            return
        turn.mailbox = self
        if turn.parent is not None and turn.parent.holds(self):
            self.nested += (turn,)
            turn.on_end(lambda *_: self._finish_nested(turn))
            turn.start(self._loop)
            return
        if self._queues is None:
            self._queues = {}
        if party is not EVERYONE or not self._queues:
            if (queue := self._queues.get(party)) is None:  # `setdefault` would make a deque each time.
                queue = self._queues[party] = deque()
            queue.append(turn)
        else:
            for queue in self._queues.values():
                queue.append(turn)
        if self.task is None and not self.is_held:
            self._run()

    def run_last(self, turn: Turn) -> None:
        """Run a turn while the mailbox is held, with the turns that are nested in it."""
        turn.mailbox = self
        turn.start(self._loop)

    def refuse(self, error: BaseException) -> None:
        """End the waiting turns and all later ones with an error."""
        self._refusal = error
        waiting = self._empty()
        for turn in waiting:
            turn.end(None, error)

    def close(self) -> None:
        """Cancel the running and the waiting turns; they end with CancelledError."""
        waiting = self._empty()
        if self.running is not None:
            self.running.cancel()
        for turn in waiting:
            turn.end(None, asyncio.CancelledError())

    def _empty(self) -> Iterable[Turn]:
        queues, self._queues = self._queues or {}, None
        return dict.fromkeys(turn for queue in queues.values() for turn in queue)

    def _run(self) -> None:
        # Turns do not inherit the context variables of the code that posted them.
        self.task = TurnTask(self._take_turns(), loop=self._loop, context=Context(), name="plait turns")

    async def _take_turns(self) -> None:
        """Run the waiting turns, many in one task, so that a burst of turns costs little."""
        task = self.task
        assert task is not None
        try:
            for _ in range(_TURNS_AT_ONCE):
                turn = self._pop()
                if turn is None:
                    break
                self.running = turn
                self.started = self._loop.time()
                try:
                    await turn.run(task)
                finally:
                    while self.nested:
                        # The turn was cancelled, but not the turns nested in it: wait for them.
                        self._nested_ended = self._loop.create_future()
                        await self._nested_ended
                if turn.has_set_variables():
                    break
        finally:
            self.running = self.task = None
            if self._queues and not self.is_held:
                self._run()

    def _finish_nested(self, turn: Turn) -> None:
        self.nested = tuple(each for each in self.nested if each is not turn)
        if self._nested_ended is not None and not self._nested_ended.done():
            self._nested_ended.set_result(None)

    def _pop(self) -> Turn | None:
        """Return the next turn that has not been abandoned."""
        if self.is_held:
            return None
        while queues := self._queues:
            party, queue = next(iter(queues.items()))
            if party is None:
                self._served = (self._served or len(queue)) - 1
            turn = queue.popleft()
            if not queue:
                del queues[party]
                self._served = 0
            elif len(queues) > 1 and not (party is None and self._served):
                queues[party] = queues.pop(party)
            if turn.party is EVERYONE and any(turn in each for each in queues.values()):
                continue
            if not turn.is_abandoned:
                return turn
            turn.end(None, asyncio.CancelledError())
        self._queues = None
        return None
