"""The bare limit of a socket server: `python -m benchmarks.bare FOLDER PORT`.

websockets Sans-I/O on uvloop: echo, echo after a commit, frame-once fan-out, and nothing more.
"""

import asyncio
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import cast

import uvloop
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from benchmarks.bare_sqlite import commit, open_log

__all__ = ["main"]

Rooms = dict[str, set["BareSocket"]]
WELCOME = b'{"type":"cf_agent_state","state":{"n":0}}'
COUNT = re.compile(rb'"args":\[(\d+)\],"id":"[^"]*","method":"(?:count|generate)"')


class BareSocket(asyncio.Protocol):
    """Answers an rpc frame with itself and passes every other frame on to the rest of its room."""

    def __init__(self, rooms: Rooms, database: sqlite3.Connection) -> None:
        self.rooms = rooms
        self.database = database
        self.protocol = ServerProtocol(max_size=None)
        self.room: set[BareSocket] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self.room.discard(self)

    def data_received(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Frame):
                self.frame_received(event)
            elif isinstance(event, Request):
                self.accept(event)
        if output := self.protocol.data_to_send():
            self.transport.write(b"".join(output))

    def accept(self, request: Request) -> None:
        """Finish the handshake, join the room of the path, send a first state."""
        self.protocol.send_response(self.protocol.accept(request))
        self.room = self.rooms.setdefault(request.path, set())
        self.room.add(self)
        self.protocol.send_text(WELCOME)

    def frame_received(self, frame: Frame) -> None:
        """Echo, stream or fan out."""
        if frame.opcode is not Opcode.TEXT:
            return
        payload = bytes(frame.data)
        if not payload.endswith(b'"type":"rpc"}'):
            once = Frame(Opcode.TEXT, payload).serialize(mask=False)
            for other in self.room:
                if other is not self:
                    other.transport.write(once)
        elif match := COUNT.search(payload):
            for n in range(int(match[1])):
                self.protocol.send_text(b'{"type":"rpc","id":"1","success":true,"done":false,"result":%d}' % n)
            self.protocol.send_text(b'{"type":"rpc","id":"1","success":true,"done":true}')
        else:
            if b'"method":"add"' in payload:
                commit(self.database, 1)
                self.protocol.send_text(WELCOME)
            self.protocol.send_text(payload)


async def serve(folder: Path, port: int) -> None:
    """Serve until ended."""
    rooms: Rooms = {}
    loop = asyncio.get_running_loop()
    with closing(open_log(folder / "socket.db")) as database:
        server = await loop.create_server(lambda: BareSocket(rooms, database), "127.0.0.1", port, backlog=2048)
        await server.serve_forever()


def main() -> None:
    """Run the server."""
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
