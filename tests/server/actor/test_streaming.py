"""One streamed response, without a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from plait import PlaitError, StoreError
from plait.actor import streaming
from plait.actor.rpc import Method
from plait.actor.streaming import StreamRunner


class Stuck:
    """A reader that reads nothing."""

    is_backed_up = True

    async def drain(self) -> None:
        await asyncio.get_running_loop().create_future()


async def produce(_: object) -> AsyncIterator[str]:
    for _each in range(3):
        yield "x" * 700_000


async def test_a_run_whose_changes_are_lost_while_its_reader_is_stuck_is_answered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "_PATIENCE", 0.01)
    answers: list[BaseException | None] = []
    is_lost = asyncio.Event()

    def gate(release: Callable[[PlaitError | None], None]) -> None:
        asyncio.get_running_loop().call_soon(release, StoreError("the disk is full"))

    runner = StreamRunner(
        lambda what, value: lambda: None,
        lambda result, error: answers.append(error),
        gate=gate,
        connection=None,
        report=lambda error, connection: None,
        reader=Stuck(),
    )
    runner.lose = is_lost.set
    await runner.run(Method("produce", "produce", produce, concurrent=True), None, [], {})
    assert is_lost.is_set()
    assert [type(each) for each in answers] == [StoreError]
