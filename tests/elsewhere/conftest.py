"""Sends calls of tests on handles, kv, users and agents over a link, to another node.

Code inside of turns uses its own node, as everywhere. Tests of what cannot travel are left out, by name.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

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

# Tests that send nothing: what they ask is refused before, or is done in a turn.
SEND_NOTHING: Final = frozenset(
    {
        "test_a_class_may_have_messages_without_an_agent",
        "test_a_function_that_is_no_rpc_of_the_class_is_refused",
        "test_a_generator_that_sends_what_is_no_chunk_ends_in_its_turn",
        "test_a_key_that_cannot_be_one_is_refused",
        "test_a_method_that_is_no_rpc_is_not_there",
        "test_a_namespace_that_cannot_be_one_is_refused",
        "test_a_part_is_given_as_its_class_declares_it",
        "test_a_run_without_a_user_has_none",
        "test_a_transaction_stores_state_values_and_messages_together_or_none",
        "test_a_wrong_name_is_told_with_the_one_that_was_meant",
        "test_an_inner_transaction_that_raises_takes_only_its_own_messages_back",
        "test_threads_do_not_see_the_messages_of_others",
        "test_what_could_not_be_stored_was_never_there",
        "test_what_is_no_message_is_refused_and_leaves_nothing",
        "test_what_works_only_inside_of_a_thread_says_to_call_an_rpc",
    }
)


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


@pytest.fixture(autouse=True)
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask each node of a test from another one, and check that the test has sent something, unless it is named."""
    lines: list[Lines] = []
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
    has_sent = any(line.asker.count("sent") for line in lines)
    assert has_sent != (request.function.__name__ in SEND_NOTHING), "see SEND_NOTHING"
