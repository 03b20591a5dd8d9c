"""Links between machines: TCP, with TLS or a shared secret by which both nodes prove who they are.

Before its first message, each link has a greeting of four lines of JSON. The node that dials says which node it is and
which one it wants; both send a nonce, and a proof: the HMAC-SHA256 of both nonces and ids under the shared secret.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

import msgspec

from plait.cluster.node_config import NodeConfig, split_address
from plait.cluster.owners import NodeId
from plait.web.links.link import Link

__all__ = ["VERSION", "Tcp"]

log = logging.getLogger("plait.cluster")

# The version of what nodes send each other.
VERSION: Final = 3
# Seconds to connect, and for the greeting.
_TIMEOUT: Final = 2.0
_LONGEST_LINE: Final = 1024
# The most connections whose greeting has not ended: the oldest one makes room for another.
_MOST_GREETINGS: Final = 64
# Seconds after which a peer that has vanished without a word counts as lost.
_SILENCE: Final = 4


class _Greeting(msgspec.Struct):
    """A line of the greeting: the first has all members but the proof."""

    nonce: str = ""
    source: str = ""
    target: str = ""
    proof: str = ""
    version: int = VERSION


class Tcp:
    """Links the nodes of a cluster. `find_address` returns where a node listens, `find_id` the id of this one."""

    def __init__(
        self, config: NodeConfig, find_id: Callable[[], NodeId], find_address: Callable[[NodeId], str | None]
    ) -> None:
        self._config = config
        self._find_id = find_id
        self._find_address = find_address
        self._server_tls = None if config.tls is None else config.tls.make_context(ssl.Purpose.CLIENT_AUTH)
        self._client_tls = None if config.tls is None else config.tls.make_context(ssl.Purpose.SERVER_AUTH)
        # The connections that were dialled, and whose greeting has not ended, the oldest first.
        self._greetings: dict[_Answer, None] = {}
        # The addresses that did not answer when they were dialled last.
        self._failing: set[str] = set()

    @property
    def greeting(self) -> int:
        """The number of connections whose greeting has not ended."""
        return len(self._greetings)

    async def listen(self, answer: Callable[[NodeId | None], Link]) -> asyncio.Server:
        """Listen for the other nodes."""

        def make() -> _Answer:
            if len(self._greetings) >= _MOST_GREETINGS:
                next(iter(self._greetings)).give_up()
            greeting = _Answer(self._config.secret, self._find_id, answer, self._greetings)
            self._greetings[greeting] = None
            return greeting

        return await asyncio.get_running_loop().create_server(
            make,
            self._config.host,
            self._config.port,
            ssl=self._server_tls,
            ssl_handshake_timeout=None if self._server_tls is None else _TIMEOUT,
            reuse_address=True,
        )

    async def dial(self, node: NodeId, make: Callable[[], Link]) -> Link:
        """Connect with a node."""
        address = self._find_address(node)
        if address is None:
            raise ConnectionError(f"the node {node} is not in the cluster")
        link = make()
        try:
            await self._connect(node, address, link)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            message = f"there is no link to the node {node} at {address}: {why}"
            if address not in self._failing:  # It is dialled again and again.
                self._failing.add(address)
                log.warning(message)
            raise ConnectionError(message) from None
        self._failing.discard(address)
        return link

    async def _connect(self, node: NodeId, address: str, link: Link) -> None:
        host, port = split_address(address, "the address of a node")
        async with asyncio.timeout(_TIMEOUT):
            transport, dial = await asyncio.get_running_loop().create_connection(
                lambda: _Dial(self._config.secret, str(self._find_id()), str(node), link),
                host,
                port,
                ssl=self._client_tls,
                server_hostname="" if self._client_tls is not None else None,
            )
            try:
                await dial.done
            except BaseException:
                transport.abort()
                raise


class _Hello(asyncio.Protocol):
    """One end of a greeting, which becomes a link."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._input = b""
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        _keep_alive(transport.get_extra_info("socket"))
        self.begin()

    def begin(self) -> None:
        """Send the first line, if this end does."""

    def take(self, line: _Greeting) -> Link | None:
        """Handle a line; return the link at the end. Raises ValueError."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        self._input += data
        transport = self._transport
        assert transport is not None
        while True:
            line, end, rest = self._input.partition(b"\n")
            if len(line) > _LONGEST_LINE:
                self._fail("a line is too long")
                return
            if not end:
                return
            self._input = rest
            try:
                link = self.take(msgspec.json.decode(line, type=_Greeting))
            except (ValueError, msgspec.MsgspecError) as error:
                self._fail(str(error))
                return
            if link is not None:
                transport.set_protocol(link)
                link.connection_made(transport)
                if not self.done.done():
                    self.done.set_result(None)
                if self._input:
                    link.data_received(self._input)
                return

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the other node has refused the link"))
            self.done.exception()

    def put(self, line: _Greeting) -> None:
        """Send a line."""
        assert self._transport is not None
        self._transport.write(msgspec.json.encode(line) + b"\n")

    def prove(self, role: Literal["dials", "answers"], first: _Greeting, nonce: str) -> str:
        """Return the proof of a role."""
        text = "\n".join((role, first.source, first.target, first.nonce, nonce))
        return hmac.new(self._secret.encode(), text.encode(), "sha256").hexdigest()

    def check(self, role: Literal["dials", "answers"], first: _Greeting, nonce: str, proof: str) -> None:
        """Raise ValueError for a wrong proof."""
        if not hmac.compare_digest(self.prove(role, first, nonce).encode(), proof.encode()):
            raise ValueError("the other node has another secret")

    def _fail(self, why: str) -> None:
        assert self._transport is not None
        log.warning("a link with %s was refused: %s", self._transport.get_extra_info("peername"), why)
        self._transport.abort()


class _Dial(_Hello):
    """The end that dials."""

    def __init__(self, secret: str, source: str, target: str, link: Link) -> None:
        super().__init__(secret)
        self._first = _Greeting(secrets.token_hex(16), source, target)
        self._link = link
        self._is_proved = False

    def begin(self) -> None:
        self.put(self._first)

    def take(self, line: _Greeting) -> Link | None:
        if self._is_proved:
            return self._link
        self.check("answers", self._first, line.nonce, line.proof)
        self._is_proved = True
        self.put(_Greeting(proof=self.prove("dials", self._first, line.nonce)))
        return None


class _Answer(_Hello):
    """The end that was dialled."""

    def __init__(
        self,
        secret: str,
        find_id: Callable[[], NodeId],
        answer: Callable[[NodeId | None], Link],
        greetings: "dict[_Answer, None]",
    ) -> None:
        super().__init__(secret)
        self._find_id = find_id
        self._answer = answer
        # All greetings that have not ended: this one leaves them at its end.
        self._greetings = greetings
        self._is_over = False
        self._first: _Greeting | None = None
        self._nonce = secrets.token_hex(16)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT, self.give_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._is_over:  # During the handshake of TLS.
            self.give_up()

    def take(self, line: _Greeting) -> Link | None:
        if self._first is None:
            if line.version != VERSION:
                raise ValueError(f"it speaks version {line.version} of links, and this node version {VERSION}")
            if line.target != self._find_id():
                raise ValueError(f"it looks for {line.target!r}, and this is {self._find_id()!r}")
            self._first = line
            self.put(_Greeting(self._nonce, proof=self.prove("answers", line, self._nonce)))
            return None
        self.check("dials", self._first, self._nonce, line.proof)
        self._end()
        self.put(_Greeting())
        return self._answer(self._first.source)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection, as the greeting takes too long, or there are too many."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._greetings.pop(self, None)


def _keep_alive(connection: socket.socket | None) -> None:
    """Have the system notice a peer that has vanished."""
    if connection is None:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", _SILENCE - 1),
        ("TCP_USER_TIMEOUT", 1000 * _SILENCE),
    ):
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
