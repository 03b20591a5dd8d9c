"""What a connection sends, and to whom a thread speaks."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.fakes import FakeTransport

from plait.actor.connection import PLAIN, Connection, Wire
from plait.actor.sockets import Connections
from plait.actor.transport import Frame
from plait.errors import StoreError
from plait.limits import DEFAULT_LIMITS
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.types import StateType
from plait.state.view import EVERYTHING, View
from plait_schemas.messages import PresenceDiff


class Gate:
    """Holds back what is to be sent, until it is opened or found to lead nowhere."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[StoreError | None], None]] = []

    def __call__(self, callback: Callable[[StoreError | None], None]) -> None:
        self._waiting.append(callback)

    def open(self, error: StoreError | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(error)


def at_once(callback: Callable[[StoreError | None], None]) -> None:
    callback(None)


def make_connection(
    id: str = "one",
    *,
    gate: Callable[[Callable[[StoreError | None], None]], None] = at_once,
    wire: Wire = PLAIN,
    room: int | None = None,
) -> tuple[Connection, FakeTransport]:
    transport = FakeTransport(room=room)
    return Connection(id, transport, gate, wire=wire), transport


def make_revision(state: object, version: int = 1) -> Revision:
    """Return a state as a thread has it."""
    revision = Revision(ANY, json=ANY.from_value(state, DEFAULT_LIMITS)[1])
    revision.version = version
    return revision


ANY = StateType(Any)


class StateWire(Wire):
    """Writes a change as the state that it leads to, and counts how often."""

    def __init__(self, prefix: bytes = b"") -> None:
        self.count = 0
        self._prefix = prefix

    def encode_change(self, revision: Revision, view: View) -> Frame:
        self.count += 1
        return Frame(self._prefix + revision.require_json())

    def encode_event(self, name: str, data: object, sender: str | None = None) -> Frame:
        self.count += 1
        return Frame(self._prefix + name.encode())


class PlainSession:
    """A session that sends what it is given, and leaves the thread when its socket is closed."""

    def __init__(self, transport: FakeTransport, connections: Connections, connection: Connection) -> None:
        self.versions: list[int] = []
        self.others: list[Frame] = []
        self._transport = transport
        self._connections = connections
        self._connection = connection
        transport.session = self
        connection.session = self
        connections.add(connection)

    def deliver(self, frame: Frame, revision: Revision) -> None:
        self.versions.append(revision.version)
        self._transport.send(frame)

    def send(self, frame: Frame) -> None:
        self.others.append(frame)
        self._transport.send(frame)

    def finish(self) -> None:
        pass

    def send_presence(self, frame: Frame) -> None:
        raise AssertionError

    def receive(self, data: bytes, *, is_text: bool) -> None:
        raise AssertionError

    def pong(self, payload: bytes) -> None:
        raise AssertionError

    def drained(self) -> None:
        raise AssertionError

    def close(self, code: int, reason: str) -> None:
        self._connections.discard(self._connection)


def join(
    connections: Connections, id: str, wire: Wire, *, room: int | None = None
) -> tuple[Connection, FakeTransport, PlainSession]:
    connection, transport = make_connection(id, wire=wire, room=room)
    return connection, transport, PlainSession(transport, connections, connection)


# Messages


@each_case(
    ("data", "frame"),
    [
        ("héllo", ("héllo".encode(), True)),
        ("", (b"", True)),
        (b"\x00\xff", (b"\x00\xff", False)),
        (bytearray(b"ab"), (b"ab", False)),
        (memoryview(b"ab"), (b"ab", False)),
        ({"a": 1}, (b'{"a":1}', True)),
        ([1, None], (b"[1,null]", True)),
        (None, (b"null", True)),
        (5, (b"5", True)),
    ],
)
def test_text_bytes_and_anything_else_are_sent_as_what_they_are(data: object, frame: tuple[bytes, bool]) -> None:
    found = PLAIN.encode_message(data)
    assert (found.data, found.is_text) == frame


def test_a_wire_that_says_nothing_of_it_tells_of_no_change_event_or_presence() -> None:
    assert PLAIN.encode_change(make_revision(5), EVERYTHING) is None
    assert PLAIN.encode_event("goal", {}) is None
    assert PLAIN.encode_presence(PresenceDiff(left=["a"])) is None
    connections = Connections()
    _, transport, session = join(connections, "a", PLAIN)
    connections.broadcast_change(make_revision(5), source="server")
    connections.broadcast({}, event="goal")
    assert (transport.sent, session.versions) == ([], [])


def test_a_message_leaves_when_the_gate_opens_and_in_order() -> None:
    gate = Gate()
    connection, transport = make_connection(gate=gate)
    connection.send("first")
    connection.send({"second": 2})
    connection.close(4000, "bye")
    assert transport.sent == []
    assert transport.closed is None
    gate.open()
    assert transport.sent == ["first", {"second": 2}]
    assert transport.closed == (4000, "bye")


def test_a_reason_to_close_is_text() -> None:
    connection, transport = make_connection()
    with pytest.raises(TypeError, match="a close reason is a str, not a ValueError"):
        connection.close(4000, ValueError("bye"))  # type: ignore[arg-type]
    assert transport.closed is None
    assert not connection.is_closed


def test_a_message_about_a_change_that_failed_is_not_sent() -> None:
    gate = Gate()
    connection, transport = make_connection(gate=gate)
    connection.send("false")
    connection.close()
    gate.open(StoreError("full"))
    assert transport.sent == []
    assert transport.closed == (1000, "")


def test_leaving_waits_for_nothing() -> None:
    connection, transport = make_connection(gate=Gate())
    connection.leave(1001, "bye")
    assert transport.closed == (1001, "bye")


# Connections


def test_a_state_goes_to_all_but_its_source_and_is_written_once_a_protocol() -> None:
    connections, plain, fancy = Connections(), StateWire(), StateWire(b"9")
    source, source_transport, _ = join(connections, "a", plain)
    _, b, b_session = join(connections, "b", plain)
    _, c, _ = join(connections, "c", plain)
    _, d, _ = join(connections, "d", fancy)
    connections.broadcast_change(make_revision(5, 7), source=source)
    assert (source_transport.sent, b.sent, c.sent, d.sent) == ([], [5], [5], [95])
    assert (plain.count, fancy.count) == (1, 1)
    assert b_session.versions == [7]


def test_a_state_of_the_server_goes_to_all() -> None:
    connections, wire = Connections(), StateWire()
    transports = [join(connections, str(number), wire)[1] for number in range(3)]
    connections.broadcast_change(make_revision(5), source="server")
    assert [each.sent for each in transports] == [[5]] * 3


def test_the_source_is_left_out_by_what_it_is_and_not_by_its_id() -> None:
    connections, wire = Connections(), StateWire()
    source, mine, _ = join(connections, "same", wire)
    _, other, _ = join(connections, "same", wire)
    connections.broadcast_change(make_revision(5), source=source)
    assert (mine.sent, other.sent) == ([], [5])


def test_a_connection_without_protocol_frames_gets_no_state_but_messages() -> None:
    connections = Connections()
    connection, transport, _ = join(connections, "a", StateWire())
    connection.protocol_enabled = False
    connections.broadcast_change(make_revision(5), source="server")
    connections.broadcast("hello")
    assert transport.sent == ["hello"]


def test_the_frame_of_a_revision_is_kept_until_there_is_another() -> None:
    connections, wire, other_wire = Connections(), StateWire(), StateWire(b"9")
    revision, next_revision = make_revision(1), make_revision(2, 2)
    first = connections.change_frame(wire, revision, EVERYTHING)
    assert first is not None
    assert connections.change_frame(wire, revision, EVERYTHING) is first
    assert frame_data(connections.change_frame(other_wire, revision, EVERYTHING)) == b"91"
    assert connections.change_frame(wire, revision, EVERYTHING) is first
    assert frame_data(connections.change_frame(wire, next_revision, EVERYTHING)) == b"2"
    assert frame_data(connections.change_frame(wire, revision, EVERYTHING)) == b"1"
    assert frame_data(connections.change_frame(wire, make_revision(1), EVERYTHING)) == b"1"


def frame_data(frame: Frame | None) -> bytes:
    assert frame is not None
    return frame.data


def test_that_a_wire_says_nothing_of_a_revision_is_remembered_too() -> None:
    class Silent(StateWire):
        def encode_change(self, revision: Revision, view: View) -> Frame:
            self.count += 1
            return None  # type: ignore[return-value]

    connections, wire, revision = Connections(), Silent(), make_revision(1)
    assert [connections.change_frame(wire, revision, EVERYTHING) for _ in range(3)] == [None] * 3
    assert wire.count == 1


def test_a_broadcast_is_one_frame_for_all_but_some() -> None:
    connections, wire = Connections(), StateWire()
    a, a_transport, _ = join(connections, "a", wire)
    _, b_transport, _ = join(connections, "b", wire)
    connections.broadcast({"n": 1}, without=[a])
    assert (a_transport.sent, b_transport.sent) == ([], [{"n": 1}])


def test_a_broadcast_is_written_once_a_protocol_and_goes_through_the_session() -> None:
    connections, plain, fancy = Connections(), StateWire(), StateWire(b"!")
    a, b = (join(connections, id, plain) for id in "ab")
    _, c, _ = join(connections, "c", fancy)
    connections.broadcast(None, event="goal")
    assert (a[1].sent, b[1].sent, c.sent) == (["goal"], ["goal"], ["!goal"])
    assert (plain.count, fancy.count) == (1, 1)
    assert a[2].others == b[2].others
    assert a[2].others[0] is b[2].others[0]
    assert a[2].versions == []


def test_a_broadcast_waits_for_the_gate_of_each_connection() -> None:
    gate, connections = Gate(), Connections()
    connection, transport = make_connection(gate=gate)
    connections.add(connection)
    connections.broadcast("first")
    connection.send("second")
    assert transport.sent == []
    gate.open()
    assert transport.sent == ["first", "second"]
    connections.broadcast("false")
    gate.open(StoreError("full"))
    assert transport.sent == ["first", "second"]


def test_connections_are_listed_in_order_and_by_tag() -> None:
    connections, wire = Connections(), StateWire()
    members = [join(connections, str(number), wire)[0] for number in range(3)]
    members[0].tags = members[2].tags = ("players", "x")
    assert list(connections) == connections.find_by_tag(None) == members
    assert connections.find_by_tag("players") == [members[0], members[2]]
    assert connections.find_by_tag("missing") == []
    connections.discard(members[1])
    connections.discard(members[1])
    assert len(connections) == 2


def test_the_connections_of_one_client_are_found_by_its_id() -> None:
    connections = Connections()
    assert connections.find_by_id("a") == []
    one, other, third = (make_connection(id)[0] for id in ("a", "b", "a"))
    for each in (one, other, third):
        connections.add(each)
    assert connections.find_by_id("a") == [one, third]
    for _ in range(2):
        connections.discard(one)
        assert connections.find_by_id("a") == [third]
    connections.discard(third)
    assert connections.find_by_id("a") == []
    assert connections.find_by_id("b") == [other]
    assert Connections().find_by_id("b") == []


@each_case("send", ["broadcast_change", "broadcast"])
def test_who_is_too_slow_and_is_closed_by_a_broadcast_keeps_it_from_nobody(send: str) -> None:
    connections, wire = Connections(), StateWire()
    transports = [join(connections, str(number), wire, room=number % 2)[1] for number in range(6)]
    if send == "broadcast":
        connections.broadcast(5)
    else:
        connections.broadcast_change(make_revision(5), source="server")
    assert [each.sent for each in transports] == [[], [5]] * 3
    assert [each.closed for each in transports] == [(1013, "too slow"), None] * 3
    assert len(connections) == 3


def test_a_connection_has_a_place_for_the_authors_own_things() -> None:
    one, _ = make_connection("one")
    two, _ = make_connection("two")
    one.state["name"] = "Ada"
    scratch: Any = two.state
    assert scratch == {}
    assert (one.id, one.readonly, one.tags, one.principal) == ("one", False, (), None)


@each_case(
    ("fields", "wrong"),
    [
        ({"id": 7}, "id must be a str, not a int"),
        ({"id": None}, "id must be a str, not a NoneType"),
        ({"id": "ada", "claims": None}, "claims must be a dict, not a NoneType"),
        ({"id": "ada", "expires_at": datetime.now(UTC)}, "expires_at must be seconds since 1970, .* not a datetime"),
        ({"id": "ada", "expires_at": "12"}, "expires_at must be seconds since 1970, .* not a str"),
        ({"id": "ada", "expires_at": True}, "expires_at must be seconds since 1970, .* not a bool"),
        ({"id": "ada", "expires_at": float("nan")}, "expires_at is NaN"),
    ],
)
def test_a_principal_checks_the_types_of_its_fields(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"Principal.{wrong}"):
        Principal(**fields)
    Principal("ada", {"plan": "pro"}, 12)


class LeavingGroup:
    """A group whose only connection leaves it while it is sent a change."""

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self._connection = connection
        del connections.single[connection]

    def deliver(self, revision: Revision, source: object) -> int:
        self.remove(self._connection)
        return 1

    def remove(self, connection: Connection) -> None:
        self._connections.single[connection] = None


class Nowhere:
    """A link without sockets."""

    def cast_all(self, frame: Frame, numbers: Sequence[int]) -> None:
        raise AssertionError


def test_a_connection_that_leaves_its_group_while_a_change_is_sent_gets_it_once() -> None:
    connections = Connections()
    connection, transport = make_connection(wire=StateWire())
    session = PlainSession(transport, connections, connection)
    connections.groups[Nowhere(), EVERYTHING] = LeavingGroup(connections, connection)
    assert connections.broadcast_change(make_revision({}), source="server") == 1
    assert session.versions == []
    connections.groups.clear()
    assert connections.broadcast_change(make_revision({}, 2), source="server") == 1
    assert session.versions == [2]
