"""Which awake threads are to be looked at: those that were used since the last look, and those whose time has come."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from plait.actor.actor import Actor
from plait.store.protocol import ThreadKey

__all__ = ["Sweeper"]

# Times of threads that are no longer awake, or were used again, before they are removed.
_MOST_OUTDATED: Final = 1000


class Sweeper:
    """Keeps when each of `actors`, the threads that are awake, may have been idle for long enough to be stopped."""

    def __init__(self, actors: Mapping[ThreadKey, Actor]) -> None:
        self._actors = actors
        # The threads that were used since the last look, in order; they put themselves here.
        self.active: dict[Actor, None] = {}
        # A heap; a time counts if it is still the `due` of its thread.
        self._times: list[tuple[float, ThreadKey]] = []

    def take(self, now: float) -> list[Actor]:
        """Return the threads to look at, each of which is then used again, passed to `put_off`, or stopped."""
        found = list(self.active)
        self.active.clear()
        while self._times and self._times[0][0] <= now:
            due, key = heappop(self._times)
            actor = self._actors.get(key)
            if actor is not None and actor.due == due:
                actor.due = inf
                found.append(actor)
        return found

    def put_off(self, actor: Actor, due: float) -> None:
        """Look at a thread again at a time, unless it is used before; `inf` if it must be used before."""
        if due >= actor.due:
            return
        actor.due = due
        heappush(self._times, (due, actor.key))
        if len(self._times) > 2 * len(self._actors) + _MOST_OUTDATED:
            self._times = [(each.due, key) for key, each in self._actors.items() if each.due < inf]
            heapify(self._times)
