"""Claims threads: the head of a thread has the number of its owner."""

import asyncio
import secrets

import msgspec

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.nats.api import Disconnected, Lost, Publication, WrongSequence
from plait.store.nats.contents import read_head
from plait.store.nats.jetstream import PATIENCE, JetStream
from plait.store.nats.layout import Known, Subjects, ThreadHead, encode_rows
from plait.store.nats.publishing import PUBLISH_AGAIN, Publisher
from plait.store.nats.watch import Watch
from plait.store.outcomes import Unreachable
from plait.store.protocol import ThreadKey

__all__ = ["Claims"]


class Claims:
    """Makes this store the owner of threads, and notes their `heads`."""

    def __init__(
        self, stream: JetStream, subjects: Subjects, heads: dict[ThreadKey, Known], publisher: Publisher, watch: Watch
    ) -> None:
        self._stream = stream
        self._subjects = subjects
        self._heads = heads
        self._publisher = publisher
        self._watch = watch
        self._last_fence = 0

    async def claim(self, key: ThreadKey, known: Known | None) -> int:
        """Become the owner of a thread whose head may be `known`, and return its number. Raises StoreError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        token, is_in_doubt = 0, False
        while True:
            try:
                if not is_in_doubt or known is None or known.head.fence != token:  # Not only the answer was lost.
                    is_in_doubt = False
                    before = ThreadHead(*key, 0, "") if known is None else known.head
                    token = self._last_fence = max(before.fence + 1, self._last_fence + 1, read_wall_clock())
                    head = self._take(before, token)
                    message = Publication(
                        self._subjects.head(key), encode_rows(head), 0 if known is None else known.sequence
                    )
                    known = Known(await self._stream.publish(message), head)
                if known.head.origin == self._watch.origin:
                    break
                # The stream turned out to be another one before this was published: the epoch must be, too.
                is_in_doubt = False
            except WrongSequence:
                known = await read_head(self._stream, self._subjects, key)
            except Lost as error:
                is_in_doubt = True
                await self._rest(deadline, error)
                known = await read_head(self._stream, self._subjects, key)
            except Unreachable as error:
                await self._rest(deadline, error)
        if known.head.thread is not None and known.head.thread.unfinished:
            known = await self._publisher.finish(known)
        self._heads[key] = known
        return known.head.fence

    # Inside

    def _take(self, head: ThreadHead, fence: int) -> ThreadHead:
        """Return the head of a new owner."""
        origin, thread = self._watch.origin, head.thread
        if thread is not None and head.origin != origin:
            # Clients may have seen changes that are lost.
            thread = msgspec.structs.replace(thread, epoch=secrets.token_hex(8))
        return msgspec.structs.replace(
            head, fence=fence, origin=origin, former=head.fence, begins_at=head.writes, thread=thread
        )

    async def _rest(self, deadline: float, error: StoreError) -> None:
        """Wait before something is done again. Raises the error if that has been done for too long."""
        if asyncio.get_running_loop().time() > deadline or isinstance(error, Disconnected):
            raise error
        await asyncio.sleep(PUBLISH_AGAIN)
