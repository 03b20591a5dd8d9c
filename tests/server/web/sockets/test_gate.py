"""Sockets of a node that may not serve: nothing leaves, and nothing piles up."""

from tests.server.session.guests import until
from tests.server.web.sockets.test_socket import Peer, Received, settled, texts

from plait.actor.transport import Frame
from plait.cluster.gate import LeaseGate
from plait.cluster.lease import NodeLease

MANY = 20_000


class Echo(Received):
    """Answers each message."""

    peer: Peer

    def receive(self, data: bytes, *, is_text: bool) -> None:
        super().receive(data, is_text=is_text)
        self.peer.socket.send(Frame(data, is_text=True))


async def test_a_socket_is_not_read_while_its_answers_may_not_leave() -> None:
    now = 1000.0
    gate, lease = LeaseGate(), NodeLease(lambda: now)
    gate.follow(lease)
    echo = Echo()
    peer = echo.peer = Peer(session=echo, gate=gate)
    peer.socket.data_received(texts(MANY))
    await until(lambda: not peer.pipe.is_read)
    assert 0 < len(echo.received) < 1000
    # The heartbeat must not drop it: it may not ping, and reads no answers.
    assert peer.socket.is_held
    peer.socket.pause()
    peer.socket.resume()
    assert peer.socket.is_held
    assert not peer.pipe.written
    lease.extend(now)
    gate.tell()
    await settled(peer)
    assert len(echo.received) == MANY
    await until(lambda: peer.pipe.written.count(b"\x81") >= MANY)


async def test_a_socket_that_its_receiver_has_paused_stays_so_when_the_gate_opens() -> None:
    now = 1000.0
    gate, lease = LeaseGate(), NodeLease(lambda: now)
    gate.follow(lease)
    echo = Echo()
    peer = echo.peer = Peer(session=echo, gate=gate)
    peer.socket.data_received(texts(1))
    await until(lambda: not peer.pipe.is_read)
    peer.socket.pause()
    lease.extend(now)
    gate.tell()
    await until(lambda: peer.pipe.written)
    assert peer.socket.is_held
