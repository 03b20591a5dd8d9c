"""The nodes of a cluster in processes of their own, on one engine."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.cluster.engines import Engine
from tests.cluster.proxy import Proxies, Proxy
from tests.integration.socket_client import TIMEOUT
from tests.ports import hold_ports
from tests.running import Process
from tests.workers.load import Told, check_changes

from plait import ThreadKey
from plait.cluster.cell_directory import find_directory
from plait.cluster.directory import DirectoryView
from plait.cluster.rendezvous import find_winner
from plait.errors import StoreError
from plait.store.shards import find_shard
from plait.store.urls import open_store

__all__ = ["Cluster", "Node", "open_cluster"]

T = TypeVar("T")

# Seconds: each look connects to the engine.
_LOOK_EVERY: Final = 0.2
# The workers of a node listen at its port and those after it.
_MOST_WORKERS: Final = 2


class Node(Process):
    """A node, the proxy through which the others reach it, and those through which it reaches the engine."""

    def __init__(
        self,
        name: str,
        *,
        cwd: Path,
        store: str,
        links: Proxy,
        engine: Proxies,
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
    """The nodes by name, and their records in the directory."""

    def __init__(self, engine: Engine, store: str, nodes: Mapping[str, Node]) -> None:
        self.engine = engine
        self.store = store
        self.nodes = nodes

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the nodes."""
        return [each.address for each in self.nodes.values()]

    def read(self) -> DirectoryView:
        """Return the directory. Raises StoreError."""

        async def read() -> DirectoryView:
            directory = find_directory(open_store(self.store))
            assert directory is not None
            async with directory:
                return await directory.read()

        return _run(read())

    def ask_store(self, ask: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Return the answer of an open store. Raises StoreError."""

        async def read() -> T:
            store: Any = open_store(self.store)
            async with store.reader() as opened:
                return await ask(opened)

        return _run(read())

    def owners(self) -> list[str]:
        """Return the name of the node that owns each shard; empty for a node that is dead or gone."""
        view = self.read()
        names = {id: each.name for id, each in view.alive().items()}
        return [names.get(each.node, "") for each in view.shards]

    def names(self) -> dict[str, str]:
        """Return the names of the nodes that are alive, by id."""
        return {id: each.name for id, each in self.read().alive().items()}

    def find_names(self, node: str, prefix: str, count: int, *, kind: str = "ledger") -> list[str]:
        """Return names of threads that a node owns, and keeps while no node comes or goes."""
        view = self.read()
        names = {id: each.name for id, each in view.alive().items()}
        owners = [each.node for each in view.shards]
        every = (f"{prefix}-{number}" for number in range(100_000))
        shards = ((name, find_shard(ThreadKey(kind, name))) for name in every)
        found = (
            name
            for name, shard in shards
            if names.get(owners[shard]) == node and find_winner(shard, names) == owners[shard]
        )
        return [next(found) for _ in range(count)]

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so; while the engine is away, it is not."""

        def look() -> object:
            try:
                return is_so()
            except StoreError:
                return False

        deadline = time.monotonic() + TIMEOUT
        while not await asyncio.to_thread(look):
            if time.monotonic() > deadline:
                raise TimeoutError([node.log.read_text() for node in self.nodes.values()])
            await asyncio.sleep(_LOOK_EVERY)

    async def until_shared(self, least: int = 8) -> None:
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
        """Check that a stored thread has each acknowledged change once, and equals the state that the clients show."""
        rows: list[tuple[int, bytes]] = []
        store: Any = open_store(self.store)
        async with store.reader() as opened:
            while page := await opened.changes(ThreadKey(kind, thread), after=rows[-1][0] if rows else 0):
                rows += [(each.version, each.ops) for each in page]
        check_changes(rows, thread, told, shown)


@asynccontextmanager
async def open_cluster(
    engine: Engine,
    folder: Path,
    *,
    names: Sequence[str] = ("a", "b"),
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    target: str = "tests.cluster.apps:app",
    is_shared: bool = True,
    has_proxies: bool = True,
    store_options: str = "",
    through: Mapping[str, Sequence[int]] | None = None,
) -> AsyncIterator[Cluster]:
    """Start nodes with an empty store; by default, wait until each owns some threads.

    With `has_proxies`, the nodes reach each other through proxies. By the name of
    a node, the ports `through` lead to those of the engine.
    """
    store = engine.make_store(store_options)
    async with AsyncExitStack() as stack:
        ports, processes = stack.enter_context(ExitStack()), stack.enter_context(ExitStack())
        nodes: dict[str, Node] = {}
        for name in names:
            (cwd := folder / name).mkdir(exist_ok=True)
            port = hold_ports(ports, _MOST_WORKERS)
            links = await stack.enter_async_context(Proxy(port))
            lines = [await stack.enter_async_context(Proxy(each)) for each in (through or {}).get(name, engine.ports)]
            nodes[name] = Node(
                name,
                cwd=cwd,
                store=_replace_ports(store, dict(zip(engine.ports, [each.port for each in lines], strict=True))),
                links=links,
                engine=Proxies(lines),
                listens_at=port,
                environment={
                    **({"PLAIT_NODE_ADDRESS": f"127.0.0.1:{links.port}"} if has_proxies else {}),
                    **(environment or {}),
                },
                options=options,
                target=target,
            )
        cluster = Cluster(engine, store, nodes)
        for name in names:
            await asyncio.to_thread(processes.enter_context, nodes[name])
        if is_shared:
            await cluster.until_shared()
        try:
            yield cluster
        finally:
            # The proxies run in this loop, so that no node may be waited for in it.
            await asyncio.to_thread(processes.close)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, as the caller may be in one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _replace_ports(url: str, ports: Mapping[int, int]) -> str:
    """Return the URL of a store with other ports."""
    return re.sub(r":(\d+)", lambda found: f":{ports[int(found[1])]}", url)
