"""What parts do within the limits never holds the event loop for long."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from tests.server.holding import MOST_HELD, measure_held
from tests.server.parts.files_lab import FilesLab, Room, open_lab

from plait import MemoryStore, TooLarge

# The paths of a directory that can be moved, and names that take long to compare with `COSTLY`.
MOST_MOVED = 1_000
COSTLY = "*" + "a" * 500 + "b*"
# The lengths of patterns, each another one, as compiled ones are kept.
SIZES = count(8_000)


@pytest.fixture
async def lab() -> AsyncIterator[FilesLab]:
    async with open_lab(MemoryStore()) as lab:
        yield lab


async def fill(room: Room, number_of_paths: int) -> None:
    uploads = [await room.files.receive(b"") for _ in range(number_of_paths)]
    with room.transaction():
        for number, upload in enumerate(uploads):
            room.files.put(f"d/{number % 20}/{'a' * 900}{number:04}", upload)


async def move_directory(room: Room) -> None:
    await room.files.move("d", "e")
    await room.files.move("e", "d")


async def move_file(room: Room) -> None:
    path = f"d/0/{'a' * 900}0000"
    with room.transaction():
        for _ in range(150):
            room.files.move(path, "e")
            room.files.move("e", path)


FILES: dict[str, Callable[[Room], Awaitable[object]]] = {
    "find, many brackets": lambda room: room.files.find("[" * next(SIZES)),
    "find, names": lambda room: room.files.find(f"**/{COSTLY}"),
    "grep, names": lambda room: room.files.grep("x", f"**/{COSTLY}"),
    "move, directory": move_directory,
    "move, file": move_file,
}


@pytest.mark.parametrize("name", FILES)
async def test_files_never_hold_the_loop_for_long(name: str, lab: FilesLab) -> None:
    room = await lab.thread()
    await fill(room, MOST_MOVED if name.startswith("move") else 300)
    assert await measure_held(lambda: FILES[name](room)) < MOST_HELD


async def test_a_directory_with_more_paths_is_not_moved(lab: FilesLab) -> None:
    room = await lab.thread()
    await fill(room, MOST_MOVED + 1)
    with pytest.raises(TooLarge, match="1,000 can be moved at once"):
        await room.files.move("d", "e")
