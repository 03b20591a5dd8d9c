"""Sockets with presence at threads of `lobby_apps`, compared with the listing and the presence."""

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import Any

import httpx
from tests.integration.socket_client import TIMEOUT, http, websocket
from websockets.protocol import State

from plait_client import connect

__all__ = ["Guest", "check_people", "read_page", "sit_down"]


class Guest:
    """A socket that shows its name at a table, and does not come back when it is closed."""

    def __init__(self, table: str, name: str, socket: Any) -> None:
        self.table = table
        self.name = name
        self.socket = socket

    @property
    def is_here(self) -> bool:
        """Whether the socket is open."""
        return bool(self.socket.state is State.OPEN)

    @property
    def port(self) -> int:
        """The port of the socket."""
        port: int = self.socket.local_address[1]
        return port

    async def until_closed(self) -> None:
        """Wait until the socket is closed."""
        async with asyncio.timeout(TIMEOUT):
            await self.socket.wait_closed()


async def sit_down(address: str, table: str, name: str) -> Guest:
    """Join a table and show a name."""
    socket = await websocket(f"ws://{address}/threads/table/{table}", subprotocols=["plait.v1"])
    await socket.send(json.dumps({"type": "join", "client": name}))
    await socket.send(json.dumps({"type": "presence", "data": name}))
    async with asyncio.timeout(TIMEOUT):
        while f'"{name}"' not in str(await socket.recv()):
            pass
    return Guest(table, name, socket)


async def read_page(address: str) -> Any:
    """Return the listing; a connection that a killed process had accepted is made again."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                async with http(address) as client:
                    answer = await client.get("/threads/table")
            except httpx.TransportError:
                continue
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                return answer.json()


async def check_people(address: str, guests: Sequence[Guest], tables: Sequence[str]) -> None:
    """Check that the first complete listing has the open sockets and no others, and that so has the presence."""
    async with asyncio.timeout(TIMEOUT):
        while (page := await read_page(address))["silent"]:
            pass
    found = {row["name"]: row["people"] for row in page["threads"]}
    here = {table: {each.name for each in guests if each.table == table and each.is_here} for table in tables}
    assert found == {table: len(names) for table, names in here.items()}
    for table, names in here.items():
        await _check_presence(address, table, names)


async def _check_presence(address: str, table: str, names: Collection[str]) -> None:
    """Check that a client that joins sees these names, and after a moment no others."""
    async with asyncio.timeout(TIMEOUT), connect(f"ws://{address}/threads/table/{table}") as room:
        while (shown := {*room.presence.values()}) != names:
            assert shown == set() or shown >= set(names)
            await asyncio.sleep(0.01)
