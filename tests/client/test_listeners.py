"""Callbacks: who is called, and who no more."""

import asyncio
import sys
from functools import partial
from typing import Any

import pytest

from plait_client.listeners import Listeners


def test_a_callback_is_called_as_often_as_it_is_there() -> None:
    got: list[int] = []
    listeners = Listeners()
    removes = [listeners.add("goal", got.append) for _ in range(2)]
    listeners.call("goal", 1)
    assert got == [1, 1]
    removes[1]()
    listeners.call("goal", 2)
    assert got == [1, 1, 2]


def test_ending_one_registration_twice_leaves_another_of_the_same_callback() -> None:
    got: list[int] = []
    listeners = Listeners()
    remove = listeners.add("goal", got.append)
    listeners.add("goal", got.append)
    remove()
    remove()
    listeners.call("goal", 1)
    assert got == [1]


def test_a_callback_that_finds_something_cancelled_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[int] = []
    listeners = Listeners()

    def look(value: int) -> None:
        raise asyncio.CancelledError

    listeners.add("goal", look)
    listeners.add("goal", got.append)
    listeners.call("goal", 1)
    assert got == [1]
    assert [record.getMessage() for record in caplog.records] == ["a callback for goal failed"]


def test_a_callback_may_end_the_program_and_the_others_are_called() -> None:
    got: list[str] = []
    listeners = Listeners()
    listeners.add("goal", sys.exit)
    listeners.add("goal", got.append)

    async def main() -> None:
        listeners.call("goal", "over")
        await asyncio.Event().wait()

    with pytest.raises(SystemExit, match="over"):
        asyncio.run(main())
    assert got == ["over"]


def test_a_callback_that_nobody_would_await_is_refused() -> None:
    async def callback(value: Any, more: int = 0) -> None:
        pass

    listeners = Listeners()
    for each in (callback, partial(callback, more=1)):
        with pytest.raises(TypeError, match="plain function"):
            listeners.add("goal", each)
