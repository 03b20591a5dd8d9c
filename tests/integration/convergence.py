"""A server and several clients with the network between them in the test's hands: delays, losses, kills."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from tests.server.fakes import TroubledStore
from tests.server.rooms import make_request
from tests.server.sessions import make_connection, make_native

from plait.actor.actor import Actor
from plait.actor.thread import Thread
from plait.actor.transport import Frame, OneWay, Receiver
from plait.errors import StoreError
from plait.limits import UNLIMITED
from plait.node.node import Node
from plait.state.state_history import replay_json
from plait.store.memory import MemoryStore
from plait.store.thread_rows import ThreadKey
from plait_client.events import Acked, Nacked
from plait_client.fold import Pending
from plait_client.session import Session
from plait_schemas.codec import decode_json
from plait_schemas.codes import TRY_AGAIN_LATER
from plait_schemas.diff import diff
from plait_schemas.frames import decode_client, decode_server, encode
from plait_schemas.messages import SUBPROTOCOL, Join, Joined
from plait_schemas.patch import Op, PatchError, apply

__all__ = ["Member", "World", "decode"]

ABNORMAL = 1006


def decode(data: bytes) -> Any:
    """Return the value of JSON."""
    return decode_json(data)


class Wire(OneWay):
    """One socket: the frames that were sent but have not arrived yet, each way."""

    is_backed_up = False

    def __init__(self) -> None:
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.session: Receiver | None = None
        self.is_joining = False
        # Whether its client has been told that it has joined.
        self.is_joined = False
        self.closed: int | None = None

    def attach(self, receiver: Receiver) -> None:
        self.session = receiver

    # The Transport of the server's end

    def send(self, frame: Frame) -> None:
        if self.closed is None:
            self.down.append(frame.data)

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = code
            if self.session is not None:
                self.session.close(code, reason)

    async def drain(self) -> None:
        pass


class Member:
    """One client, and the answers to its pushes."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.session = Session(name, now=lambda: world.now)
        self.wire: Wire | None = None
        # What each push became, by the number that the test gave it: "ack" or the code of the refusal.
        self.outcomes: dict[int, str] = {}
        self.numbers: dict[int, int] = {}
        self.pushes: list[Pending] = []

    def push(self, number: int, ops: list[Op]) -> bool:
        """Push operations on the shown state, and return whether there were any."""
        push = self.session.push(ops)
        self.made(number, push)
        self.note()
        return push is not None

    def set(self, number: int, state: Any) -> bool:
        """Push the differences of a whole state, and return whether there were any."""
        return self.push(number, diff(self.session.shown, state))

    def made(self, number: int, push: Pending | None) -> None:
        """Remember a push under a number."""
        if push is not None:
            self.numbers[id(push)] = number
            self.pushes.append(push)

    @property
    def has_answers(self) -> bool:
        """Whether every push has had its outcome."""
        return len(self.outcomes) == len(self.pushes)

    def note(self) -> None:
        """Record the events, and check the shown state."""
        session = self.session
        for event in session.take_events():
            match event:
                case Acked():
                    self._end(event.push, "ack")
                case Nacked():
                    self._end(event.push, event.answer.code)
        assert msgspec.json.encode(session.shown) == msgspec.json.encode(self.folded())

    def folded(self) -> Any:
        """Return the confirmed state after the pending pushes, in order, without operations that do not fit."""
        state = self.session.confirmed
        for push in self.session.pending:
            if push.lost_on is None:
                try:
                    state = apply(state, push.ops)
                except PatchError:
                    continue
        return state

    def _end(self, push: Pending, outcome: str) -> None:
        number = self.numbers[id(push)]
        assert number not in self.outcomes, "a push has had two outcomes"
        self.outcomes[number] = outcome


class World:
    """Everything. Nothing moves but by the methods here."""

    def __init__(
        self, kind: type[Thread[Any]], names: list[str], make_store: Callable[[], TroubledStore] = TroubledStore
    ) -> None:
        self.kind = kind
        self.make_store = make_store
        self.key = ThreadKey(kind._kind.name, "a")
        self.now = 0.0
        self.disk = MemoryStore()
        self.members = [Member(self, name) for name in names]
        # What each client took for confirmed, by epoch and version.
        self.seen: dict[tuple[str, int], bytes] = {}
        # How often the server was ended at once.
        self.kills = 0
        # Sockets that their clients have given up, while the server does not know of it.
        self.abandoned: list[Wire] = []
        self._store: TroubledStore | None = None
        self._node: Node | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start a server with the data on the disk."""
        self._store = self.make_store()
        self._store.inner = self.disk
        await self._store.__aenter__()
        self._node = Node([self.kind._kind], self._store, UNLIMITED)
        self._node.start()

    async def kill(self) -> None:
        """End the server at once: data that is not on the disk is lost, and so are the frames on its sockets."""
        assert self._store is not None
        assert self._node is not None
        self.kills += 1
        self._store.waiting.clear()
        self._store.is_held = True
        for member in self.members:
            self.cut(member)
        self.abandoned.clear()
        for task in (*self._tasks, *self._node._threads.tasks):
            task.cancel()
        for actor in self._node.actors:
            actor.abort()
        await self._node._sweeper.stop()
        await self.rest()
        await self.disk.__aexit__(None, None, None)
        await self.start()

    async def stop(self) -> None:
        """End the server in good order."""
        assert self._node is not None
        assert self._store is not None
        self._store.resume()
        await self._node.stop(5.0)
        await self._store.__aexit__(None, None, None)

    async def rest(self) -> None:
        """Run everything that needs nothing from outside."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def actor(self) -> Actor:
        """Return the thread."""
        assert self._node is not None
        return await self._node.actor(self.key)

    def awake(self) -> Actor | None:
        """Return the thread if it is awake; waking may have to wait for the disk."""
        assert self._node is not None
        return self._node._threads.find_awake(self.key)

    def hold(self, *, is_held: bool) -> None:
        """Stop the disk, or store everything that waits."""
        assert self._store is not None
        if is_held:
            self._store.is_held = True
        else:
            self._store.resume()

    def fail_next(self) -> None:
        """Make the disk refuse the next write."""
        assert self._store is not None
        self._store.fail_next()

    # The network

    def connect(self, member: Member) -> None:
        """Open a socket for a client that wants one."""
        if member.wire is None and member.session.needs_socket:
            member.wire = Wire()
            member.session.open()
            self.flush(member)

    def cut(self, member: Member) -> None:
        """Break a client's socket: frames on their way are lost, each way."""
        wire, member.wire = member.wire, None
        if wire is not None:
            wire.close(ABNORMAL, "")
            member.session.lost(ABNORMAL)
            member.note()

    def abandon(self, member: Member) -> None:
        """Break a client's socket only at its end: its sent frames may still arrive."""
        wire, member.wire = member.wire, None
        if wire is not None:
            self.abandoned.append(wire)
            member.session.lost(ABNORMAL)
            member.note()

    def carry_late(self, wire: Wire) -> None:
        """Deliver the oldest frame of a socket that its client has given up, or tell the server of its end."""
        if wire.session is not None and wire.up and wire.closed is None:
            wire.session.receive(wire.up.popleft(), is_text=True)
        else:
            self.abandoned.remove(wire)
            wire.close(ABNORMAL, "")

    def flush(self, member: Member) -> None:
        """Put a client's output on the wire."""
        for frame in member.session.take_frames():
            if member.wire is not None and not isinstance(frame, bytes):
                member.wire.up.append(encode(frame))
        if member.wire is not None and member.session.needs_socket:
            self.cut(member)

    async def carry_up(self, member: Member) -> None:
        """Deliver the oldest frame of a client to the server."""
        wire = member.wire
        if wire is None or not wire.up or wire.is_joining:
            return
        data = wire.up.popleft()
        if wire.session is not None:
            wire.session.receive(data, is_text=True)
            return
        join = decode_client(data)
        assert isinstance(join, Join)
        wire.is_joining = True
        task = asyncio.create_task(self._join(wire, join))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def carry_down(self, member: Member) -> None:
        """Deliver the oldest frame of the server to a client."""
        wire = member.wire
        if wire is None:
            return
        if wire.down:
            frame = decode_server(wire.down.popleft())
            wire.is_joined = wire.is_joined or isinstance(frame, Joined)
            member.session.receive(frame)
            self._observe(member)
            member.note()
            self.flush(member)
        elif wire.closed is not None:
            self.cut(member)

    async def _join(self, wire: Wire, join: Join) -> None:
        try:
            await self._enter(wire, join)
        except StoreError as error:
            wire.close(TRY_AGAIN_LATER, str(error))
        wire.is_joining = False

    async def _enter(self, wire: Wire, join: Join) -> None:
        actor = await self.actor()
        with actor.usage.keep_awake():
            await actor.state.store_thread()
            id = actor.sockets.connection_id(SUBPROTOCOL, None, join.client)
            connection = make_connection(actor, id, wire, arrival=0)
            joining = await make_native(actor, connection, wire, join)
            if wire.closed is not None:
                joining.close(ABNORMAL, "")
                return
            wire.attach(joining)
            joining.open(make_request())

    def _observe(self, member: Member) -> None:
        session = member.session
        if session.epoch is None:
            return
        confirmed = msgspec.json.encode(session.confirmed, order="sorted")
        known = self.seen.setdefault((session.epoch, session.version), confirmed)
        assert known == confirmed, f"two clients have taken different states for version {session.version}"

    # The end

    async def quiet(self) -> None:
        """Deliver everything, until nothing is left to be done."""
        self.hold(is_held=False)
        while self.abandoned:
            self.carry_late(self.abandoned[0])
        for _ in range(2000):
            for member in self.members:
                self.connect(member)
                await self.carry_up(member)
                self.carry_down(member)
            await self.rest()
            if not any(self._is_busy(member) for member in self.members):
                return
        raise AssertionError("it never became quiet")

    def _is_busy(self, member: Member) -> bool:
        wire = member.wire
        if wire is None or wire.up or wire.down or not wire.is_joined or wire.closed is not None:
            return True
        return bool(member.session.pending) or not member.has_answers

    async def versions(self) -> list[bytes]:
        """Return the state of each version, from the log alone."""
        rows = await self.disk.changes(self.key, after=0, limit=100_000)
        assert [row.version for row in rows] == list(range(1, len(rows) + 1)), "versions are not dense"
        states = []
        for version in range(len(rows) + 1):
            stored = await self.disk.load(self.key, version=version)
            assert stored is not None
            states.append(replay_json(self.key, stored))
        return states
