"""Pydantic models as states, arguments and results, in the own process and at another worker."""

import datetime
import gc
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import httpx
import msgspec
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    computed_field,
    field_validator,
    model_validator,
)
from tests.cases import each_case
from tests.server.nodes import open_nodes

from plait import (
    Context,
    Handle,
    InvalidArguments,
    InvalidState,
    Messages,
    NotFound,
    Plait,
    Thread,
    TooLarge,
    Values,
    endpoint,
    migrate,
    rpc,
)
from plait_schemas.models import ModelError
from plait_schemas.patch import Op

T = TypeVar("T")


class Player(BaseModel):
    name: str = Field(min_length=1, max_length=20)
    email: str | None = None
    born: datetime.date | None = None

    @field_validator("name")
    @classmethod
    def _strip(cls, name: str) -> str:
        return name.strip().title()


class Game(BaseModel):
    players: dict[str, Player] = {}
    log: list[str] = []
    score: Decimal = Decimal(0)

    @computed_field
    def count(self) -> int:
        return len(self.players)

    @model_validator(mode="after")
    def _check_count(self) -> "Game":
        if len(self.players) > 3:
            raise ValueError("too many players")
        return self


class Room(Thread[Game]):
    initial_state = Game()
    values = Values()
    messages = Messages()

    @rpc
    def join(self, player: Player) -> Player:
        state = self.state
        self.set_state(state.model_copy(update={"players": {**state.players, player.name: player}}))
        return player

    @rpc
    def edit_email(self, name: str) -> int:
        with self.edit() as draft:
            draft.players[name]["email"] = "x@y"
            draft.log.append(f"edit {name}")
        return self.version

    @rpc
    def put(self, pointer: str, value: Any) -> int:
        self.update(pointer, value)
        return self.version

    @rpc
    def describe(self) -> str:
        return f"{type(self.state).__name__} {type(self.state.score).__name__}"

    @rpc
    def break_state(self) -> str:
        self.state.players["Ada"].name = "in place"
        self.set_state(lambda state: state)
        return "stored"

    @rpc
    def break_result(self) -> Player:
        return Player.model_construct(name="")

    @rpc
    async def each(self) -> AsyncIterator[Player]:
        for player in self.state.players.values():
            yield player


class Mixed(msgspec.Struct, frozen=True):
    a: int = 0
    players: list[Player] = []


class MixedRoom(Thread[Mixed]):
    initial_state = Mixed()

    @rpc
    def put(self, players: list[Player]) -> Mixed:
        self.set_state(lambda state: Mixed(state.a, state.players + players))
        return self.state


class DictRoom(Thread[dict[str, Player]]):
    initial_state: Any = dict


def make(store: str = "memory://") -> Plait:
    app = Plait(Room, MixedRoom, DictRoom, store=store, secret="x" * 32)

    @app.agent("second", thread=Room)
    async def second(ctx: Context[Room], input: Player) -> Player:
        return Player(name=f"{input.name} b")

    @app.agent("both", thread=Room)
    async def both(ctx: Context[Room], input: Player) -> AsyncIterator[Player]:
        yield input
        yield Player(name="zed")

    return app


Open = Callable[[type[Thread[Any]]], Any]


@pytest.fixture(params=[0, 1], ids=["own", "at another worker"])
async def open_thread(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Return what makes a handle to a thread; `app` is the app that calls it."""
    async with open_nodes(make) as nodes:
        yield lambda cls: nodes.handle(cls, request.param)


@pytest.fixture
async def room(open_thread: Open) -> Handle[Room]:
    handle: Handle[Room] = open_thread(Room)
    return handle


# States


async def test_an_rpc_gets_and_returns_models_as_their_validators_make_them(room: Handle[Room]) -> None:
    assert await room.call(Room.join, Player(name=" ada ")) == Player(name="Ada")
    assert await room.call("join", {"name": "bob"}) == Player(name="Bob")
    assert await room.state() == Game(players={"Ada": Player(name="Ada"), "Bob": Player(name="Bob")})
    assert await room.call(Room.describe) == "Game Decimal"


async def test_an_edit_of_a_model_is_validated(room: Handle[Room]) -> None:
    await room.call(Room.join, Player(name="ada"))
    assert await room.call(Room.edit_email, "Ada") == 2
    state = await room.state()
    assert (state.players["Ada"].email, state.log) == ("x@y", ["edit Ada"])
    assert [(op.op, op.path) for op in (await room.history())[-1].ops] == [
        ("replace", "/players/Ada/email"),
        ("add", "/log/0"),
    ]


async def test_a_validator_that_changes_a_value_changes_the_operations(room: Handle[Room]) -> None:
    await room.call(Room.join, Player(name="ada"))
    await room.call(Room.put, "/players/Ada/name", "  eve  ")
    assert (await room.state()).players["Ada"].name == "Eve"
    assert (await room.history())[-1].ops == [Op("replace", "/players/Ada/name", "Eve")]
    assert await room.call(Room.put, "/players/Ada/name", " eve ") == 2, "the validator makes no change of it"


@pytest.mark.parametrize(
    ("pointer", "value", "path"),
    [
        ("/players/Ada/name", "", "/players/Ada/name"),
        ("/players/Ada/born", "2020-99-01", "/players/Ada/born"),
        ("/players/Ada/nam", "x", "/players/Ada/nam"),
        ("/players/a~1b", {"email": "x"}, "/players/a~1b/name"),
    ],
)
async def test_a_change_that_a_model_refuses_is_refused_at_its_place(
    room: Handle[Room], pointer: str, value: Any, path: str
) -> None:
    await room.call(Room.join, Player(name="ada"))
    for change in (room.call(Room.put, pointer, value), room.update(pointer, value)):
        with pytest.raises(InvalidState) as refused:
            await change
        assert refused.value.path == path
    assert await room.state() == Game(players={"Ada": Player(name="Ada")})


@pytest.mark.parametrize(
    ("state", "path"), [({"players": {"z": {"name": ""}}}, "/players/z/name"), (5, ""), ({"scor": 1}, "/scor")]
)
async def test_a_value_that_is_no_state_is_refused_at_its_place(room: Handle[Any], state: Any, path: str) -> None:
    with pytest.raises(InvalidState) as refused:
        await room.set_state(state)
    assert refused.value.path == path


async def test_a_function_makes_the_next_model(room: Handle[Room]) -> None:
    await room.set_state(lambda state: state.model_copy(update={"score": Decimal("1.50")}))
    assert (await room.state()).score == Decimal("1.50")
    assert (await room.history())[-1].ops == [Op("replace", "/score", "1.50")]


async def test_a_validator_of_a_whole_model_refuses_a_change(room: Handle[Room]) -> None:
    for name in "abc":
        await room.call(Room.join, Player(name=name))
    with pytest.raises(InvalidState, match="too many players"):
        await room.call(Room.join, Player(name="d"))
    assert len((await room.state()).players) == 3


async def test_a_model_that_was_changed_in_place_is_not_stored(room: Handle[Room]) -> None:
    await room.call(Room.join, Player(name="ada"))
    with pytest.raises(InvalidState) as refused:
        await room.call(Room.break_state)
    assert refused.value.path == "/players/Ada/name"
    assert (await room.state()).players["Ada"].name == "Ada"


async def test_a_change_of_a_model_is_undone(room: Handle[Room]) -> None:
    await room.call(Room.join, Player(name="ada"))
    await room.update("/players/Ada/name", "eve")
    await room.undo("server")
    assert (await room.state()).players["Ada"].name == "Ada"


async def test_a_struct_and_a_dict_may_contain_models(open_thread: Open) -> None:
    mixed: Handle[MixedRoom] = open_thread(MixedRoom)
    assert await mixed.call(MixedRoom.put, [Player(name="q")]) == Mixed(0, [Player(name="Q")])
    assert await mixed.state() == Mixed(0, [Player(name="Q")])
    with pytest.raises(InvalidState) as refused:
        await mixed.update("/players/0/name", "")
    assert refused.value.path == "/players/0/name"
    players: Handle[DictRoom] = open_thread(DictRoom)
    await players.update("/x", {"name": "bo"})
    assert await players.state() == {"x": Player(name="Bo")}


# Arguments and results


async def test_an_argument_that_a_model_refuses_is_refused_at_its_place(room: Handle[Any], open_thread: Open) -> None:
    with pytest.raises(InvalidArguments) as refused:
        await room.call("join", {"name": ""})
    assert refused.value.path == "/player/name"
    with pytest.raises(InvalidArguments) as refused:
        await open_thread(MixedRoom).put([{"name": "a"}, {"name": 1}])
    assert refused.value.path == "/players/1/name"


async def test_a_result_that_its_model_refuses_is_an_error(room: Handle[Room]) -> None:
    with pytest.raises(
        TypeError, match=r"does not fit its annotation: String should have at least 1 character, at /name"
    ):
        await room.call(Room.break_result)


async def test_a_stream_sends_models(room: Handle[Room]) -> None:
    for name in "ab":
        await room.call(Room.join, Player(name=name))
    assert await room.call(Room.each) == [Player(name="A"), Player(name="B")]
    assert [player async for player in room.stream(Room.each)] == [Player(name="A"), Player(name="B")]


async def test_an_agent_gets_and_returns_models(room: Handle[Room]) -> None:
    assert await room.call("run:second", Player(name="zed")) == Player(name="Zed B")
    assert await room.call("run:second", {"name": "q"}) == Player(name="Q B")
    assert await room.call("run:both", Player(name="q")) == [Player(name="Q"), Player(name="Zed")]
    with pytest.raises(InvalidArguments) as refused:
        await room.call("run:second", {"name": ""})
    assert refused.value.path == "/name"


async def test_values_and_metadata_of_messages_are_written_as_json(room: Handle[Room]) -> None:
    values, messages = room.part(Room.values), room.part(Room.messages)
    await values.set("who", Player(name="ada"))
    assert await values.get("who") == {"name": "Ada", "email": None, "born": None}
    await messages.inject("user", "hi", metadata={"by": Player(name="ada")})
    (message,) = (await messages.list()).messages
    assert message.metadata == {"by": {"name": "Ada", "email": None, "born": None}}


# In a store


async def test_models_are_read_again_from_sqlite_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'plait.db'}"
    async with make(store) as app:
        room = app.thread(Room, "one")
        await room.call(Room.join, Player(name="ada", born=datetime.date(1815, 12, 10)))
        await room.set_state(lambda state: state.model_copy(update={"score": Decimal("1.50")}))
        await app.thread(MixedRoom, "one").call(MixedRoom.put, [Player(name="q")])
        before = await room.state()
        exported = [piece async for piece in app.export_thread(Room, "one")]
    async with make(store) as app:
        room = app.thread(Room, "one")
        assert await room.state() == before
        assert before.players["Ada"].born == datetime.date(1815, 12, 10)
        assert await app.thread(MixedRoom, "one").state() == Mixed(0, [Player(name="Q")])
        await room.update("/players/Ada/name", "eve")
        assert [change.version for change in await room.history()] == [1, 2, 3]
        await app.fork_thread(Room, "one", "two", at=2)
        assert await app.thread(Room, "two").state() == before
        await app.import_thread(b"".join(exported), name="three")
        assert await app.thread(Room, "three").state() == before


class Renamed(BaseModel):
    players: list[Player] = []
    title: str = "untitled"


class RenamedRoom(Thread[Renamed]):
    kind = "room"
    initial_state = Renamed()
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def list_players(state: Any) -> Any:
        return {"players": [*state["players"].values()]}

    @rpc
    async def read(self, version: int) -> Renamed:
        return await self.at(version)


class Grown(Game):
    """A game with one more field, and one fewer."""

    title: str = "untitled"


class GrownRoom(Thread[Grown]):
    kind = "room"
    initial_state = Grown()


async def test_a_stored_state_is_migrated_to_another_model(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'plait.db'}"
    async with make(store) as app:
        await app.thread(Room, "one").call(Room.join, Player(name="ada"))
    async with Plait(RenamedRoom, store=store) as app:
        room = app.thread(RenamedRoom, "one")
        assert await room.state() == Renamed(players=[Player(name="Ada")])
        assert await room.call(RenamedRoom.read, 2) == Renamed(players=[Player(name="Ada")])
        with pytest.raises(NotFound):
            await room.call(RenamedRoom.read, 9)


async def test_a_stored_state_gets_the_defaults_of_new_fields(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'plait.db'}"
    async with make(store) as app:
        await app.thread(Room, "one").call(Room.join, Player(name="ada"))
    async with Plait(GrownRoom, store=store) as app:
        room = app.thread(GrownRoom, "one")
        assert await room.state() == Grown(players={"Ada": Player(name="Ada")})
        await room.update("/title", "chess")
        assert (await room.state()).title == "chess"


# Kinds of models


class Box(BaseModel, Generic[T]):
    content: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    age: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    age: int


class Names(RootModel[list[str]]):
    pass


class Zoo(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    pets: list[Cat | Dog] = []
    best: Cat | Dog | None = Field(default=None, discriminator="kind")
    names: Names = Names([])
    box: Box[int] = Box[int](content=1)
    kept_by: str = Field(default="", alias="keptBy")
    opened: datetime.datetime | None = None


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class ZooRoom(Thread[Zoo]):
    initial_state = Zoo()

    @rpc
    def open_box(self, box: Box[Cat], names: Names) -> Box[Names]:
        return Box[Names](content=Names([*names.root, str(box.content.age)]))


class NamesRoom(Thread[Names]):
    initial_state = Names(["a"])


class TreeRoom(Thread[Tree]):
    initial_state = Tree(name="root")


@pytest.fixture
async def zoo() -> AsyncIterator[Handle[ZooRoom]]:
    async with Plait(ZooRoom, NamesRoom, TreeRoom, store="memory://") as app:
        yield app.thread(ZooRoom, "one")


@pytest.mark.parametrize(
    ("pointer", "value", "path"),
    [
        ("/pets/-", {"kind": "cat", "age": "x"}, "/pets/0/age"),
        ("/best", {"kind": "dog", "age": "x"}, "/best/age"),
        ("/best", {"kind": "dog"}, "/best/age"),
        ("/best", {"kind": "cow"}, "/best"),
        ("/names/-", 1, "/names/0"),
        ("/box/content", "x", "/box/content"),
        ("/keptBy", 1, "/keptBy"),
        ("/keptby", "", "/keptby"),
    ],
)
async def test_the_place_of_an_error_has_no_tags_of_unions(
    zoo: Handle[ZooRoom], pointer: str, value: Any, path: str
) -> None:
    with pytest.raises(InvalidState) as refused:
        await zoo.update(pointer, value)
    assert refused.value.path == path


async def test_generic_models_unions_roots_and_aliases_are_states(zoo: Handle[ZooRoom]) -> None:
    await zoo.update("/best", {"kind": "dog", "age": 3})
    await zoo.update("/pets/-", {"kind": "cat", "age": 4})
    await zoo.update("/names/-", "bo")
    await zoo.update("/box/content", 5)
    await zoo.update("/keptBy", "ada")
    await zoo.set_state(
        lambda state: state.model_copy(update={"opened": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)})
    )
    assert await zoo.state() == Zoo(
        best=Dog(age=3),
        pets=[Cat(age=4)],
        names=Names(["bo"]),
        box=Box[int](content=5),
        keptBy="ada",
        opened=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    )
    assert await zoo.call(ZooRoom.open_box, Box[Cat](content=Cat(age=4)), Names(["a"])) == Box[Names](
        content=Names(["a", "4"])
    )


async def test_a_root_model_and_a_recursive_one_are_states() -> None:
    async with Plait(NamesRoom, TreeRoom, store="memory://") as app:
        names, tree = app.thread(NamesRoom, "one"), app.thread(TreeRoom, "one")
        await names.update("/-", "b")
        assert await names.state() == Names(["a", "b"])
        with pytest.raises(InvalidState) as refused:
            await names.update("/-", 1)
        assert refused.value.path == "/2"
        await tree.update("/children/-", {"name": "leaf"})
        assert await tree.state() == Tree(name="root", children=[Tree(name="leaf")])
        with pytest.raises(InvalidState) as refused:
            await tree.update("/children/0/children/-", {"nam": "leaf"})
        assert refused.value.path == "/children/0/children/0/nam"


class Number(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")

    n: float = 0
    of: float | None = None

    @field_validator("n")
    @classmethod
    def _divide(cls, n: float) -> float:
        return n / 0.5 if n != 1 else float("nan")


class NumberRoom(Thread[Number]):
    initial_state = Number()


async def test_a_model_has_no_number_that_json_does_not_have() -> None:
    async with Plait(NumberRoom, store="memory://") as app:
        room = app.thread(NumberRoom, "one")
        for state in (Number.model_construct(of=float("inf")), Number.model_construct(n=float("nan")), Number(n=1)):
            with pytest.raises(InvalidState):
                await room.set_state(state)
        with pytest.raises(InvalidState):
            await room.update("/n", 1)
        assert await room.state() == Number()


class Creature(BaseModel):
    name: str = ""


class Hound(Creature):
    tricks: list[str] = []


class Owner(BaseModel):
    pet: Creature = Creature()
    pets: list[Creature] = []
    named: dict[str, Creature | None] = {}
    shown: Annotated[Creature, PlainSerializer(lambda pet: {"name": pet.name.upper()})] = Creature()
    owner: "Owner | None" = None


class OwnerRoom(Thread[Owner]):
    initial_state = Owner()

    @rpc
    async def set_pet(self, field: str, *, is_deep: bool) -> None:
        async with self.edit() as draft:
            dog: Any = {"pet": Hound(), "pets": [Hound()], "named": {"a": Hound()}}[field]
            if is_deep:
                draft.owner = Owner(**{field: dog})
            else:
                draft[field] = dog


@each_case(
    ("field", "dog", "path"),
    [("pet", Hound(), "/pet"), ("pets", [Hound()], "/pets/0"), ("named", {"a": Hound()}, "/named/a")],
)
async def test_fields_that_a_declared_type_lacks_are_refused_at_any_depth(field: str, dog: Any, path: str) -> None:
    owner = Owner(**{field: dog})
    async with Plait(OwnerRoom, store="memory://") as app:
        room = app.thread(OwnerRoom, "one")
        for place, change in (
            ("", lambda: room.set_state(owner)),
            ("/owner", lambda: room.set_state(Owner(owner=owner))),
            ("", lambda: room.update(f"/{field}", dog)),
            ("/owner", lambda: room.update("/owner", owner)),
            ("", lambda: room.call(OwnerRoom.set_pet, field, is_deep=False)),
            ("/owner", lambda: room.call(OwnerRoom.set_pet, field, is_deep=True)),
        ):
            with pytest.raises(InvalidState) as refused:
                await change()
            assert refused.value.path == f"{place}{path}/tricks"
        await room.set_state(Owner(shown=Hound(name="rex", tricks=["sit"])))
        assert await room.state() == Owner(shown=Creature(name="REX"))


class Heavy(BaseModel):
    rows: list[int] = []


class HeavyRoom(Thread[Heavy]):
    initial_state = Heavy()

    @rpc
    def take(self, given: Heavy) -> int:
        return len(given.rows)

    @endpoint("POST", "/take")
    def receive(self, given: Heavy) -> int:
        return len(given.rows)


HEAVY_BODY = {"rows": ["x"] * 60_000}


async def test_a_stored_model_that_is_too_heavy_may_become_lighter(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/heavy.db"
    async with Plait(HeavyRoom, store=store, limits=None) as app:
        await app.thread(HeavyRoom, "one").update("/rows", [1] * 100_000)
    async with Plait(HeavyRoom, store=store) as app:
        room = app.thread(HeavyRoom, "one")
        with pytest.raises(TooLarge, match="10 times for a model"):
            await room.update("/rows/-", 1)
        await room.update("/rows", [1] * 90_000)
        assert len((await room.state()).rows) == 90_000


async def test_a_model_weighs_ten_times_at_every_door_and_its_errors_do_not_stay() -> None:
    app = Plait(HeavyRoom, store="memory://")

    @app.agent("take", thread=HeavyRoom)
    async def run(ctx: Context[HeavyRoom], given: Heavy) -> int:
        return len(given.rows)

    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web:
        doors: list[tuple[str, str, Any]] = [
            ("POST", "/rpc/take", {"args": [HEAVY_BODY]}),
            ("POST", "/take", HEAVY_BODY),
            ("POST", "/run/take", HEAVY_BODY),
            ("PUT", "", HEAVY_BODY),
        ]
        for method, path, body in doors:
            answer = await web.request(method, f"/threads/heavy-room/one{path}", json=body)
            assert (answer.status_code, "10 times for a model" in answer.text) == (413, True), path
        room = app.thread(HeavyRoom, "one")
        await room.update("/rows", [1] * 30_000)
        with pytest.raises(TooLarge, match="10 times for a model"):
            await room.update("/rows", [1] * 60_000)
        for rows in (["x"] * 40_000, ["x"]):
            gc.collect()
            gc.disable()
            try:
                for method, path, body in doors:
                    given = {"args": [{"rows": rows}]} if "args" in body else {"rows": rows}
                    answer = await web.request(method, f"/threads/heavy-room/one{path}", json=given)
                    assert answer.status_code == 422, path
                    assert ("40000 errors" in answer.text) == (len(rows) > 1)
                found = [each for each in gc.get_objects() if isinstance(each, ModelError)]
            finally:
                gc.enable()
            assert found == []
