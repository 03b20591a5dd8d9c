"""Links between machines: TCP, with TLS or a shared secret, with which both nodes prove their identity.

Before its first message, each link has a greeting of four lines of JSON. The node that dials sends its own id and the
id of the node that it expects. Both nodes send a nonce, and a proof: the HMAC-SHA256 of both nonces and ids under the
shared secret.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from contextlib import suppress
from typing import Final, Literal

import msgspec

from plait.cluster.node_config import NodeConfig, split_address
from plait.cluster.owners import NodeId, Owners
from plait.web.links.link import Answer, Link

__all__ = ["VERSION", "Tcp"]

log = logging.getLogger("plait.cluster")

# The version of the messages between nodes.
VERSION: Final = 3
# Seconds to connect, and for the greeting.
_TIMEOUT: Final = 2.0
_LONGEST_LINE: Final = 1024
# Maximum number of unfinished greetings: a new one replaces the oldest.
_MOST_GREETINGS: Final = 64
# Seconds after which a silent peer counts as lost.
_SILENCE: Final = 4


class _Greeting(msgspec.Struct):
    """A line of the greeting. The first line has all members but the proof."""

    nonce: str = ""
    source: str = ""
    target: str = ""
    proof: str = ""
    version: int = VERSION


class Tcp:
    """Links the nodes of a cluster."""

    def __init__(self, config: NodeConfig, owners: Owners) -> None:
        self.config = config
        self.owners = owners
        self._server_tls = None if config.tls is None else config.tls.make_context(ssl.Purpose.CLIENT_AUTH)
        self._client_tls = None if config.tls is None else config.tls.make_context(ssl.Purpose.SERVER_AUTH)
        # Accepted connections whose greeting has not ended, the oldest first.
        self.greetings: dict[_Answer, None] = {}
        # Addresses that did not answer the last time.
        self._failing: set[str] = set()

    @property
    def greeting(self) -> int:
        """The number of accepted connections whose greeting has not ended."""
        return len(self.greetings)

    async def listen(self, answer: Answer) -> asyncio.Server:
        """Listen for the other nodes."""

        return await asyncio.get_running_loop().create_server(
            lambda: _Answer(self, answer),
            self.config.host,
            self.config.port,
            ssl=self._server_tls,
            ssl_handshake_timeout=None if self._server_tls is None else _TIMEOUT,
            reuse_address=True,
        )

    async def dial(self, node: NodeId, link: Link) -> None:
        """Connect a link with a node."""
        address = self.owners.find_address(node)
        if address is None:
            raise ConnectionError(f"the node {node} is not in the cluster")
        try:
            await self._connect(node, address, link)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            message = f"there is no link to the node {node} at {address}: {why}"
            if address not in self._failing:  # Log it once, as the address is dialled again and again.
                self._failing.add(address)
                log.warning(message)
            raise ConnectionError(message) from None
        self._failing.discard(address)

    async def _connect(self, node: NodeId, address: str, link: Link) -> None:
        host, port = split_address(address, "the address of a node")
        async with asyncio.timeout(_TIMEOUT):
            transport, dial = await asyncio.get_running_loop().create_connection(
                lambda: _Dial(self.config.secret, str(self.owners.node), str(node), link),
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
        """Send the first line, if this end begins."""

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
            raise ValueError("the other node has a different secret")

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

    def __init__(self, network: Tcp, answer: Answer) -> None:
        super().__init__(network.config.secret)
        if len(network.greetings) >= _MOST_GREETINGS:
            next(iter(network.greetings)).give_up()
        network.greetings[self] = None
        self._network = network
        self._answer = answer
        self._is_over = False
        self._first: _Greeting | None = None
        self._nonce = secrets.token_hex(16)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT, self.give_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._is_over:  # Closed during the TLS handshake.
            self.give_up()

    def take(self, line: _Greeting) -> Link | None:
        if self._first is None:
            if line.version != VERSION:
                raise ValueError(f"it speaks version {line.version} of links, and this node version {VERSION}")
            if line.target != (own := str(self._network.owners.node)):
                raise ValueError(f"it looks for {line.target!r}, and this is {own!r}")
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
        self._network.greetings.pop(self, None)


def _keep_alive(connection: socket.socket | None) -> None:
    """Make the system detect a peer that has vanished."""
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
