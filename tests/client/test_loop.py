"""A loop in an OS thread of its own, and the callers that wait for it when it ends."""

import asyncio
import threading

import pytest
from tests.client.serving import TIMEOUT

from plait_client import Closed
from plait_client.loop import LoopThread


def test_who_waits_when_the_loop_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait_client.loop._PATIENCE", 0.01)
    loop = LoopThread()
    began = threading.Event()
    raised: list[BaseException] = []

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.wait(forever, None)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert began.wait(TIMEOUT)
    loop.close()
    waiting.join(TIMEOUT)
    assert [type(error) for error in raised] == [Closed]


def test_who_comes_while_the_loop_is_closing_is_told_at_once() -> None:
    loop = LoopThread()
    go_on = threading.Event()

    async def last() -> None:
        await asyncio.to_thread(go_on.wait, TIMEOUT)

    async def nothing() -> None:
        pass

    loop.begin_close(last)
    with pytest.raises(Closed):
        loop.wait(nothing, None)
    go_on.set()
    assert loop.do(lambda: 1) == 1
    loop.close()


def test_closing_twice_is_closing_once() -> None:
    loop = LoopThread()
    calls: list[int] = []

    async def last() -> None:
        calls.append(1)

    loop.close(last)
    loop.close(last)
    assert calls == [1]
