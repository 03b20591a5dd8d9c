"""A shared kanban board: people edit one state, undo their own changes, and look at earlier versions."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from plait import Connection, Handle, Plait, Reject, Source, Text, Thread, current, migrate, rpc

T = TypeVar("T")
PAGES = Path(__file__).parent / "pages"
MAX_CARDS = 500
MAX_COLUMNS = 12
MAX_PEOPLE = 1000

Id = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$")]
Title = Annotated[str, Meta(min_length=1, max_length=120)]
# A text in which several people can write at once.
Note = Annotated[Text, Meta(max_length=2000)]
Name = Annotated[str, Meta(min_length=1, max_length=40)]
Color = Literal["plain", "red", "amber", "green", "blue", "violet"]
Limit = Annotated[int, Meta(ge=1, le=99)]


class Column(Struct, frozen=True):
    """A stage of work."""

    title: Title
    # Columns are sorted by this number, from left to right.
    order: float
    # The maximum number of cards in this column.
    limit: Limit | None = None


class Card(Struct, frozen=True):
    """A piece of work. Each card stores its own place, so that two people can move two cards without a conflict."""

    title: Title
    column: Id
    # The cards of a column are sorted by this number, from top to bottom; there is room between any two numbers.
    order: float
    note: Note = ""
    color: Color = "plain"


class BoardState(Struct, frozen=True):
    """Every column and every card by its id."""

    columns: dict[Id, Column]
    cards: dict[Id, Card]


WELCOME = BoardState(
    columns={"todo": Column("To do", 1), "doing": Column("Doing", 2, limit=2), "done": Column("Done", 3)},
    cards={
        "drag": Card("Drag me to Doing", "todo", 1, "With a mouse, a finger, or Space and the arrow keys.", "blue"),
        "open": Card("Open me to edit", "todo", 2, "Two people can edit two fields of one card at once.", "violet"),
        "invite": Card("Copy the link and open it somewhere else", "todo", 3, color="green"),
        "limit": Card("Doing takes two cards", "doing", 1, "Drop a third one here: the server refuses it.", "amber"),
        "start": Card("Start the server", "done", 1),
    },
)


class Restored(Struct, frozen=True):
    """An event: a person has restored an older board."""

    version: int
    # The id of the connection that restored the board.
    by: str | None


class Shown(Struct, frozen=True):
    """The part of a page's presence that the server uses."""

    name: Name


class Named(Struct, frozen=True):
    """A person's name, and the first version with it."""

    since: int
    name: Name


class Memory(Struct, frozen=True):
    """The people who changed a board: their names by connection, and the restored versions with their restorers."""

    names: dict[str, tuple[Named, ...]] = {}
    restored: dict[str, str] = {}


class BoardMemory(Thread[Memory]):
    """Keeps the names of people who have left the board of the same name; only that board writes to it."""

    initial_state = Memory()

    def validate_state_change(self, next_state: Memory, source: Source) -> None:
        if source != "server":
            raise Reject("only the board writes its memory")


class Board(Thread[BoardState]):
    """Pages edit the state themselves; the server merges changes that they make at the same time."""

    initial_state = WELCOME
    state_version = 2
    events: ClassVar[Mapping[str, Any]] = {"restored": Restored}

    def validate_state_change(self, next_state: BoardState, source: Source) -> None:
        if len(next_state.cards) > MAX_CARDS or len(next_state.columns) > MAX_COLUMNS:
            raise Reject("the board is full")
        for id, count in Counter(card.column for card in next_state.cards.values()).items():
            column = next_state.columns.get(id)
            if column is None:
                deleted = self.state.columns.get(id)
                raise Reject(f"“{deleted.title}” still has cards" if deleted else "that column has been deleted")
            if column.limit is not None and count > column.limit:
                raise Reject(f"“{column.title}” is limited to {column.limit}")

    def on_start(self) -> None:
        # The version of the last change that the hook below has handled, and the names that it has stored.
        self.told = self.version
        self.kept: dict[str, str] = {}

    async def on_state_changed(self, state: BoardState, source: Source) -> None:
        self.told += 1
        if isinstance(source, Connection):
            await self.remember(source, self.told)

    async def remember(self, connection: Connection, version: int) -> None:
        """Store the name in a connection's presence as its name from this version on, if it has changed."""
        try:
            name = convert(connection.presence, Shown).name
        except ValidationError:
            return
        if self.kept.get(connection.id) != name:
            names = (await self.memory.state()).names.get(connection.id, ())
            names = (*names, Named(version, name))
            await self.memory.set_state(lambda memory: replace(memory, names=add(memory.names, connection.id, names)))
            self.kept = add(self.kept, connection.id, name)

    @property
    def memory(self) -> Handle[BoardMemory]:
        """A handle of the thread that keeps the names of people."""
        return self.thread(BoardMemory, self.name)

    @rpc
    async def who(self) -> Memory:
        """Return the people who have changed the board."""
        return await self.memory.state()

    @rpc(name="undo")
    async def undo_own(self) -> bool:
        """Undo the caller's last change, unless others have changed the same place; return whether there was one."""
        connection = current().connection
        return connection is not None and await self.undo(connection) is not None

    @rpc
    async def restore(self, version: int) -> None:
        """Restore the board of a version, by a change like any other; later versions stay in the history."""
        restored = await self.revert(version)
        connection = current().connection
        self.emit("restored", Restored(version, connection.id if connection else None))
        if connection is not None:
            await self.remember(connection, restored)
            by = connection.id
            await self.memory.set_state(
                lambda memory: replace(memory, restored=add(memory.restored, str(restored), by))
            )

    @staticmethod
    @migrate(from_=1)
    def place_cards(board: Any) -> Any:
        """Migrate from a list of columns, each with a list of the ids of its cards."""
        columns = board["columns"]
        board["columns"] = {
            column["id"]: {"title": column["title"], "order": order, "limit": column["limit"]}
            for order, column in enumerate(columns, 1)
        }
        for column in columns:
            for order, card in enumerate(column["cards"], 1):
                board["cards"][card] |= {"column": column["id"], "order": order}
        return board


def add(members: dict[str, T], key: str, value: T) -> dict[str, T]:
    """Return the members with one added or replaced, as the last one; the first is dropped if there are too many."""
    others = [(id, member) for id, member in members.items() if id != key]
    return dict([*others[1 - MAX_PEOPLE :], (key, value)])


app = Plait(Board, BoardMemory, static=PAGES)
