"""An open WebSocket over a transport that a test feeds: in which turns it handles what comes."""

import asyncio

import pytest
from tests.cases import each_case
from tests.server.session.guests import until
from websockets.client import ClientProtocol
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from plait.actor.transport import Frame
from plait.cluster.gate import OPEN, Gate
from plait.errors import StoreError
from plait.limits import TokenBucket
from plait.web.fairness import LARGE, FairScheduler
from plait.web.sockets.framing import WriteBatcher
from plait.web.sockets.socket import Socket

# More than is ever to be handled in one go, though one packet brings it.
MANY = 20_000
# No socket keeps the loop for more frames than this.
MOST = 500
MESSAGE = b'{"type":"ping"}'
# Seconds between two looks at a clock that runs equally fast on each machine.
TICK = 20e-6


class Pipe(asyncio.Transport):
    """A transport that keeps what is written, and knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_read = True
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Received:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.pongs = 0
        self.closed: int | None = None

    def receive(self, data: bytes, *, is_text: bool) -> None:
        self.received.append(data.decode())

    def pong(self, payload: bytes) -> None:
        self.pongs += 1

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = code

    def drained(self) -> None: ...


class Peer:
    """A socket, both ends of it."""

    def __init__(
        self,
        *,
        bucket: TokenBucket | None = None,
        session: Received | None = None,
        scheduler: FairScheduler | None = None,
        gate: Gate = OPEN,
    ) -> None:
        self.pipe = Pipe()
        self.session = session or Received()
        self.has_ended = False
        self.socket = Socket(
            self.pipe,
            max_size=2**20,
            write_batcher=WriteBatcher(gate),
            scheduler=scheduler or FairScheduler(),
            write_buffer=2**20,
            bucket=bucket,
            ended=self._end,
            shutdown=lambda: None,
        )
        self.socket.attach(self.session)

    @property
    def pongs(self) -> int:
        return self.pipe.written.count(b"\x8a\x00")

    def _end(self, _: Socket) -> None:
        self.has_ended = True


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return WireFrame(opcode, data, fin=fin).serialize(mask=True)


def texts(count: int) -> bytes:
    return b"".join(frame(Opcode.TEXT, b"%d" % n) for n in range(count))


async def settled(peer: Peer) -> None:
    """Run the loop until the socket has handled everything."""
    await until(lambda: peer.pipe.is_read)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(Opcode.PING), id="pings"),
        pytest.param(frame(Opcode.PONG), id="pongs"),
        pytest.param(frame(Opcode.TEXT, MESSAGE), id="messages"),
        pytest.param(frame(Opcode.CONT, fin=False), id="fragments"),
    ],
)
async def test_what_one_peer_sends_at_once_is_handled_in_turns_between_which_the_others_have_theirs(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(TICK)
    peer = Peer(scheduler=make_scheduler(clock, clock))
    parsed = 0
    recv_frame = ServerProtocol.recv_frame

    def count(self: ServerProtocol, frame: WireFrame) -> None:
        nonlocal parsed
        parsed += 1
        recv_frame(self, frame)

    monkeypatch.setattr(ServerProtocol, "recv_frame", count)
    peer.socket.data_received(frame(Opcode.TEXT, b"a", fin=False) if sent[0] == Opcode.CONT else b"")

    def seen() -> int:
        # The protocol does not parse small messages and pongs.
        return parsed + len(peer.session.received) + peer.session.pongs

    before, most = seen(), 0
    peer.socket.data_received(sent * MANY)
    while not peer.pipe.is_read:
        most, before = max(most, seen() - before), seen()
        await asyncio.sleep(0)
    assert seen() >= MANY
    assert 0 < most < MOST


async def test_small_frames_after_large_ones_are_handled_in_turns_too() -> None:
    clock = Clock(TICK)
    peer = Peer(scheduler=make_scheduler(clock, clock))
    large = frame(Opcode.TEXT, b"x" * 100_000)
    peer.socket.data_received(large + frame(Opcode.PING) * MANY + large + frame(Opcode.PING) * MANY)
    before, most = 0, 0
    while peer.pongs < 2 * MANY:
        most, before = max(most, peer.pongs - before), peer.pongs
        await asyncio.sleep(0)
    assert most < 3 * MOST
    assert len(peer.session.received) == 2


async def test_what_is_handled_in_turns_keeps_its_order_and_what_comes_meanwhile_follows_it() -> None:
    peer = Peer()
    data = texts(1000)
    cut = len(data) // 2 + 3
    peer.socket.data_received(data[:cut])
    assert 0 < len(peer.session.received) < MOST
    peer.socket.data_received(data[cut:])
    await settled(peer)
    assert peer.session.received == [str(n) for n in range(1000)]


async def test_pings_and_messages_are_answered_in_the_order_in_which_they_came() -> None:
    class Echo(Received):
        def receive(self, data: bytes, *, is_text: bool) -> None:
            peer.socket.send(Frame(data))

    peer = Peer(session=Echo())
    begin, end = frame(Opcode.TEXT, b"a", fin=False), frame(Opcode.CONT, b"b")
    peer.socket.data_received(begin + frame(Opcode.PING, b"1") + end + frame(Opcode.PING, b"2") + frame(Opcode.CLOSE))
    await until(lambda: peer.pipe.is_closed)
    answers = ((Opcode.PONG, b"1"), (Opcode.TEXT, b"ab"), (Opcode.PONG, b"2"), (Opcode.CLOSE, b""))
    assert peer.pipe.written == b"".join(WireFrame(opcode, data).serialize(mask=False) for opcode, data in answers)


async def test_a_message_larger_than_a_turn_is_taken_as_a_whole() -> None:
    peer = Peer()
    peer.socket.data_received(frame(Opcode.TEXT, b"x" * 100_000) + frame(Opcode.TEXT, b"y"))
    await settled(peer)
    assert peer.session.received == ["x" * 100_000, "y"]


async def test_what_was_not_handled_when_the_socket_is_closed_is_dropped() -> None:
    class Closing(Received):
        def receive(self, data: bytes, *, is_text: bool) -> None:
            super().receive(data, is_text=is_text)
            if data == b"500":
                peer.socket.close(1013, "")

    peer = Peer(session=Closing())
    peer.socket.data_received(texts(1000))
    await settled(peer)
    assert peer.session.received == [str(n) for n in range(501)]
    assert peer.session.closed == 1013


@pytest.mark.parametrize("error", [LookupError, StoreError])
@pytest.mark.parametrize("failing", [0, 500], ids=["in its first turn", "in a later one"])
async def test_a_session_that_fails_closes_its_socket_with_1011_and_is_read_to_its_end(
    failing: int, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Received):
        def receive(self, data: bytes, *, is_text: bool) -> None:
            if data == b"%d" % failing:
                raise error("the secret of the session")
            super().receive(data, is_text=is_text)

    peer = Peer(session=Failing())
    peer.socket.data_received(texts(1000))
    await settled(peer)
    assert peer.session.received == [str(n) for n in range(failing)]
    assert peer.session.closed == 1011
    assert (1011).to_bytes(2) + b"internal error" in peer.pipe.written
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], error)
    peer.socket.data_received(frame(Opcode.CLOSE, (1011).to_bytes(2)))
    assert peer.pipe.is_closed


@each_case("end", ["eof", "lost"])
async def test_the_end_of_a_peer_comes_after_what_it_has_said(end: str) -> None:
    peer = Peer()
    peer.socket.data_received(texts(1000))
    if end == "eof":
        peer.socket.eof_received()
    else:
        peer.pipe.close()
        peer.socket.connection_lost(None)
        assert peer.has_ended
    assert peer.session.closed is None
    await until(lambda: peer.session.closed is not None)
    assert peer.session.received == [str(n) for n in range(1000)]
    assert peer.session.closed == 1006


async def test_a_paused_socket_whose_peer_is_lost_ends_at_once() -> None:
    peer = Peer()
    peer.socket.data_received(texts(1000))
    peer.socket.pause()
    count = len(peer.session.received)
    peer.pipe.close()
    peer.socket.connection_lost(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert peer.session.closed == 1006
    assert len(peer.session.received) == count


async def test_a_socket_that_is_paused_goes_on_where_it_was_and_not_before_it_is_resumed() -> None:
    peer = Peer()
    peer.socket.data_received(texts(1000))
    peer.socket.pause()
    count = len(peer.session.received)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(peer.session.received) == count
    assert not peer.pipe.is_read
    peer.socket.resume()
    await settled(peer)
    assert peer.session.received == [str(n) for n in range(1000)]


async def test_a_socket_that_has_stopped_reading_is_not_resumed_until_it_is_closed() -> None:
    peer = Peer()
    peer.socket.pause()
    peer.socket.stop_reading()
    peer.socket.resume()
    assert not peer.pipe.is_read
    peer.socket.data_received(texts(10))
    assert peer.session.received == []
    peer.socket.close(1001, "")
    await settled(peer)
    assert peer.session.received == []


async def test_who_receives_next_does_not_read_on_before_it_asks() -> None:
    peer, joined = Peer(), Received()
    peer.socket.pause()
    peer.socket.attach(joined)
    peer.socket.data_received(texts(1))
    assert not peer.pipe.is_read
    assert joined.received == []
    peer.socket.resume()
    await settled(peer)
    assert joined.received == ["0"]
    assert peer.session.received == []


async def test_pings_past_the_limit_are_not_read_while_messages_are_not_counted_with_them() -> None:
    peer = Peer(bucket=TokenBucket(0.001, 1000, asyncio.get_running_loop().time()))
    peer.socket.data_received(texts(2000))
    await settled(peer)
    peer.socket.data_received(frame(Opcode.PING) * MANY)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert 1000 <= peer.pongs < 1000 + MOST
    assert not peer.pipe.is_read
    assert peer.socket.is_held


async def test_fragments_that_end_no_message_are_not_read_past_the_limit_either() -> None:
    peer = Peer(bucket=TokenBucket(0.001, 1000, asyncio.get_running_loop().time()))
    peer.socket.data_received(frame(Opcode.TEXT, b"a", fin=False) + frame(Opcode.CONT, fin=False) * MANY)
    for _ in range(1000):
        await asyncio.sleep(0)
    peer.socket.data_received(frame(Opcode.CONT, b"b"))
    assert not peer.pipe.is_read
    assert peer.socket.is_held
    assert peer.session.received == []


async def test_a_message_in_fragments_within_the_limit_is_read_as_a_whole() -> None:
    peer = Peer(bucket=TokenBucket(0.001, 1000, asyncio.get_running_loop().time()))
    peer.socket.data_received(frame(Opcode.TEXT, b"a", fin=False) + frame(Opcode.CONT, b"b", fin=False) * 500)
    peer.socket.data_received(frame(Opcode.CONT, b"c"))
    await settled(peer)
    assert peer.session.received == ["a" + "b" * 500 + "c"]


@each_case("has_frame", [True, False])
async def test_answers_to_pings_of_the_server_do_not_count_to_the_limit(*, has_frame: bool) -> None:
    peer = Peer(bucket=TokenBucket(0.001, 10, asyncio.get_running_loop().time()))
    for _ in range(1000):
        if has_frame:
            peer.socket.send_pinged(Frame(b"state"), b"12345678")
        else:
            peer.socket.ping()
        peer.socket.data_received(frame(Opcode.PONG))
    assert peer.pipe.is_read
    assert peer.session.pongs == 1000


@each_case("size", [0, 10, 16_384, 16_385, 300_000])
@each_case("is_text", [True, False])
async def test_a_ping_is_directly_before_the_last_byte_of_its_frame(size: int, *, is_text: bool) -> None:
    peers = [Peer(), Peer()]
    data = b"x" * size
    sent = Frame(data, is_text=is_text)
    for peer in peers:
        peer.socket.send_pinged(sent, b"12345678")
        peer.socket.send(sent)
        peer.socket.flush()
    kind = Opcode.TEXT if is_text else Opcode.BINARY
    ping = WireFrame(Opcode.PING, b"12345678")
    apart = [WireFrame(kind, data[:-1], fin=False), ping, WireFrame(Opcode.CONT, data[-1:])]
    wanted = [*apart, WireFrame(kind, data)]
    for peer in peers:
        client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
        client.receive_data(bytes(peer.pipe.written))
        assert client.events_received() == wanted
        assert client.data_to_send() != []


async def test_nothing_is_sent_with_a_ping_when_the_socket_is_closed() -> None:
    peer = Peer()
    peer.socket.close(1000, "")
    peer.socket.flush()
    written = len(peer.pipe.written)
    peer.socket.send_pinged(Frame(b"late"), b"12345678")
    peer.socket.flush()
    assert len(peer.pipe.written) == written


async def test_a_reader_that_is_sent_much_at_once_is_waited_for_until_it_has_been_written() -> None:
    peer = Peer()
    large = Frame(b"x" * 100_000)
    async with asyncio.timeout(20):
        for _ in range(30):
            peer.socket.send(large)
            await peer.socket.drain()
            assert not peer.socket.is_backed_up
    await until(lambda: len(peer.pipe.written) > 3_000_000)


class Clock:
    """A clock that stands still but for the work that is done, and a tick for each look at it."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self._tick = tick

    def __call__(self) -> float:
        self.now += self._tick
        return self.now


def make_scheduler(clock: Clock, working: Clock) -> FairScheduler:
    """Return a scheduler with its own time, and its own processor time."""
    scheduler = FairScheduler()
    scheduler.clock, scheduler.work_clock = clock, working
    return scheduler


class Worker(Received):
    """A receiver that takes a while for each message, and tells everybody's order."""

    def __init__(self, name: str, order: list[str], clocks: list[Clock], seconds: float) -> None:
        super().__init__()
        self._name = name
        self._order = order
        self._clocks = clocks
        self._seconds = seconds

    def receive(self, data: bytes, *, is_text: bool) -> None:
        super().receive(data, is_text=is_text)
        for clock in self._clocks:
            clock.now += self._seconds
        self._order.append(self._name)


class Office:
    """Sockets of one server."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._clock = Clock()
        self._working = Clock()
        self._scheduler = make_scheduler(self._clock, self._working)

    def peer(self, name: str, seconds: float, *, works: bool = True) -> Peer:
        """Return a socket whose messages take that long, or only seem to, because of other processes."""
        clocks = [self._clock, self._working] if works else [self._clock]
        return Peer(session=Worker(name, self.order, clocks, seconds), scheduler=self._scheduler)


async def test_between_two_costly_messages_of_one_socket_those_of_others_are_handled() -> None:
    office = Office()
    greedy, other = office.peer("greedy", 0.05), office.peer("other", 0.0)
    greedy.socket.data_received(texts(5))
    assert office.order == ["greedy"]
    assert not greedy.pipe.is_read
    for count in range(1, 5):
        other.socket.data_received(texts(1))
        assert office.order.count("other") == count
        await until(lambda count=count: office.order.count("greedy") == count + 1)
    await settled(greedy)
    assert office.order == [*["greedy", "other"] * 4, "greedy"]


async def test_of_many_sockets_with_costly_messages_one_at_a_time_is_handled_and_each_has_its_turn() -> None:
    office = Office()
    greedy = [office.peer(str(n), 0.05) for n in range(4)]
    data = b"".join(frame(Opcode.TEXT, b"x" * LARGE) for _ in range(3))
    for each in greedy:
        each.socket.data_received(data)
    assert office.order == ["0"]
    assert not any(each.pipe.is_read for each in greedy)
    other = office.peer("other", 0.0)
    other.socket.data_received(texts(1))
    assert office.order == ["0", "other"]
    for each in greedy:
        await settled(each)
    costly = [name for name in office.order if name != "other"]
    assert costly == ["0", *["0", "1", "2", "3"] * 2, "1", "2", "3"]


async def test_large_messages_that_cost_little_are_handled_together() -> None:
    office = Office()
    peer = office.peer("peer", 0.001)
    peer.socket.data_received(b"".join(frame(Opcode.TEXT, b"x" * LARGE) for _ in range(30)))
    assert 5 < len(office.order) < 20
    await settled(peer)
    assert len(office.order) == 30


async def test_a_socket_that_is_closed_while_it_waits_for_its_turn_is_handled_no_more() -> None:
    office = Office()
    first, second = office.peer("first", 0.05), office.peer("second", 0.05)
    for peer in (first, second):
        peer.socket.data_received(texts(2))
    second.socket.close(1000, "")
    second.socket.connection_lost(None)
    await settled(first)
    assert second.has_ended
    assert office.order == ["first", "second", "first"]


async def test_a_socket_that_has_cost_much_waits_for_its_turn_and_one_that_only_seemed_to_does_not() -> None:
    office = Office()
    greedy, unlucky = office.peer("greedy", 0.05), office.peer("unlucky", 0.05, works=False)
    for peer in (greedy, unlucky):
        for _ in range(2):
            peer.socket.data_received(texts(1))
            await settled(peer)
    large = office.peer("large", 0.05)
    large.socket.data_received(frame(Opcode.TEXT, b"x" * LARGE))
    office.order.clear()
    greedy.socket.data_received(texts(1))
    unlucky.socket.data_received(texts(1))
    assert office.order == ["unlucky"]
    await settled(greedy)
    assert office.order == ["unlucky", "large", "greedy"]
