"""The listing of a cluster: each node counts the people of all nodes, also after one of them was killed."""

import signal
from pathlib import Path

from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.workers.guests import check_people, read_page, sit_down
from tests.workers.test_own_lists import check_list

APP = "tests.workers.lobby_apps:app"


@each_engine("redis")
async def test_each_node_counts_the_people_of_all_nodes(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path, target=APP) as cluster:
        tables = [*cluster.find_names("a", "t", 1, kind="table"), *cluster.find_names("b", "t", 1, kind="table")]
        guests = [
            await sit_down(address, table, f"{table}-{number}")
            for table in tables
            for number, address in enumerate(cluster.addresses)
        ]
        for address in cluster.addresses:
            await check_people(address, guests, tables)
            rows = (await read_page(address))["threads"]
            assert [row["card"] for row in rows] == [{"moves": 0}, {"moves": 0}]
        for guest in guests:
            await guest.socket.close()


@each_engine("postgres")
async def test_no_ghosts_are_left_by_a_killed_node(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path, target=APP) as cluster:
        tables = [*cluster.find_names("a", "t", 1, kind="table"), *cluster.find_names("b", "t", 1, kind="table")]
        first, second = cluster.addresses
        guests = [await sit_down(at, table, f"{table}-{at}") for table in tables for at in (first, second)]
        cluster.nodes["b"].end(signal.SIGKILL)
        for guest in guests:
            if guest.table == tables[1] or guest.name.endswith(second):
                await guest.until_closed()
        assert [guest.is_here for guest in guests] == [True, False, False, False]
        await cluster.until(lambda: set(cluster.owners()) == {"a"})
        await check_people(first, guests, tables)
        for guest in guests:
            await guest.socket.close()


@each_engine("redis")
async def test_each_node_follows_the_own_threads_of_a_user_at_all_nodes(engine: Engine, tmp_path: Path) -> None:
    async with open_cluster(engine, tmp_path, target="tests.integration.unread_app:app") as cluster:
        names = [*cluster.find_names("a", "t", 1, kind="chat"), *cluster.find_names("b", "t", 1, kind="chat")]
        first, second = cluster.addresses
        await check_list(first, second, names)
