"""Fixtures for the client's tests."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.client.serving import Server, serve

from plait_client.loop import LoopThread


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server with one thread, in the loop of the test."""
    async with serve() as server:
        yield server


@pytest.fixture
def other_server() -> Iterator[Server]:
    """A server with one thread, in a loop of its own."""
    loop = LoopThread()
    context = serve()
    server = loop.wait(context.__aenter__, None)
    server.loop = loop
    yield server
    loop.wait(lambda: context.__aexit__(None, None, None), None)
    loop.close()
