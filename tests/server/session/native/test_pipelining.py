"""Clients that push on without waiting for answers: every edit hits the very element that was meant."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined

from plait.actor.connection import Source
from plait.actor.thread import Thread
from plait.errors import Reject
from plait_schemas.patch import Op, apply, invert
from plait_schemas.rebase import rebase


class Mirror:
    """A client as docs/protocol.md has it: `confirmed`, pending pushes, and what is shown; frames come when let in."""

    def __init__(self, guest: Guest, version: int, state: Any) -> None:
        self.guest = guest
        self.version = version
        self.confirmed = state
        # Refs and operations; None for those whose place is gone.
        self.pending: list[tuple[int, list[Op] | None]] = []
        self.refused: dict[int, str] = {}
        # What each push is to do, by refs.
        self.meant: dict[int, Meaning] = {}
        self.waiting: list[Any] = []
        # Pushes that have not arrived at the server: ref, base, answered and operations.
        self.outgoing: list[tuple[int, int, int, list[Op]]] = []
        self._ref = 0
        self._sent: dict[int, list[Op]] = {}

    @property
    def shown(self) -> Any:
        return self._shown(len(self.pending))

    def _shown(self, count: int) -> Any:
        """Return the confirmed state with the first pending pushes; one whose place is gone is left out."""
        return apply(self.confirmed, [op for _, ops in self.pending[:count] for op in ops or ()])

    def edit(self, ops: Iterable[Op], meaning: "Meaning") -> None:
        self._ref += 1
        made = list(ops)
        self.meant[self._ref] = meaning
        self.pending.append((self._ref, made))
        self.outgoing.append((self._ref, self.version, self.pending[0][0] - 1, made))

    def send(self) -> None:
        """Let the next push arrive."""
        if self.outgoing:
            ref, base, answered, ops = self.outgoing.pop(0)
            self._sent[ref] = ops
            self.guest.push(*msgspec.to_builtins(ops), base=base, ref=ref, answered=answered)

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
            case "ack":
                ref, _ = self.pending.pop(0)
                assert ref == frame["ref"]
                if frame["version"] > self.version:
                    assert frame["version"] == self.version + 1
                    self.version = frame["version"]
                    self.confirmed = apply(self.confirmed, _ops(frame) if "ops" in frame else self._sent[ref])
            case "nack":
                ref, ops = self.pending.pop(0)
                assert ref == frame["ref"]
                self.refused[ref] = frame["code"]
                if ops is not None:
                    self._bring_behind(invert(self.confirmed, ops))
            case type:
                raise AssertionError(type)

    def _others(self, version: int, over: list[Op]) -> None:
        self.version, self.confirmed = version, apply(self.confirmed, over)
        self._bring_behind(over)

    def _bring_behind(self, over: list[Op]) -> None:
        for index, (ref, ops) in enumerate(self.pending):
            if ops is not None:
                result = rebase(ops, over, self._shown(index))
                self.pending[index] = (ref, None if result.is_lost else result.ops)
                over = result.over


def _ops(frame: dict[str, Any]) -> list[Op]:
    return msgspec.convert(frame["ops"], list[Op])


class Items(Thread[Any]):
    """A list of what has an id, of which some are refused."""

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


def test_pipelined_edits_hit_what_was_meant_and_every_client_shows_what_the_server_has() -> None:
    @given(st.lists(ACTIONS, max_size=60), st.integers(2, 3))
    @settings(max_examples=300)
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
        for mirror in mirrors:
            while mirror.outgoing:
                mirror.send()
        await actor.wait_until_idle()
        for mirror in mirrors:
            mirror.guest.transport.catch_up()
            mirror.read()
            while mirror.waiting:
                mirror.read()
        final = actor.thread.state
        _check(final["list"], {item["id"] for item in state["list"]}, mirrors)
        for mirror in mirrors:
            assert mirror.pending == []
            assert set(mirror.refused.values()) <= {"rejected", "conflict"}
            assert (mirror.version, mirror.confirmed, mirror.shown) == (actor.thread.version, final, final)


def _check(items: list[Any], ids: set[str], mirrors: Sequence[Mirror]) -> None:
    """Whatever was not refused has been done, and only what leads into an element that is not there was refused."""
    tags: defaultdict[str, set[str]] = defaultdict(set)
    all_meant = [(meaning, mirror.refused.get(ref)) for mirror in mirrors for ref, meaning in mirror.meant.items()]
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
    """Let a client do something."""
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


# What a refusal leaves behind


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


async def test_a_push_behind_a_refused_insertion_is_told_where_it_went(house: House) -> None:
    add = {"op": "add", "path": "/list/0", "value": item("bad")}
    tag = {"op": "add", "path": "/list/1/tags/x", "value": 1}
    refused, ack, state = await pushed(house, Items, ([add], 0), ([tag], 0))
    assert (refused["type"], refused["code"]) == ("nack", "rejected")
    assert ack == {"type": "ack", "ref": 2, "version": 1, "ops": [{**tag, "path": "/list/0/tags/x"}]}
    assert state[0]["tags"] == {"x": 1}


@pytest.mark.parametrize("answered", [1, None])
async def test_a_push_that_knows_of_the_refusal_stays_where_it_is(house: House, answered: int | None) -> None:
    add = {"op": "add", "path": "/list/0", "value": item("bad")}
    tag = {"op": "add", "path": "/list/1/tags/x", "value": 1}
    _, ack, state = await pushed(house, Items, ([add], 0), ([tag], answered))
    assert ack == {"type": "ack", "ref": 2, "version": 1}
    assert state[1]["tags"] == {"x": 1}


async def test_a_push_that_knows_who_took_the_place_of_one_before_it_stays_where_it_is(house: House) -> None:
    actor = await house.actor(Items)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push({"op": "remove", "path": "/list/1"}, base=0)
    await actor.wait_until_idle()
    add = {"op": "add", "path": "/list/0", "value": item("n")}
    guest.push(add, {"op": "add", "path": "/list/2/tags/x", "value": 1}, base=0, answered=0)
    guest.push({"op": "remove", "path": "/list/2"}, base=1, answered=0)
    await actor.wait_until_idle()
    _, nack, ack = guest.frames
    assert (nack["ref"], nack["code"]) == (1, "conflict")
    assert ack == {"type": "ack", "ref": 2, "version": 2}
    assert [item["id"] for item in actor.thread.state["list"]] == ["s0", "s2"]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_push_on_top_of_one_that_cannot_be_taken_back_is_refused_until_the_client_knows(
    house: House, is_stored: bool
) -> None:
    actor = await house.actor(Items)
    guest = await joined(actor, "a")
    add = {"op": "add", "path": "/list/0", "value": item("n")}
    tag = {"op": "add", "path": "/list/1/tags/x", "value": 1}
    if is_stored:
        guest.push(add, {"op": "add", "path": "/marks/m/o", "value": 1}, base=0, answered=0)  # It does not fit.
    else:
        house.store.fail_next()
        guest.push(add, base=0, answered=0)
        await actor.wait_until_idle()
    guest.push(tag, base=0, answered=0)
    guest.push(tag, base=0, answered=1)
    guest.push(tag, base=0, answered=3)
    await actor.wait_until_idle()
    assert [(frame["type"], frame.get("code")) for frame in guest.frames] == [
        ("nack", "conflict" if is_stored else "store_error"),
        ("nack", "conflict"),
        ("nack", "conflict"),
        ("ack", None),
    ]
    assert [item["tags"] for item in actor.thread.state["list"]] == [{}, {"x": 1}, {}, {}]


async def test_a_push_into_what_was_refused_is_a_conflict(house: House) -> None:
    add = {"op": "add", "path": "/list/0", "value": item("bad")}
    tag = {"op": "add", "path": "/list/0/tags/x", "value": 1}
    _, nack, state = await pushed(house, Items, ([add], 0), ([tag], 0))
    assert (nack["type"], nack["code"]) == ("nack", "conflict")
    assert all(item["tags"] == {} for item in state)


async def test_what_was_refused_is_not_taken_for_a_change_of_others(house: House) -> None:
    bad = {"op": "replace", "path": "/list/0/id", "value": "bad"}
    good = {"op": "replace", "path": "/list/0/id", "value": "good"}
    _, ack, state = await pushed(house, Guarded, ([bad], 0), ([good], 0))
    assert ack == {"type": "ack", "ref": 2, "version": 1}
    assert state[0]["id"] == "good"


@pytest.mark.parametrize("in_place", ["/list/0", "/marks"])
async def test_what_leads_into_a_refused_replacement_is_not_done_to_what_was_there(house: House, in_place: str) -> None:
    replace = {"op": "replace", "path": in_place, "value": item("bad")}
    bad = {"op": "add", "path": "/list/-", "value": item("bad")}
    tag = {"op": "add", "path": f"{in_place}/tags/x", "value": 1}
    refused, nack, state = await pushed(house, Items, ([replace, bad], 0), ([tag], 0))
    assert (refused["code"], nack["code"]) == ("rejected", "conflict")
    assert state == [item(f"s{n}") for n in range(4)]


async def test_what_finds_no_place_in_what_others_have_set_is_lost_and_no_later_push_is_refused_for_it(
    house: House,
) -> None:
    actor = await house.actor(Items)
    actor.thread.set_state({**actor.thread.state, "marks": {"m": {"n": 0}}})
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push({"op": "replace", "path": "/marks", "value": {"z": 1}}, base=1)
    other.push({"op": "add", "path": "/marks/m", "value": {"n": 1}}, base=2)
    add = {"op": "add", "path": "/list/0", "value": item("n")}
    guest.push(add, {"op": "replace", "path": "/marks/m/n", "value": 2}, base=1, answered=0)
    guest.push({"op": "add", "path": "/list/1/tags/x", "value": 1}, base=1, answered=0)
    for n in range(3):
        guest.push({"op": "add", "path": f"/list/{n}/tags/y", "value": 1}, base=2, answered=0)
    await actor.wait_until_idle()
    frames = [frame for frame in guest.frames if frame["type"] != "change"]
    assert [(frame["type"], frame.get("code")) for frame in frames] == [("nack", "conflict"), *[("ack", None)] * 4]
    assert [item["tags"] for item in actor.thread.state["list"]] == [{"x": 1, "y": 1}, {"y": 1}, {"y": 1}, {}]
    assert actor.thread.state["marks"] == {"z": 1, "m": {"n": 1}}


async def test_a_lost_push_does_not_end_the_refusing_of_those_that_may_have_been_made_on_another(house: House) -> None:
    actor = await house.actor(Items)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    other.push({"op": "remove", "path": "/list/2"}, base=0)
    guest.push({"op": "add", "path": "/marks/m", "value": 1}, base=1)
    guest.push({"op": "add", "path": "/marks/n/o", "value": 1}, base=1, answered=0)  # It does not fit.
    guest.push({"op": "add", "path": "/list/0", "value": item("n")}, base=1, answered=0)
    guest.push({"op": "add", "path": "/list/3/tags/x", "value": 1}, base=0, answered=0)  # What it leads into is gone.
    guest.push({"op": "add", "path": "/list/1/tags/x", "value": 1}, base=1, answered=0)
    guest.push({"op": "add", "path": "/list/0/tags/x", "value": 1}, base=1, answered=5)
    await actor.wait_until_idle()
    frames = [frame for frame in guest.frames if frame["type"] != "change"]
    assert [frame.get("code") for frame in frames] == [None, *["conflict"] * 4, None]
    assert actor.thread.state["list"] == [{"id": "s0", "tags": {"x": 1}}, item("s1"), item("s3")]
