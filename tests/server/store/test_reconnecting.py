"""The replacement of lost connections, without a server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.reconnecting import Reconnector, Turns

PATIENCE = 10.0


class Line:
    """A connection."""

    def __init__(self) -> None:
        self.is_lost = False
        self.is_closed = False

    async def close(self) -> None:
        self.is_lost = self.is_closed = True


class Server:
    """Refuses connections until it is up."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.attempts = 0
        self.on_attempt: Callable[[], object] = lambda: None

    async def connect(self) -> Line:
        self.attempts += 1
        self.on_attempt()
        if not self.up.is_set():
            raise Unreachable(f"attempt {self.attempts}")
        return Line()


def make(server: Server, patience: float = PATIENCE) -> tuple[Reconnector[Line], Line]:
    """Return an open reconnector, and its connection."""
    lines = Reconnector(
        server.connect,
        Line.close,
        lambda line: line.is_lost,
        server="it",
        patience=patience,
    )
    lines.open(first := Line())
    return lines, first


async def test_callers_wait_for_the_next_connection_and_the_lost_one_is_closed() -> None:
    server = Server()
    lines, first = make(server)
    assert await lines.wait() is first
    first.is_lost = True
    server.on_attempt = lambda: server.up.set() if server.attempts == 3 else None
    found = await asyncio.gather(lines.wait(), lines.wait())
    assert found[0] is found[1] is not first
    assert (server.attempts, first.is_closed, found[0].is_closed) == (3, True, False)
    await lines.close()
    assert found[0].is_closed


async def test_only_the_current_connection_is_replaced() -> None:
    server = Server()
    server.up.set()
    lines, first = make(server)
    lines.replace(Line())
    assert lines._connecting is None
    assert await lines.wait() is first
    lines.replace(first)
    lines.replace(first)
    first.is_lost = True
    assert await lines.wait() is not first
    assert server.attempts == 1
    await lines.close()


async def test_a_caller_whose_patience_has_ended_gets_the_last_reason() -> None:
    server = Server()
    lines, first = make(server, patience=0.0)
    first.is_lost = True
    with pytest.raises(Unreachable, match="it cannot be reached: the connection is lost"):
        await lines.wait()
    tried = asyncio.Event()
    server.on_attempt = lambda: tried.set() if server.attempts == 2 else None
    await asyncio.wait_for(tried.wait(), PATIENCE)
    with pytest.raises(Unreachable, match=r"it cannot be reached: attempt [12]$"):
        await lines.wait()
    await lines.close()


async def test_close_ends_the_attempts_and_those_that_wait() -> None:
    server = Server()
    lines, first = make(server)
    first.is_lost = True
    tried = asyncio.Event()
    server.on_attempt = tried.set
    waiting = asyncio.create_task(lines.wait())
    await asyncio.wait_for(tried.wait(), PATIENCE)
    await lines.close()
    with pytest.raises(StoreError, match="closed"):
        await waiting
    attempts = server.attempts
    with pytest.raises(StoreError, match="closed"):
        await lines.wait()
    assert server.attempts == attempts


async def test_callers_wait_for_a_turn_as_long_as_others_get_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.store.reconnecting._TURN", 0.5)
    turns, done = Turns(1), asyncio.Event()

    async def use(answer: Coroutine[Any, Any, object]) -> None:
        async with turns.take():
            await answer

    await asyncio.gather(*(use(asyncio.sleep(0.1)) for _ in range(12)))
    hanging = asyncio.create_task(use(done.wait()))
    await asyncio.sleep(0)
    with pytest.raises(Unreachable, match="does not answer in time"):
        async with turns.take():
            pass
    done.set()
    await hanging
    await use(asyncio.sleep(0))
