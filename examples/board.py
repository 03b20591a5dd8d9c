"""A shared kanban board: small edits by rpc, limits the server enforces, and who is here."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace
from starlette.requests import Request

from plait import Connection, Plait, Reject, Source, Thread, rpc

PAGES = Path(__file__).parent / "pages"
MAX_CARDS = 500
MAX_COLUMNS = 12

Id = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$")]
Title = Annotated[str, Meta(min_length=1, max_length=120)]
Note = Annotated[str, Meta(max_length=2000)]
Color = Literal["plain", "red", "amber", "green", "blue", "violet"]
Limit = Annotated[int, Meta(ge=1, le=99)]


# State


class Card(Struct, frozen=True):
    """A piece of work."""

    title: Title
    note: Note = ""
    color: Color = "plain"


class Column(Struct, frozen=True):
    """A stage of work, with the ids of its cards from top to bottom."""

    id: Id
    title: Title
    cards: tuple[Id, ...] = ()
    # The most cards that may be in progress here.
    limit: Limit | None = None


class BoardState(Struct, frozen=True):
    """Columns from left to right, and every card by its id."""

    columns: tuple[Column, ...]
    cards: dict[Id, Card]

    def column(self, column_id: str) -> Column:
        """Return the column, or raise `Reject` if it has been deleted."""
        for column in self.columns:
            if column.id == column_id:
                return column
        raise Reject("that column has been deleted")

    def card(self, card_id: str) -> Card:
        """Return the card, or raise `Reject` if it has been deleted."""
        if card_id not in self.cards:
            raise Reject("that card has been deleted")
        return self.cards[card_id]

    def with_column(self, column: Column) -> "BoardState":
        """Return the board with `column` in the place of the one with its id."""
        return replace(self, columns=tuple(column if c.id == column.id else c for c in self.columns))

    def without_column(self, column_id: str) -> "BoardState":
        """Return the board with an empty column gone, or raise `Reject` if it has cards."""
        for column in self.columns:
            if column.id == column_id and column.cards:
                raise Reject(f"“{column.title}” still has cards")
        return replace(self, columns=tuple(c for c in self.columns if c.id != column_id))

    def with_card(self, card_id: str, card: Card) -> "BoardState":
        """Return the board with `card` under its id."""
        return replace(self, cards={**self.cards, card_id: card})

    def without_card(self, card_id: str) -> "BoardState":
        """Return the board with the card gone."""
        cards = {id: card for id, card in self.cards.items() if id != card_id}
        return replace(self.lifted(card_id), cards=cards)

    def lifted(self, card_id: str) -> "BoardState":
        """Return the board with the card out of its column."""
        columns = (replace(column, cards=tuple(c for c in column.cards if c != card_id)) for column in self.columns)
        return replace(self, columns=tuple(columns))

    def placed(self, card_id: str, column_id: str, before: tuple[str, ...]) -> "BoardState":
        """Return the board with the card in front of the first of `before` that is in the column, or last."""
        self.card(card_id)
        board = self.lifted(card_id)
        column = board.column(column_id)
        index = next((column.cards.index(c) for c in before if c in column.cards), len(column.cards))
        cards = (*column.cards[:index], card_id, *column.cards[index:])
        return board.with_column(replace(column, cards=cards))


WELCOME = BoardState(
    columns=(
        Column("todo", "To do", ("drag", "open", "invite")),
        Column("doing", "Doing", ("limit",), limit=2),
        Column("done", "Done", ("start",)),
    ),
    cards={
        "drag": Card("Drag me to Doing", "With a mouse, a finger, or Space and the arrow keys.", "blue"),
        "open": Card("Open me to edit", "Two people can edit two fields of one card at once.", "violet"),
        "invite": Card("Copy the link and open it somewhere else", color="green"),
        "limit": Card("Doing takes two cards", "Drop a third one here and watch the server refuse it.", "amber"),
        "start": Card("Start the server"),
    },
)


# Edits and presence


class CardEdit(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a card that someone changed; the others stay as they are."""

    title: Title | UnsetType = UNSET
    note: Note | UnsetType = UNSET
    color: Color | UnsetType = UNSET


class Person(Struct, frozen=True, tag="person"):
    """What a page tells about the person in front of it, and which card they have in hand."""

    id: Id
    name: Annotated[str, Meta(min_length=1, max_length=40)]
    card: Id | None = None


class Board(Thread[BoardState]):
    """Everyone edits by small calls, so edits made at the same moment never undo one another."""

    initial_state = WELCOME

    def validate_state_change(self, next_state: BoardState, source: Source) -> None:
        if isinstance(source, Connection):
            raise Reject("a board is edited by calling its methods")
        if len(next_state.cards) > MAX_CARDS or len(next_state.columns) > MAX_COLUMNS:
            raise Reject("the board is full")
        for column in next_state.columns:
            if column.limit is not None and len(column.cards) > column.limit:
                raise Reject(f"“{column.title}” is limited to {column.limit}")

    # Cards

    @rpc
    async def add_card(self, card_id: Id, column_id: Id, card: Card, before: tuple[Id, ...] = ()) -> None:
        """Put a card on the board; adding it twice is adding it once."""
        if card_id not in self.state.cards:
            self.set_state(lambda board: board.with_card(card_id, card).placed(card_id, column_id, before))

    @rpc
    async def move_card(self, card_id: Id, column_id: Id, before: tuple[Id, ...] = ()) -> None:
        """Move a card in front of the first of `before` that is still in the column, or to its end."""
        self.set_state(lambda board: board.placed(card_id, column_id, before))

    @rpc
    async def edit_card(self, card_id: Id, edit: CardEdit) -> None:
        """Change some fields of a card."""
        changes = {field: value for field, value in asdict(edit).items() if value is not UNSET}
        self.set_state(lambda board: board.with_card(card_id, replace(board.card(card_id), **changes)))

    @rpc
    async def delete_card(self, card_id: Id) -> None:
        """Take a card off the board; deleting it twice is deleting it once."""
        self.set_state(lambda board: board.without_card(card_id))

    # Columns

    @rpc
    async def add_column(self, column_id: Id, title: Title) -> None:
        """Add an empty column on the right; adding it twice is adding it once."""
        if all(column.id != column_id for column in self.state.columns):
            column = Column(column_id, title)
            self.set_state(lambda board: replace(board, columns=(*board.columns, column)))

    @rpc
    async def edit_column(self, column_id: Id, title: Title, limit: Limit | None = None) -> None:
        """Rename a column and set how many cards it may hold."""
        self.set_state(lambda board: board.with_column(replace(board.column(column_id), title=title, limit=limit)))

    @rpc
    async def delete_column(self, column_id: Id) -> None:
        """Take an empty column off the board; deleting it twice is deleting it once."""
        self.set_state(lambda board: board.without_column(column_id))

    # Presence

    async def on_connect(self, connection: Connection, request: Request) -> None:
        self.tell_people()

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        connection.state["person"] = msgspec.json.decode(data, type=Person)
        self.tell_people()

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        connection.state.pop("person", None)
        self.tell_people()

    def tell_people(self) -> None:
        """Send everyone the list of who is here; someone with two pages is one person."""
        people = [connection.state.get("person") for connection in self.connections()]
        here = {person.id: person for person in people if person is not None}
        self.broadcast({"type": "people", "people": list(here.values())})


app = Plait(Board, static=PAGES)
