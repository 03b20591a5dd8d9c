"""Clients that write and read threads while workers are killed, and log the answers."""

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from tests.integration.socket_client import TIMEOUT, http
from tests.schedules import TIMES
from tests.store_rows import load_changes

from plait_client import CallError, Disconnected, Refused, Room, Unanswered, connect

__all__ = ["Load", "Told", "check_changes", "check_stored"]

# Seconds before a client continues after an answer: at full speed the clients take all processors, as in `make soak`.
_PACE = 0.05 if TIMES == 1 else 0.0
# Seconds before a reader asks again after there was no answer.
_PAUSE = 0.05
# Seconds after which a reader asks once more beside a question that is not answered, and the most open questions: a
# server that was paused gets many of them at once.
_PATIENCE = 0.25
_MOST_OPEN = 40


class Seen(NamedTuple):
    """The clients' knowledge of a thread: the newest version in the newest epoch, and the newest owner's number."""

    epoch: int = 0
    version: int = 0
    fence: int = 0


class Told:
    """The answers to the clients of one schedule's threads."""

    def __init__(self) -> None:
        # By thread: the epoch and version of each acknowledged change, by its writer and number.
        self.acks: defaultdict[str, dict[tuple[str, int], tuple[str, int]]] = defaultdict(dict)
        # By thread: the epochs in the order in which they were seen, and what was seen last.
        self.epochs: defaultdict[str, list[str]] = defaultdict(list)
        self.seen: defaultdict[str, Seen] = defaultdict(Seen)
        # The changes that were refused, as the store was away, and the errors.
        self.refused: defaultdict[str, dict[tuple[str, int], Refused]] = defaultdict(dict)
        # How often a client got an error instead of an answer, by its code; and how often its socket was lost first.
        self.errors: Counter[str] = Counter()
        # The changes that were acknowledged before `begin_loss`; None if nothing acknowledged may be lost.
        self.safe: dict[str, set[tuple[str, int]]] | None = None
        # How many acknowledged changes are not stored.
        self.lost = 0
        self.reads = 0
        # When the last answer of each thread came, and the longest time without one since `begin_outage`.
        self._last: dict[str, float] = {}
        self.outage = 0.0

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged changes."""
        return sum(map(len, self.acks.values()))

    def ack(self, thread: str, writer: str, number: int, epoch: str, version: int) -> None:
        """Log that a change was acknowledged."""
        assert (writer, number) not in self.acks[thread]
        self.acks[thread][writer, number] = epoch, version
        at, seen = self._rank(thread, epoch), self.seen[thread]
        if (at, version) > seen[:2]:
            self.seen[thread] = Seen(at, version, seen.fence)
        self._answered(thread)

    def read(self, thread: str, epoch: str, version: int, before: Seen, fence: int = 0) -> None:
        """Log an answer to a reader, and what the clients had seen before it asked."""
        at, seen = (self._rank(thread, epoch), version), self.seen[thread]
        assert at >= before[:2], f"{thread}: read version {version} after the ack of version {before.version}"
        if fence:
            assert fence >= before.fence, f"{thread}: owner {fence} has answered after owner {before.fence}"
            self.seen[thread] = Seen(seen.epoch, seen.version, max(fence, seen.fence))
        self.reads += 1
        self._answered(thread)

    def begin_loss(self) -> None:
        """Accept the loss of later acknowledged changes, until clients see a new epoch."""
        self.safe = {thread: set(acks) for thread, acks in self.acks.items()}

    def must_be_stored(self, thread: str) -> dict[tuple[str, int], int]:
        """Return the acknowledged changes that may not be lost, with their versions."""
        last = self.epochs[thread][-1]
        return {
            change: version
            for change, (epoch, version) in self.acks[thread].items()
            if self.safe is None or epoch == last or change in self.safe[thread]
        }

    def _rank(self, thread: str, epoch: str) -> int:
        epochs = self.epochs[thread]
        if epoch not in epochs:
            epochs.append(epoch)
        return epochs.index(epoch)

    def begin_outage(self) -> None:
        """Measure the longest time in which a thread gives no answer, from here on."""
        self.outage = 0.0

    def _answered(self, thread: str) -> None:
        now = time.monotonic()
        self.outage = max(self.outage, now - self._last.get(thread, now))
        self._last[thread] = now


class Load:
    """Writers, readers on sockets and readers by HTTP of some threads, from `async with` to its end.

    The clients of each thread are at all addresses in turn.
    """

    def __init__(self, addresses: Sequence[str], threads: Sequence[str], told: Told) -> None:
        self._addresses = addresses
        self._threads = threads
        self._told = told
        self._stack = AsyncExitStack()
        self._rooms: list[tuple[str, Room[dict[str, int]]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False
        # The threads that are read by HTTP, one after another.
        self._turns = itertools.cycle(threads)

    async def __aenter__(self) -> "Load":
        for thread in self._threads:
            for number in range(2):
                room = await self._open(thread, f"{thread}-{number}", number)
                self._begin(self._write(thread, f"w{number}", room))
            for number in range(len(self._addresses)):
                room = await self._open(thread, f"{thread}-reader{number}", number)
                self._begin(self._ask_on(partial(self._look, thread, room)))
        for address in self._addresses:
            web = await self._stack.enter_async_context(http(address))
            self._begin(self._ask_on(partial(self._get, web)))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so. Raises what a client raises."""
        async with asyncio.timeout(TIMEOUT):
            while not is_so():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def converge(self) -> dict[str, dict[str, int]]:
        """End the writers, wait until all clients show the newest version, and return the states of the threads."""
        self._is_ending = True
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*self._tasks)
            # The answer comes after the changes that were made before.
            await asyncio.gather(*(_ask_last(room) for _, room in self._rooms))
        states: dict[str, dict[str, int]] = {}
        for thread, room in self._rooms:
            assert room.epoch == self._told.epochs[thread][-1]
            assert room.version >= self._told.seen[thread].version
            assert states.setdefault(thread, room.state) == room.state
        return states

    # Inside

    def _begin(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _open(self, thread: str, client: str, number: int) -> Room[dict[str, int]]:
        url = f"ws://{self._addresses[number % len(self._addresses)]}/threads/ledger/{thread}"
        room = await self._stack.enter_async_context(connect(url, client=client, open_timeout=TIMEOUT))
        self._rooms.append((thread, room))
        return room

    async def _write(self, thread: str, writer: str, room: Room[dict[str, int]]) -> None:
        number = 0
        while not self._is_ending:
            number, epoch = number + 1, room.epoch
            try:
                version = await room.update(f"/{writer}", number)
            except Refused as error:
                if error.code not in ("store_error", "unavailable"):
                    raise
                self._told.refused[thread][writer, number] = error
                await self._fail(error.code)
            except Unanswered:
                await self._fail("unanswered")
            else:
                if epoch is not None and room.epoch == epoch:  # Otherwise it is not known which one has it.
                    self._told.ack(thread, writer, number, epoch, version)
                await asyncio.sleep(_PACE)

    async def _fail(self, code: str) -> None:
        self._told.errors[code] += 1
        await asyncio.sleep(_PAUSE)

    async def _ask_on(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ask again and again: after each answer, and beside a question whose answer takes long."""
        async with asyncio.TaskGroup() as group:
            questions: set[asyncio.Task[None]] = set()
            while not self._is_ending:
                questions.add(group.create_task(ask()))
                patience = _PATIENCE if len(questions) < _MOST_OPEN else None
                _, questions = await asyncio.wait(questions, timeout=patience, return_when=asyncio.FIRST_COMPLETED)

    async def _look(self, thread: str, room: Room[dict[str, int]]) -> None:
        before = self._told.seen[thread]
        try:
            version, _, epoch, fence = await room.call("look")
        except Disconnected:
            await self._fail("disconnected")
        except CallError as error:
            if error.code not in ("unavailable", "indeterminate", "store_error"):
                raise
            await self._fail(error.code)
        else:
            self._told.read(thread, epoch, version, before, fence)
            await asyncio.sleep(_PACE)

    async def _get(self, web: httpx.AsyncClient) -> None:
        thread = next(self._turns)
        before = self._told.seen[thread]
        try:
            answer = await web.get(f"/threads/ledger/{thread}")
        except httpx.TransportError:
            await self._fail("disconnected")
            return
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
            await self._fail(answer.json()["error"]["code"])
            return
        assert answer.status_code == 200, answer.text
        epoch, _, version = answer.headers["etag"].strip('"').partition(":")
        self._told.read(thread, epoch, int(version), before)
        await asyncio.sleep(_PACE)


async def _ask_last(room: Room[dict[str, int]]) -> None:
    """Wait for an answer; it is asked for again after a move of the thread, as when a node that was hurt comes back."""
    while True:
        try:
            await room.call("look")
        except Disconnected:
            await asyncio.sleep(_PAUSE)
        else:
            return


def check_stored(path: Path, thread: str, told: Told, shown: dict[str, int]) -> None:
    """Check that a thread's file has each acknowledged change once, and what the clients show."""
    check_changes(load_changes(path, thread), thread, told, shown)


def check_changes(rows: Sequence[tuple[int, bytes | str]], thread: str, told: Told, shown: dict[str, int]) -> None:
    """Check that the stored changes of a thread have each acknowledged one once, and make what the clients show."""
    stored: dict[tuple[str, int], int] = {}
    state: dict[str, int] = {}
    versions = [version for version, _ in rows]
    assert versions == [*range(versions[0], versions[0] + len(versions))], "the versions are not dense"
    assert versions[0] <= 1
    for version, ops in rows:
        for op in msgspec.json.decode(ops):
            if writer := op["path"].removeprefix("/"):
                assert (writer, op["value"]) not in stored, "a change was applied twice"
                stored[writer, op["value"]] = version
                state[writer] = op["value"]
    # A client that has joined again is told of its last push with the version of the join.
    acks = told.must_be_stored(thread)
    lost = [change for change, version in acks.items() if stored.get(change, version + 1) > version]
    told.lost += len(told.acks[thread].keys() - stored.keys())
    assert not lost, f"{thread} lost acknowledged changes: {lost}"
    wrong = {change: told.refused[thread][change] for change in told.refused[thread].keys() & stored.keys()}
    assert not wrong, f"{thread} stored refused changes: {wrong}"
    assert len(told.epochs[thread]) == 1 or told.safe is not None, "the epoch has changed"
    assert shown == state
