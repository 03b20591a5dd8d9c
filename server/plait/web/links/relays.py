"""The sockets and requests that a gateway relays, and the carriers of channels; they end before it stops."""

import asyncio
from contextlib import suppress
from typing import Protocol

__all__ = ["Relays"]


class Relay(Protocol):
    """A relayed socket or request, or a carrier."""

    def leave(self) -> None:
        """Ask the owner to end the relay, unless it ends by itself."""
        ...

    def cut_off(self) -> None:
        """End the relay at once."""
        ...


class Relays:
    """The sockets and requests of this node that are relayed to other nodes, and its carriers."""

    def __init__(self) -> None:
        self._relays: set[Relay] = set()
        # Done when no relay is left; None if nothing waits for that.
        self._ended: asyncio.Future[None] | None = None

    def __contains__(self, relay: Relay) -> bool:
        return relay in self._relays

    def count(self, kind: type[Relay]) -> int:
        """Return the number of relays of a kind."""
        return sum(isinstance(each, kind) for each in tuple(self._relays))

    def add(self, relay: Relay) -> None:
        """Add a relay."""
        self._relays.add(relay)

    def discard(self, relay: Relay) -> None:
        """Remove a relay that has ended."""
        self._relays.discard(relay)
        if not self._relays and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def leave(self) -> None:
        """Ask the owners to end everything."""
        for relay in tuple(self._relays):
            relay.leave()

    async def end(self, timeout: float) -> None:
        """Ask the owners to end everything, and after `timeout` seconds end the rest."""
        self.leave()
        if self._relays:
            self._ended = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ended
        self.cut_off()

    def cut_off(self) -> None:
        """End everything at once."""
        for relay in tuple(self._relays):
            relay.cut_off()
