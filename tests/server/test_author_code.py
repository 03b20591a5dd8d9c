"""Code of authors that ends itself: its error is told and logged, and the server goes on."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.cases import each_case
from tests.server.parts.workshop import until

from plait import (
    Agent,
    Connection,
    Context,
    Hooks,
    Message,
    Messages,
    MigrationFailed,
    Model,
    Plait,
    Principal,
    Prompt,
    Schedule,
    Side,
    Step,
    Stream,
    TaskRun,
    Tasks,
    Thread,
    effect,
    endpoint,
    migrate,
    rpc,
    task,
    tool,
)
from plait.parts.attempts import RetryPolicy
from plait.testing import Served, serve
from plait.testing.asgi import HOST
from plait_client import CallError, ClientError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": False}


class Trouble:
    """The place where code ends itself, how, and how often it has."""

    def __init__(self) -> None:
        self.place = self.way = ""
        self.count = 0
        # Whether other code of the author has got the error, which is then not logged.
        self.is_told = False

    def now(self, place: str) -> None:
        """End a function that does not await."""
        if place == self.place:
            self.count += 1
            _raise(self.way)

    async def later(self, place: str) -> None:
        """End a function that awaits."""
        if place != self.place:
            return
        self.count += 1
        await asyncio.sleep(0)
        match self.way:
            case "own task":
                _cancel_own()
                await asyncio.sleep(0)
            case "returned":
                _cancel_own()
            case "callback":  # As a cancel scope that is left open.
                asyncio.get_running_loop().call_soon(_cancel_own, asyncio.current_task())
                await asyncio.Event().wait()
            case "hang":
                await asyncio.Event().wait()
            case "":
                pass
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(_later("SystemExit"))
                    group.create_task(asyncio.Event().wait())
            case "gathered":
                await asyncio.gather(_later("SystemExit"), asyncio.sleep(0))
            case "gathered own":
                await asyncio.gather(_later("own task"), asyncio.sleep(0))
            case "thread":
                await asyncio.to_thread(sys.exit, "no")
            case way:
                _raise(way)


def _raise(way: str) -> None:
    raise {
        "Exception": LookupError("no"),
        "SystemExit": SystemExit("no"),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "CancelledError": asyncio.CancelledError(),
        "GeneratorExit": GeneratorExit(),
    }[way]


def _cancel_own(task: asyncio.Task[Any] | None = None) -> None:
    task = task or asyncio.current_task()
    assert task is not None
    task.cancel()


async def _later(way: str) -> None:
    await asyncio.sleep(0)
    if way == "own task":
        _cancel_own()
        await asyncio.sleep(0)
    _raise(way)


NOW = ("Exception", "SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")
LATER = (*NOW, "own task", "returned", "group", "gathered", "gathered own", "thread")

# A turn also knows that plait has not cancelled it.
TURN = (*LATER, "callback")

trouble = Trouble()


class Given(msgspec.Struct):
    text: str = ""

    def __post_init__(self) -> None:
        trouble.now("__post_init__")


class Checked(Hooks):
    async def filter_messages(self, thread: Any, messages: Any) -> None:
        await trouble.later("filter_messages")

    def before_create_message(self, thread: Any, message: Message) -> None:
        if message.role == "user":
            trouble.now("before_create_message")

    async def after_create_message(self, thread: Any, message: Message) -> None:
        if message.role == "user":
            await trouble.later("after_create_message")


class Room(Thread[dict[str, Any]]):
    idle_timeout = 1.0
    turn_timeout = 30.0
    schedule = Schedule()
    tasks = Tasks()

    @staticmethod
    def initial_state() -> dict[str, Any]:
        trouble.now("initial_state")
        return {"n": 0}

    def __init__(self) -> None:
        trouble.now("__init__")

    def card(self, state: dict[str, Any]) -> dict[str, Any]:
        trouble.now("card")
        return state

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        trouble.now("validate_state_change")

    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        trouble.now("resolve_conflict")
        return proposed

    async def on_state_changed(self, state: dict[str, Any], source: object) -> None:
        await trouble.later("on_state_changed")

    async def on_start(self) -> None:
        await trouble.later("on_start")

    async def on_stop(self) -> None:
        await trouble.later("on_stop")

    async def on_destroyed(self) -> None:
        await trouble.later("on_destroyed")

    async def on_terminated(self) -> None:
        await trouble.later("on_terminated")

    async def on_task_end(self, run: TaskRun) -> None:
        await trouble.later("on_task_end")

    async def connection_tags(self, connection: Connection, request: Any) -> list[str]:
        await trouble.later("connection_tags")
        return []

    async def should_be_readonly(self, connection: Connection, request: Any) -> bool:
        await trouble.later("should_be_readonly")
        return False

    async def on_connect(self, connection: Connection, request: Any) -> None:
        await trouble.later("on_connect")

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await trouble.later("on_message")
        if "fail" in str(data):
            raise ValueError("for on_error")

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        await trouble.later("on_close")

    async def on_request(self, request: Any) -> Any:
        await trouble.later("on_request")

    async def on_error(self, error: BaseException, connection: Connection | None) -> None:
        await trouble.later("on_error")
        super().on_error(error, connection)

    @endpoint("GET", "/things")
    async def things(self) -> list[int]:
        await trouble.later("endpoint")
        return []

    @rpc
    def ping(self) -> int:
        return 1

    @rpc
    async def set(self, n: int) -> None:
        await self.set_state({"n": n})

    @rpc
    def now(self) -> None:
        trouble.now("rpc def")

    @rpc
    async def later(self) -> None:
        await trouble.later("rpc")

    @rpc(concurrent=True)
    async def beside(self) -> None:
        await trouble.later("concurrent rpc")

    @rpc
    async def count(self) -> AsyncIterator[int]:
        yield 1
        await trouble.later("stream")

    @rpc
    async def send(self, stream: Stream) -> None:
        stream.send(1)
        await trouble.later("Stream")

    @rpc
    def take(self, given: Given) -> None: ...

    @rpc
    async def plan(self, seconds: float) -> None:
        await self.schedule.after(seconds, "act")

    @effect(attempts=2, base=0.1)
    async def act(self) -> None:
        await trouble.later("effect")

    @task
    async def work(self, step: Step) -> int:
        await trouble.later("task")
        await step.do("sync", lambda: trouble.now("step def"), attempts=2, base=0.1)
        await step.do("async", self._step, attempts=2, base=0.1)
        return 1

    async def _step(self) -> None:
        await trouble.later("step")


class Desk(Thread[dict[str, Any]]):
    tasks = Tasks()
    messages = Messages(agent="desk")

    @rpc
    async def invoke(self) -> Any:
        return await self.agents.invoke_tool("look", {})

    @rpc
    def ping(self) -> int:
        return 1


class Young(Thread[dict[str, Any]]):
    kind = "aged"
    initial_state = {"n": 0}  # noqa: RUF012


class Aged(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    state_version = 2

    @migrate(from_=1)
    @staticmethod
    def grow(state: Any) -> Any:
        trouble.now("migrate")


class Chat(Thread[dict[str, Any]]):
    messages = Messages(agent="chat")

    @rpc
    def ping(self) -> int:
        return 1


@tool
async def look(desk: Any) -> str:
    """Look."""
    await trouble.later("tool")
    return "seen"


async def say(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
    await trouble.later("model")
    yield "Hello."


async def describe(desk: Any) -> str:
    await trouble.later("prompt")
    return "You are a clerk."


async def authenticate(request: Any) -> Principal:
    await trouble.later("authenticate")
    return Principal("ada")


async def authorize(principal: Any, thread: Any, action: str) -> bool:
    if action in ("connect", "read", "request"):
        await trouble.later("authorize")
    return True


async def find_thread(request: Any) -> str:
    await trouble.later("thread_ids")
    return "x"


def make_app(store: str = "memory://") -> Plait:
    app = Plait(
        Room,
        Desk,
        Aged,
        Chat,
        store=store,
        authenticate=authenticate,
        authorize=authorize,
        thread_ids=find_thread,
        shutdown_timeout=0.05,
    )
    app.execution(
        Desk,
        agents=[Agent("desk", Side("clerk"))],
        prompts=[Prompt("clerk", describe, "model", [look], hooks=Checked())],
        models=[Model("model", FunctionModel(stream_function=say, model_name="said"), attempts=2)],
    )

    @app.agent("do", thread=Room)
    async def do(ctx: Context[Room]) -> None:
        ctx.wait_until(lambda: trouble.later("wait_until"))
        await trouble.later("agent")

    @app.agent("stream", thread=Room)
    async def stream(ctx: Context[Room]) -> AsyncIterator[int]:
        yield 1
        await trouble.later("streaming agent")

    @app.agent("durable", thread=Room, durable=True)
    async def durable(ctx: Context[Room]) -> None:
        await trouble.later("durable agent")

    @app.agent("chat", thread=Chat)
    async def chat(ctx: Context[Chat]) -> None:
        await trouble.later("agent of a queue")
        await ctx.thread.messages.take()

    async def listen(ctx: Context[Room]) -> None:
        await trouble.later("listener")

    app.on("agent.completed", listen)
    app.on("thread.created", lambda _: trouble.later("listener of threads"))
    app.on_startup(lambda: trouble.later("on_startup"))
    return app


# What makes plait call the code


async def fail(work: Awaitable[object]) -> None:
    """Wait for a call of server code, which gets the error."""
    with pytest.raises((LookupError, RuntimeError, ExceptionGroup)):
        await work
    trouble.is_told = True


async def get_made(t: Served, path: str) -> None:
    await t.app.thread(Room, "x").call(Room.set, 1)
    await get(t, path)


async def get(t: Served, path: str, method: str = "GET", status: int = 500) -> None:
    transport = httpx.ASGITransport(app=t.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        answer = await client.request(method, path, content=None if method == "GET" else "{}")
    assert (answer.status_code, "error" in answer.json()) == (status, True), answer.text


async def by_client(t: Served, name: str, *args: Any) -> None:
    async with t.connect(Room, "x") as room:
        with pytest.raises(CallError) as caught:
            await room.call(name, *args)
        assert caught.value.code in ("call_failed", "invalid_arguments")


async def stream(t: Served, name: str) -> None:
    async with t.connect(Room, "x") as room:
        with pytest.raises(CallError):
            assert [each async for each in room.stream(name)]


async def change(t: Served) -> None:
    async with t.connect(Room, "x") as room:
        with pytest.raises(ClientError):
            await room.set({"n": 1})
        assert room.state == {"n": 0}
    await get(t, "/threads/room/x", "PUT", status=409)
    await fail(t.app.thread(Room, "x").call(Room.set, 1))


async def conflict(t: Served) -> None:
    async with t.connect(Room, "x") as one, t.connect(Room, "x") as two:
        outcomes = await asyncio.gather(one.set({"n": 1}), two.set({"n": 2}), return_exceptions=True)
        assert [isinstance(each, ClientError) for each in outcomes] == [False, True]


async def bring(t: Served) -> None:
    async with Plait(Young, store="memory://") as app:
        await app.thread(Young, "x").set_state({"n": 1})
        lines = [each async for each in app.export_thread(Young, "x")]
    with pytest.raises(MigrationFailed):
        await t.app.import_thread(b"".join(lines))
    trouble.is_told = True


async def start(_: Served) -> None:
    async def enter() -> None:
        async with make_app():
            pass

    await fail(enter())


async def change_anyway(t: Served) -> None:
    await t.app.thread(Room, "x").call(Room.set, 1)
    await t.clock.advance(0.1)
    assert await t.app.thread(Room, "x").state() == {"n": 1}


async def join(t: Served) -> None:
    with suppress(ClientError):
        async with t.connect(Room, "x", open_timeout=0.05):
            pass
    await t.clock.advance(0.1)


async def come_and_go(t: Served) -> None:
    async with t.connect(Room, "x"):
        pass
    await t.clock.advance(0.1)


async def message(t: Served, text: str = "hello") -> None:
    async with t.connect(Room, "x") as room:
        room.send(text)
        await t.clock.advance(0.1)
        assert await room.call("ping") == 1


async def refused(t: Served) -> None:
    with pytest.raises(ClientError):
        async with t.connect(Room, "x", open_timeout=0.05):
            pass
    await get(t, "/threads/room/x")


async def sleep(t: Served) -> None:
    await t.app.thread(Room, "x").call(Room.ping)
    await t.clock.advance(5)


async def work(t: Served, status: str = "failed") -> None:
    run = await t.app.thread(Room, "x").tasks.run("work")
    await t.clock.advance(5)
    found = await t.app.thread(Room, "x").tasks.get(run.id)
    assert found is not None
    assert found.status == status


async def plan(t: Served) -> None:
    await t.app.thread(Room, "x").call(Room.plan, 1)
    await t.clock.advance(5)


async def ask(t: Served, answer: str, cls: Any = Desk) -> None:
    queued = t.app.thread(cls, "x").messages.queue("Hello?")
    await (queued if answer else fail(queued))
    await t.clock.advance(600)
    found = await t.app.thread(cls, "x").messages.list(10)
    assert [each.content or "" for each in found.messages][-1:] == ([answer] if answer else [])


async def invoke(t: Served) -> None:
    result = await t.app.thread(Desk, "x").call(Desk.invoke)
    assert result["is_error"]
    assert result["text"].startswith("Failed to execute tool")


async def end(t: Served, method: str) -> None:
    await t.app.thread(Room, "x").call(Room.set, 1)
    await getattr(t.app.thread(Room, "x"), method)()
    await t.clock.advance(0.1)


async def run(t: Served) -> None:
    await t.app.run("do", thread="x")
    await t.clock.advance(0.1)


async def run_stream(t: Served) -> None:
    async def read() -> list[int]:
        return [each async for each in t.app.stream("stream", thread="x")]

    await fail(read())


SAID = "Something went wrong, so there is no answer."
ROOM = "/threads/room/x"

# The ways in which the code at a place may end, how often it is called, and what has it called.
PLACES: dict[str, tuple[tuple[str, ...], int, Callable[[Served], Awaitable[None]]]] = {
    "rpc": (TURN, 1, lambda t: by_client(t, "later")),
    "rpc def": (NOW, 1, lambda t: by_client(t, "now")),
    "concurrent rpc": (TURN, 1, lambda t: by_client(t, "beside")),
    "stream": (TURN, 1, lambda t: stream(t, "count")),
    "Stream": (TURN, 1, lambda t: stream(t, "send")),
    "__post_init__": (NOW, 1, lambda t: by_client(t, "take", {"text": "a"})),
    "on_message": (TURN, 1, message),
    "on_request": (TURN, 1, lambda t: get_made(t, f"{ROOM}/other")),
    "endpoint": (TURN, 1, lambda t: get_made(t, f"{ROOM}/things")),
    "on_start": (TURN, 1, lambda t: fail(t.app.thread(Room, "x").call(Room.ping))),
    "__init__": (NOW, 1, lambda t: fail(t.app.thread(Room, "x").call(Room.ping))),
    "initial_state": (NOW, 1, lambda t: fail(t.app.thread(Room, "x").call(Room.ping))),
    "on_stop": (TURN, 1, sleep),
    "on_destroyed": (LATER, 1, lambda t: end(t, "destroy")),
    "on_terminated": (LATER, 1, lambda t: end(t, "terminate")),
    "on_state_changed": (TURN, 1, change_anyway),
    "card": (NOW, 1, change_anyway),
    "validate_state_change": (NOW, 3, change),
    "resolve_conflict": (NOW, 1, conflict),
    "migrate": (NOW, 1, bring),
    "on_startup": (LATER, 1, start),
    "connection_tags": (LATER, 0, join),
    "should_be_readonly": (LATER, 0, join),
    "on_connect": (LATER, 1, come_and_go),
    "on_close": (TURN, 1, come_and_go),
    "on_error": (TURN, 1, lambda t: message(t, "fail")),
    "authenticate": (LATER, 0, refused),
    "authorize": (LATER, 0, refused),
    "thread_ids": (LATER, 1, lambda t: get(t, "/run/do", "POST")),
    "effect": (TURN, 2, plan),
    "task": (TURN, 1, work),
    "step def": (NOW, 2, work),
    "step": (LATER, 2, work),
    "on_task_end": (TURN, 1, lambda t: work(t, "done")),
    "agent": (TURN, 1, lambda t: fail(t.app.run("do", thread="x"))),
    "wait_until": (LATER, 1, run),
    "listener": (LATER, 1, run),
    "listener of threads": (LATER, 1, change_anyway),
    "streaming agent": (TURN, 1, run_stream),
    "durable agent": (TURN, 1, lambda t: fail(t.app.run("durable", thread="x"))),
    "agent of a queue": (TURN, 5, lambda t: ask(t, "Hello?", Chat)),
    "model": (LATER, 2, lambda t: ask(t, SAID)),
    "prompt": (LATER, 3, lambda t: ask(t, SAID)),
    "tool": (LATER, 1, invoke),
    "filter_messages": (LATER, 1, lambda t: ask(t, "Hello.")),
    "before_create_message": (NOW, 1, lambda t: ask(t, "")),
    "after_create_message": (LATER, 1, lambda t: ask(t, "Hello.")),
}


# What these have done is stored or sent when they return; that they have cancelled their task changes nothing.
DONE = ("stream", "effect", "agent of a queue")


@pytest.mark.parametrize("place", PLACES)
async def test_code_that_ends_itself_has_failed(place: str, caplog: pytest.LogCaptureFixture) -> None:
    ways, count, provoke = PLACES[place]

    @each_case("way", [way for way in ways if way != "returned" or place not in DONE])
    async def play(way: str) -> None:
        caplog.clear()
        async with serve(make_app()) as t:
            trouble.place, trouble.way, trouble.count, trouble.is_told = place, way, 0, False
            try:
                await provoke(t)
            finally:
                trouble.place = ""
            assert trouble.count == count or (trouble.count and not count)  # Clients connect again.
            logged = [each for each in caplog.records if each.levelno >= logging.WARNING and each.exc_info]
            assert logged or trouble.is_told
            # The server and the thread go on.
            for cls in (Room, Chat):
                name = "y" if place == "on_terminated" else "x"
                assert await t.app.thread(cls, name).call(cls.ping) == 1

    await play()


@pytest.mark.parametrize("how", ["by plait", "by the loop"])
@pytest.mark.parametrize("place", ["effect", "task", "step", "agent of a queue", "durable agent"])
async def test_a_shutdown_is_no_failure_of_the_code_that_it_ends(
    place: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plait.node.draining._GRACE", 0.05)
    monkeypatch.setattr("plait.parts.attempt_runner.PAUSES", RetryPolicy(5, 0.05, 300.0))

    def make(way: str) -> Plait:
        trouble.place, trouble.way, trouble.count = place, way, 0
        return make_app(f"sqlite:///{tmp_path / 'plait.db'}")

    async with make("hang") as app:
        room = app.thread(Room, "x")
        match place:
            case "effect":
                await room.call(Room.plan, 0.01)
            case "agent of a queue":
                await app.thread(Chat, "x").messages.queue("Hello?")
            case _:
                await room.tasks.run("durable" if place == "durable agent" else "work")
        await until(lambda: trouble.count > 0)
        if how == "by the loop":
            app.drain()
            for each in asyncio.all_tasks():
                if each.get_name().startswith(("effect ", "task ", "agent ")):
                    each.cancel()
    async with make(""):
        await until(lambda: trouble.count > 0)
    assert not [each for each in caplog.records if each.exc_info]
