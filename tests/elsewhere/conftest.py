"""Sends what tests do with handles, kv, users and agents over a link, to a node that another one asks.

Code inside of turns uses its own node, as everywhere. Tests of what cannot travel are left out, by name.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.fronts import OneOwner

from plait import ThreadKey
from plait.actor.handle import ThreadCalls
from plait.actor.kind import Kind
from plait.actor.rpc import Method
from plait.actor.turn import current_turn
from plait.agents.agent import AgentMethod
from plait.cluster.owners import NodeId
from plait.errors import Unavailable
from plait.node.everywhere import Everywhere
from plait.node.local_thread import LocalThread
from plait.node.node import Node
from plait.node.remote_chain import Chains
from plait.node.remote_nodes import Ask, RemoteNodes
from plait.node.remote_requests import Listed, ListThreads
from plait.node.remote_thread import RemoteThread
from plait.parts.env.app_env import AppEnv
from plait.web.links.calls import Calls
from plait.web.links.folder import Folder
from plait.web.links.links import Links


class Lines:
    """The links between a node and one that owns nothing."""

    def __init__(self, node: Node, folder: str) -> None:
        self._node = node
        asker, owner = OneOwner(0), OneOwner(1)
        self.owner = Links(owner, Folder(1, folder))
        answers = Calls(self.owner, node.calls)
        self.asker = Links(asker, Folder(0, folder))
        self.answers = answers
        self.calls = Calls(self.asker, node.calls)
        self.is_open = False
        self._opening = asyncio.Lock()

    async def call(self, ask: Ask) -> bytes:
        await self.open()
        return await self.calls.call(ask)

    async def stream(self, ask: Ask) -> AsyncGenerator[bytes]:
        await self.open()
        async for each in self.calls.stream(ask):
            yield each

    async def open(self) -> None:
        async with self._opening:  # Callers that come at the same time keep their order.
            if not self.is_open:
                if not self._node.is_serving:  # Nothing would close the links.
                    raise Unavailable("plait is not running")
                await self.owner.start()
                self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        await self.answers.stop()
        await self.asker.stop()
        await self.owner.stop()


class FixedNodes(RemoteNodes):
    """The node that is asked, whatever links its app has."""

    line: Lines

    def __setattr__(self, name: str, value: object) -> None:
        """Keep the line when an app that starts sets its own links."""
        super().__setattr__(name, getattr(self, "line", None) if name == "peers" else value)


class AskedThread(RemoteThread):
    """A thread of the node that is asked. The agents of tests get functions, which cannot travel."""

    own: LocalThread

    async def call(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = self.own.call if isinstance(method, AgentMethod) else super().call
        return await call(method, args, kwargs)

    def stream(self, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AsyncGenerator[Any]:
        return (self.own.stream if isinstance(method, AgentMethod) else super().stream)(method, args, kwargs)


class FromElsewhere(Everywhere):
    """The threads of a node, for code outside of its turns as if it ran at another node."""

    def find(self, kind: Kind, key: ThreadKey) -> ThreadCalls:
        own = LocalThread(self._node, kind, key)
        if current_turn() is not None:
            return own
        asked = AskedThread(self.nodes, kind, key, self._node.limits, services={AppEnv: self._node.env})
        asked.own = own
        return asked

    def list_threads(self, query: ListThreads, *, silent: Collection[NodeId] = ()) -> AsyncIterator[Listed]:
        return self.nodes.list(1, query)


@pytest.fixture(autouse=True, scope="module")
def lines() -> Iterator[list[Lines]]:
    """Check that the tests of a module have sent something over links."""
    found: list[Lines] = []
    yield found
    assert sum(line.asker.count("sent") for line in found) > 0, "nothing was sent over a link"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, lines: list[Lines]) -> Iterator[None]:
    """Ask each node of a test from another one."""
    init, stop = Node.__init__, Node.stop

    def init_asked(node: Node, *args: Any, **kwargs: Any) -> None:
        init(node, *args, **kwargs)
        nodes = FixedNodes(OneOwner(), Chains(node.instruments, "elsewhere"))
        nodes.line = nodes.peers = line = Lines(node, folder)
        lines.append(line)
        node.everywhere = FromElsewhere(node, node.transfers, nodes)
        node.line = line  # type: ignore[attr-defined]

    async def stop_asked(node: Node, timeout: float) -> None:
        await stop(node, timeout)
        await node.line.close()  # type: ignore[attr-defined]

    with TemporaryDirectory(prefix="plait-") as folder:
        monkeypatch.setattr(Node, "__init__", init_asked)
        monkeypatch.setattr(Node, "stop", stop_asked)
        yield
