"""The nodes of a cluster in processes of their own, on one PostgreSQL server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.proxy import Proxy
from tests.integration.socket_client import TIMEOUT
from tests.postgres import Postgres, new_schema
from tests.running import Process, hold_port
from tests.workers.load import Told, check_changes

from plait import ThreadKey
from plait.cluster.rendezvous import find_winner
from plait.store.shards import find_shard
from plait.store.urls import open_store

__all__ = ["Cluster", "Node", "open_cluster"]

_LOOK_EVERY: Final = 0.05


class Node(Process):
    """A node, the proxy through which the others reach it, and the one through which it reaches the engine."""

    def __init__(
        self,
        name: str,
        *,
        cwd: Path,
        store: str,
        links: Proxy,
        engine: Proxy,
        listens_at: int,
        environment: Mapping[str, str],
        options: Sequence[str],
        target: str,
    ) -> None:
        super().__init__(
            target,
            cwd=cwd,
            environment={"PLAIT_STORE": store, **environment},
            options=("--cluster", "--node", name, "--listen-nodes", f"127.0.0.1:{listens_at}", *options),
        )
        self.name = name
        self.links = links
        self.engine = engine


class Cluster:
    """The nodes by name, and what the directory says of them."""

    def __init__(self, postgres: Postgres, store: str, nodes: Mapping[str, Node]) -> None:
        self.postgres = postgres
        self.store = store
        self.nodes = nodes
        self._schema = store.partition("schema=")[2].partition("&")[0]

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the nodes."""
        return [each.address for each in self.nodes.values()]

    def owners(self) -> list[str]:
        """Return the name of the node that owns each shard; empty for a node that is dead or gone."""
        names = self.names()
        return [names.get(id, "") for id in self._owners()]

    def find_names(self, node: str, prefix: str, count: int, *, kind: str = "ledger") -> list[str]:
        """Return names of threads that a node owns, and keeps while no node comes or goes."""
        names, owners = self.names(), self._owners()
        every = (f"{prefix}-{number}" for number in range(100_000))
        shards = ((name, find_shard(ThreadKey(kind, name))) for name in every)
        found = (
            name
            for name, shard in shards
            if names.get(owners[shard]) == node and find_winner(shard, names) == owners[shard]
        )
        return [next(found) for _ in range(count)]

    def _owners(self) -> list[str]:
        sql = f"SELECT json_agg(node ORDER BY shard) FROM {self._schema}.plait_shards"
        found: list[str] = json.loads(self.postgres.execute(sql))
        return found

    def names(self) -> dict[str, str]:
        """Return the names of the nodes that are alive, by id."""
        sql = f"SELECT json_object_agg(id, name) FROM {self._schema}.plait_nodes WHERE NOT is_dead"
        return json.loads(self.postgres.execute(sql) or "{}") or {}

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + TIMEOUT
        while not await asyncio.to_thread(is_so):
            if time.monotonic() > deadline:
                raise TimeoutError([node.log.read_text() for node in self.nodes.values()])
            await asyncio.sleep(_LOOK_EVERY)

    async def until_shared(self, least: int = 32) -> None:
        """Wait until each node that runs owns some shards, and all of them own everything.

        It takes half a minute until each has its whole share.
        """
        names = {each.name for each in self.nodes.values() if each.is_running}

        def is_shared() -> bool:
            owners = self.owners()
            return set(owners) == names and all(owners.count(name) >= least for name in names)

        await self.until(is_shared)

    async def start(self, node: str) -> None:
        """Start a node."""
        await asyncio.to_thread(self.nodes[node].start)

    async def check(self, thread: str, told: Told, shown: dict[str, int], *, kind: str = "ledger") -> None:
        """Check that a stored thread has each acknowledged change once, and is what the clients show."""
        rows: list[tuple[int, bytes]] = []
        store: Any = open_store(self.store)
        async with store.reader() as opened:
            while page := await opened.changes(ThreadKey(kind, thread), after=rows[-1][0] if rows else 0):
                rows += [(each.version, each.ops) for each in page]
        check_changes(rows, thread, told, shown)


@asynccontextmanager
async def open_cluster(
    postgres: Postgres,
    folder: Path,
    *,
    names: Sequence[str] = ("a", "b"),
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    target: str = "tests.cluster.apps:app",
    is_shared: bool = True,
    has_proxies: bool = True,
) -> AsyncIterator[Cluster]:
    """Start nodes with an empty store; by default, wait until each owns some threads.

    With `has_proxies`, the nodes reach each other through proxies.
    """
    store = new_schema(postgres.url)
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        nodes: dict[str, Node] = {}
        for name in names:
            (cwd := folder / name).mkdir()
            held = hold_port()
            stack.callback(held.close)
            port = held.getsockname()[1]
            links = await stack.enter_async_context(Proxy(port))
            engine = await stack.enter_async_context(Proxy(postgres.port))
            nodes[name] = Node(
                name,
                cwd=cwd,
                store=store.replace(f":{postgres.port}/", f":{engine.port}/"),
                links=links,
                engine=engine,
                listens_at=port,
                environment={
                    **({"PLAIT_NODE_ADDRESS": f"127.0.0.1:{links.port}"} if has_proxies else {}),
                    **(environment or {}),
                },
                options=options,
                target=target,
            )
        cluster = Cluster(postgres, store, nodes)
        for name in names:
            await asyncio.to_thread(processes.enter_context, nodes[name])
        if is_shared:
            await cluster.until_shared()
        try:
            yield cluster
        finally:
            # The proxies run in this loop, so that no node may be waited for in it.
            await asyncio.to_thread(processes.close)
