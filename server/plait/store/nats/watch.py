"""Notices when a stream is another one than before, or has lost what was durable."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from plait.errors import StoreError
from plait.store.nats.api import Publication, Requests, WrongSequence
from plait.store.nats.jetstream import JetStream
from plait.store.nats.line import Line
from plait.store.nats.url import NatsUrl
from plait.store.origins import OriginWatch

__all__ = ["Watch"]

log = logging.getLogger("plait.store")


class Watch(OriginWatch):
    """Knows what the stream is, in `origin`. It is checked at each connection, and when `suspect` is called.

    `on_loss` is called when it is another stream, or goes back to an earlier sequence: then the origin is another one,
    for all stores of the stream. Where the disks of the servers need not be synced, a crash may lose something, too.
    """

    def __init__(self, url: NatsUrl, stream: JetStream, on_loss: Callable[[], None], *, readonly: bool) -> None:
        super().__init__(url)
        self.on_loss = on_loss
        self._url = url
        self._stream = stream
        self._readonly = readonly
        self._check: asyncio.Task[None] | None = None
        self._server = ""

    async def check(self, requests: Requests) -> None:
        """Find out what the stream is. Raises StoreError."""
        if isinstance(requests, Line):
            self._server = requests.server
        seen, origin = self._stream.seen, await self._find_origin(requests)
        # A former leader may tell an old sequence, but cannot publish.
        if self.origin == origin and not self._readonly and await self._publish(requests) <= seen:
            log.warning("%s has gone back to an earlier sequence", self._url)
            await self._renew(requests)
            origin = await self._find_origin(requests)
        if self.origin not in ("", origin):
            self._stream.seen = (await self._stream.info(requests=requests)).last_sequence
        self.note(origin)

    def suspect(self, requests: Requests) -> None:
        """Begin a check soon, unless one is under way."""
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._recheck(requests), name="plait checks NATS")

    async def stop(self) -> None:
        """End the check that is under way."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait([self._check])

    # Inside

    async def _recheck(self, requests: Requests) -> None:
        with suppress(StoreError):  # The next connection is checked, too.
            await self.check(requests)

    async def _find_origin(self, requests: Requests) -> str:
        info, anchor = await self._stream.info(requests=requests), await self._stream.read_anchor(requests)
        found = f"{info.created} {anchor.data.decode(errors='replace')}"
        if self._url.is_synced:
            return found
        # A server that has crashed may have lost something, whichever of them leads the stream.
        return f"{found} {info.leader or self._server}"

    async def _publish(self, requests: Requests) -> int:
        return await self._stream.publish(self._stream.make_barrier(), requests=requests)

    async def _renew(self, requests: Requests) -> None:
        """Tell all stores that something is lost."""
        anchor = await self._stream.read_anchor(requests)
        message = Publication(anchor.subject, secrets.token_hex(8).encode(), anchor.sequence)
        with suppress(WrongSequence):  # Another store has done it.
            await self._stream.publish(message, requests=requests)
