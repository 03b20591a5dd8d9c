"""Two nodes of one app in this process, which own the threads between them."""

import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from plait import Plait
from plait.actor.thread import Thread
from plait.cluster.owners import Worker
from plait.store.protocol import Store
from plait.store.thread_rows import ThreadKey

__all__ = ["Nodes", "open_nodes"]


class Nodes:
    """Apps that are linked; `apps[0]` is the node at which a test calls."""

    def __init__(self, apps: list[Plait]) -> None:
        self.apps = apps

    def name(self, cls: type[Thread[Any]], node: int, prefix: str = "thread") -> str:
        """Return the name of a thread that a node owns; the same one for the same prefix."""
        return self.name_of(cls._kind.name, node, prefix)

    def name_of(self, kind: str, node: int, prefix: str = "thread") -> str:
        """Return the name of a thread of a kind that a node owns."""
        owners = self.apps[0]._owners
        names = (f"{prefix}-{number}" for number in itertools.count())
        return next(name for name in names if owners.find(ThreadKey(kind, name)) == node)

    def handle(self, cls: type[Thread[Any]], node: int, prefix: str = "thread", *, at: int = 0) -> Any:
        """Return a handle, at the node `at`, to a thread that `node` owns."""
        return self.apps[at].thread(cls, self.name(cls, node, prefix))

    @property
    def sent(self) -> int:
        """How many messages the links have carried."""
        return sum(app._context.links.count("sent") for app in self.apps)


@asynccontextmanager
async def open_nodes(
    make: Callable[[], Plait], *, count: int = 2, stores: Sequence[Store] = ()
) -> AsyncIterator[Nodes]:
    """Run as many nodes as asked for, each with the app that `make` returns, linked by sockets in a new folder.

    With `stores`, each node uses one of them instead of that of its app.
    """
    with tempfile.TemporaryDirectory(prefix="plait-") as folder:
        apps = [make_node(make, number, count, folder, *stores[number : number + 1]) for number in range(count)]
        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            yield Nodes(apps)


def make_node(
    make: Callable[[], Plait], number: int, count: int, folder: str | Path, store: Store | None = None
) -> Plait:
    """Return an app that is one of several workers."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, Worker(number, count, str(folder)).to_environment()))
        if store is not None:
            stack.enter_context(patch("plait.web.links.process_role.open_share", lambda *_, **__: (store, count)))
        return make()
