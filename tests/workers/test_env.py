"""Variables that are handed down from one worker to another."""

from pathlib import Path

from tests.workers.env_apps import VALUE, check_handed_down, read_files
from tests.workers.group import Group

from plait import ThreadKey
from plait.store.shards import find_file

# A thread of one worker, one of the other, and a third one of the first.
NAMES = [
    next(name for name in (f"{at}-{n}" for n in range(99)) if find_file(ThreadKey("member", name), 2) == at % 2)
    for at in range(3)
]


async def test_children_and_grandchildren_at_other_workers_have_what_a_parent_sets(tmp_path: Path) -> None:
    with Group("tests.workers.env_apps:app", cwd=tmp_path) as group:
        await check_handed_down(group.address, NAMES)
        assert b"OWN" in read_files(tmp_path)
        assert VALUE.encode() not in read_files(tmp_path)
