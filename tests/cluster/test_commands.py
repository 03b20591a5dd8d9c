"""Commands that need a shared store alone are refused while a server uses it."""

import asyncio
import signal
from pathlib import Path

from tests.cluster.nodes import open_cluster
from tests.cluster.test_starts import TARGET, run_plait
from tests.postgres import Postgres


async def test_no_store_is_copied_or_migrated_while_a_node_uses_it(postgres: Postgres, tmp_path: Path) -> None:
    async with open_cluster(postgres, tmp_path, names=("a",)) as cluster:
        commands = (
            ("migrate", TARGET),
            ("store", "copy", cluster.store, str(tmp_path / "copy.db")),
        )
        environment = {"PLAIT_STORE": cluster.store}
        refused = await asyncio.gather(
            *(asyncio.to_thread(run_plait, *command, environment=environment, cwd=tmp_path) for command in commands)
        )
        for code, text in refused:
            assert code != 0, text
            assert "in use by the node 'a'" in text
        await asyncio.to_thread(cluster.nodes["a"].end, signal.SIGKILL)
        for command in commands:
            code, text = await asyncio.to_thread(run_plait, *command, environment=environment, cwd=tmp_path)
            assert code == 0, text
