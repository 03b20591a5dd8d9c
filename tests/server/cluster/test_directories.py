"""The directories pass their contract: that of tests, and that in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest
from tests.postgres import Postgres, new_schema, private_folder
from tests.server.cluster.contract import DirectoryContract, make_node
from tests.server.cluster.stepped import SteppedDirectory

from plait.cluster.directory import Directory
from plait.cluster.postgres import PostgresDirectory
from plait.errors import StoreError
from plait.store.postgres.url import PostgresUrl
from plait.store.shards import SHARDS


class _Driven:
    """Makes all steps of the calls of a SteppedDirectory."""

    def __init__(self, directory: SteppedDirectory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return _finish(getattr(self._directory, name)(*args, **kwargs))

        return call


def _finish(work: Any) -> Any:
    try:
        work.send(None)
        while True:
            work.send("done")
    except StopIteration as end:
        return end.value


class TestStepped(DirectoryContract):
    @pytest.fixture
    async def directory(self) -> Any:
        return _Driven(SteppedDirectory(SHARDS))

    @pytest.fixture
    async def other(self, directory: Directory) -> Directory:
        return directory


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with private_folder() as folder, Postgres(folder / "main") as server:
        yield server


class TestPostgres(DirectoryContract):
    @pytest.fixture
    def url(self, postgres: Postgres) -> PostgresUrl:
        url = PostgresUrl.parse(new_schema(postgres.url))
        postgres.execute(f"CREATE SCHEMA {url.schema}")
        return url

    @pytest.fixture
    async def directory(self, url: PostgresUrl) -> AsyncIterator[Directory]:
        async with PostgresDirectory(url) as directory:
            yield directory

    @pytest.fixture
    async def other(self, url: PostgresUrl, directory: Directory) -> AsyncIterator[Directory]:
        async with PostgresDirectory(url) as other:
            yield other

    async def test_several_nodes_open_a_new_one_at_once(self, url: PostgresUrl) -> None:
        directories = [PostgresDirectory(url) for _ in range(8)]
        await asyncio.gather(*(each.__aenter__() for each in directories))
        assert len((await directories[0].read()).shards) == SHARDS
        for each in directories:
            await each.__aexit__(None, None, None)

    async def test_of_many_that_take_the_same_shards_one_gets_each(
        self, directory: Directory, other: Directory
    ) -> None:
        for name in "ab":
            await directory.join(make_node(name))
        every = dict.fromkeys(range(SHARDS), 0)
        work: list[Awaitable[dict[int, int]]] = []
        for _ in range(4):
            work += [directory.take("a-0", every), other.take("b-0", every)]
        found = await asyncio.gather(*work)
        assert sum(map(len, found)) == SHARDS

    async def test_a_server_that_is_away_is_a_store_error_and_then_all_goes_on(
        self, directory: Directory, postgres: Postgres
    ) -> None:
        await directory.join(make_node("a"))
        await asyncio.to_thread(postgres.stop)
        with pytest.raises(StoreError):
            await directory.beat("a-0")
        with pytest.raises(StoreError):
            await directory.read()
        await asyncio.to_thread(postgres.start)
        assert await directory.beat("a-0")
        assert len((await directory.read()).nodes) == 1
