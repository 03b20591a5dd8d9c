"""A whole store as a file, and back."""

import asyncio
import json
import tempfile
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import schedules
from tests.server.store.contract import beginning, change, put
from tests.server.store.contract_records import put_records
from tests.server.store.test_copying import THREADS, fill, read

from plait import Files, Messages, Plait, Schedule, Thread, Values, effect
from plait.errors import InvalidState, StoreError
from plait.store.copying import UNFINISHED, copy_threads
from plait.store.engines import find_engine
from plait.store.export_store import ExportedStore, export_store
from plait.store.protocol import StoredThread, ThreadHeader, Write
from plait.store.sqlite.files import Files as StoreFiles
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange, Snapshot, ThreadKey
from plait.store.urls import open_engine, open_files
from plait.store.whole import WholeStore


def open_whole(path: Path) -> WholeStore:
    """Return the store of a path, not opened: one of JSON files if that ends in `.json`."""
    if path.suffix != ".json":
        return open_files(StoreFiles.find(path))
    engine = find_engine(url := f"file://{path}")
    assert engine is not None
    return open_engine(engine, url)


async def export(source: Path, file: Path) -> list[tuple[int, int]]:
    """Export a store, and return the progress."""
    shown: list[tuple[int, int]] = []
    async with open_whole(source) as store:
        with file.open("wb") as out:
            await export_store(store, out.write, lambda *each: shown.append(each))
    return shown


async def import_(file: Path, target: Path, *, stop_at: int | None = None) -> int:
    """Import a store; `stop_at` interrupts it."""

    def show(done: int, _: int) -> None:
        if done == stop_at:
            raise InterruptedError

    exported = ExportedStore(file)
    async with open_whole(target) as store:
        return await copy_threads(exported, exported.keys, store, exported.checksum, show, has_new_epochs=True)


def known_lines(file: Path) -> list[Any]:
    """Return the lines of a file without epochs and checksums."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("epoch", "sha256")} for line in found]


async def read_but_epochs(path: Path) -> tuple[list[object], set[str]]:
    """Return all that a store has, without the epochs of its threads, and these."""
    rows, epochs = list[object](), set[str]()
    for row in await read(path):
        if isinstance(row, StoredThread | ThreadHeader):
            epochs.add(row.epoch)
            rows.append(msgspec.structs.replace(row, epoch=""))
        else:
            rows.append(row)
    return rows, epochs


async def test_an_imported_store_has_everything_but_the_epochs(tmp_path: Path) -> None:
    source, file, other = tmp_path / "game.db", tmp_path / "game.jsonl", tmp_path / "other.jsonl"
    await fill(source)
    shown = await export(source, file)
    assert [shown[0], shown[-1]] == [(0, THREADS + 2), (THREADS + 2, THREADS + 2)]
    for target in (tmp_path / "copy.db", tmp_path / "copy.json"):
        assert await import_(file, target) == THREADS + 2
        await export(target, other)
        assert known_lines(other) == known_lines(file)
    rows, epochs = await read_but_epochs(source)
    again, new = await read_but_epochs(tmp_path / "copy.db")
    assert again == rows
    assert not epochs & new


class Desk(Thread[Any]):
    initial_state: ClassVar = {"n": 0}
    values = Values()
    messages = Messages()
    schedule = Schedule()
    files = Files()

    @effect()
    def ring(self) -> None:
        self.set_state({"n": 9})


async def test_an_app_finds_its_kv_users_and_threads_again(tmp_path: Path) -> None:
    async def describe(app: Plait) -> list[object]:
        desk = app.thread(Desk, "one")
        return [
            *(await desk.state(), await desk.history(), await desk.created_at()),
            *(await desk.part(Desk.values).items(), (await desk.part(Desk.messages).list()).messages),
            *(await desk.part(Desk.schedule).list(), await desk.part(Desk.files).read("a/é.txt")),
            *(await app.kv.namespaces(), await app.kv.get("topics", "tea"), await app.kv.get("bytes", "b")),
            await app.user("ada").items(),
        ]

    async with Plait(Desk, store=SqliteStore(tmp_path / "game.db")) as app:
        desk = app.thread(Desk, "one")
        await desk.update("/n", 1)
        await desk.update("/n", 2)
        await desk.part(Desk.values).set("a", [1])
        await desk.part(Desk.messages).inject("user", "hello")
        await desk.part(Desk.schedule).at(datetime.now(UTC) + timedelta(days=9), "ring")
        await desk.part(Desk.files).write("a/é.txt", b"\xff\x00text")
        await app.kv.set("topics", "tea", {"hot": True}, ttl=86_400)
        await app.kv.set("bytes", "b", b"\xff")
        await app.user("ada").set("visits", 3)
        expected = await describe(app)
    await export(tmp_path / "game.db", tmp_path / "game.jsonl")
    await import_(tmp_path / "game.jsonl", tmp_path / "new.db")
    async with Plait(Desk, store=SqliteStore(tmp_path / "new.db")) as app:
        assert await describe(app) == expected


async def test_an_interrupted_import_goes_on_with_the_same_file_only(tmp_path: Path) -> None:
    source, file, other, target = (tmp_path / each for each in ("game.db", "game.jsonl", "other.jsonl", "copy.db"))
    await fill(source)
    await export(source, file)
    with pytest.raises(InterruptedError):
        await import_(file, target, stop_at=32)
    async with open_whole(target) as store:
        assert await store.find(UNFINISHED) is not None
        before = [await store.find(row.key) for row in await store.threads() if row.key != UNFINISHED]
        assert len(before) == 32
    async with open_whole(source) as store:
        await put(store, beginning(key=ThreadKey("room", "new")))
    await export(source, other)
    with pytest.raises(StoreError, match="a part of a copy of"):
        await import_(other, target)
    assert await import_(file, target) == THREADS + 2
    async with open_whole(target) as store:  # They were not written again: their epochs would be others.
        assert [await store.find(row.key) for row in (await store.threads())[:32]] == before
    await export(target, other)
    assert known_lines(other) == known_lines(file)
    with pytest.raises(StoreError, match="not empty"):
        await import_(file, target)


async def test_an_unfinished_copy_is_not_exported(tmp_path: Path) -> None:
    async with open_whole(tmp_path / "copy.db") as store:
        await put(store, beginning(key=UNFINISHED))
    with pytest.raises(StoreError, match="unfinished copy"):
        await export(tmp_path / "copy.db", tmp_path / "copy.jsonl")


async def make_small(path: Path) -> bytes:
    """Return the file of a store with two threads."""
    async with open_whole(path) as store:
        await store.add_schema("room", "h1", b'{"a":1}')
        await put(store, beginning(), change(1), put_records(("a", b"x"), after=1))
        await put(store, beginning(key=ThreadKey("room", "two")))
    await export(path, file := path.with_suffix(".jsonl"))
    return file.read_bytes()


async def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused(tmp_path: Path) -> None:
    data, file = await make_small(tmp_path / "game.db"), tmp_path / "bad.jsonl"
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        for bad in (data[:at], damaged):
            file.write_bytes(bad)
            with pytest.raises(InvalidState, match=r"bad.jsonl cannot be imported: "):
                ExportedStore(file)


async def test_other_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    data, file = await make_small(tmp_path / "game.db"), tmp_path / "bad.jsonl"
    lines = data.splitlines(keepends=True)
    thread = lines[2:7]
    assert thread[0].startswith(b'{"format":3,"kind":"room","name":"one"')
    assert b'"records":1' in thread[-1]
    unfinished = [line.replace(b'"kind":"room","name":"two"', b'"kind":"~copy","name":"unfinished"') for line in lines]
    for bad, says in (
        (b"", "not an exported store"),
        (b"".join(thread), "`plait threads import` reads threads"),
        (data.replace(b'"format":3', b'"format":4', 1), "exported in format 4; this plait reads 3"),
        (b"".join([*lines[:7], *thread, *lines[7:]]), "another room/one"),
        (b"".join(lines[:2] + lines[7:]), "the number of threads"),
        (data + b"\n", "more after its last line"),
        (b"".join(unfinished), "a ~copy/unfinished"),
        (data.replace(b'"kind":"room","hash"', b'"kind":7,"hash"'), "line 2: Expected `str`"),
        (data.replace(b'"name":"two"', b'"name":"two","created_at":-1'), "line 8: Expected `int` >= 0"),
        (data.replace(b'"op":"replace"', b'"op":"odd"'), "line 5: Invalid enum value 'odd'"),
    ):
        file.write_bytes(bad)
        with pytest.raises(InvalidState, match=says):
            ExportedStore(file)
    async with Plait(Desk, store=SqliteStore(tmp_path / "other.db")) as app:
        with pytest.raises(InvalidState, match="plait store import"):
            await app.import_thread(data)


async def test_neither_an_export_nor_an_import_holds_more_than_a_page(tmp_path: Path) -> None:
    source, file, key = tmp_path / "game.db", tmp_path / "game.jsonl", ThreadKey("room", "large")
    async with open_whole(source) as store:
        await put(store, beginning(key=key))
        for start in range(0, 10_000, 5000):
            rows = ((f"{n:06}", b'"%s"' % (b"x" * 900)) for n in range(start, start + 5000))
            await put(store, put_records(*rows, key=key))
    tracemalloc.start()
    try:
        await export(source, file)
        exported = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        await import_(file, tmp_path / "copy.db")
        imported = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 9_000_000
    assert max(exported, imported) < 5_000_000
    async with open_whole(tmp_path / "copy.db") as store:
        assert len(await store.records(key, RecordRange("values", after="009990"))) == 9


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
NUMBER = st.integers(0, 2**40)


@st.composite
def threads(draw: st.DrawFn) -> list[Write]:
    """Return the writes of a thread: its history from any version on, clients, and records of any bytes."""
    key, first = ThreadKey(draw(st.sampled_from(["room", "plait-kv"])), draw(TEXT)), draw(st.integers(0, 5))
    changes = draw(st.integers(0, 8))
    begun = Write(
        *(key, draw(TEXT), None, first),
        snapshots=[Snapshot(first, b'{"a": "\xc3\xa9"}')] if first or changes or draw(st.booleans()) else [],
        state_version=draw(st.integers(1, 9)),
        secret=draw(st.binary(min_size=1, max_size=20)),
        due=draw(st.none() | st.integers(2, 2**50)),
        created_at=draw(NUMBER),
        user=draw(st.none() | TEXT),
        begins_at=first,
        changed_at=draw(st.integers(1, 2**50)),
    )
    made = [begun]
    for version in range(first + 1, first + changes + 1):
        row = ChangeRow(version, b'[{"op":"replace","path":"","value":%d}]' % version, draw(TEXT), draw(NUMBER))
        snapshots = [Snapshot(version, b"%d" % version)] if draw(st.booleans()) else []
        made.append(Write(key, begun.epoch, version - 1, version, [row], snapshots, changed_at=begun.changed_at))
    last = first + changes
    clients = [
        ClientRow(f"c{number}", draw(NUMBER), draw(st.sampled_from([b"[]", b'[{"a":1}]'])), 2**50 + number)
        for number in range(draw(st.integers(0, 3)))
    ]
    values = draw(st.dictionaries(TEXT, st.binary(max_size=9) | TEXT.map(str.encode), max_size=4))
    records = [Record(draw(st.sampled_from(["values", "files"])), name, value) for name, value in values.items()]
    made.append(Write(key, begun.epoch, last, last, clients=clients, records=records, changed_at=begun.changed_at))
    return made


@settings(max_examples=schedules(10))
@given(
    st.lists(threads(), max_size=4, unique_by=lambda writes: writes[0].key), st.permutations(["a.db", "b.json", "c.db"])
)
def test_a_store_that_is_imported_and_exported_has_the_same_lines_again(
    found: list[list[Write]], names: list[str]
) -> None:
    """Whatever it has, and whichever engines it is in; only its epochs are new."""

    async def play(folder: Path) -> None:
        async with open_whole(folder / names[0]) as store:
            for writes in found:
                await put(store, *writes)
        await export(folder / names[0], folder / "0.jsonl")
        for number, name in enumerate(names[1:], 1):
            await import_(folder / f"{number - 1}.jsonl", folder / name)
            await export(folder / name, folder / f"{number}.jsonl")
            assert known_lines(folder / f"{number}.jsonl") == known_lines(folder / "0.jsonl")

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))
