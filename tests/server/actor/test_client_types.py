"""What the clients of an app must know of its threads."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel, Field
from tests.cases import each_case

from plait.actor.client_types import NoTypes, make_types_files
from plait.actor.query import query
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.state.texts import Text
from plait_schemas.schema import schema_hash, schema_of


class Card(msgspec.Struct, frozen=True):
    """A card."""

    title: str
    labels: tuple[str, ...] = ()


class Game(msgspec.Struct, frozen=True):
    cards: tuple[Card, ...] = ()
    score: int = 0


class GameRoom(Thread[Game]):
    initial_state = Game()
    events: ClassVar[Mapping[str, Any]] = {"goal": Card, "half-time": None}

    @rpc
    async def add_card(self, card: Card, function: int = 0, *, to: int | None = None) -> int:
        """Add a card.

        Return how many there are.
        """
        return 1

    @rpc
    def clear(self) -> None:
        pass

    @rpc(clients=False)
    def grant(self, what: str) -> None:
        pass

    @rpc
    def anything(self, value):  # type: ignore[no-untyped-def]
        return value

    @rpc
    def move(self, *, to: int, fast: bool = False) -> Card | None:
        return None

    @rpc(name="a-tail")
    async def tail(self, count: int = 1) -> AsyncIterator[Card]:
        yield Card("")

    @rpc
    async def count(self) -> AsyncGenerator[int, None]:
        yield 1

    @rpc
    async def by_hand(self, first: int, stream: Stream, last: int = 0) -> None:
        pass

    async def inside(self) -> complex:
        return 1j


class RoomState(msgspec.Struct):
    n: int = 0


class Room(Thread[RoomState]):
    pass


class GameRoomRpcs(msgspec.Struct):
    n: int = 0


class Other(Thread[GameRoomRpcs]):
    pass


class Notes(Thread[dict[str, str]]):
    kind = "2nd_notes"


class Loose(Thread):  # type: ignore[type-arg]
    pass


def typescript(*classes: type[Thread[Any]]) -> str:
    return make_types_files(cls._kind for cls in classes)["plait-types.ts"]


def schema(*classes: type[Thread[Any]]) -> Any:
    return json.loads(make_types_files(cls._kind for cls in classes)["plait-types.json"])


def block(text: str, name: str) -> str:
    """Return one declaration."""
    return text.partition(f"export interface {name} {{\n")[2].partition("\n}\n")[0] + "\n"


# TypeScript


def test_a_state_has_the_kinds_name_beside_its_own() -> None:
    text = typescript(GameRoom)
    assert "export type GameRoomState = Game;\n" in text
    assert block(text, "Game") == "  cards: Card[];\n  score: number;\n"


def test_what_clients_may_write_has_optional_fields_where_there_are_defaults() -> None:
    text = typescript(GameRoom, Room)
    assert "export type GameRoomStateInput = GameInput;\n" in text
    assert block(text, "GameInput") == "  cards?: CardInput[];\n  score?: number;\n"
    assert "export type RoomStateInput = RoomStateInput2;\n" in text


def test_a_card_has_its_type_if_the_class_makes_one() -> None:
    class Lobby(Thread[Game]):
        def card(self, state: Game) -> Card:
            return state.cards[0]

    class Hall(Thread[Game]):
        def card(self, state: Game):  # type: ignore[no-untyped-def]
            return {"score": state.score}

    assert "export type LobbyCard = Card;\n" in typescript(Lobby)
    assert "export type HallCard = unknown;\n" in typescript(Hall)
    assert schema(Lobby)["kinds"]["lobby"]["card"] == {"$ref": "#/$defs/Card"}
    assert "Card" not in typescript(Room)
    assert "card" not in schema(Room)["kinds"]["room"]


def test_a_state_whose_class_has_the_name_already_is_declared_once() -> None:
    text = typescript(Room)
    assert block(text, "RoomState") == "  n: number;\n"
    assert text.count("RoomState =") == 0


def test_rpcs_are_methods_with_arguments_as_they_are_read_and_results_as_they_are_written() -> None:
    assert (
        block(typescript(GameRoom), "GameRoomRpcs")
        == """\
  "a-tail"(count?: number): AsyncIterable<Card>;
  /**
   * Add a card.
   *
   * Return how many there are.
   *
   * By name, with `callWith`: { to?: number | null }
   */
  add_card(card: CardInput, function_?: number): number;
  anything(value: unknown): unknown;
  by_hand(first: number, last?: number): AsyncIterable<unknown>;
  clear(): void;
  count(): AsyncIterable<number>;
  /** By name, with `callWith`: { to: number; fast?: boolean } */
  move(): Card | null;
"""
    )


def test_events_are_members_by_their_names() -> None:
    assert block(typescript(GameRoom), "GameRoomEvents") == '  goal: Card;\n  "half-time": null;\n'


def test_the_hash_is_that_of_the_states_schema_alone() -> None:
    expected = schema_hash(schema_of(Game))
    assert f'export const gameRoomSchema = "{expected}";\n' in typescript(GameRoom, Notes)
    assert schema(Notes, GameRoom)["kinds"]["game-room"]["hash"] == expected


def test_a_thread_that_says_nothing_of_itself_is_there_too() -> None:
    text = typescript(Notes, Loose)
    assert "export type Kind2ndNotesState = Record<string, string>;\n" in text
    assert "export type LooseState = unknown;\n" in text
    assert "export interface LooseRpcs {}\n" in text
    assert "export interface LooseEvents {}\n" in text
    assert "export const kind2ndNotesSchema = " in text


def test_kinds_whose_names_are_alike_are_told_apart() -> None:
    rooms: list[Any] = [type("Room", (Thread,), {"kind": kind}) for kind in ("a-b", "a_b", "a--b")]
    text = typescript(*rooms)
    for prefix in ("AB", "AB_", "AB__"):
        assert f"export interface {prefix}Rpcs {{}}\n" in text


def test_a_class_that_is_called_like_a_part_of_a_kind_is_told_apart() -> None:
    assert "export type OtherState = GameRoomRpcs2;\n" in typescript(GameRoom, Other)
    assert "export type OtherState = GameRoomRpcs;\n" in typescript(Other)


class Shop(Thread[Game]):
    @query
    def cards(self, owner: str, most: int = 10, *, labels: list[str] | None = None) -> list[Card]:
        """The cards of an owner."""
        return []

    @query(name="how-many")
    def count(self):  # type: ignore[no-untyped-def]
        return 1

    @rpc
    def add(self, card: Card) -> int:
        return 1


def test_queries_stand_beside_rpcs_in_a_form_that_cannot_be_called() -> None:
    text = typescript(Shop, GameRoom)
    assert (
        block(text, "ShopRpcs")
        == """\
  add(card: CardInput): number;
  /** The cards of an owner. */
  cards: { query(owner: string, most?: number): Card[] };
  "how-many": { query(): unknown };
"""
    )
    assert "/** What clients may call and query of shop. */\n" in text
    assert "/** What clients may call of game-room. */\n" in text


def test_kinds_are_added_to_those_of_the_package_by_their_names() -> None:
    assert typescript(GameRoom, Notes).endswith(
        """\
// @ts-ignore: programs without the package use the other types.
declare module "plait-client" {
  interface Kinds {
    "game-room": { state: GameRoomState; rpcs: GameRoomRpcs; events: GameRoomEvents };
    "2nd_notes": { state: Kind2ndNotesState; rpcs: Kind2ndNotesRpcs; events: Kind2ndNotesEvents };
  }
}
"""
    )


# JSON Schema


def test_the_json_has_state_arguments_results_and_events() -> None:
    whole = schema(GameRoom)
    kind = whole["kinds"]["game-room"]
    assert kind["state"] == {"$ref": "#/$defs/Game"}
    assert kind["events"] == {"goal": {"$ref": "#/$defs/Card"}, "half-time": {"type": "null"}}
    assert kind["rpcs"]["add_card"] == {
        "positional": ["card", "function"],
        "arguments": {
            "type": "object",
            "properties": {
                "card": {"$ref": "#/$defs/Card"},
                "function": {"type": "integer"},
                "to": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["card"],
            "additionalProperties": False,
        },
        "description": "Add a card.\n\nReturn how many there are.",
        "result": {"type": "integer"},
    }
    assert list(whole["$defs"]) == ["Card", "Game"]


def test_the_json_has_queries_of_their_own() -> None:
    whole = schema(Shop, GameRoom)["kinds"]
    assert whole["shop"]["rpcs"].keys() == {"add"}
    assert whole["shop"]["queries"] == {
        "cards": {
            "positional": ["owner", "most"],
            "arguments": {
                "type": "object",
                "properties": {
                    "owner": {"type": "string"},
                    "most": {"type": "integer"},
                    "labels": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                },
                "required": ["owner"],
                "additionalProperties": False,
            },
            "description": "The cards of an owner.",
            "result": {"type": "array", "items": {"$ref": "#/$defs/Card"}},
        },
        "how-many": {
            "positional": [],
            "arguments": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
            "result": {},
        },
    }
    assert "queries" not in whole["game-room"]


def test_a_stream_has_chunks_and_what_returns_nothing_has_no_result() -> None:
    rpcs = schema(GameRoom)["kinds"]["game-room"]["rpcs"]
    assert rpcs["a-tail"]["chunk"] == {"$ref": "#/$defs/Card"}
    assert rpcs["by_hand"]["chunk"] == {}
    assert rpcs["by_hand"]["positional"] == ["first", "last"]
    assert rpcs["anything"]["result"] == {}
    assert not {"result", "chunk"} & rpcs["clear"].keys()
    assert "inside" not in rpcs


def test_the_files_do_not_depend_on_what_was_asked_before() -> None:
    once = make_types_files([GameRoom._kind, Notes._kind])
    typescript(Loose, GameRoom)
    assert make_types_files([GameRoom._kind, Notes._kind]) == once


# Errors


class OddState(Thread[dict[str, object]]):
    pass


class OddArgument(Thread[Game]):
    @rpc
    def move(self, to: complex) -> None:
        pass


class OddResult(Thread[Game]):
    @rpc
    def where(self) -> list[complex]:
        return []


class OddQuery(Thread[Game]):
    @query
    def where(self, at: complex) -> None:
        pass


class OddRows(Thread[Game]):
    @query
    def where(self) -> list[complex]:
        return []


class OddStream(Thread[Game]):
    @rpc
    async def tail(self) -> AsyncIterator[complex]:
        yield 1j


class OddEvent(Thread[Game]):
    events: ClassVar[Mapping[str, Any]] = {"goal": complex}


@each_case(
    ("cls", "where"),
    [
        (OddState, "odd-state: the state: dict[str, object]"),
        (OddArgument, "odd-argument: rpc move, argument to: "),
        (OddResult, "odd-result: rpc where, result: "),
        (OddQuery, "odd-query: query where, argument at: "),
        (OddRows, "odd-rows: query where, result: "),
        (OddStream, "odd-stream: rpc tail, chunk of its stream: "),
        (OddEvent, "odd-event: event goal: "),
    ],
)
def test_a_type_without_a_schema_is_named_with_its_place(cls: type[Thread[Any]], where: str) -> None:
    with pytest.raises(NoTypes) as caught:
        make_types_files([cls._kind])
    assert str(caught.value).startswith(where)
    assert "\n" not in str(caught.value)
    assert "complex" in str(caught.value) or cls is OddState


def test_the_places_of_texts_are_written_where_there_are_any() -> None:
    class Pad(msgspec.Struct):
        note: Text = ""
        cards: dict[str, Text] = {}

    class PadRoom(Thread[Pad]):
        initial_state = Pad()

    text = typescript(PadRoom, GameRoom)
    assert 'export const padRoomTexts = [\n  "/note",\n  "/cards/*",\n] as const;' in text
    assert "gameRoomTexts" not in text
    kinds = schema(PadRoom, GameRoom)["kinds"]
    assert kinds["pad-room"]["texts"] == ["/note", "/cards/*"]
    assert "texts" not in kinds["game-room"]


def test_rpcs_for_handles_only_are_left_out() -> None:
    assert not any("grant" in text for text in make_types_files([GameRoom._kind]).values())


class Player(BaseModel):
    """A player."""

    name: str = Field(min_length=1, description="As others see it.")
    score: int = 0


class Match(BaseModel):
    players: dict[str, Player] = {}
    note: Text = ""


class MatchRoom(Thread[Match]):
    initial_state = Match()
    events: ClassVar[Mapping[str, Any]] = {"joined": Player}

    @rpc
    def join(self, player: Player) -> Player:
        return player


def test_models_are_written_by_their_fields() -> None:
    files = make_types_files([MatchRoom._kind])
    types = files["plait-types.ts"]
    assert "export interface Match {\n  players: Record<string, Player>;\n  note: string;\n}\n" in types
    assert "/** A player. */\nexport interface Player {\n  /** As others see it. */\n  name: string;\n" in types
    assert "  join(player: PlayerInput): Player;\n" in types
    assert 'export const matchRoomTexts = [\n  "/note",\n] as const;\n' in types
    schemas = json.loads(files["plait-types.json"])
    kind = schemas["kinds"]["match-room"]
    assert kind["state"]["properties"]["players"]["additionalProperties"] == {"$ref": "#/$defs/Player"}
    assert schemas["$defs"]["Player"]["required"] == ["name"]
    assert kind["hash"] == schema_hash(schema_of(Match))
