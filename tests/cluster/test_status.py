"""`plait cluster status` of stores that have no nodes, or cannot be reached."""

import asyncio
import json

from tests.cluster.test_starts import run_plait
from tests.postgres import Postgres, new_schema


async def test_status_of_an_unused_store_tells_of_no_node_and_changes_nothing(postgres: Postgres) -> None:
    url = new_schema(postgres.url)
    schema = url.partition("schema=")[2]
    code, text = await asyncio.to_thread(run_plait, "cluster", "status", url)
    assert code == 0
    assert "0 nodes" in text
    code, text = await asyncio.to_thread(run_plait, "cluster", "status", url, "--json")
    assert json.loads(text)["nodes"] == []
    count = f"SELECT count(*) FROM information_schema.tables WHERE table_schema = '{schema}'"
    assert postgres.execute(count) == "0"


async def test_status_names_the_store_that_cannot_be_reached_without_its_password() -> None:
    url = "postgresql://plait:hunter2@127.0.0.1:1/game"
    code, text = await asyncio.to_thread(run_plait, "cluster", "status", url)
    assert code == 1
    assert "@127.0.0.1:1/game cannot be reached" in text
    assert "hunter2" not in text
    code, text = await asyncio.to_thread(run_plait, "cluster", "status", "postgres")
    assert code == 1
    assert "unknown store URL" in text
