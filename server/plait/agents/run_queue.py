"""The queue of one thread's runs, which run one at a time, in order of arrival."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from plait.actor.turn import Turn
from plait.errors import PlaitError, TooMany

__all__ = ["RunQueue", "find_party"]

Run = TypeVar("Run")


class RunQueue(Generic[Run]):
    """Admits one run at a time. An admitted run must `leave`, however it ends."""

    def __init__(self) -> None:
        # The admitted run, until it leaves.
        self.current: Run | None = None
        # The waiting runs, each with the connection, principal or address that it counts for.
        self._waiting: deque[tuple[Run, asyncio.Future[None], Hashable]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no run is admitted or waiting."""
        return self.current is None and not self._waiting

    async def enter(
        self, run: Run, *, max_waiting: int, timeout: float, party: Hashable = None, most_of_party: int = 0
    ) -> None:
        """Wait until a run is admitted; `party` is its client, None for server code.

        Raises TooMany if too many runs wait, in all or `most_of_party` of one party, or after `timeout` seconds. If the
        caller is cancelled, the run leaves the queue.
        """
        if self.is_empty:
            self.current = run
            return
        if len(self._waiting) >= max_waiting:
            many = f"{len(self._waiting)} runs wait in this thread, and no more may; try again later"
            raise TooMany(many, retry_after=1.0)
        if party is not None and sum(each == party for _, _, each in self._waiting) >= most_of_party:
            many = f"{most_of_party} of your runs wait in this thread, and no more may; try again later"
            raise TooMany(many, limit="waiting_runs", retry_after=1.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (run, turn, party)
        self._waiting.append(place)
        expiry = asyncio.get_running_loop().call_later(timeout, _expire, turn, timeout)
        try:
            await turn
        except BaseException:
            if self.current is run:  # The run was admitted at the same moment.
                self.leave()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise
        finally:
            expiry.cancel()

    def leave(self) -> None:
        """Admit the next waiting run."""
        self.current = None
        while self._waiting:
            run, turn, _ = self._waiting.popleft()
            if not turn.done():
                self.current = run
                turn.set_result(None)
                return

    def refuse(self, error: PlaitError) -> None:
        """Raise an error in all waiting runs."""
        for _, turn, _ in self._waiting:
            if not turn.done():
                turn.set_exception(error)


def _expire(turn: asyncio.Future[None], timeout: float) -> None:
    if not turn.done():
        turn.set_exception(TooMany(f"this run has waited for {timeout:g} s; try again later", retry_after=1.0))


def find_party(turn: Turn) -> Hashable | None:
    """Return the party that a waiting run is charged to: without a principal the socket, as many share an address."""
    connection = turn.connection
    if not turn.by_client or connection is None or connection.session is None or connection.principal is not None:
        return turn.party
    return connection
