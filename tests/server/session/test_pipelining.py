"""Clients that push on without waiting for answers: every edit hits the very element that was meant."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined

from plait.connection import Source
from plait.errors import Reject
from plait.thread import Thread
from plait_schemas.patch import Op, PatchError, apply, invert
from plait_schemas.rebase import rebase


class Mirror:
    """A client as docs/protocol.md has it: `confirmed`, pending pushes, and what is shown; frames come when let in."""

    def __init__(self, guest: Guest, version: int, state: Any) -> None:
        self.guest = guest
        self.version = version
        self.confirmed = state
        self.pending: list[tuple[int, list[Op]]] = []
        self.refused: dict[int, str] = {}
        self.waiting: list[Any] = []
        # Pushes that have not arrived at the server: ref, base, answered and operations.
        self.outgoing: list[tuple[int, int, int, list[Op]]] = []
        self._ref = 0
        self._sent: dict[int, list[Op]] = {}

    @property
    def shown(self) -> Any:
        return self._shown(len(self.pending))

    def _shown(self, count: int) -> Any:
        """Return the confirmed state with the first pending pushes; one that does not fit is left out."""
        state = self.confirmed
        for _, ops in self.pending[:count]:
            try:
                state = apply(state, ops)
            except PatchError:
                continue
        return state

    def edit(self, ops: Iterable[Op]) -> None:
        self._ref += 1
        made = list(ops)
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
                with suppress(PatchError):  # It was not shown.
                    self._bring_behind(invert(self.confirmed, ops))
            case type:
                raise AssertionError(type)

    def _others(self, version: int, over: list[Op]) -> None:
        self.version, self.confirmed = version, apply(self.confirmed, over)
        self._bring_behind(over)

    def _bring_behind(self, over: list[Op]) -> None:
        for index, (ref, ops) in enumerate(self.pending):
            result = rebase(ops, over, self._shown(index))
            self.pending[index] = (ref, ops if result.is_lost else result.ops)
            over = [op for op in result.over if op is not None]


def _ops(frame: dict[str, Any]) -> list[Op]:
    return msgspec.convert(frame["ops"], list[Op])


class Items(Thread[Any]):
    """A list of what has an id, of which some are refused."""

    initial_state = {"list": [{"id": f"s{n}", "tags": {}} for n in range(4)], "marks": {}}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if any(item["id"].startswith("bad") for item in next_state["list"]):
            raise Reject("that one is forbidden", path="/list")


class Meant:
    """What clients mean to have done in the end."""

    def __init__(self, state: Any) -> None:
        self.items = {item["id"] for item in state["list"]}
        self.tags: defaultdict[str, set[str]] = defaultdict(set)


ACTIONS = st.tuples(
    st.integers(0, 2),
    st.sampled_from("insert bad remove tag tag mark send send read read flush slow".split()),  # noqa: SIM905
    st.integers(0, 20),
)


def test_pipelined_edits_hit_what_was_meant_and_every_client_shows_what_the_server_has() -> None:
    @given(st.lists(ACTIONS, max_size=60), st.integers(2, 3))
    @settings(max_examples=300)
    @example([(0, "bad", 0), (0, "tag", 0), (0, "tag", 1)], 2)
    @example([(0, "bad", 2), (0, "send", 0), (1, "insert", 0), (1, "send", 0), (0, "tag", 2), (0, "tag", 3)], 2)
    @example([(0, "insert", 0), (0, "bad", 0), (0, "insert", 1), (0, "send", 0), (0, "remove", 0), (0, "tag", 1)], 2)
    def check(actions: list[tuple[int, str, int]], count: int) -> None:
        anyio.run(_converge, actions, count)

    check()


async def _converge(actions: list[tuple[int, str, int]], count: int) -> None:
    async with open_house(Items) as house:
        actor = await house.actor(Items)
        state = actor.thread.state
        mirrors = [Mirror(await joined(actor, f"client {n}"), 0, copy.deepcopy(state)) for n in range(count)]
        meant = Meant(state)
        for number, (who, what, where) in enumerate(actions):
            if what == "flush":
                await actor.settled()
            else:
                _act(mirrors[who % count], what, where, number, meant)
        for mirror in mirrors:
            while mirror.outgoing:
                mirror.send()
        await actor.settled()
        for mirror in mirrors:
            mirror.guest.transport.catch_up()
            mirror.read()
            while mirror.waiting:
                mirror.read()
        final = actor.thread.state
        assert sorted(item["id"] for item in final["list"]) == sorted(meant.items)
        for item in final["list"]:
            assert item["tags"] == dict.fromkeys(meant.tags[item["id"]], item["id"])
        for mirror in mirrors:
            assert mirror.pending == []
            assert set(mirror.refused.values()) <= {"rejected", "conflict"}
            assert (mirror.version, mirror.confirmed, mirror.shown) == (actor.thread.version, final, final)


def _act(mirror: Mirror, what: str, where: int, number: int, meant: Meant) -> None:
    """Let a client do something."""
    shown, transport = mirror.shown["list"], mirror.guest.transport
    at = where % max(len(shown), 1)
    match what:
        case "insert" | "bad":
            id = f"e{number}" if what == "insert" else f"bad{number}"
            mirror.edit([Op("add", f"/list/{where % (len(shown) + 1)}", {"id": id, "tags": {}})])
            meant.items |= {id} - {f"bad{number}"}
        case "remove" if shown:
            meant.items.discard(shown[at]["id"])
            mirror.edit([Op("remove", f"/list/{at}")])
        case "tag" if shown:
            meant.tags[shown[at]["id"]].add(f"t{number}")
            mirror.edit([Op("add", f"/list/{at}/tags/t{number}", shown[at]["id"])])
        case "mark":
            mirror.edit([Op("add", f"/marks/{where % 3}", number)])
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
    await actor.settled()
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
