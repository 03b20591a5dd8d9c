"""The results of queries, as a client without asyncio iterates over them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.client.querying import (
    ORDERS,
    Order,
    Shop,
    fail,
    next_call,
    tell,
)
from tests.client.serving import TIMEOUT, Server

from plait_client import CallError, Closed, connect_sync
from plait_schemas import messages


def test_queries_without_asyncio(other_server: Server) -> None:
    server, loop = other_server, other_server.loop
    assert loop is not None
    with connect_sync(server.url) as room:
        query = room.query(Shop.open_orders, ["c1"], timeout=TIMEOUT)

        with ThreadPoolExecutor() as pool:
            first = pool.submit(next, query)
            loop.wait(lambda: next_call(server), TIMEOUT)
            loop.do(lambda: tell(server, 1, at=3, tag="t1", rows=ORDERS))
            assert first.result(TIMEOUT) == [Order("o1", "tea"), Order("o2", "ink")]
        assert query.at == 3
        loop.do(lambda: fail(server, 1))
        with pytest.raises(CallError, match="no such table"):
            next(query)
        loop.do(lambda: tell(server, 1, at=4, tag="t2", ops=[{"op": "remove", "path": "/0"}]))
        for rows in query:
            assert rows == [Order("o2", "ink")]
            query.close()
        with (
            closing(room.query("total", timeout=0.05)) as total,
            pytest.raises(TimeoutError, match="nothing from total within"),
        ):
            next(total)

        def left() -> bool:
            return [frame.ref for frame in server.frames(messages.Cancel)] == [1, 2]

        loop.wait(lambda: server.until(left), TIMEOUT)
    with pytest.raises(Closed):
        room.query("total")
