"""Which strings of a state are texts, and what is changed inside of them."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from tests.cases import each_case
from tests.server.rooms import House, open_house
from tests.server.session.guests import joined

from plait import Text, Thread
from plait.errors import Conflict, InvalidState, Reject, TooLarge
from plait.limits import Limits
from plait.state.compatibility import Compatibility
from plait.state.texts import find_texts
from plait.state.types import StateType
from plait.store.memory import MemoryStore
from plait_schemas.patch import Op, decode_ops, splice
from plait_schemas.schema import schema_hash, schema_of

PATIENCE = 10.0


class Card(msgspec.Struct, frozen=True):
    id: int = 0
    body: Text = ""
    status: str = "doing"


class Tree(msgspec.Struct, frozen=True):
    text: Text = ""
    inner: "tuple[Tree, ...]" = ()


class Row(msgspec.Struct, frozen=True, array_like=True, tag="row"):
    title: str
    body: Text


@dataclass
class Sheet:
    rows: list[Row]
    by_name: dict[str, Card] = field(default_factory=dict)
    summary: Text | None = None


class Folder(TypedDict):
    cards: tuple[int, Card]
    tags: frozenset[Text]


class Pad(msgspec.Struct, frozen=True):
    note: Text = ""
    status: str = "doing"
    cards: tuple[Card, ...] = ()
    more: dict[str, Any] = {}


class PadRoom(Thread[Pad]):
    initial_state = Pad("hello", cards=(Card(7, "one"), Card(8, "two")))


class PlainRoom(Thread[dict[str, Any]]):
    texts = ("/note", "/cards/*/body")
    initial_state: Any = staticmethod(
        lambda: {
            "note": "hello",
            "status": "doing",
            "cards": [{"id": 7, "body": "one", "status": "doing"}, {"id": 8, "body": "two", "status": "doing"}],
            "more": {},
        }
    )


class SheetRoom(Thread[Sheet]):
    initial_state: Any = staticmethod(lambda: Sheet([Row("a", "one")]))


ROOMS = pytest.mark.parametrize("room", [PadRoom, PlainRoom])


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def written(house: House) -> list[Op]:
    """Return the operations that were written last."""
    (row,) = house.store.submitted[-1].changes
    return decode_ops(row.ops)


def as_json(state: Any) -> Any:
    return msgspec.to_builtins(state)


# Which strings


@each_case(
    ("type_", "texts"),
    [
        (Card, ["/body"]),
        (list[Card], ["/*/body"]),
        (Sheet, ["/summary", "/rows/*/2", "/by_name/*/body"]),
        (Folder, ["/cards/1/body"]),
        (Text, [""]),
        (dict[str, Text], ["/*"]),
        (str, []),
        (dict[str, Any], []),
    ],
)
def test_texts_are_found_wherever_a_type_has_them(type_: Any, texts: list[str]) -> None:
    assert find_texts(type_) == texts


def test_of_a_type_that_has_itself_inside_the_texts_are_found_to_a_depth() -> None:
    found = find_texts(Tree)
    assert found[:3] == ["/text", "/inner/*/text", "/inner/*/inner/*/text"]
    assert len(found) < 20


@each_case(
    ("texts", "why"),
    [
        ("/note", "must be a tuple of JSON pointers"),
        ({"/note": "note"}, "must be a tuple of JSON pointers"),
        (("note",), "'note' must be the JSON pointer of a string"),
        ((1,), "1 must be the JSON pointer of a string"),
        (("/nots",), "there is no string at '/nots'"),
        (("/cards",), "there is no string at '/cards'"),
        (("/cards/*/id",), "there is no string at '/cards/\\*/id'"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_when_the_class_is_made(texts: Any, why: str) -> None:
    class Room(Thread[Pad]):
        pass

    with pytest.raises(TypeError, match=f"Other.texts.*{why}"):
        type("Other", (Room,), {"texts": texts})


def test_places_are_declared_beside_those_of_the_type() -> None:
    class Room(Thread[Pad]):
        texts = ("/status", "/more/*/body")

    assert Room._kind.state_type.texts == ["/note", "/cards/*/body", "/status", "/more/*/body"]


async def test_making_a_text_of_a_string_needs_no_migration_and_keeps_clients() -> None:
    string, text = (msgspec.defstruct("State", [("note", type_, "")]) for type_ in (str, Text))
    assert schema_of(string) == schema_of(text)
    async with MemoryStore() as store:
        for before, after in ((string, text), (text, string)):
            await Compatibility(store).remember({"room": StateType(before)})
            current = Compatibility(store)
            await current.remember({"room": StateType(after)})
            await current.check("room", schema_hash(schema_of(before)))


# What is changed inside


@ROOMS
async def test_a_splice_and_an_append_change_only_their_text(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        before = as_json(thread.state)
        assert await soon(thread.splice("/cards/1/body", 1, 1, "😀")) == 1
        assert written(house) == [splice("/cards/1/body", 1, 1, "😀")]
        assert await soon(thread.append("/note", " world")) == 2
        assert written(house) == [splice("/note", 5, 0, " world")]
        before["cards"][1]["body"], before["note"] = "t😀o", "hello world"
        assert as_json(thread.state) == before
        assert await soon(house.handle(room).append("/note", "!")) == 3
        assert await soon(house.handle(room).splice("/note", 0, 1, "J")) == 4
        assert as_json(await house.handle(room).state())["note"] == "Jello world!"


@ROOMS
async def test_whatever_sets_a_text_changes_only_what_is_different_in_it(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        await soon(thread.update("/note", "hello world"))
        assert written(house) == [splice("/note", 5, 0, " world")]
        with thread.edit() as draft:
            draft.note += "!"
            draft.cards[0].body = "bone"
            draft.cards[0].status = "done"
            draft.splice("note", 0, 1, "J")
        assert written(house) == [
            splice("/note", 11, 0, "!"),
            splice("/cards/0/body", 0, 0, "b"),
            Op("replace", "/cards/0/status", "done"),
            splice("/note", 0, 1, "J"),
        ]
        state = as_json(thread.state)
        state["note"], state["status"] = "Jello world", "doing it"
        await soon(thread.set_state(msgspec.convert(state, Pad) if room is PadRoom else state))
        assert written(house) == [splice("/note", 11, 1), Op("replace", "/status", "doing it")]
        await soon(thread.update("/note", "Jello world"))
        assert thread.version == 3


@ROOMS
async def test_a_splice_is_taken_in_any_string_and_what_does_nothing_makes_no_version(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        await soon(thread.splice("/status", 2, 3, ""))
        assert as_json(thread.state)["status"] == "do"
        assert await soon(thread.append("/note", "")) == 1
        assert thread.version == 1


@ROOMS
@each_case(
    ("pointer", "at", "remove", "why"),
    [
        ("/note", 6, 0, "position 6 is past the end of a text of 5"),
        ("/note", 4, 2, "reach past the end"),
        ("/note", -1, 0, "-1 is negative"),
        ("/note", 1, -1, "-1 is negative"),
        ("/note", True, 0, "are integers"),
        ("/cards", 0, 0, "not a text"),
        ("/cards/0/id", 0, 0, "not a text"),
        ("/cards/9/body", 0, 0, "exist|past the end|no text"),
        ("/more/note", 0, 0, "exist|no text"),
        ("note", 0, 0, "starts with a slash"),
    ],
)
async def test_a_splice_that_does_not_fit_is_refused_with_its_place(
    room: Any, pointer: str, at: int, remove: int, why: str
) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        with pytest.raises(Conflict, match=why) as caught:
            thread.splice(pointer, at, remove, "x")
        assert caught.value.path == pointer
        assert thread.version == 0
        assert await soon(thread.append("/note", "!")) == 1


@ROOMS
async def test_half_a_surrogate_pair_is_refused_where_it_is_put_in(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        with pytest.raises(InvalidState) as caught:
            thread.append("/note", "\ud83d")
        assert caught.value.path == "/note"
        assert as_json(thread.state)["note"] == "hello"


@ROOMS
async def test_a_text_is_refused_at_the_splice_that_is_above_the_limit_of_the_state(room: Any) -> None:
    async with open_house(room, limits=Limits(state=1000)) as house:
        thread = (await house.actor(room)).thread
        count = 0
        with pytest.raises(TooLarge):  # noqa: PT012
            while True:
                thread.append("/note", "é" * 10)
                count += 1
        size = len(msgspec.json.encode(thread.state))
        assert 980 < size <= 1000
        assert as_json(thread.state)["note"] == "hello" + "é" * 10 * count
        thread.splice("/note", 0, 20)
        await soon(thread.append("/note", "é" * 10))


async def test_a_text_that_its_type_checks_is_checked_after_a_splice() -> None:
    class Colour(StrEnum):
        red = "red"
        reed = "reed"

    class State(msgspec.Struct, frozen=True):
        short: Annotated[str, msgspec.Meta(max_length=6)] = "short"
        kind: Literal["a", "ab"] = "a"
        colour: Colour = Colour.red
        either: str | int | None = "x"

    class Room(Thread[State]):
        initial_state = State()

    async with open_house(Room) as house:
        thread = (await house.actor(Room)).thread
        thread.append("/short", "!")
        thread.append("/kind", "b")
        thread.splice("/colour", 1, 0, "e")
        thread.append("/either", "y")
        assert thread.state == State("short!", "ab", Colour.reed, "xy")
        for pointer in ("/short", "/kind", "/colour"):
            with pytest.raises(InvalidState) as caught:
                thread.append(pointer, "!")
            assert caught.value.path == pointer
        assert thread.version == 4


async def test_a_text_that_its_type_checks_is_checked_after_the_last_splice_of_a_push() -> None:
    class State(msgspec.Struct, frozen=True):
        word: Annotated[str, msgspec.Meta(pattern="^[a-z]{4}$")] = "word"

    class Room(Thread[State]):
        initial_state = State()

    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.push(*({"op": "splice", "path": "/word", **each} for each in ({"at": 0, "remove": 1}, _ins("l"))), base=0)
        guest.push(*({"op": "splice", "path": "/word", **each} for each in (_ins("x"), _ins("y"))), base=0)
        await actor.wait_until_idle()
        assert actor.thread.state == State("lord")
        assert [(each["type"], each.get("code")) for each in guest.frames] == [("ack", None), ("nack", "invalid_state")]


def _ins(letter: str) -> dict[str, Any]:
    return {"at": 0, "insert": letter}


async def test_a_text_that_is_left_out_as_a_default_is_changed_inside() -> None:
    class State(msgspec.Struct, frozen=True, omit_defaults=True):
        note: Text = "hello"
        n: int = 0

    class Room(Thread[State]):
        initial_state = State()

    async with open_house(Room) as house:
        thread = (await house.actor(Room)).thread
        await soon(thread.append("/note", "!"))
        await soon(thread.splice("/note", 0, 1, "H"))
        assert thread.state == State("Hello!")
        await soon(thread.set_state(State()))
        await soon(thread.update("/note", "hello you"))
        assert thread.state == State("hello you")
        guest = await joined(await house.actor(Room), "a")
        await soon(thread.append("/note", "?"))
        assert guest.frames[-1]["ops"] == [{"op": "splice", "path": "/note", "at": 9, "insert": "?"}]


async def test_a_text_in_a_dataclass_and_in_an_array_is_changed_inside() -> None:
    async with open_house(SheetRoom) as house:
        thread = (await house.actor(SheetRoom)).thread
        await soon(thread.append("/rows/0/2", "!"))
        assert written(house) == [splice("/rows/0/2", 3, 0, "!")]
        assert thread.state.rows == [Row("a", "one!")]


async def test_a_state_that_is_a_text_is_changed_inside() -> None:
    class Room(Thread[Text]):
        initial_state = "hello"

    async with open_house(Room) as house:
        thread = (await house.actor(Room)).thread
        await soon(thread.append("", " world"))
        await soon(thread.set_state("Hello world"))
        assert written(house) == [splice("", 0, 1, "H")]
        assert thread.state == "Hello world"


@ROOMS
async def test_what_is_appended_in_one_turn_is_a_version_each_and_in_a_transaction_one(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        commits = [thread.append("/note", letter) for letter in " world"]
        assert [await soon(commit) for commit in commits] == [1, 2, 3, 4, 5, 6]
        with thread.transaction():
            for letter in " again":
                thread.append("/note", letter)
        assert thread.version == 7
        assert written(house) == [splice("/note", 11, 0, " again")]


async def test_a_splice_is_validated_as_any_change() -> None:
    class Room(Thread[dict[str, Any]]):
        initial_state: Any = staticmethod(lambda: {"note": ""})

        def validate_state_change(self, next_state: Any, source: Any) -> None:
            if "bad" in next_state["note"]:
                raise Reject("a bad word", path="/note")

    async with open_house(Room) as house:
        thread = (await house.actor(Room)).thread
        thread.append("/note", "ba")
        with pytest.raises(Reject):
            thread.append("/note", "d")
        assert thread.state == {"note": "ba"}


@ROOMS
async def test_a_text_is_there_after_a_restart_as_it_was(room: Any) -> None:
    async with open_house(room) as house:
        thread = (await house.actor(room)).thread
        for _ in range(300):
            thread.append("/note", " twenty characters e")
        await soon(thread.splice("/note", 0, 5, "😀"))
        before = thread.state
        stored = await house.store.load((await house.actor(room)).key)
        assert stored is not None
        assert len(as_json(await house.handle(room).state())["note"]) == 6001
        assert await soon(thread.at(thread.version)) == before
        assert as_json(await soon(thread.at(1)))["note"] == "hello twenty characters e"
