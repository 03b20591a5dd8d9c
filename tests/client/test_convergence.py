"""Sessions that work on one thread through bad networks end as the server has it, whatever happens."""

from collections import Counter, deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.client.peer import Link, Peer

from plait_client.events import Acked, Nacked
from plait_client.fold import Pending
from plait_client.session import Session
from plait_schemas import messages
from plait_schemas.frames import decode_client, decode_server, encode
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op, PatchError, apply, decode_ops

START: dict[str, Any] = {"log": [], "n": 0, "items": [{"t": "a"}, {"t": "b"}], "keys": {}}


def validate(state: Any) -> str | None:
    """Refuse some of the states, so that some pushes are rejected."""
    return "n must not be 13" if state["n"] == 13 else None


class Member:
    """A session, the pushes of its user, and the frames between the session and the server."""

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.session = Session(name, now=lambda: world.now)
        self.outcomes: dict[str, list[str]] = {}
        self.up: deque[ClientMessage] = deque()
        self.down: deque[ServerMessage] = deque()
        self.link: Link | None = None
        # By the names of what they put into the log.
        self._names: dict[Pending, str] = {}

    def edit(self, kind: str, at: int) -> None:
        """Change the shown state, each time in a recognizable way."""
        if self.session.epoch is None:
            return
        name = f"{self.name}{len(self._names)}"
        ops = [Op("add", "/log/-", name), *_edit(self.session.shown, kind, at, name)]
        push = self.session.push(ops)
        assert push is not None
        self._names[push] = name
        self.outcomes[name] = []

    def gather(self) -> None:
        """Note the outcomes of pushes, and check the shown state."""
        for event in self.session.take_events():
            if isinstance(event, Acked | Nacked):
                self.outcomes[self._names[event.push]].append(type(event).__name__)
        self.up += (frame for frame in self.session.take_frames() if not isinstance(frame, bytes))
        assert self.session.shown == self._fold()

    def _fold(self) -> Any:
        state = self.session.confirmed
        for push in self.session.pending:
            if push.lost_on is None:
                try:
                    state = apply(state, push.ops)
                except PatchError:
                    continue
        return state


def _edit(state: Any, kind: str, at: int, name: str) -> list[Op]:
    items = state["items"]
    match kind:
        case "insert":
            return [Op("add", f"/items/{at % (len(items) + 1)}", {"t": name})]
        case "remove" if items:
            return [Op("remove", f"/items/{at % len(items)}")]
        case "rename" if items:
            return [Op("replace", f"/items/{at % len(items)}/t", name)]
        case "key":
            return [Op("add", f"/keys/{'xyz'[at % 3]}", {"by": name})]
        case "unkey" if state["keys"]:
            return [Op("remove", f"/keys/{sorted(state['keys'])[at % len(state['keys'])]}")]
        case "into" if state["keys"]:
            return [Op("add", f"/keys/{sorted(state['keys'])[at % len(state['keys'])]}/in", name)]
        case _:
            return [Op("replace", "/n", 10 + at)]


class World:
    """A server, its clients and the network between them; every step is one thing that can happen."""

    def __init__(self, members: int) -> None:
        self.now = 0.0
        self.peer = Peer(START, validate=validate)
        self.members = [Member("abcd"[index], self) for index in range(members)]

    def step(self, what: str, who: int, at: int) -> None:
        member = self.members[who % len(self.members)]
        match what:
            case "up":
                for _ in range(1 + at):
                    self.deliver_up(member)
            case "down":
                for _ in range(1 + at):
                    self.deliver_down(member)
            case "drop":
                self.drop(member)
            case "connect":
                self.connect(member)
            case "server":
                kinds = ("insert", "remove", "rename", "key", "unkey", "into", "n")
                self.peer.change(_edit(self.peer.state, kinds[at % 7], who, "server"))
            case "slow" if member.link is not None:
                member.link.is_slow = True
            case "drain" if member.link is not None:
                self.peer.catch_up(member.link, whole=at % 2 == 0)
            case "hasty":
                self.peer.hasty, self.peer.retry_after = 1 + at % 3, 5
            case "wait":
                self.now += at
                member.session.tick()
            case _:
                member.edit(what, at)
        self.settle()

    def settle(self) -> None:
        for member in self.members:
            member.gather()
            if member.session.needs_socket and member.link is not None:
                self.drop(member)

    def connect(self, member: Member) -> None:
        if member.link is None:
            member.session.open()
            member.link = Link(lambda frame: member.down.append(_copy(frame)))
            member.gather()

    def drop(self, member: Member) -> None:
        """Lose the socket with all that is on its way, in both directions."""
        if member.link is not None:
            self.peer.leave(member.link)
            member.link = None
            member.up.clear()
            member.down.clear()
            member.session.lost(1006)
            member.gather()

    def deliver_up(self, member: Member) -> None:
        if member.link is not None and member.up:
            self.peer.receive(member.link, decode_client(encode(member.up.popleft())))

    def deliver_down(self, member: Member) -> None:
        if member.link is not None and member.down:
            member.session.receive(member.down.popleft())

    def quiet(self) -> None:
        """Deliver everything, and connect all clients again."""
        self.peer.hasty = 0
        for _ in range(2_000):
            for member in self.members:
                self.connect(member)
                assert member.link is not None
                if member.link.is_slow:
                    self.peer.catch_up(member.link, whole=False)
                self.deliver_up(member)
                self.deliver_down(member)
            self.settle()
            if not any(member.up or member.down or member.link is None for member in self.members):
                if not any(member.session.pending for member in self.members):
                    return
                self.now += 5
                for member in self.members:
                    member.session.tick()
                self.settle()
        raise AssertionError("it does not become quiet")


def _copy(frame: ServerMessage) -> ServerMessage:
    return decode_server(encode(frame))


CHANGES = ("insert", "remove", "rename", "key", "unkey", "into", "n")
HAPPENS = (*CHANGES, *["up", "down"] * 3, "drop", "connect", "server", "slow", "drain", "hasty", "wait")
schedules = st.lists(
    st.tuples(st.sampled_from(HAPPENS), st.integers(0, 3), st.integers(0, 5)), min_size=20, max_size=80
)


@given(st.integers(2, 4), schedules)
def test_all_end_with_the_servers_state_and_know_what_became_of_each_push(
    members: int, schedule: list[tuple[str, int, int]]
) -> None:
    world = World(members)
    world.quiet()
    for step in schedule:
        world.step(*step)
    world.quiet()
    applied = Counter(world.peer.state["log"])
    for member in world.members:
        assert member.session.confirmed == world.peer.state
        assert member.session.shown == world.peer.state
        assert member.session.version == world.peer.version
        for name, outcomes in member.outcomes.items():
            assert outcomes in (["Acked"], ["Nacked"]), (name, outcomes)
            assert applied[name] == (outcomes == ["Acked"]), (name, outcomes)


def test_a_frame_survives_the_network_as_it_is() -> None:
    ops = decode_ops(b'[{"op":"add","path":"/a","value":null},{"op":"remove","path":"/b"}]')
    assert _copy(messages.Change(1, ops, "server")) == messages.Change(1, ops, "server")
