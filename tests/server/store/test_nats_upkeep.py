"""What a store in NATS does after its writes is done again if it has failed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.server.store.contract import OTHER, ROOM

from plait.errors import StoreError
from plait.store.nats.layout import Known, StoredHead, Subjects, ThreadHead
from plait.store.nats.upkeep import NatsUpkeep

STORED = StoredHead("epoch", 5, 1, b"", is_stateless=False, due=0, created_at=0, changed_at=0, user=None, generation=1)


class Stream:
    """A stream that refuses publications while `trouble` is set."""

    def __init__(self) -> None:
        self.trouble = False
        self.published: list[str] = []
        self.has_failed = asyncio.Event()
        self.has_published = asyncio.Event()

    async def publish(self, publication: Any) -> None:
        if self.trouble:
            self.trouble = False
            self.has_failed.set()
            raise StoreError("the server is away")
        self.published.append(publication.subject)
        self.has_published.set()


def make_known(fence: int, thread: StoredHead | None = None) -> Known:
    return Known(1, ThreadHead("room", "1", fence, "stream", thread=thread))


@asynccontextmanager
async def started(heads: dict[Any, Known]) -> AsyncIterator[tuple[NatsUpkeep, Any]]:
    stream: Any = Stream()
    upkeep = NatsUpkeep(stream, Subjects("s"), heads, is_writing=lambda _: False, is_viewed=lambda _: False)
    upkeep.start()
    try:
        yield upkeep, stream
    finally:
        await upkeep.stop()


async def test_a_head_is_removed_later_if_the_server_was_away_once(caplog: pytest.LogCaptureFixture) -> None:
    heads = {ROOM: make_known(1), OTHER: make_known(1, STORED)}
    async with started(heads) as (upkeep, stream), asyncio.timeout(20):
        stream.trouble = True
        with caplog.at_level(logging.WARNING):
            upkeep.release(ROOM, 1)
            upkeep.release(OTHER, 1)
            await stream.has_failed.wait()
            await stream.has_published.wait()
    assert stream.published == [Subjects("s").head(ROOM)]
    assert not heads
    assert [record.getMessage() for record in caplog.records] == [
        "what is left to do after writes could not be done yet: the server is away"
    ]


async def test_the_head_of_another_owner_stays() -> None:
    heads = {ROOM: make_known(1)}
    async with started(heads) as (upkeep, stream):
        upkeep.release(ROOM, 1)
        heads[ROOM] = make_known(2)
    assert heads[ROOM].fence == 2
    assert not stream.published
