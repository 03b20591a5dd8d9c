"""What tests put at the edges: a transport that keeps what it is sent, a store that can be held up and made to fail."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from plait.actor.transport import Frame, Receiver
from plait.errors import Fenced, StoreError
from plait.store.memory import MemoryStore
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange, ThreadKey
from plait.web.fairness import FairScheduler, Ticket

__all__ = ["FakeTransport", "TroubledStore"]

_PATIENCE = 10.0


class FakeTransport:
    """A transport that keeps what is sent, and tells its session when it is closed, as a socket does."""

    def __init__(self, *, can_ping: bool = True, room: int | None = None) -> None:
        self.can_ping = can_ping
        self.session: Receiver | None = None
        # What was sent and has not been taken, and all that was sent.
        self._unread: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[Any] = []
        self.pings: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.is_paused = False
        self.is_stopped = False
        # Whether the peer reads too slowly; set by tests, see `catch_up`.
        self.is_backed_up = False
        # How many more frames the peer takes until it reads too slowly again; None for any number.
        self.room_at_once: int | None = None
        # Where costly work waits; None if it is done at once.
        self.scheduler: FairScheduler | None = None
        # Frames that fit before the peer is found too slow.
        self._room = room

    def attach(self, receiver: Receiver) -> None:
        self.session = receiver

    # The Transport of a connection

    def send(self, frame: Frame) -> None:
        if self.closed is not None:
            return
        if self._room is not None and len(self.sent) >= self._room:
            self.close(1013, "too slow")
            return
        if self.room_at_once is not None:
            self.room_at_once -= 1
            self.is_backed_up = not self.room_at_once
        self.sent.append(_read(frame))
        self._unread.put_nowait(self.sent[-1])

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        assert self.can_ping
        if self.closed is None:
            self.pings.append(payload)
        self.send(frame)

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)
            self._unread.put_nowait(None)
            if self.session is not None:
                self.session.close(code, reason)

    def resume(self) -> None:
        self.is_paused = self.is_stopped

    def pause(self) -> None:
        self.is_paused = True

    def stop_reading(self) -> None:
        self.is_paused = self.is_stopped = True

    def schedule(self, work: Callable[[], None]) -> Ticket | None:
        if self.scheduler is not None:
            return self.scheduler.run(work)
        work()
        return None

    async def drain(self) -> None:
        return

    # What tests do

    async def next(self) -> Any:
        """Return the next message that was sent and not yet taken; None when the transport is closed."""
        async with asyncio.timeout(_PATIENCE):
            return await self._unread.get()

    def take(self) -> list[Any]:
        """Return all messages that were sent and not yet taken."""
        return [self._unread.get_nowait() for _ in range(self._unread.qsize())]

    def catch_up(self) -> None:
        """Catch up: the slow peer has read everything."""
        assert self.session is not None
        self.is_backed_up = False
        self.session.drained()

    def answer_ping(self) -> None:
        """Answer the last ping, as the peer does by itself."""
        assert self.session is not None
        self.session.pong(self.pings[-1])


def _read(frame: Frame) -> Any:
    if not frame.is_text:
        return frame.data
    try:
        return json.loads(frame.data)
    except ValueError:
        return frame.data.decode()


class TroubledStore:
    """A MemoryStore whose writes wait while `is_held`, and whose next write can be made to fail."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.is_held = False
        # Writes that were submitted, and those of them that wait.
        self.submitted: list[Write] = []
        self.waiting: deque[tuple[Write, asyncio.Future[int]]] = deque()
        self._failure: StoreError | None = None
        self._fails_all = False
        # Writes that need not wait, and what carries them out.
        self._ready: deque[tuple[Write, asyncio.Future[int]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._load_failure: StoreError | None = None
        # What the next read of a record waits for before it returns.
        self.read_gate: asyncio.Event | None = None
        # The write that is being carried out.
        self._carried: list[tuple[Write, asyncio.Future[int]]] = []
        self._owners: dict[ThreadKey, int] = {}
        self._on_claims_lost: Callable[[], None] = lambda: None

    def lose_claims(self) -> None:
        """End all claims at once, as a store does that may have lost changes."""
        self._owners.clear()
        self._on_claims_lost()

    def fail_next(self, error: StoreError | None = None) -> None:
        """Make the next write that is carried out fail; the store then works again."""
        self._failure = error or StoreError("the disk is full")

    def fail_all(self) -> None:
        """Make all writes fail from now on."""
        self._fails_all = True

    def fail_load(self) -> None:
        """Make the next load fail."""
        self._load_failure = StoreError("the disk is broken")

    def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        return self.inner.export(key, view=view)

    def resume(self, count: int | None = None) -> None:
        """Carry out waiting writes: the first `count`, or all, and those to come."""
        if count is None:
            self.is_held = False
        for _ in range(len(self.waiting) if count is None else count):
            self._ready.append(self.waiting.popleft())
        if self._ready and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._carry_out())

    async def _carry_out(self) -> None:
        """Carry out writes one by one, so that their outcomes come in order."""
        while self._ready:
            self._carried = [(write, future)] = [self._ready.popleft()]
            failure, self._failure = self._failure, None
            if self._fails_all:
                failure = StoreError("the disk is full")
            try:
                if failure is not None:
                    raise failure
                count = await self.store(write)
            except StoreError as error:
                if not future.done():
                    future.set_exception(error)
                self._fail_waiting(write.key, error)
            else:
                if not future.done():  # The waiting task may have been cancelled.
                    future.set_result(count)

    async def store(self, write: Write) -> int:
        """Carry out a write, and return its outcome. Raises the error that is its outcome."""
        return await self.inner.submit(write)

    def _fail_waiting(self, key: ThreadKey, error: StoreError) -> None:
        """Fail the waiting writes of a thread."""
        for queue in (self._ready, self.waiting):
            for each in [each for each in queue if each[0].key == key]:
                queue.remove(each)
                each[1].set_exception(error)

    # The Store protocol

    @property
    def is_shared(self) -> bool:
        return self.inner.is_shared

    @property
    def durability(self) -> str:
        return self.inner.durability

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()
        if self._task is not None:
            await self._task
        await self.inner.__aexit__(kind, error, trace)

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        if self._load_failure is not None:
            failure, self._load_failure = self._load_failure, None
            raise failure
        return await self.inner.load(key, version=version, records=records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        return await self.inner.find(key)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self.inner.changes(key, after=after, limit=limit, size=size)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self.inner.changes_before(key, version, limit=limit, size=size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self.inner.client(key, client)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        data, gate, self.read_gate = await self.inner.record(key, part, name), self.read_gate, None
        if gate is not None:
            await gate.wait()
        return data

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        return await self.inner.records_of_each(keys, *places)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self.inner.records(key, wanted)

    def view(self, key: ThreadKey) -> AbstractAsyncContextManager[ThreadView | None]:
        return self.inner.view(key)

    async def claim(self, key: ThreadKey) -> int:
        if key in self._owners:
            self._fail_waiting(key, _make_fenced(key))
        while pending := [
            future
            for write, future in (*self._carried, *self._ready, *self.waiting)
            if write.key == key and not future.done()
        ]:
            await asyncio.wait(pending)
        fence = self._owners[key] = await self.inner.claim(key)
        return fence

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        fence = await self.claim(key)
        try:
            return fence, await self.load(key, records=records)
        except BaseException:
            self.release(key, fence)
            raise

    def watch_claims(self, on_lost: Callable[[], None], may_write: Callable[[], bool] | None = None) -> None:
        self._on_claims_lost = on_lost

    def release(self, key: ThreadKey, fence: int) -> None:
        if self._owners.get(key) == fence:
            # The inner store refuses what is held up of this owner when there is another one, not before.
            del self._owners[key]

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return await self.inner.schema(kind, hash)

    async def check_writes(self) -> None:
        await self.inner.check_writes()

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        await self.inner.add_schema(kind, hash, schema)

    def submit(self, write: Write) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.submitted.append(write)
        if write.fence != self._owners.get(write.key):
            future.set_exception(_make_fenced(write.key))
            return future
        self.waiting.append((write, future))
        if not self.is_held:
            self.resume()
        return future

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        return await self.inner.threads(query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        return await self.inner.due_threads(until=until, after=after, limit=limit)


def _make_fenced(key: ThreadKey) -> Fenced:
    return Fenced(f"{key} was written by another process")
