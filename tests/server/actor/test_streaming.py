"""One streamed response, without a thread."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import FrameType

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


class Quick:
    """A reader that has read everything."""

    is_backed_up = False

    async def drain(self) -> None: ...


async def test_a_chunk_for_a_reader_that_keeps_up_needs_no_coroutine() -> None:
    async def count(_: object) -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    sent, ran = list[object](), list[str]()

    def keep(what: object, value: object) -> Callable[[], None]:
        sent.append(value)
        return lambda: None

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_COROUTINE:
            ran.append(frame.f_code.co_name)

    runner = StreamRunner(
        keep,
        lambda result, error: None,
        gate=lambda release: release(None),
        connection=None,
        report=lambda error, connection: None,
        reader=Quick(),
    )
    sys.setprofile(note)
    try:
        await runner.run(Method("count", "count", count, concurrent=True), None, [], {})
    finally:
        sys.setprofile(None)
    assert sent[:1000] == list(range(1000))
    assert len(ran) < 100


async def test_chunks_of_a_run_are_not_encoded_to_be_measured_while_their_reader_keeps_up() -> None:
    encoded = list[object]()

    @dataclass
    class Chunk:
        text: str

        def __getattribute__(self, name: str) -> object:
            encoded.append(name)
            return object.__getattribute__(self, name)

    async def produce_chunks(_: object) -> AsyncIterator[Chunk]:
        for _each in range(3):
            yield Chunk("x")

    runner = StreamRunner(
        lambda what, value: lambda: None,
        lambda result, error: None,
        gate=lambda release: release(None),
        connection=None,
        report=lambda error, connection: None,
        reader=Quick(),
    )
    runner.lose = lambda: None
    await runner.run(Method("produce", "produce", produce_chunks, concurrent=True), None, [], {})
    assert encoded == []
