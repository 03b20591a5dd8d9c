"""Links over TCP: nodes prove who they are, and strangers get nothing."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from plait.cluster.node_config import NodeConfig
from plait.cluster.owners import NodeId, Owners
from plait.web.links.link import Link
from plait.web.links.tcp import VERSION, Tcp

SECRET = "one secret of all nodes"


class _Place(Owners):
    """A node with an id, which finds every other node at one address."""

    def __init__(self, id: str, address: str | None = None) -> None:
        self._id = id
        self._address = address

    @property
    def node(self) -> NodeId:
        return self._id

    def find_address(self, node: NodeId) -> str | None:
        return self._address


class Listening:
    """A node that listens, and the links that it has answered."""

    def __init__(self, secret: str = SECRET) -> None:
        self.answered: list[NodeId | None] = []
        self.port = 0
        self.network = Tcp(NodeConfig("a", "127.0.0.1", 0, "127.0.0.1:1", secret), _Place("a-1"))

    def answer(self, node: NodeId | None) -> Link:
        self.answered.append(node)
        return Link({}, lambda link: None, node=node)

    async def dial(self, secret: str = SECRET, node: str = "a-1") -> Link:
        """Dial it as the node `b-1`."""
        other = Tcp(NodeConfig("b", "127.0.0.1", 0, "127.0.0.1:2", secret), _Place("b-1", self.address))
        link = Link({}, lambda link: None)
        await other.dial(node, link)
        return link

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    node = Listening()
    server = await node.network.listen(node.answer)
    node.port = server.sockets[0].getsockname()[1]
    try:
        yield node
    finally:
        server.close()


async def say(node: Listening, *lines: object, until_closed: bool = True) -> list[dict[str, str]]:
    """Send lines as a stranger, each after an answer to the one before; return the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    answers = []
    try:
        for line in lines:
            writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
            async with asyncio.timeout(10):
                if answer := await reader.readline():
                    answers.append(json.loads(answer))
        async with asyncio.timeout(10):
            assert not until_closed or await reader.read() == b""
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return answers


FIRST = {"version": VERSION, "nonce": "n", "source": "b-1", "target": "a-1"}


async def test_nodes_with_the_same_secret_are_linked() -> None:
    async with listening() as node:
        link = await node.dial()
        assert node.answered == ["b-1"]
        assert not link.is_closed
        link.abort()


@pytest.mark.parametrize(("secret", "target"), [("another", "a-1"), ("", "a-1"), (SECRET, "a-2")])
async def test_a_node_with_another_secret_or_for_another_node_gets_no_link(
    secret: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as node:
        with pytest.raises(ConnectionError):
            await node.dial(secret, target)
        assert node.answered == []
    # The node that dials tells its operator, too.
    assert f"at {node.address}" in caplog.text


async def test_a_proof_of_the_node_itself_is_no_proof_of_another() -> None:
    async with listening() as node:
        (answer,) = await say(node, FIRST, until_closed=False)
        # With the nonces exchanged, and with the proof that another connection has got.
        again = await say(node, FIRST | {"nonce": answer["nonce"]}, {"proof": answer["proof"]})
        assert len(again) == 1
        reflected = await say(node, FIRST, {"proof": answer["proof"]})
        assert len(reflected) == 1
        assert node.answered == []


@pytest.mark.parametrize(
    "lines",
    [
        (b"x" * 2000,),
        (b"x" * 2000 + b"\n",),
        (b"{}\n" * 3,),
        (b"\xff\xfe\n",),
        (b"GET / HTTP/1.1\r\n\r\n",),
        (FIRST, {"proof": "ключ"}),
        (FIRST, {"proof": ""}),
        (FIRST, FIRST),
        (FIRST | {"version": VERSION - 1},),
        (FIRST | {"version": VERSION + 1},),
    ],
)
async def test_what_strangers_send_is_refused_without_an_error(
    lines: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as node:
        answers = await say(node, *lines)
        assert len(answers) == len(lines) - 1
        assert node.answered == []
    assert all(each.levelno <= logging.WARNING for each in caplog.records), caplog.text


async def test_what_a_stranger_says_begins_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as node:
        await say(node, FIRST | {"target": "x\nWARNING all is lost"})
    assert "\nWARNING all is lost" not in caplog.text


async def test_silent_strangers_are_few_and_keep_no_node_out() -> None:
    async with listening() as node:
        silent = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(200)]
        link = await node.dial()
        assert not link.is_closed
        async with asyncio.timeout(10):
            # The first ones make room at once, and the others have their time.
            assert await silent[0][0].read() == b""
            assert node.network.greeting <= 64
            for reader, _ in silent:
                assert await reader.read() == b""
        assert node.network.greeting == 0
        assert not link.is_closed
        link.abort()
        for _, writer in silent:
            writer.transport.abort()
