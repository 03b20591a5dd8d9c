"""Files of a store in a folder that cannot be read: their thread alone is refused, and they are left as they are."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.server.owning import owned, submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, outcomes, put, versions
from tests.server.store.contract_records import delete, put_records
from tests.server.store.test_json_files import LARGE, open_folder

from plait.errors import CorruptThread, StoreError
from plait.store.json_files.files import name_files
from plait.store.json_files.lines import encode_line
from plait.store.json_files.store import JsonFileStore
from plait.store.protocol import Write
from plait.store.thread_rows import INCOMPLETE, RecordRange, ThreadKey

ADA = ThreadKey("room", "Ada")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "game"


def path_of(folder: Path, key: ThreadKey = ROOM, ending: str = "jsonl") -> Path:
    return folder / "threads" / f"{name_files(key)}.{ending}"


async def fill(folder: Path, key: ThreadKey = ROOM) -> None:
    """Store some changes of a thread, and OTHER."""
    async with owned(open_folder(folder), key, OTHER) as store:
        await put(store, beginning(key=key), beginning(key=OTHER))
        for version in (1, 2, 3):
            await put(store, change(version, key=key), put_records(("a", b"1"), after=version, key=key))


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the files that are not OTHER's."""
    return {path: path.read_bytes() for path in folder.glob("threads/*/*") if path.is_file() and path.stem != "two"}


async def expect_refused_alone(folder: Path, key: ThreadKey, says: str, *, listed: ThreadKey | None = None) -> None:
    """Check that this thread is refused for this reason, also by readers, and left as it is; OTHER is served."""
    files = read_files(folder)
    store, reader = open_folder(folder), open_folder(folder).reader()
    async with owned(store, key, OTHER), reader:
        for each in (store, reader):
            await expect_no_reads(each, key, says)
            assert [row.key for row in await each.threads()] == sorted([listed or key, OTHER])
            assert await versions(each, OTHER) == (0, [])
        for write in (change(1, key=key), change(2, key=key), change(4, key=key), beginning(key=key)):
            assert await outcomes([submit(store, write)]) != [None]
        await put(store, put_records(("b", b"1"), after=0, key=OTHER))
        await store.check_writes()
    assert read_files(folder) == files


async def expect_no_reads(store: JsonFileStore, key: ThreadKey, says: str) -> None:
    for read in (
        lambda: store.load(key),
        lambda: store.changes(key, after=0),
        lambda: store.changes_before(key, 9),
        lambda: store.record(key, "values", "a"),
        lambda: store.records(key, RecordRange("values")),
        lambda: store.client(key, "a"),
        lambda: store.view(key).__aenter__(),
    ):
        with pytest.raises(CorruptThread, match=f"^{key} cannot be read$") as caught:
            await read()
        assert says in caught.value.detail
    assert await store.records_of_each([key, OTHER], ("values", "a")) == [[None], [None]]


# Lines


Damage = Callable[[bytes], tuple[bytes, str]]


def break_line(data: bytes) -> tuple[bytes, str]:
    return data.replace(b'{"kind":"room","name":"one","number":2', b'{"kind":"room"name":"one","number":2'), "line 2: "


def break_value(data: bytes) -> tuple[bytes, str]:
    return data.replace(b'[{"op":"replace","path":"","value":1}]', b'{"base64":"*"}'), "line 2: "


def remove_line(data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    return b"".join([lines[0], *lines[2:]]), "line 2: its number is 3, and must be 2"


def repeat_line(data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:2], *lines[1:]]), "line 3: its number is 2, and must be 3"


def change_version(data: bytes) -> tuple[bytes, str]:
    return data.replace(b'"after":1', b'"after":7'), "line 3: it does not follow what is before it"


def change_name(data: bytes) -> tuple[bytes, str]:
    return data.replace(b'"name":"one"', b'"name":"three"'), "line 1: it is of room/three, whose files are "


def remove_member(data: bytes) -> tuple[bytes, str]:
    return data.replace(b'"epoch":"e1",', b"", 1), "line 1: Object missing required field `epoch`"


def raise_format(data: bytes) -> tuple[bytes, str]:
    return data.replace(
        b'"number":2', b'"format":2,"number":2'
    ), "line 2: it was written by a newer plait (in format 2; "


def break_first_line(data: bytes) -> tuple[bytes, str]:
    return b"*" + data, "line 1: JSON is malformed"


def delete_before(data: bytes) -> tuple[bytes, str]:
    deletion = encode_line(ROOM, 2, 1, [Write(ROOM, "e1", 0, 0, is_deletion=True)])
    return data.splitlines(keepends=True)[0] + deletion + b"\n*\n", "line 3: JSON is malformed"


@pytest.mark.parametrize(
    "damage",
    [
        *(break_line, break_value, remove_line, repeat_line, change_version, change_name, remove_member),
        *(break_first_line, delete_before, raise_format),
    ],
)
async def test_a_broken_line_is_named_and_its_thread_is_refused_until_it_is_mended(
    folder: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(folder)
    room = path_of(folder)
    whole = room.read_bytes()
    data, where = damage(whole)
    assert data != whole
    room.write_bytes(data)
    await expect_refused_alone(folder, ROOM, f"{room}, {where}")
    assert f"room/one cannot be read, and is refused: {room}, {where}" in caplog.text
    room.write_bytes(whole)
    async with open_folder(folder) as store:
        assert await versions(store) == (3, [1, 2, 3])


async def test_a_thread_that_only_the_name_of_its_files_tells_is_refused_and_not_begun_again(folder: Path) -> None:
    await fill(folder, ADA)
    lines = path_of(folder, ADA)
    lines.write_bytes(b"*\n")
    listed = ThreadKey("room", lines.stem)
    await expect_refused_alone(folder, ADA, f"{lines}, line 1: JSON is malformed", listed=listed)
    async with open_folder(folder) as store:
        for key in (ADA, listed):
            with pytest.raises(CorruptThread):
                await store.load(key)
        with pytest.raises(CorruptThread):
            await store.find(ADA)


async def test_nothing_is_written_beside_a_damaged_snapshot_of_an_unknown_thread(folder: Path) -> None:
    async with owned(open_folder(folder), ADA, OTHER) as store:
        await put(store, beginning(key=ADA), put_records(("a", LARGE), key=ADA), beginning(key=OTHER))
    snapshot = path_of(folder, ADA, "json")
    cut_off(snapshot)
    listed = ThreadKey("room", snapshot.stem)
    await expect_refused_alone(folder, ADA, f"{snapshot}: Input data was truncated", listed=listed)
    async with owned(open_folder(folder), listed, ADA) as store:
        await put(store, delete(0, key=listed, epoch=""))
        await put(store, beginning(key=ADA))
    async with open_folder(folder) as store:
        assert [row.key for row in await store.threads()] == [ADA, OTHER]


async def test_the_header_of_a_damaged_thread_is_that_of_the_last_line_that_can_be_read(folder: Path) -> None:
    await fill(folder)
    room = path_of(folder)
    room.write_bytes(remove_line(room.read_bytes())[0])
    async with open_folder(folder) as store:
        found = await store.find(ROOM)
        assert found is not None
        assert (found.epoch, found.version) == ("e1", 0)


async def test_a_damaged_thread_that_began_with_an_import_is_listed_and_not_taken_for_an_unfinished_one(
    folder: Path,
) -> None:
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, msgspec.structs.replace(beginning(), due=INCOMPLETE))
        await put(store, change(1))
        await put(store, msgspec.structs.replace(change(2), due=0))
    room = path_of(folder)
    room.write_bytes(remove_line(room.read_bytes())[0])
    for store in (open_folder(folder), open_folder(folder).reader()):
        async with store:
            assert await store.due_threads(until=INCOMPLETE) == []
            assert [row.key for row in await store.threads()] == [ROOM]


# Files


def make_folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "Is a directory"


def make_dangling_link(path: Path) -> str:
    path.unlink()
    path.symlink_to("nowhere")
    return "No such file or directory"


def cut_off(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-10])
    return "Input data was truncated" if path.suffix == ".json" else ""


@pytest.mark.parametrize("damage", [make_folder, make_dangling_link, cut_off])
async def test_a_snapshot_that_cannot_be_read_is_named_and_its_thread_is_refused(
    folder: Path, damage: Callable[[Path], str]
) -> None:
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        await put(store, beginning(), put_records(("a", LARGE)), beginning(key=OTHER))
    snapshot = path_of(folder, ending="json")
    await expect_refused_alone(folder, ROOM, f"{snapshot}: {damage(snapshot)}")


@pytest.mark.parametrize("damage", [make_folder, make_dangling_link])
async def test_lines_that_cannot_be_read_are_named_and_their_thread_is_refused(
    folder: Path, damage: Callable[[Path], str]
) -> None:
    await fill(folder)
    room = path_of(folder)
    await expect_refused_alone(folder, ROOM, f"{room}: {damage(room)}")


async def test_a_copy_under_another_name_is_refused_and_the_thread_itself_is_served(folder: Path) -> None:
    await fill(folder)
    room, copied = path_of(folder), path_of(folder).with_name("one-copy.jsonl")
    copied.write_bytes(room.read_bytes())
    async with owned(open_folder(folder), ROOM) as store:
        assert await versions(store) == (3, [1, 2, 3])
        with pytest.raises(CorruptThread) as caught:
            await store.load(ThreadKey("room", "one-copy"))
        assert caught.value.detail == f"{copied}, line 1: it is of room/one, whose files are room/one.json and .jsonl"
        await put(store, change(4))
    assert copied.read_bytes() == room.read_bytes()[: len(copied.read_bytes())]


async def test_links_to_files_are_followed(folder: Path, tmp_path: Path) -> None:
    await fill(folder)
    room, elsewhere = path_of(folder), tmp_path / "elsewhere"
    room.rename(elsewhere)
    room.symlink_to(elsewhere)
    async with owned(open_folder(folder), ROOM) as store:
        await put(store, change(4))
    assert room.is_symlink()
    async with open_folder(folder) as store:
        assert await versions(store) == (4, [1, 2, 3, 4])


async def test_what_is_left_of_an_interrupted_renaming_is_no_thread(folder: Path) -> None:
    await fill(folder)
    path_of(folder, ending="json.new").write_bytes(b'{"kind":')
    (folder / "threads" / "README").write_bytes(b"by hand")
    async with owned(open_folder(folder), ROOM) as store:
        assert [row.key for row in await store.threads()] == [ROOM, OTHER]
        await put(store, put_records(("a", LARGE), after=3))
    assert not path_of(folder, ending="json.new").exists()


async def test_a_folder_of_threads_that_is_a_file_is_no_empty_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "threads").touch()
    for store in (open_folder(folder), open_folder(folder).reader()):
        with pytest.raises(
            StoreError, match=f"cannot open the store {folder}: {folder}/threads: (Not a directory|File exists)"
        ):
            await store.__aenter__()


# Ending a damaged thread


@pytest.mark.parametrize("damage", [break_line, break_first_line, delete_before])
async def test_a_damaged_thread_can_be_destroyed_and_begun_again(folder: Path, damage: Damage) -> None:
    await fill(folder)
    room = path_of(folder)
    room.write_bytes(damage(room.read_bytes())[0])
    async with owned(open_folder(folder), ROOM, OTHER) as store:
        found = await store.find(ROOM)
        assert found is not None
        await put(store, delete(found.version, epoch=found.epoch))
        assert list(read_files(folder)) == []
        assert [row.key for row in await store.threads()] == [OTHER]
        await put(store, beginning(epoch="e2"))
        assert await versions(store) == (0, [])
    async with open_folder(folder) as store:
        assert await versions(store) == (0, [])


async def test_a_damaged_thread_whose_files_cannot_be_removed_is_not_destroyed(folder: Path) -> None:
    await fill(folder)
    room = path_of(folder)
    make_folder(room)
    async with owned(open_folder(folder), ROOM) as store:
        assert await outcomes([submit(store, Write(ROOM, "", 0, 0, is_deletion=True))]) == [StoreError]
        with pytest.raises(CorruptThread):
            await store.load(ROOM)
    assert room.is_dir()


async def test_what_a_crash_has_left_of_a_deletion_is_not_removed_if_there_is_damage(folder: Path) -> None:
    await fill(folder)
    room = path_of(folder)
    room.write_bytes(delete_before(room.read_bytes())[0])
    files = read_files(folder)
    async with open_folder(folder):
        pass
    assert read_files(folder) == files
