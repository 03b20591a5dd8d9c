"""Card games with a part for each reader: of plain and typed states, by patterns and by a method."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.requests import Request

from plait import Context, Plait, Principal, Text, Thread, current, rpc
from plait.adapters.ag_ui import AgUi
from plait_schemas.patch import Op, apply

__all__ = ["KINDS", "START", "app", "find_picture"]

START: Any = {
    "turn": "ada",
    "players": {},
    "table": [],
    "hands": {},
    "deck": [],
    "vault": {},
    "rows": [],
    "tiers": {},
    "story": {"public": "", "private": ""},
    "blurb": "",
}

PATTERNS = (
    "/turn",
    "/players/*",
    "/table/**",
    "/hands/{user}/**",
    "/rows/*/name",
    "/tiers/1/name",
    "/story/public",
    "/blurb/head",
)


def find_picture(state: Any, user: str | None) -> Any:
    """Return the picture of a user by the patterns, made in another way than in the server."""
    hands = {name: hand for name, hand in state["hands"].items() if name == user}
    return {
        **{name: state[name] for name in ("turn", "players", "table")},
        "hands": hands,
        "rows": [{"name": row["name"]} for row in state["rows"]],
        "tiers": {name: {"name": tier["name"]} for name, tier in state["tiers"].items() if name == "1"},
        "story": {"public": state["story"]["public"]},
        "blurb": None,
    }


class Row(msgspec.Struct, frozen=True):
    name: str = ""
    price: str = ""
    notes: dict[str, str] = {}


class Story(msgspec.Struct, frozen=True):
    public: Text = ""
    private: Text = ""


class Table(msgspec.Struct, frozen=True):
    turn: str = "ada"
    players: dict[str, int] = {}
    table: tuple[str, ...] = ()
    hands: dict[str, tuple[str, ...]] = {}
    deck: tuple[str, ...] = ()
    vault: dict[str, str] = {}
    rows: tuple[Row, ...] = ()
    tiers: dict[str, Row] = {}
    story: Story = Story()
    blurb: Text = ""


class RowModel(BaseModel):
    name: str = ""
    price: str = ""
    notes: dict[str, str] = {}


class StoryModel(BaseModel):
    public: str = ""
    private: str = ""


class TableModel(BaseModel):
    turn: str = "ada"
    players: dict[str, int] = {}
    table: list[str] = []
    hands: dict[str, list[str]] = {}
    deck: list[str] = []
    vault: dict[str, str] = {}
    rows: list[RowModel] = []
    tiers: dict[str, RowModel] = {}
    story: StoryModel = StoryModel()
    blurb: str = ""


class Game(Thread[Any]):
    """What all games have."""

    texts: Any = ("/story/public", "/story/private", "/blurb")
    listed = True

    def __init__(self) -> None:
        self.is_released = False

    def card(self, state: Any) -> object:
        return {"kind": self._kind.name}

    def to_plain(self, state: Any) -> Any:
        return state

    def from_plain(self, state: Any) -> Any:
        return state

    @rpc
    def whole(self) -> Any:
        return self.to_plain(self.state)

    @rpc
    def change(self, steps: list[list[dict[str, Any]]]) -> int:
        """Make a change of each list of operations."""
        for step in steps:
            ops = msgspec.convert(step, list[Op])
            self.set_state(self.from_plain(apply(self.to_plain(self.state), ops)))
        return self.version

    @rpc
    def sync(self) -> int:
        return self.version

    @rpc
    def release(self) -> None:
        """End the runs of agents."""
        self.is_released = True

    @rpc
    async def undo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.undo(connection)

    @rpc
    async def redo_mine(self) -> int | None:
        connection = current().connection
        assert connection is not None
        return await self.redo(connection)

    @rpc
    async def undo_of(self, source: str) -> int | None:
        return await self.undo(source)

    @rpc
    async def redo_of(self, source: str) -> int | None:
        return await self.redo(source)


class CardGame(Game):
    """A plain state."""

    initial_state: Any = START
    can_read: Any = PATTERNS


class OpenGame(CardGame):
    """All see everything when the game is over, and observers always do; no client reads while it is closed."""

    def can_read(self, state: Any, viewer: Principal | None) -> Sequence[str]:
        if state["turn"] == "closed":
            return ()
        sees_all = state["turn"] == "over" or (viewer is not None and "observers" in viewer.groups)
        return ("/**",) if sees_all else PATTERNS


class TypedGame(Game, Thread[Table]):
    """A state of Structs."""

    initial_state: Any = Table()
    can_read = PATTERNS

    def to_plain(self, state: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(state))

    def from_plain(self, state: Any) -> Any:
        return msgspec.convert(state, Table)


class ModelGame(Game, Thread[TableModel]):
    """A state of Pydantic models."""

    initial_state: Any = TableModel()
    can_read = PATTERNS

    def to_plain(self, state: Any) -> Any:
        return state.model_dump(mode="json")

    def from_plain(self, state: Any) -> Any:
        return TableModel.model_validate(state)


KINDS = (CardGame, OpenGame, TypedGame, ModelGame)


def authenticate(request: Request) -> Principal | None:
    """Return the user of a token such as `bob` or `olga:observers`."""
    header = request.headers.get("authorization", "").removeprefix("Bearer ")
    user, _, group = (request.query_params.get("token") or header).partition(":")
    return Principal(user, groups=[group] if group else []) if user else None


# Without users, all clients are anonymous.
_is_anonymous = bool(os.environ.get("VIEWS_ANONYMOUS"))
app = Plait(*KINDS, metrics=True, authenticate=None if _is_anonymous else authenticate)


async def watch(ctx: Context[Any], input: str) -> AsyncIterator[str]:
    """Answer, and go on until the game is released."""
    yield "begun"
    while not ctx.thread.is_released:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    yield "done"


for _kind in KINDS:
    app.agent(f"watch-{_kind._kind.name}", thread=_kind)(watch)
app.mount("/ag-ui", AgUi(app))
