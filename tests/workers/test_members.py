"""Users are disconnected whichever worker has their sockets or their threads."""

from pathlib import Path

from tests.workers.group import Group
from tests.workers.members import check_disconnects

from plait import ThreadKey
from plait.store.shards import find_file


async def test_a_user_is_disconnected_at_both_workers(tmp_path: Path) -> None:
    names = [f"room-{number}" for number in range(20)]
    owned = [[name for name in names if find_file(ThreadKey("room", name), 2) == owner][:2] for owner in range(2)]
    with Group("tests.workers.member_apps:app", cwd=tmp_path) as group:
        await check_disconnects([group.address], [*owned[0], *owned[1]])
        assert "Traceback" not in group.log.read_text()
