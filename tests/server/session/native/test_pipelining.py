"""Clients that push on without waiting for answers: every edit hits the very element that was meant."""

import copy
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined

from plait.actor.connection import Source
from plait.actor.thread import Thread
from plait.errors import Reject
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, apply
from plait_schemas.rebase import rebase


class Pending:
    """A push without an answer; it has no operations where its place is gone."""

    def __init__(self, ref: int, ops: list[Op], meaning: "Meaning") -> None:
        self.ref = ref
        self.ops: list[Op] | None = ops
        self.meaning = meaning
        self.refused: str | None = None


class Sending(NamedTuple):
    """A push as it is sent, and in which round of sending."""

    push: Pending
    ref: int
    base: int
    answered: int
    ops: list[Op]
    round: int


class Mirror:
    """A client as docs/protocol.md has it: `confirmed`, pending pushes, and what is shown; frames wait for delivery."""

    def __init__(self, guest: Guest, version: int, state: Any) -> None:
        self.guest = guest
        self.version = version
        self.confirmed = state
        self.pushes: list[Pending] = []
        self.pending: list[Pending] = []
        self.waiting: list[Any] = []
        # What has not arrived at the server, and what has, without an answer.
        self.outgoing: list[Sending] = []
        self._arrived: deque[Sending] = deque()
        self._ref = self._round = 0

    @property
    def shown(self) -> Any:
        return self._shown(len(self.pending))

    def _shown(self, count: int) -> Any:
        """Return the confirmed state with the first pending pushes; one whose place is gone is left out."""
        return apply(self.confirmed, [op for push in self.pending[:count] for op in push.ops or ()])

    def edit(self, ops: Iterable[Op], meaning: "Meaning") -> None:
        self._ref += 1
        push = Pending(self._ref, list(ops), meaning)
        self.pushes.append(push)
        self.pending.append(push)
        self._put(push)

    def _put(self, push: Pending) -> None:
        assert push.ops is not None
        answered = self.pending[0].ref - 1
        self.outgoing.append(Sending(push, push.ref, self.version, answered, push.ops, self._round))

    def send(self) -> None:
        """Deliver the next push."""
        if self.outgoing:
            sending = self.outgoing.pop(0)
            self._arrived.append(sending)
            ops = msgspec.to_builtins(sending.ops)
            self.guest.push(*ops, base=sending.base, ref=sending.ref, answered=sending.answered)

    def read(self) -> None:
        """Take in the next frame."""
        self.waiting += self.guest.frames
        if self.waiting:
            self._take(self.waiting.pop(0))

    def _take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "change":
                assert frame["version"] == self.version + 1
                self._others(frame["version"], _ops(frame))
            case "changes":
                assert frame["from"] == self.version
                self._others(frame["to"], _ops(frame))
            case "ack" | "nack":
                sending = self._arrived.popleft()
                assert sending.ref == frame["ref"]
                self._answered(sending, frame)
            case type:
                raise AssertionError(type)

    def _answered(self, sending: Sending, frame: dict[str, Any]) -> None:
        if frame.get("code") == "gap":
            if sending.round == self._round:
                assert frame["expected"] == self.pending[0].ref
                self._send_again()
            return
        push = self.pending.pop(0)
        assert push is sending.push
        assert sending.round == self._round
        if frame["type"] == "nack":
            push.refused = frame["code"]
            if push.ops is not None:
                self._rebase_pending(invert(self.confirmed, push.ops))
        elif frame["version"] > self.version:
            assert frame["version"] == self.version + 1
            self.version = frame["version"]
            self.confirmed = apply(self.confirmed, _ops(frame) if "ops" in frame else sending.ops)

    def _send_again(self) -> None:
        """Send all that is pending; what has lost its place is refused here."""
        self._round += 1
        first = self.pending[0].ref
        for push in self.pending:
            push.refused = "conflict" if push.ops is None else None
        self.pending = [push for push in self.pending if push.refused is None]
        for ref, push in enumerate(self.pending, first):
            push.ref = ref
            self._put(push)
        self._ref = first + len(self.pending) - 1

    def _others(self, version: int, over: list[Op]) -> None:
        self.version, self.confirmed = version, apply(self.confirmed, over)
        self._rebase_pending(over)

    def _rebase_pending(self, over: list[Op]) -> None:
        for index, push in enumerate(self.pending):
            if push.ops is not None:
                result = rebase(push.ops, over, self._shown(index))
                push.ops = None if result.is_lost else result.ops
                over = result.over


def _ops(frame: dict[str, Any]) -> list[Op]:
    return msgspec.convert(frame["ops"], list[Op])


class Items(Thread[Any]):
    """A list of elements with ids; some ids are refused."""

    initial_state = {"list": [{"id": f"s{n}", "tags": {}} for n in range(4)], "marks": {}}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if any(item["id"].startswith("bad") for item in next_state["list"]):
            raise Reject("that one is forbidden", path="/list")


class Meaning(NamedTuple):
    """What a push is to do to elements, by their ids."""

    inserted: str | None = None
    removed: str | None = None
    # An element, and what it is tagged with.
    tagged: tuple[str, str] | None = None


ACTIONS = st.tuples(
    st.integers(0, 2),
    st.sampled_from("insert bad remove tag tag both mark send send read read flush slow".split()),  # noqa: SIM905
    st.integers(0, 20),
)


@pytest.mark.soak
def test_pipelined_edits_hit_what_was_meant_and_every_client_shows_what_the_server_has() -> None:
    @given(st.lists(ACTIONS, max_size=60), st.integers(2, 3))
    @example([(0, "bad", 0), (0, "tag", 0), (0, "tag", 1)], 2)
    @example([(0, "bad", 2), (0, "send", 0), (1, "insert", 0), (1, "send", 0), (0, "tag", 2), (0, "tag", 3)], 2)
    @example([(1, "remove", 1), (0, "both", 1), (0, "send", 0), (0, "read", 0), (1, "send", 0), (0, "tag", 2)], 2)
    @example([(0, "insert", 0), (0, "bad", 0), (0, "insert", 1), (0, "send", 0), (0, "remove", 0), (0, "tag", 1)], 2)
    def check(actions: list[tuple[int, str, int]], count: int) -> None:
        anyio.run(_converge, actions, count)

    check()


async def _converge(actions: list[tuple[int, str, int]], count: int) -> None:
    async with open_house(Items) as house:
        actor = await house.actor(Items)
        state = actor.thread.state
        mirrors = [Mirror(await joined(actor, f"client {n}"), 0, copy.deepcopy(state)) for n in range(count)]
        for number, (who, what, where) in enumerate(actions):
            if what == "flush":
                await actor.wait_until_idle()
            else:
                _act(mirrors[who % count], what, where, number)
        for rounds in itertools.count():
            left = sum(len(mirror.pending) for mirror in mirrors)
            for mirror in mirrors:
                while mirror.outgoing:
                    mirror.send()
            await actor.wait_until_idle()
            for mirror in mirrors:
                mirror.guest.transport.catch_up()
                mirror.read()
                while mirror.waiting:
                    mirror.read()
            if not left:
                break
            assert rounds == 0 or sum(len(mirror.pending) for mirror in mirrors) < left, "a round has answered nothing"
        final = actor.thread.state
        _check(final["list"], {item["id"] for item in state["list"]}, mirrors)
        for mirror in mirrors:
            assert mirror.pending == []
            assert {push.refused for push in mirror.pushes} <= {None, "rejected", "conflict"}
            assert (mirror.version, mirror.confirmed, mirror.shown) == (actor.thread.version, final, final)


def _check(items: list[Any], ids: set[str], mirrors: Sequence[Mirror]) -> None:
    """Whatever was not refused has been done, and only what leads into an element that is not there was refused."""
    tags: defaultdict[str, set[str]] = defaultdict(set)
    all_meant = [(push.meaning, push.refused) for mirror in mirrors for push in mirror.pushes]
    done = [meaning for meaning, refused in all_meant if refused is None]
    ids |= {meaning.inserted for meaning in done if meaning.inserted}
    ids -= {meaning.removed for meaning in done if meaning.removed}
    assert sorted(item["id"] for item in items) == sorted(ids)
    for meaning in done:
        if meaning.tagged:
            tags[meaning.tagged[0]].add(meaning.tagged[1])
    for item in items:
        assert item["tags"] == dict.fromkeys(tags[item["id"]], item["id"])
    for meaning, refused in all_meant:
        is_bad = meaning.inserted is not None and meaning.inserted.startswith("bad")
        target = meaning.removed or (meaning.tagged[0] if meaning.tagged else None)
        assert refused is None or (is_bad if refused == "rejected" else target and target not in ids)


def _act(mirror: Mirror, what: str, where: int, number: int) -> None:
    """Do something as a client."""
    shown, transport = mirror.shown["list"], mirror.guest.transport
    at = where % max(len(shown), 1)
    match what:
        case "insert" | "bad":
            id = f"e{number}" if what == "insert" else f"bad{number}"
            mirror.edit([_insertion(where % (len(shown) + 1), id)], Meaning(inserted=id))
        case "remove" if shown:
            mirror.edit([Op("remove", f"/list/{at}")], Meaning(removed=shown[at]["id"]))
        case "tag" if shown:
            id = shown[at]["id"]
            mirror.edit([Op("add", f"/list/{at}/tags/t{number}", id)], Meaning(tagged=(id, f"t{number}")))
        case "both" if shown:
            id = shown[at]["id"]
            ops = [_insertion(0, f"e{number}"), Op("add", f"/list/{at + 1}/tags/t{number}", id)]
            mirror.edit(ops, Meaning(inserted=f"e{number}", tagged=(id, f"t{number}")))
        case "mark":
            mirror.edit([Op("add", f"/marks/{where % 3}", number)], Meaning())
        case "send":
            mirror.send()
        case "read":
            mirror.read()
        case "slow" if not transport.is_backed_up:
            transport.is_backed_up = True
        case "slow":
            transport.catch_up()
        case _:
            pass


def _insertion(index: int, id: str) -> Op:
    return Op("add", f"/list/{index}", {"id": id, "tags": {}})


# After a refusal


class Guarded(Items):
    conflict = "reject"


@pytest.fixture
async def house() -> Any:
    async with open_house(Items, Guarded) as house:
        yield house


def item(id: str) -> dict[str, Any]:
    return {"id": id, "tags": {}}


async def pushed(house: House, cls: type[Thread[Any]], *pushes: tuple[Sequence[Any], int | None]) -> list[Any]:
    """Push some operations after each other on version 0; return the answers, and the state that they lead to."""
    actor = await house.actor(cls)
    guest = await joined(actor, "a")
    for ops, answered in pushes:
        guest.push(*ops, base=0, **({} if answered is None else {"answered": answered}))
    await actor.wait_until_idle()
    return [*guest.frames, actor.thread.state["list"]]


def answers(guest: Guest) -> list[tuple[str, int, str | None, int | None]]:
    """Return what has been answered to pushes: type, ref, code and the push that is expected."""
    frames = [frame for frame in guest.frames if frame["type"] != "change"]
    return [(frame["type"], frame["ref"], frame.get("code"), frame.get("expected")) for frame in frames]


BAD = {"op": "add", "path": "/list/0", "value": item("bad")}


def tag(index: int, name: str = "x") -> dict[str, Any]:
    return {"op": "add", "path": f"/list/{index}/tags/{name}", "value": 1}


async def test_what_was_sent_before_a_refusal_was_known_is_to_come_again(house: House) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    for op in (BAD, tag(1), tag(1, "y"), tag(0)):
        guest.push(op, base=0, answered=0)
    await actor.wait_until_idle()
    gaps = [("nack", ref, "gap", 2) for ref in (2, 3, 4)]
    assert answers(guest) == [("nack", 1, "rejected", None), *gaps]
    guest.push(tag(0), base=0, answered=1, ref=2)
    guest.push(tag(0, "y"), base=0, answered=1, ref=3)
    await actor.wait_until_idle()
    assert answers(guest) == [("ack", 2, None, None), ("ack", 3, None, None)]
    assert [item["tags"] for item in actor.thread.state["list"]] == [{"x": 1, "y": 1}, {}, {}, {}]


async def test_each_of_several_refusals_answers_one_push_for_good(house: House) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    for first in (1, 2, 3):
        for ref in range(first, 5):
            guest.push(BAD if ref < 4 else tag(0), base=0, answered=first - 1, ref=ref)
        await actor.wait_until_idle()
        gaps = [("nack", ref, "gap", first + 1) for ref in range(first + 1, 5)]
        assert answers(guest) == [("nack", first, "rejected", None), *gaps]
    guest.push(tag(0), base=0, answered=3, ref=4)
    await actor.wait_until_idle()
    assert answers(guest) == [("ack", 4, None, None)]


async def test_what_a_readonly_connection_pushes_is_refused_at_once(house: House) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    guest.connection.readonly = True
    for _ in range(3):
        guest.push(tag(0), base=0, answered=0)
    await actor.wait_until_idle()
    assert answers(guest) == [("nack", ref, "readonly", None) for ref in (1, 2, 3)]


@pytest.mark.parametrize("answered", [1, None])
async def test_a_push_that_knows_of_the_refusal_stays_where_it_is(house: House, answered: int | None) -> None:
    _, ack, state = await pushed(house, Items, ([BAD], 0), ([tag(1)], answered))
    assert ack == {"type": "ack", "ref": 2, "version": 1}
    assert state[1]["tags"] == {"x": 1}


async def test_a_push_after_one_whose_place_others_have_taken_is_to_come_again(house: House) -> None:
    actor = await house.actor(Items)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push({"op": "remove", "path": "/list/1"}, base=0)
    await actor.wait_until_idle()
    add = {"op": "add", "path": "/list/0", "value": item("n")}
    guest.push(add, tag(2), base=0, answered=0)
    guest.push({"op": "remove", "path": "/list/3"}, base=0, answered=0)
    await actor.wait_until_idle()
    assert answers(guest) == [("nack", 1, "conflict", None), ("nack", 2, "gap", 2)]
    guest.push({"op": "remove", "path": "/list/1"}, base=1, answered=1, ref=2)
    await actor.wait_until_idle()
    assert answers(guest) == [("ack", 2, None, None)]
    assert [item["id"] for item in actor.thread.state["list"]] == ["s0", "s3"]


async def test_a_push_on_top_of_one_that_could_not_be_stored_is_to_come_again(house: House) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    house.store.fail_next()
    for _ in range(2):
        guest.push({"op": "add", "path": "/list/0", "value": item("n")}, base=0, answered=0)
    await actor.wait_until_idle()
    guest.push(tag(1), base=0, answered=0)
    guest.push(tag(1), base=0, answered=1, ref=3)
    guest.push(tag(1), base=0, answered=2, ref=3)
    await actor.wait_until_idle()
    failed = [("nack", ref, "store_error", None) for ref in (1, 2)]
    assert answers(guest) == [*failed, ("nack", 3, "gap", 3), ("nack", 3, "gap", 3), ("ack", 3, None, None)]
    assert [item["tags"] for item in actor.thread.state["list"]] == [{}, {"x": 1}, {}, {}]


async def test_what_was_refused_on_an_earlier_socket_keeps_nothing_waiting(house: House) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    guest.push(BAD, base=0, answered=0)
    guest.push(tag(1), base=0, answered=0)
    await actor.wait_until_idle()
    again = await joined(actor, "a")
    again.push(base=0, answered=0, ref=1)
    again.push(tag(0), base=0, answered=0, ref=2)
    await actor.wait_until_idle()
    assert answers(again) == [("nack", 1, "rejected", None), ("ack", 2, None, None)]
    assert actor.thread.state["list"][0]["tags"] == {"x": 1}


async def test_what_was_refused_is_not_taken_for_a_change_of_others(house: House) -> None:
    bad = {"op": "replace", "path": "/list/0/id", "value": "bad"}
    good = {"op": "replace", "path": "/list/0/id", "value": "good"}
    _, ack, state = await pushed(house, Guarded, ([bad], 0), ([good], 1))
    assert ack == {"type": "ack", "ref": 2, "version": 1}
    assert state[0]["id"] == "good"
