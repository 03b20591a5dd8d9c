"""Values and writes in NATS that are larger than one message, or than one publication."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cases import each_case
from tests.nats import Nats, new_stream
from tests.schedules import SEED, schedules
from tests.server.owning import owned
from tests.server.store.contract import ROOM, beginning, change, client_row, put
from tests.server.store.contract_records import put_records

from plait.store.nats.layout import join_chunks, split_chunks
from plait.store.nats.store import NatsStore
from plait.store.nats.url import NatsUrl
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Prune, RecordRange, Snapshot

MIB = 1024 * 1024


@pytest.fixture(params=["1MB", "64KB"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsStore]:
    """A store on a server that takes messages up to a size."""
    with Nats(tmp_path / "nats", more=f"max_payload: {request.param}") as server:
        yield NatsStore(NatsUrl.parse(new_stream(server.url, "replicas=1")))


@each_case("size", [0, 1, 98, 99, 100, 101, 167, 168, 169, 1000])
def test_a_value_is_the_same_in_any_number_of_messages(size: int) -> None:
    value = bytes(n % 251 for n in range(size))
    messages = split_chunks("s", value, 100)
    assert [subject for subject, _ in messages] == ["s", *(f"s.{n}" for n in range(1, len(messages)))]
    assert all(len(data) <= 100 for _, data in messages)
    assert join_chunks([data for _, data in messages]) == value


async def test_large_states_changes_and_records_are_read_as_they_were_written(store: NatsStore) -> None:
    state, ops, value = b"1" * 3 * MIB, b'["%b"]' % (b"x" * 2 * MIB), b"v" * MIB
    async with owned(store, ROOM):
        begin = msgspec.structs.replace(beginning(), snapshots=(Snapshot(0, state),))
        row = ChangeRow(1, ops, "server", 1)
        await put(store, begin, Write(ROOM, "e1", 0, 1, (row,)), put_records(("a", value), ("b", b"small"), after=1))
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.snapshot, stored.changes) == (state, [row])
        assert await store.changes(ROOM, after=0) == [row]
        assert await store.record(ROOM, "values", "a") == value
        assert [record.value for record in await store.records(ROOM, RecordRange("values"))] == [value, b"small"]
        async with store.view(ROOM) as view:
            assert view is not None
            await put(store, put_records(("a", b"new"), after=1))
            assert [record.value for record in await view.records(size=9 * MIB)] == [value, b"small"]


async def test_a_large_value_that_is_replaced_or_deleted_leaves_nothing(store: NatsStore) -> None:
    large, larger = b"v" * MIB, b"w" * 2 * MIB

    async def chunks() -> int:
        """Return how many messages the values have, besides the first ones, that are not empty."""
        found = (await store._stream.names(store._subjects.rows(ROOM, "*") + "r.*.*.>")).subjects
        return sum(bool(each.data) for each in await store._stream.last(found))

    async with owned(store, ROOM):
        await put(store, beginning(), put_records(("a", large), ("b", larger), ("c", large)))
        most = await chunks()
        await put(store, put_records(("a", larger), ("b", large), ("c", b"small")))
        assert 0 < await chunks() < most
        assert await store.record(ROOM, "values", "a") == larger
        assert await store.record(ROOM, "values", "b") == large
        assert await store.record(ROOM, "values", "c") == b"small"
        await put(store, put_records(("a", None), ("b", None), ("c", None)))
        assert await chunks() == 0
        assert await store.records(ROOM, RecordRange("values")) == []


async def test_a_write_of_more_messages_than_are_published_at_once_is_stored_whole(store: NatsStore) -> None:
    async with owned(store, ROOM):
        rows = [(f"{number:05}", b"x" * 100) for number in range(3000)]
        await put(store, beginning(), change(1), put_records(*rows, ("z", b"y" * MIB), after=1))
        found = await store.records(ROOM, RecordRange("values", limit=10_000))
        assert [record.key for record in found] == [*(key for key, _ in rows), "z"]
        await put(store, put_records(*((key, None) for key, _ in rows), after=1), change(2))
        assert [record.key for record in await store.records(ROOM, RecordRange("values"))] == ["z"]
        stored = await store.load(ROOM)
        assert stored is not None
        assert [row.version for row in stored.changes] == [1, 2]


@pytest.mark.soak
@pytest.mark.parametrize("most_in_head", [0, 300])
async def test_an_owner_that_knows_the_names_of_rows_reads_what_others_read(
    nats_server: Nats, most_in_head: int
) -> None:
    dice = random.Random(f"{SEED} {most_in_head}")
    url = NatsUrl.parse(new_stream(nats_server.url, "replicas=1"))
    store, other = NatsStore(url, most_in_head=most_in_head), NatsStore(url, readonly=True)
    hits = 0
    async with owned(store, ROOM), other:
        await put(store, beginning())
        version = 0
        for _ in range(schedules(60)):
            match dice.choice(("change", "snapshot", "records", "records")):
                case "change":
                    version += 1
                    await put(store, change(version, client=client_row(str(dice.randrange(3)), version)))
                case "snapshot":
                    version += 1
                    prune = Prune(version - dice.randrange(10)) if dice.random() < 0.3 and version > 10 else None
                    await put(store, change(version, snapshot=b"1", prune=prune))
                case _:
                    names = dice.sample(range(40), dice.randrange(1, 6))
                    rows = [(f"{n:02}", dice.choice((None, b"x" * dice.randrange(200)))) for n in names]
                    await put(store, put_records(*rows, after=version, part=dice.choice("ab")))
            known = store._heads[ROOM]
            hits += store._cache.find(known) is not None
            prefix, after, before = (dice.choice(("", "1", "2")), dice.choice(("", "15")), dice.choice((None, "27")))
            reverse = dice.random() < 0.5
            ranges = (RecordRange("a", prefix, reverse, 5), RecordRange("b"))
            assert await store.load(ROOM, records=ranges) == await other.load(ROOM, records=ranges)
            for part in "ab":
                found = [
                    await each.records(
                        ROOM, RecordRange(part, prefix=prefix, after=after, before=before, reverse=reverse)
                    )
                    for each in (store, other)
                ]
                assert found[0] == found[1]
            assert await store.changes(ROOM, after=0) == await other.changes(ROOM, after=0)
            client = client_row(str(dice.randrange(3))).client
            assert await store.client(ROOM, client) == await other.client(ROOM, client)
    assert hits > 40
