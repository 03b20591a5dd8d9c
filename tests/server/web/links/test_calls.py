"""Calls between nodes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.server.nodes import open_nodes

from plait import Plait, Thread, ThreadKey, Unavailable
from plait.node.remote_requests import ImportThread

PATIENCE = 20.0


class Desk(Thread[int]):
    initial_state = 0


async def test_a_call_that_is_refused_has_read_nothing_of_its_upload() -> None:
    read = []

    async def upload() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"line"

    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Desk, store="memory://")) as nodes:
        key = ThreadKey("desk", nodes.name(Desk, 0))
        ask = nodes.apps[0]._node.everywhere.nodes.ask
        nodes.apps[0]._context.links.hold = 0.2
        sent = nodes.sent
        with pytest.raises(Unavailable):
            # The other node does not own the thread.
            await ask(1, ImportThread(key, replace=False), upload=upload())
        assert nodes.sent > sent
        assert read == []
