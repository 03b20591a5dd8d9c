"""Events that clients emit, with real sockets and both of the Python clients."""

import asyncio
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.running import running

from plait import Plait, Thread
from plait_client import CallError, Room, connect, connect_sync

PATIENCE = 10.0


class Board(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    events: ClassVar[dict[str, Any]] = {"cursor": dict[str, int], "wave": Any}
    clients_may_emit = ("cursor",)


@asynccontextmanager
async def talking(address: str) -> AsyncIterator[tuple[Room[Any], Room[Any]]]:
    """Open two clients of one thread."""
    url = f"ws://{address}/threads/board/a"
    async with connect(url) as ada, connect(url) as grace:
        yield ada, grace


async def test_an_event_reaches_the_others_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Plait(Board, store="memory://")) as address, talking(address) as (ada, grace):
        heard: asyncio.Queue[Any] = asyncio.Queue()
        ada.on_event("cursor", lambda data, sender: heard.put_nowait(("own", data, sender)))
        grace.on_event("cursor", lambda data, sender: heard.put_nowait((data, sender)))
        grace.on_event("cursor", heard.put_nowait)
        ada.emit("cursor", {"x": 1})
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() == ({"x": 1}, ada.connection)
            assert await heard.get() == {"x": 1}
            ada.emit("wave")
            with pytest.raises(CallError):  # Its answer comes after the refusal of the event.
                await ada.call("none")
        assert heard.empty()
    assert "an event was not sent: clients may not emit 'wave'" in caplog.text


async def test_members_of_a_presence_are_set_one_by_one() -> None:
    async with running(Plait(Board, store="memory://")) as address, talking(address) as (ada, grace):
        seen: asyncio.Queue[Any] = asyncio.Queue()
        grace.on_presence(seen.put_nowait)
        ada.set_presence({"name": "Ada", "x": 1})
        ada.update_presence({"x": 2})
        async with asyncio.timeout(PATIENCE):
            assert await seen.get() == {ada.connection: {"name": "Ada", "x": 2}}
            ada.set_presence("busy")
            ada.update_presence({"x": 3})
            assert await seen.get() == {ada.connection: {"x": 3}}


async def test_a_program_without_asyncio_emits_and_listens() -> None:
    async with running(Plait(Board, store="memory://")) as address:
        url = f"ws://{address}/threads/board/a"

        def talk() -> Any:
            heard: queue.Queue[Any] = queue.Queue()
            with connect_sync(url) as ada, connect_sync(url) as grace:
                grace.on_event("cursor", lambda data, sender: heard.put((data, sender == ada.connection)))
                ada.emit("cursor", {"x": 1})
                return heard.get(timeout=PATIENCE)

        assert await asyncio.to_thread(talk) == ({"x": 1}, True)
