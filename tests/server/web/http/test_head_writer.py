"""The head of an answer, with the beginning of its body."""

import asyncio

import pytest

from plait.web.http.head_writer import HeadWriter

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire(asyncio.WriteTransport):
    """A transport that keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def writer(wire: Wire) -> HeadWriter:
    return HeadWriter(wire, asyncio.get_running_loop(), wire.close)


async def test_the_head_is_written_with_the_body_that_follows_at_once(wire: Wire, writer: HeadWriter) -> None:
    writer.write(HEAD)
    writer.write(b"one")
    writer.write(b"two")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"one", b"two"]


async def test_the_head_does_not_wait_for_a_body_that_comes_later(wire: Wire, writer: HeadWriter) -> None:
    writer.write(HEAD)
    assert wire.writes == []
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    writer.write(b"one")
    assert wire.writes == [HEAD, b"one"]


async def test_a_large_body_is_not_copied(wire: Wire, writer: HeadWriter) -> None:
    body = b"x" * 1024 * 1024
    writer.write(HEAD)
    writer.write(body)
    assert wire.writes == [HEAD, body]
    assert wire.writes[1] is body


async def test_what_waits_is_written_before_the_connection_is_closed(wire: Wire, writer: HeadWriter) -> None:
    writer.write(HEAD)
    writer.close()
    assert wire.writes == [HEAD]
    assert writer.is_closing()


async def test_nothing_is_written_to_a_connection_that_was_closed_meanwhile(wire: Wire, writer: HeadWriter) -> None:
    writer.write(HEAD)
    wire.close()
    await asyncio.sleep(0)
    assert wire.writes == []
