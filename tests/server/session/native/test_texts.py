"""Clients that write in one text at once."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.rooms import Client, House, open_house
from tests.server.session.guests import Guest, joined, joins, opening, put, until

from plait.actor.thread import Thread
from plait.limits import Limits


class Pad(Thread[dict[str, Any]]):
    """A text, and a string that is none."""

    initial_state: Any = staticmethod(lambda: {"note": "hello", "status": "doing"})
    texts = ("/note",)


class LargePad(Pad):
    """A text of 100 kB."""

    initial_state: Any = staticmethod(lambda: {"note": "x" * 100_000, "status": "doing"})


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Pad, LargePad) as house:
        yield house


def splice(at: int, remove: int = 0, insert: str = "", *, path: str = "/note") -> dict[str, Any]:
    fields = {"remove": remove} if remove else {}
    return {"op": "splice", "path": path, "at": at, **fields, **({"insert": insert} if insert else {})}


def answers(guest: Guest) -> list[Any]:
    return [frame for frame in guest.frames if frame["type"] in ("ack", "nack")]


async def test_a_client_is_told_which_strings_are_texts(house: House) -> None:
    _, frame = await opening(await house.actor(Pad), "a")
    assert frame["texts"] == ["/note"]


async def test_what_two_clients_type_at_once_is_all_there_in_the_servers_order(house: House) -> None:
    actor = await house.actor(Pad)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    a.push(splice(5, 0, " Ada"), base=0)
    b.push(splice(5, 0, " 😀"), base=0)
    b.push(splice(7, 0, "!"), base=0)
    a.push(splice(0, 1, "H"), base=0)
    await until(lambda: actor.state.durable.version == 4)
    assert actor.thread.state["note"] == "Hello Ada 😀!"
    assert [frame.get("rebased", False) for frame in answers(b)] == [True, True]
    # What both delete is deleted once, and what is typed in the middle of it stays.
    a.push(splice(0, 6), base=4)
    b.push(splice(2, 2), splice(2, 0, "y"), base=4)
    await until(lambda: actor.state.durable.version == 6)
    assert actor.thread.state["note"] == "yAda 😀!"


async def test_what_is_typed_while_another_pastes_a_long_text_is_merged(house: House) -> None:
    actor = await house.actor(Pad)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    pasted = "p" * 100_000
    a.push(splice(5, 0, pasted), base=0)
    b.push(splice(0, 1, "H"), base=0)
    b.push(splice(5, 0, "!"), base=0)
    await until(lambda: actor.state.durable.version == 3)
    assert actor.thread.state["note"] == f"Hello{pasted}!"
    assert [frame["type"] for frame in answers(b)] == ["ack", "ack"]


async def test_a_string_that_is_no_text_by_declaration_is_spliced_too_and_set_whole(house: House) -> None:
    actor = await house.actor(Pad)
    a = await joined(actor, "a")
    a.push(splice(2, 3, path="/status"), base=0)
    await until(lambda: actor.state.durable.version == 1)
    await actor.thread.update("/status", "done")
    assert a.frames[-1]["ops"] == [{"op": "add", "path": "/status", "value": "done"}]


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (splice(9, 0, "x"), "position 9 is past the end"),
        (splice(4, 2, "x"), "past the end"),
        (splice(-1, 0, "x"), "negative"),
        (splice(0, -1, "x"), "negative"),
        ({"op": "splice", "path": "/note", "insert": "x"}, "has no position `at`"),
        (splice(0, 0, "x") | {"value": 1}, "has a value"),
        (splice(0, 0, "x", path=""), "not a text"),
        (splice(0, 0, "x", path="/nothing"), "there is no text"),
    ],
)
async def test_a_splice_that_does_not_fit_is_refused_with_its_place_and_the_client_goes_on(
    house: House, op: Any, why: str
) -> None:
    actor = await house.actor(Pad)
    a = await joined(actor, "a")
    a.push(op, base=0)
    a.push(splice(5, 0, "!"), base=0)
    await until(lambda: actor.state.durable.version == 1)
    nack, ack = answers(a)
    assert (nack["type"], nack["code"], nack["path"]) == ("nack", "conflict", op["path"])
    assert why in nack["message"]
    assert ack["type"] == "ack"
    assert actor.thread.state["note"] == "hello!"


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00"])
async def test_half_a_surrogate_pair_is_refused_and_the_client_goes_on(house: House, half: str) -> None:
    actor = await house.actor(Pad)
    a = await joined(actor, "a")
    epoch = json.dumps([actor.state.epoch, 0])
    op = f'{{"op": "splice", "path": "/note", "at": 0, "insert": "{half}"}}'
    a.send_text(f'{{"type": "push", "ref": 1, "base": {epoch}, "ops": [{op}]}}')
    a.push(splice(5, 0, "!"), base=0, ref=2)
    await until(lambda: actor.state.durable.version == 1)
    assert [frame["type"] for frame in answers(a)] == ["nack", "ack"]
    assert actor.thread.state["note"] == "hello!"


async def test_a_text_is_refused_at_the_splice_that_is_above_the_limit_of_the_state() -> None:
    async with open_house(Pad, limits=Limits(state=64)) as house:
        actor = await house.actor(Pad)
        a = await joined(actor, "a")
        for _ in range(3):
            a.push(splice(5, 0, "0123456789ab"), base=0)
        await actor.wait_until_idle()
        assert [(frame["type"], frame.get("code")) for frame in answers(a)] == [
            ("ack", None),
            ("ack", None),
            ("nack", "too_large"),
        ]
        assert actor.thread.state["note"] == "hello0123456789ab0123456789ab"


async def test_an_append_costs_its_own_size_on_the_wire_whatever_the_texts_length(house: House) -> None:
    actor = await house.actor(LargePad)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    for _ in range(3):
        await actor.thread.append("/note", "twenty characters ab")
    for guest in (a, b):
        frames = guest.frames
        assert [frame["ops"] for frame in frames] == [
            [splice(100_000 + 20 * index, 0, "twenty characters ab")] for index in range(3)
        ]
        assert all(len(json.dumps(frame, separators=(",", ":"))) <= 140 for frame in frames)


async def test_a_slow_reader_is_sent_what_was_typed_meanwhile_as_one_splice(house: House) -> None:
    actor = await house.actor(LargePad)
    a = await joined(actor, "a")
    a.transport.is_backed_up = True
    for letter in " streamed":
        await actor.thread.append("/note", letter)
    a.transport.catch_up()
    assert a.frames == [{"type": "changes", "from": 0, "to": 9, "ops": [splice(100_000, 0, " streamed")]}]


async def test_a_client_that_comes_back_is_sent_what_was_typed_meanwhile_as_one_splice(house: House) -> None:
    actor = await house.actor(LargePad)
    await actor.state.store_thread()
    for letter in " streamed":
        await actor.thread.append("/note", letter)
    guest = Guest(actor, "a", have=(actor.state.epoch, 0))
    await guest.open()
    assert joins(guest.frames)["ops"] == [splice(100_000, 0, " streamed")]


async def test_a_splice_in_a_string_that_others_have_replaced_is_refused() -> None:
    class Whole(Thread[dict[str, Any]]):
        """Its note is no text by declaration."""

        initial_state: Any = staticmethod(lambda: {"note": "hello"})

    async with open_house(Whole) as house:
        actor = await house.actor(Whole)
        a = await joined(actor, "a")
        await actor.thread.update("/note", "another")
        a.push(splice(5, 0, "!"), base=0)
        await actor.wait_until_idle()
        assert actor.thread.state == {"note": "another"}
        assert [(frame["type"], frame["version"]) for frame in answers(a)] == [("nack", 1)]


async def test_a_cloudflare_client_does_not_wipe_what_others_type(house: House) -> None:
    actor = await house.actor(Pad)
    native = await joined(actor, "native")
    whole: Client = await house.join(Pad, "whole")
    state = actor.thread.state
    native.push(splice(0, 1, "J"), base=0)
    native.push(splice(5, 0, ", said Ada"), base=0)
    await actor.thread.append("/note", "!")
    # It has not seen any of these.
    whole.push({**state, "note": "hello there"})
    await actor.wait_until_idle()
    note = actor.thread.state["note"]
    assert sorted(note) == sorted("Jello, said Ada! there")
    assert note.startswith("Jello, said Ada")
    # What it writes when it has seen all is taken as it is.
    whole.transport.answer_ping()
    whole.push({"note": "short", "status": "doing"})
    await actor.wait_until_idle()
    assert actor.thread.state["note"] == "short"


async def test_put_and_set_state_change_only_what_is_different_in_a_text(house: House) -> None:
    actor = await house.actor(Pad)
    a = await joined(actor, "a")
    await actor.state.put(b'{"note": "hello world", "status": "done"}', a.connection)
    await actor.thread.set_state({"note": "Hello world", "status": "done"})
    rows = actor.log.since(0)
    assert rows is not None
    assert [json.loads(row.ops) for row in rows] == [
        [splice(5, 0, " world"), put("/status", "done")],
        [splice(0, 1, "H")],
    ]


async def test_a_push_that_would_copy_a_long_text_too_often_is_refused(house: House) -> None:
    actor = await house.actor(LargePad)
    await actor.thread.set_state({"note": "x" * 500_000, "status": "doing"})
    a, b = await joined(actor, "a"), await joined(actor, "b")
    a.push(*(splice(2 * index, 0, "y") for index in range(4_000)), base=1)
    b.push(*(splice(2 * index, 0, "y") for index in range(500)), base=1)
    await until(lambda: actor.state.durable.version == 2)
    assert [(frame["type"], frame["code"]) for frame in answers(a)] == [("nack", "conflict")]
    assert [frame["type"] for frame in answers(b)] == ["ack"]
    assert len(actor.thread.state["note"]) == 500_500


@each_case(("kind", "second"), [(Pad, "ack"), (LargePad, "nack")])
async def test_a_few_splices_of_a_long_text_count_as_several_messages(kind: type[Pad], second: str) -> None:
    async with open_house(kind, limits=Limits(messages_per_second=0.001, message_burst=5)) as house:
        actor = await house.actor(kind)
        guest = await joined(actor, "a")
        for version in range(2):
            guest.push(*[splice(0, 0, "y")] * 100, base=version)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in answers(guest)] == ["ack", second]


@each_case(("length", "second"), [(600, "ack"), (1_000_000, "nack")])
async def test_a_removal_in_a_long_text_around_what_others_typed_counts_as_many_messages(
    length: int, second: str
) -> None:
    async with open_house(Pad, limits=Limits(messages_per_second=0.001, message_burst=250)) as house:
        actor = await house.actor(Pad)
        await actor.thread.set_state({"note": "x" * length, "status": "doing"})
        guest, other = await joined(actor, "a"), await joined(actor, "b")
        other.push(*(splice(2 * at + 1, 0, "y") for at in range(280)), base=1)
        guest.push(splice(0, 560), base=1)
        guest.push(splice(0, 0, "z"), base=1)
        await actor.wait_until_idle()
        assert [frame["type"] for frame in answers(guest)] == ["ack", second]
        assert actor.thread.state["note"].count("y") == 280
        assert actor.thread.state["note"].count("x") == length - 560


async def test_what_goes_on_stays_before_what_others_inserted_there_and_is_stored_and_sent_without_saying_so(
    house: House,
) -> None:
    actor = await house.actor(Pad)
    a, b = await joined(actor, "a"), await joined(actor, "b")
    a.push(splice(5, 0, "A"), base=0)
    a.push({**splice(6, 0, "A"), "own": True}, base=0)
    b.push(splice(6, 0, "B"), base=1)
    b.push({**splice(7, 0, "B"), "own": True}, base=1)
    a.push({**splice(7, 0, "A"), "own": True}, base=2)
    await until(lambda: actor.state.durable.version == 5)
    assert actor.thread.state["note"] == "helloAAABB"
    # What it went on after is gone: it comes after what others insert there, as any insertion does.
    b.push(splice(7, 1), splice(7, 0, "x"), base=5)
    a.push({**splice(8, 0, "A"), "own": True}, {"op": "replace", "path": "/status", "value": "done"}, base=5)
    await until(lambda: actor.state.durable.version == 7)
    assert actor.thread.state == {"note": "helloAAxABB", "status": "done"}
    # All of these were applied as they were pushed, but for `own`.
    assert ["ops" in frame for frame in answers(a)] == [False, False, False, False]
    rows = actor.log.since(0)
    assert rows is not None
    assert not [row for row in rows if b"own" in row.ops]
    assert not [frame for frame in (*a.frames, *b.frames) if "own" in json.dumps(frame)]
