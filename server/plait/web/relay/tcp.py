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

from plait.cluster.owners import NodeId
from plait.cluster.place import NodeTls, Place, split_address
from plait.web.relay.link import Link

__all__ = ["Tcp"]

log = logging.getLogger("plait.cluster")

# Seconds to connect, and for the greeting.
_TIMEOUT: Final = 2.0
_LONGEST_LINE: Final = 1024
# Seconds after which a peer that has vanished without a word counts as lost.
_SILENCE: Final = 4


class _Greeting(msgspec.Struct):
    """A line of the greeting: the first has all members but the proof."""

    nonce: str = ""
    source: str = ""
    target: str = ""
    proof: str = ""
    version: int = 1


class Tcp:
    """Links the nodes of a cluster. `find_address` returns where a node listens, `find_id` the id of this one."""

    def __init__(
        self, place: Place, find_id: Callable[[], NodeId], find_address: Callable[[NodeId], str | None]
    ) -> None:
        self._place = place
        self._find_id = find_id
        self._find_address = find_address
        self._server_tls = _make_context(place.tls, ssl.Purpose.CLIENT_AUTH)
        self._client_tls = _make_context(place.tls, ssl.Purpose.SERVER_AUTH)

    async def listen(self, answer: Callable[[NodeId | None], Link]) -> asyncio.Server:
        """Listen for the other nodes."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _Answer(self._place.secret, self._find_id, answer),
            self._place.host,
            self._place.port,
            ssl=self._server_tls,
            reuse_address=True,
        )

    async def dial(self, node: NodeId, make: Callable[[], Link]) -> Link:
        """Connect with a node."""
        address = self._find_address(node)
        if address is None:
            raise ConnectionError(f"the node {node} is not in the cluster")
        host, port = split_address(address, "the address of a node")
        loop, link = asyncio.get_running_loop(), make()
        try:
            async with asyncio.timeout(_TIMEOUT):
                transport, dial = await loop.create_connection(
                    lambda: _Dial(self._place.secret, str(self._find_id()), str(node), link),
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
        except TimeoutError:
            raise ConnectionError(f"the node {node} does not answer at {address}") from None
        return link


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
            if not end:
                if len(line) > _LONGEST_LINE:
                    self._fail("a line is too long")
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
        if not hmac.compare_digest(self.prove(role, first, nonce), proof):
            raise ValueError("the other node has another secret")

    def _fail(self, why: str) -> None:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        log.warning("a link with %s was refused: %s", peer, why)
        if self._transport is not None:
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

    def __init__(self, secret: str, find_id: Callable[[], NodeId], answer: Callable[[NodeId | None], Link]) -> None:
        super().__init__(secret)
        self._find_id = find_id
        self._answer = answer
        self._first: _Greeting | None = None
        self._nonce = secrets.token_hex(16)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT, self._give_up)

    def take(self, line: _Greeting) -> Link | None:
        if self._first is None:
            if line.version != 1:
                raise ValueError(f"it speaks version {line.version} of links")
            if line.target != self._find_id():
                raise ValueError(f"it looks for {line.target}, and this is {self._find_id()}")
            self._first = line
            self.put(_Greeting(self._nonce, proof=self.prove("answers", line, self._nonce)))
            return None
        self.check("dials", self._first, self._nonce, line.proof)
        self._timer.cancel()
        self.put(_Greeting())
        return self._answer(self._first.source)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _make_context(tls: NodeTls | None, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(purpose, cafile=tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)
    # The authority signs for nodes only, whose addresses may change.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


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
