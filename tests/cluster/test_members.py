"""Users are disconnected whichever node has their sockets or their threads."""

from pathlib import Path

from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.workers.members import check_disconnects


@each_engine("redis")
async def test_a_user_is_disconnected_at_all_nodes(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path, target="tests.workers.member_apps:app") as cluster:
        threads = [cluster.find_names(node, "room", 1, kind="room")[0] for node in cluster.nodes]
        await check_disconnects(cluster.addresses, threads)
        for node in cluster.nodes.values():
            assert "Traceback" not in node.log.read_text()
