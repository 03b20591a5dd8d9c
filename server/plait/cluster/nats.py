"""The directory of a cluster in NATS JetStream, in a stream beside that of the store.

One message, the table, has the nodes and the owners of all shards. The beats of each node are a message of their own,
so that they do not conflict with moves of shards. Every change is one atomic write, on the condition that the messages
are the ones that it was made from; otherwise it is made again from those that are there.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import replace

from plait.cluster.directory import DirectoryView, NodeRecord
from plait.cluster.nats_messages import Beats, Found, Numbered, Table
from plait.errors import StoreError
from plait.store.nats.api import Publication, WrongSequence
from plait.store.nats.jetstream import JetStream
from plait.store.nats.server_connection import ServerConnection
from plait.store.nats.url import NatsUrl

__all__ = ["NatsDirectory"]

T = TypeVar("T")

_SETTINGS: Final = {"max_msgs_per_subject": 1, "allow_atomic": True, "allow_msg_ttl": True}
# Seconds after which a call without an answer has failed; a node's beats must not wait for it.
_TIMEOUT: Final = 2.0
# Each call waits for a connection as long as it may, even if none has been found for long.
_PATIENCE: Final = 1e9
# Seconds before a change that has conflicted with another one is made again, at most.
_PAUSE: Final = 0.01
# Seconds for which what is left of a dead node's beats is kept.
_DEAD_TTL: Final = 86_400


class _Change(NamedTuple):
    """A table that replaces the one that was read, and beats that are stored with it."""

    table: Table
    beats: Mapping[str, Beats] = {}


class NatsDirectory:
    """Keeps the directory beside the stream of a store's URL, with a connection for beats and one for all else."""

    def __init__(self, url: NatsUrl, *, timeout: float = _TIMEOUT) -> None:
        self._beat_access = _Access(url, timeout)
        self._access = _Access(url, timeout)
        # The last beats of nodes that beat here, which is one.
        self._last: dict[str, Numbered] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for each in (self._access, self._beat_access):
                await stack.enter_async_context(each)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def read(self) -> DirectoryView:
        found = await self._access.run(self._access.read)
        nodes = [
            replace(node, beats=beats.count, is_leaving=beats.is_leaving, links=beats.links)
            for node in found.table.nodes.values()
            for beats in (found.find_beats(node.id).beats,)
        ]
        return DirectoryView(sorted(nodes, key=lambda node: node.name), found.table.shards)

    async def join(self, node: NodeRecord) -> NodeRecord | None:
        def join(found: Found) -> tuple[_Change | None, NodeRecord | None]:
            if (other := found.table.find_name(node.name)) is not None:
                return None, None if other.id == node.id else replace(
                    other, beats=found.find_beats(other.id).beats.count
                )
            return _Change(found.table.add(node), {node.id: Beats()}), None

        return await self._change(join)

    async def beat(self, id: str, *, is_leaving: bool = False, links: Sequence[str] = ()) -> bool:
        access = self._beat_access

        async def beat() -> bool:
            while True:
                # It is not known after a conflict, or after a lost answer.
                if (last := self._last.pop(id, None)) is None:
                    found = await access.read()
                    if found.table.find_alive(id) is None:
                        return False
                    last = found.find_beats(id)
                beats = Beats(last.beats.count + 1, is_leaving, links)
                if (number := await access.write({id: beats}, {id: last})) is not None:
                    self._last[id] = Numbered(beats, number)
                    return True

        return await access.run(beat)

    async def mark_dead(self, id: str, beats: int) -> bool:
        def mark(found: Found) -> tuple[_Change | None, bool]:
            last = found.find_beats(id).beats
            if found.table.find_alive(id) is None or last.count != beats:
                return None, False
            return _Change(found.table.mark_dead(id), {id: replace(last, is_dead=True)}), True

        return await self._change(mark)

    async def remove(self, id: str) -> None:
        def remove(found: Found) -> tuple[_Change | None, None]:
            if id not in found.table.nodes:
                return None, None
            return _Change(found.table.remove(id), {id: replace(found.find_beats(id).beats, is_dead=True)}), None

        await self._change(remove)

    async def take(self, id: str, shards: Mapping[int, int]) -> dict[int, int]:
        return await self._move(id, shards, id, takes=True)

    async def give(self, id: str, shards: Mapping[int, int], to: str) -> dict[int, int]:
        return await self._move(to, shards, id, takes=False)

    async def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> list[int]:
        def record(found: Found) -> tuple[_Change | None, list[int]]:
            table, own = found.table.record(id, versions)
            return _Change(table) if own else None, own

        return await self._change(record)

    # Inside

    async def _move(self, to: str, shards: Mapping[int, int], by: str, *, takes: bool) -> dict[int, int]:
        def move(found: Found) -> tuple[_Change | None, dict[int, int]]:
            table, epochs = found.table.move(to, shards, by, takes=takes)
            return _Change(table) if epochs else None, epochs

        return await self._change(move)

    async def _change(self, make: Callable[[Found], tuple[_Change | None, T]]) -> T:
        """Make a change from what is stored, and store it; return what comes with it."""
        access = self._access

        async def change() -> T:
            while True:
                found = await access.read()
                made, result = make(found)
                if made is None:
                    return result
                if await access.write(made.beats, found.beats, (made.table, found.number)) is not None:
                    return result
                await asyncio.sleep(random.uniform(0, _PAUSE))

        return await access.run(change)


class _Access:
    """The stream of a directory over a connection of its own, with a limit of time."""

    def __init__(self, url: NatsUrl, timeout: float) -> None:
        self._connection = ServerConnection(url, patience=_PATIENCE)
        name = f"{url.stream}-directory"
        self._stream = JetStream(url, self._connection, name)
        self._timeout = timeout
        self._every = f"{name}.>"
        self._table = f"{name}.table"
        self._beats = f"{name}.beats."

    async def __aenter__(self) -> Self:
        await self._connection.open()
        try:
            await self._prepare()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something with the stream. Raises StoreError; whether it is done is not known then."""
        try:
            async with asyncio.timeout(self._timeout):
                return await work()
        except TimeoutError:
            self._connection.drop()
            raise StoreError("the directory cannot be reached: no answer in time") from None
        except StoreError as error:
            raise StoreError(f"the directory cannot be reached: {error}") from error

    async def read(self) -> Found:
        """Return what is stored at one moment of this call.

        Any copy of the stream may be read, and a former leader does not know that it is one. A message that most
        servers have accepted before shows which copy is late.
        """
        barrier = await self._stream.publish(self._stream.make_barrier())
        every = {each.subject: each for each in await self._stream.last([self._every], since=barrier)}
        beats = {
            subject.removeprefix(self._beats): Numbered(msgspec.json.decode(data, type=Beats), number)
            for subject, number, data in every.values()
            if subject.startswith(self._beats)
        }
        if (table := every.get(self._table)) is None:
            return Found(Table.make(await self._prepare()), 0, beats)
        return Found(Table.decode(table.data), table.sequence, beats)

    async def write(
        self, beats: Mapping[str, Beats], former: Mapping[str, Numbered], table: tuple[Table, int] | None = None
    ) -> int | None:
        """Replace beats, and with them the table of a number; return the number of the last message.

        Returns None, and does nothing, if any of them are not the former ones.
        """
        messages = [
            Publication(
                self._beats + id,
                msgspec.json.encode(each),
                former[id].number if id in former else 0,
                _DEAD_TTL if each.is_dead else None,
            )
            for id, each in beats.items()
        ]
        if table is not None:
            messages.append(Publication(self._table, table[0].encode(), table[1]))
        try:
            return await self._stream.publish_all(messages)
        except WrongSequence:
            return None

    # Inside

    async def _prepare(self) -> int:
        """Make the stream, unless it is there; return the number above which its epochs are."""
        info = await self._stream.prepare(_SETTINGS)
        # Milliseconds with ten more bits, so that the numbers of a newer stream are always higher.
        return int(datetime.fromisoformat(info.created).timestamp() * 1000) << 10
