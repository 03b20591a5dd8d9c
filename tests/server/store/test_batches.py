"""Which waiting writes share a transaction, and the outcomes of their futures."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schedules import play_seeds
from tests.server.owning import submit
from tests.server.store.contract import ROOM, beginning, change, outcomes

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.batches import GroupCommitter, WriteGroup
from plait.store.coalescing import coalesce
from plait.store.memory import MemoryStore
from plait.store.outcomes import Outcome, Unreachable
from plait.store.protocol import Store, Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, RecordRange, Snapshot, ThreadKey

MEGABYTE = 2**20


def write(name: str, version: int, size: int) -> Write:
    row = ChangeRow(version, b"x" * size, "server", 0)
    return Write(ThreadKey("room", name), "e", version - 1 or None, version, (row,))


class Batches(GroupCommitter):
    """The queue of an open store whose batches are written by a function, and whose numbers come from another one."""

    def __init__(
        self,
        write: Callable[[Sequence[WriteGroup]], asyncio.Future[Sequence[Outcome]]],
        ask: Callable[[ThreadKey], Awaitable[int]] | None = None,
        *,
        most: int = 1,
    ) -> None:
        super().__init__(most=most)
        self._begin, self._ask = write, ask
        self._accept_writes()

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        return self._begin(batch)

    async def _next_fence(self, key: ThreadKey) -> int:
        return await (self._ask or super()._next_fence)(key)

    def watch(self, may_write: Callable[[], bool]) -> None:
        self._may_write = may_write

    def end_claims(self) -> None:
        self._end_claims()

    async def close(self) -> None:
        await self._end_writes()


class Engine:
    """Batches whose transactions the test carries out."""

    def __init__(self) -> None:
        self.batches = Batches(self._write)
        self.written: list[Sequence[WriteGroup]] = []
        # Of writes that do not say who owns their thread, the engine is the owner.
        self._fences: dict[ThreadKey, int] = {}
        self._done: asyncio.Future[Sequence[Outcome]]
        # Why the next transaction cannot even begin.
        self.mistake: Exception | None = None

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        self.written.append(batch)
        if (mistake := self.mistake) is not None:
            self.mistake = None
            raise mistake
        self._done = asyncio.get_running_loop().create_future()
        return self._done

    async def submit(self, *units: Sequence[Write]) -> list[asyncio.Future[int]]:
        """Submit units, each in an iteration of the loop of its own."""
        futures = []
        for unit in units:
            for each in unit:
                if each.fence == 0 and each.key not in self._fences:
                    self._fences[each.key] = await self.batches.claim(each.key)
                fence = each.fence or self._fences[each.key]
                futures.append(self.batches.submit(msgspec.structs.replace(each, fence=fence)))
            await asyncio.sleep(0)
        return futures

    async def finish(self, error: BaseException | None = None, *, stored: int | None = None) -> None:
        """End the transaction that runs: everything is stored, or of each group so many writes."""
        batch = self.written[-1]
        if error is not None and not isinstance(error, StoreError):
            self._done.set_exception(error)
        else:
            self._done.set_result([(len(g.writes) if stored is None else stored, error) for g in batch])
        await asyncio.sleep(0)

    async def take(self) -> list[tuple[str, int]]:
        """Return the writes of the transaction that runs, and end it."""
        taken = read(self.written[-1])
        await self.finish()
        return taken


def read(batch: Sequence[WriteGroup]) -> list[tuple[str, int]]:
    return [(write.key.name, write.version) for group in batch for write in group.writes]


async def fill(*units: Sequence[tuple[str, int, int]]) -> Engine:
    """Return an engine with a first transaction of its own that runs, and units that wait for it."""
    engine = Engine()
    await engine.submit([write("first", 1, 1)])
    await engine.submit(*([write(*each) for each in unit] for unit in units))
    await engine.finish()
    return engine


# What shares a transaction


async def test_what_is_not_much_shares_one_transaction() -> None:
    engine = await fill(*([(name, version, 10_000)] for version in range(1, 10) for name in "abc"))
    assert len(await engine.take()) == 27
    assert len(engine.written) == 2


async def test_small_writes_do_not_wait_for_large_ones_and_threads_with_large_ones_take_turns() -> None:
    large = [[(name, version, MEGABYTE)] for name in "ab" for version in (1, 2)]
    engine = await fill(*large, [("small", 1, 10)], [("small", 2, 10)])
    assert await engine.take() == [("a", 1), ("small", 1), ("small", 2)]
    assert [await engine.take() for _ in range(3)] == [[("b", 1)], [("a", 2)], [("b", 2)]]
    assert len(engine.written) == 5


async def test_after_large_writes_small_ones_are_written_alone_and_then_large_ones_again() -> None:
    engine = await fill(*([(name, 1, MEGABYTE)] for name in "abc"), [("small", 1, 10)])
    await engine.submit([write("small", 2, 10)])
    assert await engine.take() == [("a", 1), ("small", 1)]
    await engine.submit([write("small", 3, 10)])
    assert await engine.take() == [("small", 2)]
    assert await engine.take() == [("b", 1), ("small", 3)]
    assert await engine.take() == [("c", 1)]


async def test_a_small_write_stays_after_a_large_one_of_its_own_thread() -> None:
    engine = await fill([("a", 1, MEGABYTE)], [("b", 1, MEGABYTE)], [("b", 2, 10)], [("a", 2, 10)])
    assert await engine.take() == [("a", 1), ("a", 2)]
    assert await engine.take() == [("b", 1), ("b", 2)]


async def test_what_was_submitted_together_is_written_together() -> None:
    unit = [("b", version, MEGABYTE) for version in (1, 2, 3)]
    engine = await fill([("a", 1, MEGABYTE)], unit, [("b", 4, MEGABYTE)])
    assert await engine.take() == [("a", 1)]
    assert await engine.take() == [("b", 1), ("b", 2), ("b", 3)]
    assert await engine.take() == [("b", 4)]


SIZES = st.sampled_from([10, 20_000, 300_000, MEGABYTE])


@given(st.lists(st.tuples(st.sampled_from("abc"), SIZES, st.booleans()), min_size=1, max_size=40), st.integers(1, 5))
def test_each_write_is_taken_once_and_those_of_a_thread_in_order_and_units_whole(
    submitted: list[tuple[str, int, bool]], between: int
) -> None:
    versions: dict[str, int] = defaultdict(int)
    units: list[list[tuple[str, int, int]]] = [[]]
    for name, size, ends in submitted:
        versions[name] += 1
        units[-1].append((name, versions[name], size))
        if ends:
            units.append([])

    async def play() -> list[list[tuple[str, int]]]:
        engine, taken = Engine(), list[list[tuple[str, int]]]()
        for number, unit in enumerate(units):
            await engine.submit([write(*each) for each in unit])
            if number % between == 0 and len(engine.written) > len(taken):
                taken.append(await engine.take())
        while len(engine.written) > len(taken):
            taken.append(await engine.take())
        return taken

    taken = asyncio.run(play())
    for name, last in versions.items():
        assert [n for batch in taken for each, n in batch if each == name] == list(range(1, last + 1))
        for unit in units:
            of_name = {(each, n) for each, n, _ in unit if each == name}
            assert all(not of_name & set(batch) or of_name <= set(batch) for batch in taken)


# Outcomes


async def test_when_the_writer_fails_it_is_not_known_what_was_stored_and_what_waits_for_the_threads_fails() -> None:
    engine = Engine()
    futures = await engine.submit([write("a", 1, 1)], [write("a", 2, 1), write("b", 1, 1)])
    await engine.finish(TypeError("a mistake"))
    assert [type(future.exception()) for future in futures[:2]] == [Indeterminate] * 2
    await engine.finish()
    assert await outcomes(futures[2:]) == [None]
    assert [read(batch) for batch in engine.written] == [[("a", 1)], [("b", 1)]]


async def test_a_batch_that_cannot_begin_fails_alone() -> None:
    engine = Engine()
    engine.mistake = MemoryError()
    futures = await engine.submit([write("a", 1, 1)])
    assert await outcomes(futures) == [Indeterminate]
    futures = await engine.submit([write("a", 1, 1)])
    await engine.finish()
    assert await outcomes(futures) == [None]


async def test_what_waits_after_a_failed_write_is_never_written() -> None:
    engine = Engine()
    first, *rest = await engine.submit([write("a", 1, 1)], [write("a", 2, 1)], [write("a", 3, 1)])
    await engine.finish(StoreError("the disk is full"), stored=0)
    assert await outcomes([first, *rest]) == [StoreError] * 3
    assert len(engine.written) == 1
    # What is submitted after that is.
    (again,) = await engine.submit([write("a", 1, 1)])
    await engine.finish()
    assert await outcomes([again]) == [None]


# The owners of threads


async def test_what_is_refused_has_its_outcome_after_the_writes_before_it() -> None:
    engine = Engine()
    may_write = True
    engine.batches.watch(lambda: may_write)
    told: list[int] = []
    futures = await engine.submit([write("a", 1, 1)])
    may_write = False
    futures += await engine.submit([write("a", 2, 1)])
    (other,) = await engine.submit([write("b", 1, 1)])
    assert isinstance(other.exception(), StoreError)
    may_write = True
    # It depends on the one that is refused.
    futures += await engine.submit([write("a", 3, 1)])
    for version, each in enumerate(futures, 1):
        each.add_done_callback(lambda _, version=version: told.append(version))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert not any(each.done() for each in futures)
    await engine.finish()
    assert await outcomes(futures) == [None, Unreachable, Unreachable]
    assert told == [1, 2, 3]
    (again,) = await engine.submit([write("a", 2, 1)])
    assert await engine.take() == [("a", 2)]
    assert await again


async def test_a_claim_refuses_what_waits_and_waits_for_what_is_being_written() -> None:
    engine = Engine()
    old = await engine.batches.claim(ROOM)
    owned = [msgspec.structs.replace(each, fence=old) for each in (beginning(), change(1))]
    futures = await engine.submit(*([each] for each in owned))
    claim = asyncio.create_task(engine.batches.claim(ROOM))
    await asyncio.sleep(0)
    assert not claim.done()
    # The outcomes come in order: what is refused now may follow a write that is stored.
    assert [future.done() for future in futures] == [False, False]
    await engine.finish()
    assert await claim > old
    assert await outcomes(futures) == [None, Fenced]
    assert len(engine.written) == 1


async def test_a_process_that_may_not_write_refuses_writes_as_unavailable() -> None:
    engine = Engine()
    fence = await engine.batches.claim(ROOM)
    engine.batches.watch(lambda: False)
    (refused,) = await engine.submit([msgspec.structs.replace(beginning(), fence=fence)])
    error = refused.exception()
    assert isinstance(error, StoreError)
    assert error.code == "unavailable"
    assert not engine.written


async def test_closing_waits_for_all_and_survives_a_claim_that_takes_the_last() -> None:
    engine = Engine()
    fence = await engine.batches.claim(ROOM)
    (running,) = await engine.submit([write("a", 1, 1)])
    waiting = engine.batches.submit(msgspec.structs.replace(beginning(), fence=fence))
    closing = asyncio.create_task(engine.batches.close())
    await asyncio.sleep(0)
    await engine.batches.claim(ROOM)
    await engine.finish()
    await asyncio.wait_for(closing, 10)
    assert await outcomes([running, waiting]) == [None, Fenced]


# Several writes of a thread made into one


def test_writes_are_made_into_one_with_all_their_rows_and_the_last_of_each_client_and_record() -> None:
    clients = [ClientRow(name, ref, b"[]", ref) for name, ref in (("a", 1), ("b", 2), ("a", 3))]
    records = [Record("p", "k", b"1"), Record("q", "k", b"2"), Record("p", "k", None)]
    writes = [msgspec.structs.replace(beginning(), state_version=2, secret=b"s", fence=7)]
    writes += [
        msgspec.structs.replace(change(n, client=clients[n - 1]), records=(records[n - 1],), fence=7) for n in (1, 2, 3)
    ]
    writes[2] = msgspec.structs.replace(writes[2], snapshots=(Snapshot(2, b"2"),), prune=Prune(1, 5, 100))
    writes[3] = msgspec.structs.replace(writes[3], prune=Prune(0, 9, 200))
    rows = [row for each in writes for row in each.changes]
    assert list(coalesce(writes)) == [
        Write(
            ROOM,
            "e1",
            None,
            3,
            rows,
            [Snapshot(0, b"0"), Snapshot(2, b"2")],
            Prune(1, 9, 100),
            [clients[2], clients[1]],
            2,
            b"s",
            [records[2], records[1]],
            7,
        )
    ]


def test_a_deletion_ends_what_is_made_into_one() -> None:
    end = Write(ROOM, "e1", 1, 1, is_deletion=True)
    anew = beginning(epoch="e2")
    gone = Write(ROOM, "e1", 0, 0, is_deletion=True)
    assert list(coalesce([change(1), end])) == [gone]
    assert list(coalesce([beginning(), change(1), end, anew, change(1, epoch="e2")])) == list(
        coalesce([anew, change(1, epoch="e2")])
    )
    assert list(coalesce([change(1), end, anew])) == [gone, anew]


@play_seeds(5)
async def test_what_is_made_into_one_has_the_effect_of_the_writes_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    writes: list[Write] = []
    version: int | None = None
    for number in range(30):
        records = tuple(
            Record(chance.choice("pq"), chance.choice("kl"), chance.choice([None, b"%d" % number]))
            for _ in range(chance.randrange(3))
        )
        epoch = f"e{sum(write.is_deletion for write in writes)}"
        if version is not None and chance.random() < 0.15:
            writes.append(Write(ROOM, epoch, version, version, is_deletion=True))
            version = None
            continue
        if chance.random() < 0.7:
            now = (version or 0) + 1
            snapshot = b"%d" % now if chance.random() < 0.3 else None
            client = ClientRow(chance.choice("ab"), number, b"[]", number)
            each = change(now, epoch=epoch, after=version, snapshot=snapshot, client=client)
            writes.append(msgspec.structs.replace(each, records=records))
            version = now
        else:
            version = version or 0
            after = version if writes and not writes[-1].is_deletion else None
            writes.append(Write(ROOM, epoch, after, version, records=records))
    one_by_one, together = MemoryStore(), MemoryStore()
    async with one_by_one, together:
        for each in writes:
            await submit(one_by_one, each)
        assert await outcomes([submit(together, each) for each in coalesce(writes)]) == [None] * len(coalesce(writes))
        assert await dump(one_by_one) == await dump(together)


async def dump(store: Store) -> list[object]:
    """Return all that a store has of a thread."""
    clients = [await store.client(ROOM, each) for each in "ab"]
    records = [await store.records(ROOM, RecordRange(each)) for each in "pq"]
    return [await store.load(ROOM), await store.changes(ROOM, after=0), clients, records]


# A busy loop


async def test_the_loop_pauses_while_a_batch_is_late_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 100.0, list[float]()

    class Clock:
        monotonic = staticmethod(lambda: now)
        sleep = staticmethod(pauses.append)

    monkeypatch.setattr("plait.store.batches.time", Clock)
    engine = Engine()
    await engine.submit([write("a", 1, 1)], [write("b", 1, 1)])
    now += 0.0015
    await engine.submit([write("c", 1, 1)])
    assert pauses == []
    now += 0.001
    await engine.submit([write("d", 1, 1), write("e", 1, 1)], [write("f", 1, 1)])
    assert pauses == [0.00001] * 2
    await engine.finish()
    now += 0.001
    await engine.submit([write("g", 1, 1)])
    assert len(pauses) == 2


async def test_of_an_engines_numbers_that_arrive_in_another_order_the_greatest_is_the_owners() -> None:
    numbers = [asyncio.get_running_loop().create_future() for _ in range(2)]
    left = iter(numbers)

    async def ask(key: ThreadKey) -> int:
        number: int = await next(left)
        return number

    batches = Batches(written, ask)
    claims = [asyncio.create_task(batches.claim(ROOM)) for _ in range(2)]
    await asyncio.sleep(0)
    numbers[1].set_result(8)
    assert await claims[1] == 8
    numbers[0].set_result(7)
    assert await claims[0] == 7
    writes = [msgspec.structs.replace(beginning(), fence=fence) for fence in (7, 8)]
    assert await outcomes([batches.submit(each) for each in writes]) == [Fenced, None]
    batches.release(ROOM, 7)
    assert await outcomes([batches.submit(writes[1])]) == [None]


async def test_while_an_engine_is_asked_for_a_number_no_earlier_owner_can_write() -> None:
    number = asyncio.get_running_loop().create_future()

    async def ask(key: ThreadKey) -> int:
        return 1 if not number.done() and key not in asked else await number

    asked = list[ThreadKey]()
    batches = Batches(written, ask)
    first = await batches.claim(ROOM)
    asked.append(ROOM)
    second = asyncio.create_task(batches.claim(ROOM))
    await asyncio.sleep(0)
    assert await outcomes([batches.submit(msgspec.structs.replace(beginning(), fence=first))]) == [Fenced]
    number.set_result(2)
    assert await second == 2


async def test_when_all_claims_end_waiting_writes_are_refused_and_what_is_being_written_is_not() -> None:
    engine = Engine()
    fence = await engine.batches.claim(ROOM)
    owned = [msgspec.structs.replace(each, fence=fence) for each in (beginning(), change(1), change(2))]
    futures = await engine.submit(*([each] for each in owned[:2]))
    engine.batches.end_claims()
    futures.append(engine.batches.submit(owned[2]))
    await engine.finish()
    assert await outcomes(futures) == [None, Fenced, Fenced]
    assert await engine.batches.claim(ROOM) > fence


def written(batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
    """Return the outcomes of a batch that is stored."""
    done: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
    done.set_result([(len(group.writes), None) for group in batch])
    return done


# Batches of each thread


async def test_so_many_batches_as_may_be_written_at_once_share_the_waiting_threads() -> None:
    running: list[tuple[Sequence[WriteGroup], asyncio.Future[Sequence[Outcome]]]] = []

    def begin(batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        running.append((batch, asyncio.get_running_loop().create_future()))
        return running[-1][1]

    def names() -> list[list[str]]:
        return [[group.writes[0].key.name for group in batch] for batch, _ in running]

    batches = Batches(begin, most=2)
    fences = {name: await batches.claim(ThreadKey("room", name)) for name in "abcdefgh"}

    def submit(name: str, version: int) -> asyncio.Future[int]:
        return batches.submit(msgspec.structs.replace(write(name, version, 10), fence=fences[name]))

    futures = [submit(name, 1) for name in "abcde"]
    await asyncio.sleep(0)
    assert names() == [["a", "b", "c"], ["d", "e"]]
    futures += [submit(name, 2 if name == "a" else 1) for name in "afgh"]
    await asyncio.sleep(0)
    assert len(running) == 2
    running[1][1].set_result([(1, None), (1, None)])
    await asyncio.sleep(0)
    # Not the second write of a thread whose first one is under way.
    assert names()[2:] == [["f", "g", "h"]]
    for batch, done in running[::2]:
        done.set_result([(1, None)] * len(batch))
    await asyncio.sleep(0)
    assert names()[3:] == [["a"]]
    running[3][1].set_result([(1, None)])
    await batches.close()
    assert [future.result() for future in futures] == [3, 3, 3, 2, 2, 1, 3, 3, 3]


async def test_in_parallel_each_thread_has_batches_of_its_own_and_only_its_own_writes_wait() -> None:
    running: list[tuple[Sequence[WriteGroup], asyncio.Future[Sequence[Outcome]]]] = []

    def begin(batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        running.append((batch, asyncio.get_running_loop().create_future()))
        return running[-1][1]

    async def finish(number: int) -> None:
        batch, done = running[number]
        done.set_result([(len(group.writes), None) for group in batch])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    batches = Batches(begin, most=100)
    fences = {name: await batches.claim(ThreadKey("room", name)) for name in "ab"}

    async def submit_now(name: str, version: int) -> asyncio.Future[int]:
        future = batches.submit(msgspec.structs.replace(write(name, version, 10), fence=fences[name]))
        await asyncio.sleep(0)
        return future

    futures = [await submit_now(*each) for each in (("a", 1), ("b", 1), ("a", 2), ("a", 3))]
    assert [read(batch) for batch, _ in running] == [[("a", 1)], [("b", 1)]]
    # The other thread goes on while the first one waits.
    await finish(1)
    assert await futures[1] == 1
    futures.append(await submit_now("b", 2))
    assert [read(batch) for batch, _ in running[2:]] == [[("b", 2)]]
    await finish(0)
    assert [read(batch) for batch, _ in running[3:]] == [[("a", 2), ("a", 3)]]
    claiming = asyncio.ensure_future(batches.claim(ThreadKey("room", "b")))
    closing = asyncio.ensure_future(batches.close())
    await asyncio.sleep(0)
    assert not claiming.done()
    await finish(2)
    assert await claiming > fences["b"]
    assert not closing.done()
    await finish(3)
    await closing
    assert [future.result() for future in futures] == [1, 1, 2, 2, 1]
