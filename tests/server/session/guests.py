"""Clients of the native protocol whose sockets are fakes, and what they need to talk to."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from tests.server.fakes import FakeTransport, TroubledStore
from tests.server.rooms import make_request
from tests.server.sessions import make_connection, make_native, nobody

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import CorruptThread, Reject, StoreError, Unavailable
from plait.session.native.joining import Joining
from plait.session.native.plait_session import PlaitSession
from plait.session.native.tokens import Renew
from plait.state.principal import Principal
from plait.store.thread_rows import ChangeRow, ClientRow, ThreadKey
from plait_schemas.messages import SUBPROTOCOL, Join

__all__ = [
    "LARGE",
    "PATIENCE",
    "Guest",
    "Room",
    "Slow",
    "SlowReads",
    "add",
    "change",
    "joined",
    "joins",
    "opening",
    "put",
    "remove",
    "until",
]

PATIENCE = 10.0
# Values so large that three changes are not worth it where the state is smaller.
LARGE = [letter * 6_000 for letter in "abc"]


class Guest:
    """A client of the native protocol whose socket is a fake. `frames` is what it was sent since it was last asked."""

    def __init__(
        self,
        actor: Actor,
        client: str,
        *,
        have: tuple[str, int] | None = None,
        principal: Principal | None = None,
        renew: Renew = nobody,
        arrival: int = 0,
        has_state: bool = True,
    ) -> None:
        self.actor = actor
        self.transport = FakeTransport()
        id = actor.sockets.connection_id(SUBPROTOCOL, principal, client)
        self.connection = make_connection(actor, id, self.transport, principal=principal, arrival=arrival)
        join = Join(client, have, state=has_state)
        self._make = partial(make_native, actor, self.connection, self.transport, join, renew=renew)
        self._ref = 0

    async def prepare(self) -> Joining:
        """Store a new thread, as the endpoint does, and read what the join needs."""
        with suppress(Unavailable):  # It may have been stopped.
            await self.actor.state.store_thread()
        return await self._make()

    async def open(self) -> None:
        """Ask to join."""
        self.join(await self.prepare())

    def join(self, joining: Joining) -> None:
        """Go on to the hooks and the session."""
        self.transport.attach(joining)
        joining.open(make_request())

    @property
    def session(self) -> PlaitSession:
        """The session, once it is joined."""
        assert isinstance(self.transport.session, PlaitSession)
        return self.transport.session

    @property
    def frames(self) -> list[Any]:
        return self.transport.take()

    @property
    def closed(self) -> int | None:
        """The code that the socket was closed with."""
        return self.transport.closed[0] if self.transport.closed else None

    def send(self, type: str, /, **fields: Any) -> None:
        """Send a frame."""
        self.send_text(json.dumps({"type": type, **fields}))

    def send_text(self, text: str) -> None:
        """Send what may be no frame."""
        self.send_bytes(text.encode(), is_text=True)

    def send_bytes(self, data: bytes, *, is_text: bool = False) -> None:
        """Send a message."""
        assert self.transport.session is not None
        self.transport.session.receive(data, is_text=is_text)

    def push(self, *ops: Any, base: int, ref: int | None = None, made: int | None = None, **fields: Any) -> int:
        """Push operations; refs count up. Returns the ref."""
        self._ref = self._ref + 1 if ref is None else ref
        epoch = self.actor.state.history.epoch
        self.send(
            "push",
            ref=self._ref,
            base=[epoch, base],
            **({} if made is None else {"made": [epoch, made]}),
            **{"ops": ops, **fields},
        )
        return self._ref

    def leave(self) -> None:
        """Close the socket."""
        self.transport.close(1000, "")


async def joined(actor: Actor, client: str, **options: Any) -> Guest:
    """Return a guest that has joined, and has taken what it was sent then."""
    guest = Guest(actor, client, **options)
    await guest.open()
    await actor.wait_until_idle()
    assert guest.frames
    return guest


def put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


class Room(Thread[Any]):
    """Has any state but some; `set` and `touch` change it."""

    initial_state = {"n": 0}  # noqa: RUF012

    def on_start(self) -> None:
        self.heard: list[Any] = []

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state.get("n") == "forbidden":
            raise Reject("that one is forbidden", path="/n")
        if next_state.get("n") == "broken":
            raise ZeroDivisionError("secret")

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.heard.append(data)

    @rpc
    def set(self, n: Any) -> None:
        self.set_state(lambda state: {**state, "n": n})


class Slow(Room):
    """Accepts clients while its gate is open."""

    kind = "room"

    def on_start(self) -> None:
        super().on_start()
        self.gate = asyncio.Event()
        self.greeting = asyncio.Event()

    async def on_connect(self, connection: Connection, request: Request) -> None:
        self.greeting.set()
        await self.gate.wait()


async def change(actor: Actor, *values: Any) -> None:
    """Have the server set n to some values, one change each, and wait until they are durable."""
    for n in values:
        await actor.thread.set_state({**actor.thread.state, "n": n})


async def until(is_so: Callable[[], Any]) -> None:
    """Run other tasks until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


def joins(frames: Sequence[Any]) -> dict[str, Any]:
    """Return the first of some frames, which must be `joined`, without what is always in it."""
    assert frames[0]["type"] == "joined"
    always = ("type", "connection", "thread", "epoch", "max_frame")
    return {key: value for key, value in frames[0].items() if key not in always}


async def opening(actor: Actor, client: str, **options: Any) -> tuple[Guest, dict[str, Any]]:
    """Join as a client; return it, and what `joins` says of its first frame."""
    guest = Guest(actor, client, **options)
    await guest.open()
    return guest, joins(guest.frames)


class SlowReads(TroubledStore):
    """A store whose reads of the log and of clients wait for `may_read`, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.is_broken = False
        self.is_damaged = False
        # How many reads of the log there were.
        self.reads = 0

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        self.reads += 1
        await self.may_read.wait()
        if self.is_broken:
            raise StoreError("the disk is broken")
        if self.is_damaged:
            raise CorruptThread(f"{key}: change {after + 1} is damaged")
        return await super().changes(key, after=after, limit=limit, size=size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        await self.may_read.wait()
        return await super().client(key, client)
