"""Changes of an index of files: what they count, and how much work they are."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.cases import each_case
from tests.server.parts.files_lab import count_calls

from plait import Limits, NotFound, TooLarge
from plait.parts.files.file import File, Upload
from plait.parts.files.index import FileEdit, FileIndex
from plait.parts.files.paths import compile_glob
from plait.store.thread_rows import Record, ThreadKey

NAMES = ["a", "b", "a/b", "a/c", "a/b/c", "b/a", "b/a/c"]


def put(edit: FileEdit, path: str, size: int = 1, content: str = "") -> None:
    content = content or path
    edit.put(File(path=path, size=size, etag=content), Upload(content, size, 100, b""))


def change(edit: FileEdit, chance: random.Random, content: str) -> None:
    path, other = chance.choices(NAMES, k=2)
    match chance.randrange(5):
        case 0:
            put(edit, path, chance.randrange(9), content)
        case 1:
            edit.unlink(path)
        case 2:
            edit.mkdir(path, 1)
        case 3:
            edit.rmdir(path)
        case _:
            edit.move(path, other)


def put_many(count: int) -> None:
    edit = FileEdit(FileIndex(2**20), Limits())
    for number in range(count):
        put(edit, f"d/{number}")


def unlink_many(count: int) -> None:
    index = FileIndex(2**20)
    for number in range(count):
        index.set(f"d/{number}", File(path=f"d/{number}", size=1, etag=f"{number}"))
    edit = FileEdit(index, Limits())
    for number in range(count):
        assert edit.unlink(f"d/{number}")


@each_case("work", [put_many, unlink_many])
def test_each_change_of_an_edit_is_the_same_work(work: Callable[[int], None]) -> None:
    assert count_calls(lambda: work(400)) < 2.1 * count_calls(lambda: work(200))


@each_case("seed", range(40))
def test_an_edit_beside_other_changes_is_the_one_that_is_made_again_or_is_outdated(seed: int) -> None:
    chance, ops = random.Random(seed), list[tuple[int, str]]()
    index, limits, kept = FileIndex(2**20), Limits(), 0
    edit = FileEdit(index, limits)
    for step in range(60):
        if chance.random() < 0.3:
            other = FileEdit(index, limits)
            with suppress(ValueError, NotFound):
                change(other, chance, f"other {step}")
            for path, file in other.changed.items():
                index.set(path, file)
            edit.note(other.changed)
        else:
            ops.append((chance.randrange(1 << 30), f"content {step}"))
            with suppress(ValueError, NotFound):
                change(edit, random.Random(ops[-1][0]), ops[-1][1])
        again = FileEdit(index, limits)
        for number, content in ops:
            with suppress(ValueError, NotFound):
                change(again, random.Random(number), content)
        if edit.is_outdated:
            edit = again
        else:
            kept += len(ops) > 1
            assert {file.path: file for file in edit.files()} == {file.path: file for file in again.files()}
            assert (edit.size, edit.count_below("")) == (again.size, again.count_below(""))
    assert kept


@each_case("seed", range(20))
def test_an_edit_counts_its_files_as_they_are(seed: int) -> None:
    chance = random.Random(seed)
    index, edit = FileIndex(2**20), FileEdit(FileIndex(2**20), Limits())
    for step in range(200):
        if step % 20 == 0:
            for path, file in edit.changed.items():
                index.set(path, file)
            edit = FileEdit(index, Limits())
        with suppress(ValueError, NotFound):
            change(edit, chance, f"content {step}")
        files = [*edit.files()]
        assert edit.size == sum(file.size for file in files)
        for directory in ("", *NAMES):
            below = [file for file in files if not directory or file.path.startswith(directory + "/")]
            assert edit.count_below(directory) == len(below)


def test_an_edit_is_refused_above_the_bytes_of_a_thread() -> None:
    index = FileIndex(2**20)
    index.set("a", File(path="a", size=6, etag="a"))
    edit = FileEdit(index, Limits(files=10))
    put(edit, "b", 4)
    put(edit, "a", 5, "smaller")
    put(edit, "c", 1)
    with pytest.raises(TooLarge, match="would have 11 bytes"):
        put(edit, "d", 1)


@each_case("most_bytes", [4_000, 20_000, 2**20])
def test_no_record_of_paths_has_more_bytes_than_it_may_have(most_bytes: int) -> None:
    chance, index = random.Random(most_bytes), FileIndex(most_bytes)
    stored: dict[str, Record] = {}

    def store(pages: set[int]) -> None:
        for page in pages - {-1}:
            record = index.encode("files", page)
            assert len(record.value or b"") <= most_bytes
            stored[record.key] = record

    for number in range(1500):
        path = f"{'é' * chance.randrange(400)}{chance.randrange(200)}"
        file = File(path=path, size=number, etag="e", metadata={"a": "x" * chance.choice((0, 10, 2_000))})
        before = index.set(path, None if chance.randrange(4) == 0 else file)
        store({before.page, index.find(path).page})
        if chance.randrange(3) == 0:  # It is rolled back.
            tried = index.find(path).page
            index.set(path, before.file, before.page)
            store({before.page, tried})
    copy = FileIndex(most_bytes)
    copy.load([record for record in stored.values() if record.value is not None], ThreadKey("room", "one"))
    assert (copy.files, copy.size) == (index.files, index.size)
    assert {path: copy.find(path).page for path in copy.files} == {path: index.find(path).page for path in index.files}


def test_many_stars_in_a_glob_are_the_work_of_one() -> None:
    many, one = compile_glob("**/" * 28 + "*/**/**/x"), compile_glob("**/*/**/x")
    paths = ["x", "a/x", "a/b/x", "a/b", "a/b/c/d/x", "x/y"]
    assert [many(path) for path in paths] == [one(path) for path in paths] == [False, True, True, False, True, False]
    assert count_calls(lambda: many("a/b/c/x")) == count_calls(lambda: one("a/b/c/x"))
