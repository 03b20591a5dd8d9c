"""The store in a folder of JSON files."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import errno
import json
import logging
import os
import random
import re
import resource
import shutil
import stat
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import msgspec
import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.owning import own, owned, submit
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import (
    OTHER,
    ROOM,
    beginning,
    change,
    client_row,
    listed,
    outcomes,
    put,
    states,
    told,
    versions,
)
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_records import delete, put_records
from tests.server.store.contract_view import *  # noqa: F403

from plait.errors import Indeterminate, StoreError
from plait.store.json_files.files import name_files
from plait.store.json_files.lines import decode_line, decode_value, encode_line, encode_value
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.memory import MemoryStore
from plait.store.protocol import Store, Write
from plait.store.thread_rows import Prune, Snapshot, ThreadKey
from plait_schemas.codec import check_json

LARGE = b'"%s"' % (b"x" * 100_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "game"


@pytest.fixture
def room(folder: Path) -> Path:
    """The lines of ROOM."""
    return folder / "threads" / "room" / "one.jsonl"


@pytest.fixture
def store(folder: Path) -> JsonFileStore:
    return open_folder(folder)


def open_folder(folder: Path) -> JsonFileStore:
    return JsonFileStore(FileUrl.parse(f"file://{folder}"))


async def read(store: Store, key: ThreadKey = ROOM) -> list[object]:
    """Return everything that can be read of a thread."""
    view: list[object] = []
    async with store.view(key) as found:
        if found is not None:
            view = [found.thread, await found.records()]
    clients = [await store.client(key, client) for client in "abc"]
    return [*view, await store.find(key), await store.changes(key, after=0), clients, await store.threads()]


# What is read again


async def test_a_folder_that_is_opened_again_has_everything(folder: Path) -> None:
    first = msgspec.structs.replace(beginning(), secret=b"\x00s", created_at=7, user="ada")
    writes = [
        first,
        change(1, client=client_row("a")),
        change(2, snapshot=b'{"n":2}', state_version=3, client=client_row("b", refused=b"\x00")),
        put_records(("a", b'{"x":[1]}'), ("b", b"\xff\n"), ("c", b""), ("d", b"null"), ("e", b' {"y": 1}'), after=2),
        put_records(("a", None), after=2),
        change(3),
        Write(ROOM, "e1", 3, 3, due=99),
    ]
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        for write in writes:
            await put(store, write)
        await put(store, beginning(key=OTHER))
        await store.add_schema("room", "h1", b'{"type":"object"}')
        before = await read(store)
    for _ in range(2):
        async with open_folder(folder) as store:
            assert await read(store) == before
            assert await states(store, 3) == {**told([0, 1, 3]), 2: b'{"n":2}'}
            assert await store.schema("room", "h1") == b'{"type":"object"}'
            assert [row.key for row in await store.threads()] == [ROOM, OTHER]


async def test_an_export_is_in_order_and_in_writes_of_a_bounded_size_and_makes_the_same_thread(folder: Path) -> None:
    store = open_folder(folder)
    async with owned(store, ROOM):
        await put(store, msgspec.structs.replace(beginning(), begins_at=4, version=4, snapshots=(Snapshot(4, b"1"),)))
        for version, client in ((5, "b"), (6, "a")):
            await put(store, change(version, client=client_row(client), snapshot=b"%d" % version))
        large = [(f"{number}", LARGE) for number in range(12)]
        await put(store, put_records(("z", b"1"), ("b", b"1"), *large, after=6))
        writes = [write async for write in store.export(ROOM)]
        before = await read(store)
    records = [record.key for write in writes for record in write.records]
    assert records == sorted(records)
    assert len(records) == 14
    assert [row.client for write in writes for row in write.clients] == ["a", "b"]
    assert [[each.version for each in write.snapshots] for write in writes[:3]] == [[4], [5], [6]]
    assert max(sum(len(record.value or b"") for record in write.records) for write in writes) <= 620_000
    async with owned(open_folder(folder.with_name("other")), ROOM) as other:
        for write in writes:
            await put(other, write)
        assert await read(other) == before


@play_seeds(3)
async def test_whatever_is_written_is_read_again_as_a_store_in_memory_has_it(folder: Path, seed: int) -> None:
    chance, memory = random.Random(seed), MemoryStore()
    async with owned(memory, ROOM):
        for _ in range(8):
            async with owned(open_folder(folder / str(seed)), ROOM) as store:
                for _ in range(chance.randrange(12)):
                    unit = make_unit(chance, await memory.find(ROOM) is None, await versions_or_none(memory))
                    for each in (store, memory):
                        assert await outcomes([submit(each, write) for write in unit]) == [None] * len(unit)
                before = await read(store)
                assert strip_times(await read(memory)) == strip_times(before)
            async with open_folder(folder / str(seed)) as store:
                assert await read(store) == before


def strip_times(found: object) -> str:
    """Return what was read without the time at which it was written."""
    return re.sub(r"changed_at=\d+", "", repr(found))


async def versions_or_none(store: Store) -> int:
    found = await store.find(ROOM)
    return found.version if found else 0


def make_unit(chance: random.Random, is_new: bool, version: int) -> list[Write]:
    if is_new:
        return [msgspec.structs.replace(beginning(), created_at=1)]
    match chance.randrange(6):
        case 0:
            return [delete(version), msgspec.structs.replace(beginning(snapshot=b"5"), created_at=2)]
        case 1:
            return [delete(version)]
        case 2:
            large = b'"%s"' % (b"y" * chance.randrange(40_000))
            return [put_records((chance.choice("abc"), chance.choice([None, large, b"\x00"])), after=version)]
        case 3:
            return [change(version + 1, snapshot=b"%d" % (version + 1), prune=Prune(version // 2))]
        case _:
            return [change(version + 1, client=client_row(chance.choice("abc"), ref=version)), change(version + 2)]


@each_case(
    "value",
    [
        *(b"", b" ", b"1,2", b"],[", b'{"a":1}', b'{"a": 1}', b'"\xff"', b"\n", b'"\\ud800"', b'{"base64":"AA=="}'),
        *(b'{"base64":1}', b"null", b"[" * 5000 + b"]" * 5000, b"[" * 200 + b"]" * 200, b"1e999", '"é\u2028"'.encode()),
    ],
)
def test_every_value_comes_back_and_is_on_one_line(value: bytes) -> None:
    encoded = encode_value(value)
    line = msgspec.json.encode([[[[[[encoded]]]]]])
    assert b"\n" not in line
    found = msgspec.json.decode(
        msgspec.json.format(line, indent=2), type=list[list[list[list[list[list[msgspec.Raw]]]]]]
    )
    assert decode_value(found[0][0][0][0][0][0]) == decode_value(encoded) == value


def test_a_value_as_deep_as_can_be_decoded_is_read_in_its_line_too() -> None:
    def nest(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    def can_be_decoded(depth: int) -> bool:
        try:
            check_json(nest(depth))
        except RecursionError:
            return False
        return True

    most = bisect_left(range(100_000), True, key=lambda depth: not can_be_decoded(depth)) - 1
    assert can_be_decoded(most)
    for depth in range(most - 40, most + 2):
        line = encode_line(ROOM, 1, 1, [Write(ROOM, "e1", None, 0, snapshots=(Snapshot(0, nest(depth)),))])
        (write,) = call_from(16, lambda line=line: decode_line(line).decode())
        assert write.snapshots[0].state == nest(depth)


def call_from(frames: int, function: Callable[[], list[Write]]) -> list[Write]:
    """Call a function from so many frames, as those that decode count, too."""
    return call_from(frames - 1, function) if frames else function()


# The files


async def test_people_can_read_a_line_and_the_names_of_the_files(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning(snapshot=b'{"text":"hi"}'))
        await put(store, change(1))
    first, second = room.read_text().splitlines()
    assert '"snapshots":[{"version":0,"state":{"text":"hi"}}]' in first
    assert '"ops":[{"op":"replace","path":"","value":1}]' in second
    assert second.startswith('{"kind":"room","name":"one","number":2,"at":')


async def test_a_deletion_and_a_new_beginning_are_one_line(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        await put(store, delete(0), beginning(epoch="e2"))
        assert len(room.read_text().splitlines()) == 2
    async with open_folder(folder) as store:
        found = await store.find(ROOM)
        assert found is not None
        assert found.epoch == "e2"


async def test_a_log_that_outgrows_its_snapshot_is_replaced_by_one_that_people_can_read(
    folder: Path, room: Path
) -> None:
    snapshot = room.with_suffix(".json")
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning(), put_records(("a", LARGE)))
        assert (room.read_bytes(), snapshot.exists()) == (b"", True)
        size = snapshot.stat().st_size
        assert json.loads(snapshot.read_text())["writes"][0]["records"][0]["key"] == "a"
        assert snapshot.read_text().count("\n") > 20
        await put(store, change(1), put_records(("a", LARGE[: size // 2] + b'"'), after=1))
        assert len(room.read_text().splitlines()) == 1
        await put(store, put_records(("b", LARGE[: size // 2 + 5000] + b'"'), after=1))
        assert room.read_bytes() == b""
        await put(store, change(2))
        before = await read(store)
    async with open_folder(folder) as store:
        assert await read(store) == before


async def test_lines_that_a_snapshot_has_are_read_once(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        await put(store, change(1))
        lines = room.read_bytes()
        await put(store, put_records(("a", LARGE), after=1))
        before = await read(store)
    # A crash came after the snapshot was written and before its lines were removed.
    assert room.read_bytes() == b""
    room.write_bytes(lines)
    async with owned(open_folder(folder), ROOM) as store:
        assert await read(store) == before
        await put(store, change(2))
    async with open_folder(folder) as store:
        assert await versions(store) == (2, [1, 2])


async def test_nothing_is_left_of_a_deleted_thread_nor_after_a_crash_in_between(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        await put(store, beginning(), put_records(("a", LARGE)), beginning(key=OTHER))
        await put(store, change(1))
        kept = {path: path.read_bytes() for path in (room, room.with_suffix(".json"))}
        await put(store, delete(1))
        assert sorted(path.name for path in room.parent.iterdir()) == ["two.jsonl"]
        await put(store, beginning(epoch="e2"))
        await put(store, delete(0, epoch="e2"))
    line = msgspec.json.decode(kept[room].splitlines()[-1])
    line |= {"number": line["number"] + 1, "writes": [{"epoch": "e1", "after": 1, "version": 1, "is_deletion": True}]}
    for path, data in kept.items():
        path.write_bytes(data + (msgspec.json.encode(line) + b"\n" if path == room else b""))
    async with open_folder(folder) as store:
        assert await listed(store) == [(OTHER, 0)]
        assert sorted(path.name for path in room.parent.iterdir()) == ["two.jsonl"]


async def test_nothing_is_remembered_of_threads_that_were_never_written(folder: Path, room: Path) -> None:
    store = open_folder(folder)
    async with owned(store, ROOM, OTHER):
        assert await outcomes([submit(store, beginning()), submit(store, delete(0))]) == [None, None]
        assert store._files == {}
        room.parent.touch()
        assert await outcomes([submit(store, beginning(key=OTHER))]) == [StoreError]
        assert store._files == {}


ODD_NAMES = [
    *("a", "A", "ä", "Ä", "a\u0308", "a.b", ".a", "..", ".", "a/b", "a\\b", "a~b", "a b", "con", "%", "ß", "ss", "ſ"),
    *("x" * 100, "x" * 101, "x" * 102, "x" * 256, "é" * 128, "🔑" * 256, "a.json", "a.jsonl", "\x00", "a\n"),
]


def test_names_of_files_are_readable_fit_and_differ_also_where_case_is_ignored() -> None:
    assert name_files(ThreadKey("game-room", "room-1.b_c")) == "game-room/room-1.b_c"
    assert name_files(ThreadKey("room", "Ada Byron")).startswith("room/Ada_Byron~")
    found = [name_files(ThreadKey("room", name)) for name in ODD_NAMES]
    for form in ("NFC", "NFD", "NFKC"):
        assert len({unicodedata.normalize(form, name).casefold() for name in found}) == len(ODD_NAMES)
    for name in found:
        _, _, file = name.partition("/")
        assert len(f"{file}.jsonl.new".encode()) <= 255
        assert not file.startswith(".")
        assert not set(file) & set("/\\\0\n ")


async def test_threads_with_odd_names_are_read_again(folder: Path) -> None:
    keys = [ThreadKey(kind, name) for kind in ("room", "A/b") for name in ODD_NAMES]
    async with owned(open_folder(folder), *keys) as store:
        await put(store, *(beginning(key=key) for key in keys))
        await put(store, *(change(1, key=key) for key in keys))
    async with open_folder(folder) as store:
        assert await listed(store) == [(key, 1) for key in sorted(keys)]


async def test_edits_by_hand_are_read_at_the_next_start(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning(snapshot=b'{"text":"hi"}'))
        await put(store, put_records(("a", LARGE)))
        await put(store, put_records(("a", b"1")))
        snapshot = room.with_suffix(".json")
        snapshot.write_text(snapshot.read_text().replace('"text": "hi"', '"text":   "hello"'))
    # As some editors do, without the end of the last line.
    room.write_text(room.read_text().replace('"value":1', '"value": [2, 3]').strip())
    async with owned(open_folder(folder), ROOM) as store:
        found = await store.load(ROOM)
        assert found is not None
        assert found.snapshot == b'{"text":"hello"}'
        assert await store.record(ROOM, "values", "a") == b"[2,3]"
        await put(store, change(1))
    async with open_folder(folder) as store:
        assert (await versions(store), await store.record(ROOM, "values", "a")) == ((1, [1]), b"[2,3]")


# Damage


async def test_a_last_line_that_was_cut_off_anywhere_is_removed(
    folder: Path, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        await put(store, change(1))
        await put(store, change(2))
    data = room.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for end in range(start, len(data) + 1):
        room.write_bytes(data[:end])
        caplog.clear()
        async with owned(open_folder(folder), ROOM) as store:
            # Only the end of the line is missing from a line of all but one byte.
            version = 2 if end >= len(data) - 1 else 1
            assert await versions(store) == (version, list(range(1, version + 1)))
            assert room.read_bytes() == (data if version == 2 else data[:start])
            await put(store, change(version + 1))
        assert ("never acknowledged is removed" in caplog.text) == (start < end < len(data) - 1)


# Trouble with the disk


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Allow no file to become larger than this, as if the disk were full in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_refuses_changes_and_loses_none(
    folder: Path, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_folder(folder)
    async with owned(store, ROOM):
        await put(store, beginning())
        await put(store, change(1))
        data = room.read_bytes()
        with full_disk(len(data) + 20):
            caplog.clear()
            for _ in range(3):
                future = submit(store, change(2))
                assert await outcomes([future]) == [StoreError]
                assert "room/one could not be written: File too large" in str(future.exception())
            assert room.read_bytes() == data
            with pytest.raises(StoreError, match="the store cannot be written"):
                await store.check_writes()
        assert "changes are not stored" in caplog.text
        await put(store, change(2))
        await store.check_writes()
        await store._probe(writes=True)
        assert sorted(path.name for path in folder.iterdir()) == ["threads", "threads.lock"]
        before = await read(store)
    async with open_folder(folder) as again:
        assert await read(again) == before


async def test_a_snapshot_that_cannot_be_written_fails_no_change_and_is_tried_again_later(
    folder: Path, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = room.with_name("one.json.new")
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        obstacle.mkdir()
        await put(store, put_records(("a", LARGE)))
        assert "the lines of room/one could not be replaced by a snapshot" in caplog.text
        caplog.clear()
        await put(store, put_records(("b", b"1")))
        assert not caplog.text
        obstacle.rmdir()
        before = await read(store)
    async with owned(open_folder(folder), ROOM) as store:
        assert await read(store) == before
        await put(store, put_records(("c", LARGE)))
        assert room.read_bytes() == b""


@pytest.mark.parametrize("failing", [1, 2])
async def test_a_thread_is_written_on_after_a_snapshot_whose_folder_could_not_be_synced(
    failing: int, folder: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal synced
        if stat.S_ISDIR(os.fstat(file).st_mode):
            synced += 1
            if synced == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)

    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning(), put_records(("a", b"1")))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            await put(store, put_records(("b", LARGE)))
        assert synced == failing
        await put(store, change(1))
        await put(store, put_records(("c", LARGE * 3), after=1))
        await put(store, change(2))
        assert len(room.read_bytes().splitlines()) == 1
        before = await read(store)
    async with open_folder(folder) as store:
        assert await read(store) == before


async def test_the_log_of_a_snapshot_does_not_name_the_turn_that_wrote_something_else(folder: Path, room: Path) -> None:
    turn, said = ContextVar[str]("turn", default="none"), list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(turn.get())

    log, handler = logging.getLogger("plait.store"), Handler()
    log.addHandler(handler)
    try:
        async with owned(open_folder(folder), ROOM) as store:
            await put(store, beginning())
            room.with_name("one.json.new").mkdir()
            turn.set("of a client")
            await put(store, put_records(("a", LARGE)))
    finally:
        log.removeHandler(handler)
    assert said == ["none"]


async def test_threads_whose_lines_cannot_be_written_fail_alone_among_many_that_are_written_at_once(
    folder: Path,
) -> None:
    keys = [ThreadKey("room", f"r{number}") for number in range(64)]
    async with owned(open_folder(folder), *keys) as store:
        await put(store, *(beginning(key=key) for key in keys))
        for key in keys[::3]:
            with (folder / "threads" / f"{name_files(key)}.jsonl").open("a") as file:
                file.write("\n")
        refused = [StoreError if number % 3 == 0 else None for number in range(64)]
        assert await outcomes([submit(store, change(1, key=key)) for key in keys]) == refused
        assert await outcomes([submit(store, change(2, key=key)) for key in keys[1::3]]) == [None] * 21
    async with open_folder(folder) as store:
        found = [await versions(store, key) for key in keys[:3]]
    assert found == [(0, []), (2, [1, 2]), (1, [1])]


async def test_a_file_that_another_program_has_changed_is_left_alone_and_other_threads_go_on(
    folder: Path, room: Path
) -> None:
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        await put(store, beginning(), beginning(key=OTHER))
        data = room.read_bytes() + b"by hand\n"
        room.write_bytes(data)
        futures = [submit(store, change(1)), submit(store, change(1, key=OTHER))]
        assert await outcomes(futures) == [StoreError, None]
        assert "another program has changed its file" in str(futures[0].exception())
        assert room.read_bytes() == data
        room.unlink()
        assert await outcomes([submit(store, change(1))]) == [StoreError]
        assert not room.exists()
        await put(store, change(2, key=OTHER))


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
async def test_a_file_that_another_program_has_made_is_left_alone(suffix: str, folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        room.parent.mkdir()
        made = room.with_suffix(suffix)
        made.write_bytes(b"by hand\n")
        for _ in range(2):
            future = submit(store, beginning())
            assert await outcomes([future]) == [StoreError]
            assert "another program has changed its file" in str(future.exception())
        assert made.read_bytes() == b"by hand\n"


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_an_edit_of_the_same_length_is_left_alone_too(
    suffix: str, is_replaced: bool, folder: Path, room: Path
) -> None:
    edited, other = room.with_suffix(suffix), room.with_name("edited")
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning(), put_records(("a", LARGE)))
        await put(store, change(1))
        data = edited.read_bytes()[::-1]
        other.write_bytes(data)
        shutil.copystat(edited, other)  # Its time is the same, too.
        if is_replaced:
            other.replace(edited)
        else:
            edited.write_bytes(data)
            os.utime(edited)
        future = submit(store, change(2))
        assert await outcomes([future]) == [StoreError]
        assert "another program has changed its file" in str(future.exception())
        assert edited.read_bytes() == data


async def test_a_folder_that_was_moved_or_replaced_is_not_ready_and_begun_nowhere_else(folder: Path) -> None:
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        await put(store, beginning())
        await store.check_writes()
        folder.rename(folder.with_name("moved"))
        with pytest.raises(StoreError, match="the store cannot be written: No such file or directory"):
            await store.check_writes()
        writes = [change(1), beginning(key=OTHER)]
        assert await outcomes([submit(store, write) for write in writes]) == [StoreError, StoreError]
        assert not folder.exists()
        folder.mkdir()
        assert await outcomes([submit(store, beginning(key=OTHER))]) == [StoreError]
        assert list(folder.iterdir()) == []
    async with open_folder(folder.with_name("moved")) as store:
        assert await listed(store) == [(ROOM, 0)]
        folder.with_name("moved").rename(folder)
        folder.with_name("moved").mkdir()
        with pytest.raises(StoreError, match="the store's folder was replaced"):
            await store.check_writes()


async def test_a_thread_whose_file_cannot_be_made_is_refused_alone(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        await put(store, beginning(key=OTHER))
        room.mkdir()
        assert await outcomes([submit(store, beginning()), submit(store, change(1, key=OTHER))]) == [StoreError, None]
        assert await outcomes([submit(store, beginning())]) == [StoreError]
        await store.check_writes()
        room.rmdir()
        await put(store, beginning())


async def test_a_line_that_can_neither_be_synced_nor_removed_is_in_doubt_and_is_removed_by_the_next(
    folder: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        data = room.read_bytes()

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "ftruncate", fail)
            for _ in range(2):
                assert await outcomes([submit(store, change(1))]) == [Indeterminate]
            assert len(room.read_bytes()) > len(data)
        await put(store, change(1, snapshot=b"5"))
        assert len(room.read_bytes().splitlines()) == 2
        before = await read(store)
    async with open_folder(folder) as store:
        assert await read(store) == before


async def test_the_names_of_new_and_replaced_files_are_on_the_disk_before_lines(
    folder: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = {"fsync": os.fsync, "fdatasync": os.fdatasync}

    def note(name: str) -> None:
        def sync(file: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{file}").readlink().relative_to(folder.parent)))
            real[name](file)

        monkeypatch.setattr(os, name, sync)

    note("fsync")
    note("fdatasync")
    line, kind = "game/threads/room/one.jsonl", "game/threads/room"
    async with owned(open_folder(folder), ROOM) as store:
        assert synced == [".", "game"]  # They have the names of the folders.
        synced.clear()
        await put(store, beginning())
        assert synced == ["game/threads", kind, line]
        synced.clear()
        await put(store, change(1))
        assert synced == [line]
        synced.clear()
        await put(store, put_records(("a", LARGE), after=1))
        assert synced == [line, f"{kind}/one.json.new", kind, f"{line}.new", kind]
        synced.clear()
        await put(store, change(2))
        assert synced == [line]


# One process


async def test_a_second_process_is_refused_and_may_read(folder: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        with pytest.raises(StoreError, match="it is in use by another server"):
            await open_folder(folder).__aenter__()
        async with open_folder(folder).reader() as reader:
            assert await versions(reader) == (0, [])
            await own(reader, OTHER)
            with pytest.raises(StoreError, match="closed"):
                await submit(reader, beginning(key=OTHER))
        await put(store, change(1))
    async with open_folder(folder) as store:
        assert await versions(store) == (1, [1])


async def test_a_reader_leaves_a_line_that_is_being_written(folder: Path, room: Path) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, beginning())
        data = room.read_bytes() + b'{"kind":'
        room.write_bytes(data)
        async with open_folder(folder).reader() as reader:
            assert await versions(reader) == (0, [])
        assert room.read_bytes() == data


@each_case("url", ["file://host/a", "file:///", "file:///a?files=2", "file:///a#b", "file://"])
def test_a_wrong_url_is_explained(url: str) -> None:
    with pytest.raises(ValueError, match="use file:///absolute/folder"):
        FileUrl.parse(url)


async def test_a_reader_makes_no_folder(folder: Path) -> None:
    with pytest.raises(StoreError, match=f"cannot open the store {folder}: there is no such folder"):
        await open_folder(folder).reader().__aenter__()
    assert not folder.exists()


async def test_schemas_that_cannot_be_read_or_written_are_named(folder: Path) -> None:
    schemas = folder / "schemas.json"
    async with open_folder(folder) as store:
        await store.add_schema("room", "h1", b'{"a":1}')
        obstacle = folder / "schemas.json.new"
        obstacle.mkdir()
        with pytest.raises(StoreError, match="the schema of room could not be stored: Is a directory"):
            await store.add_schema("room", "h2", b"{}")
        obstacle.rmdir()
        assert await store.schema("room", "h2") is None
    schemas.write_text("[" + schemas.read_text())
    with pytest.raises(StoreError, match=rf"cannot open the store .*: {schemas}: Expected `str`, got `array`"):
        await open_folder(folder).__aenter__()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=rf"cannot open the store .*: {tmp_path}/file: File exists"):
        await open_folder(tmp_path / "file" / "game").__aenter__()
