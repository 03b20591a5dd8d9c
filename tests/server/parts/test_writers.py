"""The methods that write do so when they are called, whether their result is awaited or not."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from tests.cases import each_case
from tests.schedules import in_soak
from tests.server.parts.workshop import make_store, until

from plait import Context, Messages, Plait, Schedule, Thread, Values, effect, rpc
from plait.actor.turn import current_turn
from plait.kv.kv import KV
from plait.kv.user import User
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.schedule.schedule import ThreadSchedule
from plait.parts.stage import find_stage
from plait.parts.values import ThreadValues

LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    values = Values()
    messages = Messages()
    schedule = Schedule()

    # The app of the test, and the ids of a message and a schedule.
    app: ClassVar[Plait]
    message = schedule_id = ""

    @effect
    def ring(self) -> None:
        """Leave a trace."""
        self.values.set("rang", 1)

    @rpc
    def write(self, name: str) -> str:
        """Call a writer, and forget its result."""
        WRITERS[name](self.find(name))
        return "done"

    @rpc
    def write_wrongly(self, name: str) -> str:
        """Call a writer with arguments that it refuses, and forget its result."""
        WRONG[name](self.find(name))
        return "done"

    def find(self, name: str) -> Any:
        """Return the owner of a writer."""
        owner = name.partition(".")[0]
        return {"user": Room.app.user("ada"), "kv": Room.app.kv}.get(owner) or getattr(self, owner)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "values.set": lambda values: values.set("a", 2),
    "values.delete": lambda values: values.delete("a"),
    "values.clear": lambda values: values.clear(),
    "values.push": lambda values: values.push("list", 2),
    "values.update": lambda values: values.update("a", lambda a: a + 1),
    "values.set_metadata": lambda values: values.set_metadata({"b": 2}),
    "messages.inject": lambda messages: messages.inject("user", "more"),
    "messages.queue": lambda messages: messages.queue("more"),
    "messages.take": lambda messages: messages.take(),
    "messages.update": lambda messages: messages.update(Room.message, "changed"),
    "messages.change": lambda messages: messages.change(
        Room.message, lambda message: replace(message, content="other")
    ),
    "messages.hand_over": lambda messages: messages.hand_over("other"),
    "messages.delete": lambda messages: messages.delete(Room.message),
    "schedule.after": lambda schedule: schedule.after(3600, "ring"),
    "schedule.at": lambda schedule: schedule.at(LATER, "ring"),
    "schedule.every": lambda schedule: schedule.every(3600, "ring"),
    "schedule.cron": lambda schedule: schedule.cron("0 0 * * *", "ring"),
    "schedule.queue": lambda schedule: schedule.queue("ring"),
    "schedule.cancel": lambda schedule: schedule.cancel(Room.schedule_id),
    "user.set": lambda user: user.set("a", 2),
    "user.delete": lambda user: user.delete("a"),
    "user.clear": lambda user: user.clear(),
    "user.push": lambda user: user.push("list", 2),
    "user.update": lambda user: user.update("a", lambda a: a + 1),
    "user.set_metadata": lambda user: user.set_metadata({"b": 2}),
    "kv.set": lambda kv: kv.set("names", "a", 2),
    "kv.delete": lambda kv: kv.delete("names", "a"),
    "kv.create_namespace": lambda kv: kv.create_namespace("new"),
    "kv.delete_namespace": lambda kv: kv.delete_namespace("names"),
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "values.update": lambda values: values.update("a", lambda _: 1 / 0),
    "messages.update": lambda messages: messages.update("unknown", "changed"),
    "user.set": lambda user: user.set("a", object()),
    "user.update": lambda user: user.update("a", lambda _: 1 / 0),
    "kv.set": lambda kv: kv.set("names", "a", object()),
}
Open = Callable[[str], AbstractAsyncContextManager[Plait]]
OWNERS = {"values": ThreadValues, "messages": ThreadMessages, "schedule": ThreadSchedule, "user": User, "kv": KV}
# Those of agents and users: test_durable.py, test_messages_branches.py, test_approvals.py and test_unread.py call them.
OF_AGENTS = {
    *("messages.stop", "messages.resume", "messages.regenerate", "messages.edit", "messages.switch"),
    *("messages.approve", "messages.mark_read"),
}
# The methods that write nothing, or are called by plait itself. A stream writes in its own block.
OTHERS = {
    "values": {*Values.reading, "exchange", "loaded", "dirty"},
    "messages": {*Messages.reading, "load", "clear_queue", "find_sent", "stream", "agent", "is_stopped", "mark"}
    | {"cancel_calls", "senders", "status", "last", "told", "facts", "is_live", *Messages.inner},
    "schedule": {*Schedule.reading, "current", "times", "keeps", "on_due", "load", "clear", "put"} | {"terminate"},
    "user": set(Values.reading),
    "kv": {"get", "keys", "stats", "namespaces", "start", "stop", "sweep"},
}


@asynccontextmanager
async def open_app(store: Any) -> AsyncIterator[Plait]:
    app = Room.app = Plait(Room, store=store)

    @app.agent("do", thread=Room)
    async def do(ctx: Context[Room], name: str) -> str:
        WRITERS[name](ctx.thread.find(name))
        return "done"

    app._node.find_kind(Room).agent_names = ("other",)  # Without an execution, which would take what is queued.
    async with app:
        room = app.thread(Room, "one")
        Room.message = (await room.part(Room.messages).inject("user", "hello")).id
        Room.schedule_id = await room.part(Room.schedule).after(7200, "ring")
        await room.part(Room.messages).queue("queued")
        await room.part(Room.values).set("a", 1)
        await app.user("ada").set("a", 1)
        await app.kv.set("names", "a", 1)
        yield app


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def open_named(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens an app on an empty store of a name."""

    def open_named(name: str) -> AbstractAsyncContextManager[Plait]:
        (folder := tmp_path / name).mkdir()
        return open_app(make_store(request.param, folder))

    return open_named


@pytest.fixture
async def app(open_named: Open) -> AsyncIterator[Plait]:
    async with open_named("one") as app:
        yield app


async def restart(app: Plait) -> None:
    """Put all threads to sleep, so that nothing has been read."""
    await app.__aexit__(None, None, None)
    await app.__aenter__()


async def read_all(app: Plait) -> list[Any]:
    """Return whatever the room, the user and the namespaces have."""
    room, user, kv = app.thread(Room, "one"), app.user("ada"), app.kv
    return [
        await room.part(Room.values).items(),
        await room.part(Room.values).metadata(),
        Room.messages.of(await app._node.actor(room._key)).agent,
        [(each.content, each.status) for each in (await room.part(Room.messages).list()).messages],
        [(each.name, each.every, each.cron, each.is_queued) for each in await room.part(Room.schedule).list()],
        await user.items(),
        await user.metadata(),
        [(name, await kv.keys(name), await kv.get(name, "a")) for name in await kv.namespaces()],
    ]


@each_case("owner", OWNERS)
def test_all_writers_are_known_and_plain_functions(owner: str) -> None:
    methods = {name for cls in OWNERS[owner].__mro__ for name in vars(cls) if not name.startswith("_")}
    assert {f"{owner}.{name}" for name in methods - OTHERS[owner]} == {
        name for name in WRITERS.keys() | OF_AGENTS if name.startswith(f"{owner}.")
    }
    for name in methods - OTHERS[owner]:
        assert not inspect.iscoroutinefunction(getattr(OWNERS[owner], name)), name


Call = Callable[[Plait, str], Awaitable[Any]]


def call_rpc(app: Plait, name: str) -> Awaitable[Any]:
    return app.thread(Room, "one").call(Room.write, name)


def run_agent(app: Plait, name: str) -> Awaitable[Any]:
    return app.run("do", name, thread="one")


@pytest.mark.parametrize("is_asleep", [False, True])
@pytest.mark.parametrize("call", [call_rpc, run_agent])
@pytest.mark.parametrize("owner", OWNERS)
async def test_a_write_whose_result_is_forgotten_is_stored_before_the_call_answers(
    open_named: Open, owner: str, call: Call, *, is_asleep: bool
) -> None:
    @each_case("name", [name for name in WRITERS if name.startswith(f"{owner}.")])
    async def play(name: str) -> None:
        async with open_named(name) as app:
            before = await read_all(app)
            if is_asleep:
                await restart(app)
            assert await call(app, name) == "done"
            if name == "schedule.queue":  # Its effect runs at once.
                await until(lambda: app.thread(Room, "one").part(Room.values).has("rang"))
            after = await read_all(app)
            assert after != before
            await restart(app)
            assert await read_all(app) == after

    await play()


@each_case("name", WRONG)
async def test_the_error_of_a_forgotten_write_is_that_of_the_rpc(app: Plait, name: str) -> None:
    before = await read_all(app)
    with pytest.raises(Exception, match=r"division|unknown|not JSON|neither"):
        await app.thread(Room, "one").call(Room.write_wrongly, name)
    assert await read_all(app) == before


async def test_a_write_that_must_read_first_is_refused_in_a_transaction(app: Plait) -> None:
    await restart(app)
    room = (await app._node.actor(app.thread(Room, "one")._key)).thread
    assert isinstance(room, Room)
    with pytest.raises(RuntimeError, match="read it before"), room.transaction():
        room.messages.update(room.message, "changed")
    assert (await room.messages.get(room.message)).content != "changed"
    with room.transaction():
        room.values.update("a", lambda a: a + 1)
    assert dict(await room.values.items())["a"] == 2


async def test_a_turn_and_a_run_forget_the_writes_that_they_have_awaited() -> None:
    app = Plait(Room, store="memory://")
    kept: list[int] = []

    @app.agent("long", thread=Room)
    async def long(ctx: Context[Room]) -> None:
        message = await ctx.thread.messages.inject("user", "hello")
        await ctx.flush()
        for number in range(10):
            await ctx.thread.messages.update(message.id, str(number))
            await app.user("ada").set("a", number)
            turn, stage = current_turn(), find_stage(ctx.thread._actor)
            assert turn is not None
            assert stage is not None
            kept.extend((len(turn.begun), len(stage.begun)))

    async with app:
        await app.run("long", thread="one")
    assert kept == [1] * 20


async def test_a_user_gets_the_values_as_they_were_when_the_write_began(app: Plait) -> None:
    user, value, metadata = app.user("bea"), [1], {"x": [1]}
    writes = [user.set("a", value), user.push("b", value), user.set_metadata(metadata)]
    value.append(2)
    metadata["x"].append(2)
    for write in writes:
        await write
    assert (await user.items(), await user.metadata()) == ([("a", [1]), ("b", [[1]])], {"x": [1]})
