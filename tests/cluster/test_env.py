"""Variables that are handed down from one node of a cluster to another."""

from pathlib import Path

from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.workers.env_apps import VALUE, check_handed_down, read_files


@each_engine("postgres")
async def test_children_and_grandchildren_at_other_nodes_have_what_a_parent_sets(
    engine: Engine, tmp_path: Path
) -> None:
    async with open_cluster(engine, tmp_path, target="tests.workers.env_apps:app") as cluster:
        names = [cluster.find_names(node, f"{node}{n}", 1, kind="member")[0] for n, node in enumerate("aba")]
        await check_handed_down(cluster.addresses[0], names)
        assert VALUE.encode() not in read_files(tmp_path)
