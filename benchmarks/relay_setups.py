"""The servers that `benchmarks.relay` compares: one process, and a gateway with the owner of the threads."""

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psutil
from tests.ports import hold_port
from tests.postgres import Postgres, new_schema

from benchmarks.clients import Clients
from benchmarks.loads import Job
from benchmarks.protocols import PROTOCOLS
from benchmarks.pushes import push
from benchmarks.results import Result
from benchmarks.servers import ROOT, Recipe, plait, serve
from plait.cluster.cell_directory import CellDirectory
from plait.cluster.directory import DirectoryView
from plait.cluster.node_config import VARIABLES
from plait.cluster.owners import Worker, Workers
from plait.cluster.rendezvous import find_winner
from plait.store.postgres.cells import PostgresCells
from plait.store.postgres.url import PostgresUrl
from plait.store.shards import find_shard
from plait.store.thread_rows import ThreadKey

__all__ = ["Setup", "start_cluster", "start_workers"]

# Seconds until a node that joins has its half of the shards, at 16 a second.
_PATIENCE: Final = 90.0


class Setup(msgspec.Struct, frozen=True):
    """A server: its port, its processes, the owner first, and names of threads that the first of them owns."""

    port: int
    processes: list[psutil.Process]
    names: Iterator[str]

    @contextmanager
    def clients(self, protocol: str) -> Iterator[Clients]:
        """Clients of the server, or of the gateway."""
        clients = Clients(self.port, protocol=PROTOCOLS[protocol])
        try:
            yield clients
        finally:
            clients.close_all()

    def push(self, clients: Clients, job: Job) -> Result:
        """Push to many threads."""
        return push(clients, job, self.processes, self.names)


@contextmanager
def start_workers(folder: Path) -> Iterator[tuple[Setup, Setup]]:
    """Run one process, and two workers with a Unix socket between them; the stores have the same files."""
    # The gateway's own store is not used.
    stores = f"sqlite:///{folder}/two.db?files=2", "memory://"
    environments = [
        {**Worker(number, 2, str(folder)).to_environment(), "BENCH_STORE": store} for number, store in enumerate(stores)
    ]
    owners = Workers(0, 2, 2)
    with ExitStack() as stack:
        one = stack.enter_context(_run(folder, "one", {}))
        two = [stack.enter_context(_run(folder, f"worker-{i}", each)) for i, each in enumerate(environments)]
        yield _join(one, two, lambda key: owners.find(key) == 0)


@contextmanager
def start_cluster(folder: Path) -> Iterator[tuple[Setup, Setup]]:
    """Run one process, and two nodes with TCP and a secret between them; the stores are schemas of one PostgreSQL."""
    with (
        Postgres(folder / "data", "--fsync=on", "--full_page_writes=on", "--shared_buffers=128MB") as postgres,
        ExitStack() as stack,
    ):
        one = stack.enter_context(_run(folder, "one", {"BENCH_STORE": new_schema(postgres.url)}))
        url, two = new_schema(postgres.url), []
        for name in ("a", "b"):
            port = stack.enter_context(hold_port()).getsockname()[1]
            place = {"cluster": "1", "node": name, "listen": f"127.0.0.1:{port}", "secret": "of the benchmark"}
            environment = {VARIABLES[each]: value for each, value in place.items()} | {"BENCH_STORE": url}
            two.append(stack.enter_context(_run(folder, name, environment)))
        view = asyncio.run(_settle(PostgresUrl.parse(url)))
        (owner,) = (each.id for each in view.nodes if each.name == "a")
        yield _join(one, two, lambda key: view.shards[find_shard(key)].node == owner)


@contextmanager
def _run(folder: Path, name: str, environment: Mapping[str, str]) -> Iterator[Setup]:
    recipe = plait(ROOT, Path(sys.executable))
    # Braces are places of a recipe.
    given = {key: value.replace("{", "{{").replace("}", "}}") for key, value in environment.items()}
    recipe = Recipe(recipe.command, {**recipe.environment, **given}, recipe.cwd)
    with serve(name, folder / name, recipe) as server:
        yield Setup(server.port, [psutil.Process(server.pid)], iter(()))


def _join(one: Setup, two: list[Setup], is_owned: Callable[[ThreadKey], bool]) -> tuple[Setup, Setup]:
    owner, gateway = two
    names = (name for number in itertools.count() if is_owned(ThreadKey("bench-agent", name := f"relay-{number}")))
    return (
        msgspec.structs.replace(one, names=names),
        Setup(gateway.port, [*owner.processes, *gateway.processes], names),
    )


async def _settle(url: PostgresUrl) -> DirectoryView:
    """Return the directory when each node has its share."""
    deadline = time.monotonic() + _PATIENCE
    async with CellDirectory(PostgresCells, url) as directory:
        while True:
            view = await directory.read()
            nodes = list(view.alive())
            if len(nodes) == 2 and all(each.node == find_winner(n, nodes) for n, each in enumerate(view.shards)):
                return view
            if time.monotonic() > deadline:
                raise TimeoutError("the two nodes did not divide the shards between them")
            await asyncio.sleep(0.5)
