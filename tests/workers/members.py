"""Sockets of users of `member_apps`, of both protocols."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.integration.socket_client import TIMEOUT, http, websocket
from websockets.exceptions import ConnectionClosed

__all__ = ["check_disconnects"]


async def check_disconnects(addresses: Iterable[str], threads: Iterable[str], *, each: int = 5) -> None:
    """Disconnect a user at each address, and check that all its sockets at all addresses are closed, and no other."""
    addresses = list(addresses)
    for at in addresses:
        sockets = [
            await join(address, thread, "ada") for address in addresses for thread in threads for join in JOINS * each
        ]
        others = [await join(address, thread, "bob") for address in addresses for thread in threads for join in JOINS]
        async with http(at) as web:
            answer = await web.post("/disconnect/ada?user=admin")
            assert answer.json() == len(sockets), answer.text
        assert [await read_code(each) for each in sockets] == [4401] * len(sockets)
        for other in others:
            async with asyncio.timeout(TIMEOUT):
                await (await other.ping())
            await other.close()


async def join_native(address: str, thread: str, user: str) -> Any:
    socket = await websocket(f"ws://{address}/threads/room/{thread}", subprotocols=["plait.v1"])
    await socket.send(json.dumps({"type": "join", "client": f"{user}-{id(socket)}", "token": user}))
    await _until(socket, '"joined"')
    return socket


async def join_cloudflare(address: str, thread: str, user: str) -> Any:
    socket = await websocket(f"ws://{address}/threads/room/{thread}?user={user}")
    await _until(socket, "cf_agent_mcp_servers")
    return socket


JOINS = [join_native, join_cloudflare]


async def _until(socket: Any, text: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while text not in await socket.recv():
            pass


async def read_code(socket: Any) -> int:
    """Read a socket until it is closed, and return the code."""
    async with asyncio.timeout(TIMEOUT):
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()
    code: int = socket.close_code
    return code
