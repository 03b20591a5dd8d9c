"""An app that runs in a test: its clients, and the time that passes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field
from tests.cases import each_case

from plait import (
    Connection,
    Context,
    MemoryStore,
    Messages,
    NotFound,
    Plait,
    Principal,
    Reject,
    Schedule,
    StoreError,
    Thread,
    current,
    effect,
    rpc,
)
from plait.testing import Served, serve
from plait_client import CallError, ClientError, Closed, Refused

HOUR = 3600.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


class Bells(msgspec.Struct, frozen=True):
    ticks: int = 0
    later: int = 0
    hours: int = 0
    callers: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def plus(state: Bells, **changes: Any) -> Bells:
    """Return a state in which some fields are larger."""
    return msgspec.structs.replace(state, **{name: getattr(state, name) + each for name, each in changes.items()})


class Tower(Thread[Bells]):
    """Rings at certain times."""

    initial_state = Bells()
    schedule = Schedule()

    @rpc
    async def begin(self) -> None:
        await self.schedule.every(60, "tick")
        await self.schedule.after(HOUR, "ring_later")
        await self.schedule.cron("0 * * * *", "ring_hour", tz="UTC")

    @rpc
    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rpc
    def say_who(self) -> str | None:
        connection = current().connection
        assert connection is not None
        name = connection.principal.id if connection.principal is not None else ""
        self.set_state(lambda state: plus(state, callers=(name,)))
        return name

    def validate_state_change(self, next_state: Bells, source: object) -> None:
        if next_state.ticks < 0:
            raise Reject("no ticks are left", path="/ticks")

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        who = connection.principal.id if connection.principal is not None else "someone"
        self.set_state(lambda state: plus(state, left=(f"{who} {code}",)))

    @effect
    def tick(self) -> None:
        self.set_state(lambda state: plus(state, ticks=1))

    @effect
    def ring_later(self) -> None:
        self.set_state(lambda state: plus(state, later=1))

    @effect
    def ring_hour(self) -> None:
        self.set_state(lambda state: plus(state, hours=1))


def make_app(*kinds: type[Thread[Any]], **settings: Any) -> Plait:
    return Plait(*(kinds or (Tower,)), store=MemoryStore(), **settings)


@pytest.fixture
async def t() -> AsyncIterator[Served]:
    """An app whose clients must be known."""
    async with serve(make_app(authenticate=lambda request: None)) as served:
        yield served


ADA, BOB = Principal("ada"), Principal("bob")


# Time


async def test_an_hour_has_sixty_minutes_and_two_users_see_each(t: Served) -> None:
    async with t.connect(Tower, "x", principal=ADA) as ada, t.connect(Tower, "x", principal=BOB) as bob:
        await ada.call(Tower.begin)
        await t.clock.advance(HOUR)
        assert ada.state == bob.state == Bells(ticks=60, later=1, hours=1)
        await t.clock.advance(HOUR)
        assert ada.state == bob.state == Bells(ticks=120, later=1, hours=2)


async def test_a_turn_that_takes_too_long_is_cancelled(t: Served) -> None:
    async with t.connect(Tower, "x", principal=ADA) as ada:
        call = asyncio.create_task(ada.call(Tower.wait, 100))
        await t.clock.advance(29)
        assert not call.done()
        await t.clock.advance(2)
        with pytest.raises(CallError, match=r"wait took too long \(turn_timeout\)"):
            await call


async def test_a_turn_that_sleeps_ends_at_its_time(t: Served) -> None:
    async with t.connect(Tower, "x", principal=ADA) as ada:
        call = asyncio.create_task(ada.call(Tower.wait, 20))
        await t.clock.advance(20)
        assert call.done()


async def test_a_thread_falls_asleep_and_wakes_when_it_is_due(t: Served) -> None:
    tower = t.app.thread(Tower, "x")
    await tower.call(Tower.begin)
    await t.clock.advance(6 * HOUR)
    state = await tower.state()
    assert (state.ticks, state.later, state.hours) == (360, 1, 6)


async def test_an_idle_thread_falls_asleep_and_wakes_when_it_is_used() -> None:
    woken: list[str] = []

    class Sleepy(Tower):
        idle_timeout = 60.0

        def on_start(self) -> None:
            woken.append("start")

        def on_stop(self) -> None:
            woken.append("stop")

    async with serve(make_app(Sleepy)) as t:
        await t.app.thread(Sleepy, "x").set_state(Bells(1))
        await t.clock.advance(59)
        assert woken == ["start"]
        await t.clock.advance(2)
        assert woken == ["start", "stop"]
        assert await t.app.thread(Sleepy, "x").state() == Bells(1)
        assert woken == ["start", "stop", "start"]


async def test_a_thread_expires() -> None:
    class Brief(Tower):
        expires_after = 2 * HOUR

    async with serve(make_app(Brief)) as t:
        await t.app.thread(Brief, "x").set_state(Bells(1))
        await t.clock.advance(HOUR)
        assert [row.key.name async for row in t.app.threads()] == ["x"]
        await t.clock.advance(4 * HOUR)
        assert [row.key.name async for row in t.app.threads()] == []


async def test_an_entry_of_kv_expires(t: Served) -> None:
    await t.app.kv.set("cities", "Rome", 3, ttl=HOUR)
    await t.clock.advance(HOUR - 60)
    assert (await t.app.kv.get("cities", "Rome")).data == 3
    await t.clock.advance(60)
    assert not (await t.app.kv.get("cities", "Rome")).exists


async def test_a_principal_expires(t: Served) -> None:
    ada = Principal("ada", expires_at=t.clock.now + HOUR)
    async with t.connect(Tower, "x", principal=ada) as room, t.connect(Tower, "x", principal=BOB) as bob:
        await t.clock.advance(HOUR - 1)
        assert room.status == "online"
        await t.clock.advance(1)
        assert room.status == "closed"
        with pytest.raises(Closed, match="the token has expired"):
            await room.call(Tower.say_who)
        assert bob.state.left == ("ada 4401",)
    with pytest.raises(Closed, match="the token has expired"):
        await t.connect(Tower, "x", principal=ada).__aenter__()


async def test_a_token_is_renewed_before_it_expires() -> None:
    shown: list[str] = []

    async def authenticate(request: Any) -> Principal:
        shown.append(request.headers["authorization"])
        return Principal("ada", expires_at=t.clock.now + HOUR)

    async with serve(make_app(authenticate=authenticate)) as t:
        tokens = iter(range(100))
        async with t.connect(Tower, "x", token=lambda: f"t{next(tokens)}") as ada:
            await t.clock.advance(3 * HOUR)
            assert ada.status == "online"
            assert shown == ["Bearer t0", "Bearer t1", "Bearer t2", "Bearer t3"]


async def test_a_run_of_twenty_has_one_order() -> None:
    orders = [await play() for _ in range(20)]
    assert len(orders[0]) == 17 + 15 + 13 + 12 + 10
    assert orders == [orders[0]] * 20


async def play() -> list[tuple[str, int]]:
    """Return which threads ticked, in order, and at which second."""
    ticks: list[tuple[str, int]] = []

    class Metronome(Thread[Any]):
        initial_state = 0
        schedule = Schedule()

        @rpc
        def begin(self, seconds: float) -> None:
            self.schedule.every(seconds, "tick")

        @effect
        def tick(self) -> None:
            ticks.append((self.name, round(t.clock.now - start)))
            self.set_state(lambda count: count + 1)

    async with serve(make_app(Metronome)) as t:
        start = t.clock.now
        for seconds in range(7, 12):
            await t.app.thread(Metronome, f"every {seconds}").call(Metronome.begin, seconds)
        await t.clock.advance(120)
    assert all(second % int(name.removeprefix("every ")) == 0 for name, second in ticks)
    return ticks


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are set."""

    timers = 0

    def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **kwargs)


@each_case(("ticks", "clients", "most"), [(0, 0, 300), (0, 3, 300), (60, 0, 850)])
def test_an_hour_sets_few_timers(ticks: int, clients: int, most: int) -> None:
    async def count() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with serve(make_app()) as t, AsyncExitStack() as stack:
            tower = t.app.thread(Tower, "x")
            for _ in range(clients):
                await stack.enter_async_context(t.connect(Tower, "x"))
            if ticks:
                await tower.call(Tower.begin)
            await t.clock.settle()
            before = loop.timers
            await t.clock.advance(HOUR)
            after = loop.timers
            assert (await tower.state()).ticks == ticks
            return after - before

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(count()) <= most


async def test_a_turn_is_not_timed_out_while_an_os_thread_works() -> None:
    class Shop(Thread[int]):
        initial_state = 0

        @rpc
        async def total(self) -> int:
            return await asyncio.to_thread(self.add_up)

        def add_up(self) -> int:
            time.sleep(0.2)
            return 7

    async with serve(make_app(Shop)) as t, t.connect(Shop, "x") as shop:
        call = asyncio.create_task(shop.call(Shop.total))
        await t.clock.advance(HOUR)
        assert await call == 7


async def test_an_effect_that_fails_is_tried_again_at_its_time() -> None:
    tried: list[float] = []

    class Flaky(Thread[None]):
        schedule = Schedule()

        @effect(attempts=3, base=10, most=100)
        def ring(self) -> None:
            tried.append(t.clock.now)
            raise ConnectionError("the bell is away")

    async with serve(make_app(Flaky)) as t:
        await t.app.thread(Flaky, "x").part(Flaky.schedule).after(60, "ring")
        await t.clock.advance(60)
        assert len(tried) == 1
        await t.clock.advance(HOUR)
        assert len(tried) == 3
        assert 5 <= tried[1] - tried[0] <= 10
        assert 10 <= tried[2] - tried[1] <= 20


# Users


async def test_a_client_is_known_by_its_principal_and_otherwise_by_authenticate() -> None:
    def authenticate(request: Any) -> Principal | None:
        name = request.headers.get("x-user") or request.headers.get("authorization", "").removeprefix("Bearer ")
        return Principal(name) if name else None

    async with serve(make_app(authenticate=authenticate)) as t:
        for options in ({"principal": ADA}, {"token": "ada"}, {"headers": {"X-User": "ada"}}):
            async with t.connect(Tower, "x", **options) as room:  # type: ignore[arg-type]
                assert await room.call(Tower.say_who) == "ada"
        with pytest.raises(Closed, match="authentication required"):
            await t.connect(Tower, "x").__aenter__()


async def test_an_app_without_authenticate_knows_the_principal_too() -> None:
    async with serve(make_app()) as t, t.connect(Tower, "x", principal=ADA) as ada, t.connect(Tower, "x") as anyone:
        assert await ada.call(Tower.say_who) == "ada"
        assert await anyone.call(Tower.say_who) == ""


async def test_authorize_is_asked_about_the_principal() -> None:
    asked: list[tuple[str, str]] = []

    def authorize(principal: Principal | None, thread: Any, action: str) -> bool:
        asked.append((principal.id if principal is not None else "", action))
        return principal != BOB

    async with serve(make_app(authorize=authorize)) as t:
        async with t.connect(Tower, "x", principal=ADA):
            assert asked[0] == ("ada", "connect")
        with pytest.raises(Closed, match="you may not connect tower/x"):
            await t.connect(Tower, "x", principal=BOB).__aenter__()


async def test_the_end_of_a_client_is_told(t: Served) -> None:
    async with t.connect(Tower, "x", principal=BOB) as bob:
        async with t.connect(Tower, "x", principal=ADA):
            pass
        await t.clock.settle()
        assert bob.state.left == ("ada 1000",)


async def test_a_disconnected_user_connects_again(t: Served) -> None:
    async with t.connect(Tower, "x", principal=BOB) as bob, t.connect(Tower, "x", principal=ADA) as ada:
        assert await t.app.disconnect("ada") == 1
        await t.clock.settle()
        assert (ada.status, bob.status) == ("online", "online")
        assert bob.state.left == ("ada 4401",)


async def test_changes_are_refused_as_over_a_socket(t: Served) -> None:
    async with t.connect(Tower, "x", principal=ADA) as ada:
        with pytest.raises(Refused, match="no ticks are left"):
            await ada.update("/ticks", -1)
        assert await ada.update("/ticks", 7) == 1
        assert ada.state.ticks == 7


async def test_any_name_of_a_thread_can_be_used(t: Served) -> None:
    for name in ("a/b", "ä ö", "100%", "?x=1#y", "..."):
        async with t.connect(Tower, name, principal=ADA) as room:
            assert room.thread == f"tower/{name}"
    with pytest.raises(NotFound, match="a thread's name must have 1 to 256 characters"):
        t.connect(Tower, "")


class Score(BaseModel):
    points: int = Field(default=0, ge=0)


async def test_a_state_has_the_type_of_its_thread() -> None:
    class Pitch(Thread[Score]):
        initial_state = Score()

    async with serve(make_app(Pitch)) as t, t.connect(Pitch, "x") as pitch:
        await pitch.set(Score(points=3))
        assert pitch.state == Score(points=3)


async def test_presence_and_events_reach_the_others() -> None:
    class Meeting(Thread[None]):
        @rpc
        def shout(self, text: str) -> None:
            self.emit("shout", text)

    async with serve(make_app(Meeting)) as t, t.connect(Meeting, "x") as one, t.connect(Meeting, "x") as other:
        heard: list[str] = []
        other.on_event("shout", heard.append)
        one.set_presence({"cursor": 3})
        await one.call(Meeting.shout, "hello")
        await t.clock.advance(1)
        assert heard == ["hello"]
        assert list(other.presence.values()) == [{"cursor": 3}]


# Work that lasts


class Desk(Thread[None]):
    """Has an agent for its messages."""

    messages = Messages(agent="clerk")


async def test_a_queued_message_is_tried_again_at_its_time() -> None:
    app = make_app(Desk)
    tried: list[float] = []

    @app.agent("clerk", thread=Desk)
    async def clerk(ctx: Context[Desk]) -> None:
        tried.append(t.clock.now)
        await ctx.thread.messages.take()
        if len(tried) < 3:
            raise ConnectionError("the model is busy")

    async with serve(app) as t:
        messages = app.thread(Desk, "x").part(Desk.messages)
        await messages.queue("hello")
        await t.clock.settle()
        assert len(tried) == 1
        await t.clock.advance(HOUR)
        assert len(tried) == 3
        assert 0 < tried[1] - tried[0] < tried[2] - tried[1] < HOUR
        assert [each.status for each in (await messages.list()).messages] == ["completed"]


async def test_queued_runs_begin_end_and_expire_at_their_times() -> None:
    class Room(Thread[None]):
        pass

    app = make_app(Room)
    done: list[int] = []

    @app.agent("wait", thread=Room, timeout=100)
    async def wait(ctx: Context[Room], seconds: int) -> int:
        await asyncio.sleep(seconds)
        done.append(seconds)
        return seconds

    async with serve(app) as t, t.connect(Room, "x") as room:
        runs = [asyncio.create_task(room.run("wait", seconds)) for seconds in (40, 10, 200, 1)]
        for seconds, expected in ((40, [40]), (9, [40]), (1, [40, 10]), (10, [40, 10]), (90, [40, 10])):
            await t.clock.advance(seconds)
            assert done == expected
        assert [run.done() for run in runs] == [True] * 4
        with pytest.raises(CallError, match="took longer than 100 s"):
            await runs[2]
        with pytest.raises(CallError, match="this run has waited for 60 s"):
            await runs[3]


# An app that cannot be served


async def test_an_app_with_another_store_is_refused(tmp_path: Any) -> None:
    app = Plait(Tower, store=f"sqlite:///{tmp_path}/tower.db")
    with pytest.raises(
        ValueError, match=r'needs an app with the store "memory://", not one with a SqliteStore: set PL'
    ):
        await serve(app).__aenter__()
    assert "time" not in vars(asyncio.get_running_loop())


async def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^serve takes a Plait, not <class 'object'>; pass the application"):
        await serve(object).__aenter__()  # type: ignore[arg-type]


async def test_a_running_app_is_not_emptied() -> None:
    app = make_app()
    async with serve(app) as t:
        await t.app.thread(Tower, "x").set_state(Bells(1))
        with pytest.raises(StoreError, match="the store is open, and cannot be emptied: its app is running already"):
            await serve(app).__aenter__()
        assert await t.app.thread(Tower, "x").state() == Bells(1)
        await t.clock.advance(60)


async def test_an_app_may_be_left_before_its_clients() -> None:
    async with AsyncExitStack() as stack:
        async with serve(make_app()) as t:
            room = await stack.enter_async_context(t.connect(Tower, "x"))
        assert room.status == "offline"
        assert room.trouble == "the server is shutting down"


# One app after the other


def test_an_app_is_empty_and_its_clock_right_in_the_next_test() -> None:
    app = make_app(authenticate=lambda request: BOB if "x-user" in request.headers else None)

    async def play() -> None:
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
        async with serve(app) as t, web:
            assert abs(t.clock.now - time.time()) < HOUR / 2
            assert [row.key.name async for row in t.app.threads()] == []
            async with t.connect(Tower, "x", principal=ADA) as ada:
                await ada.call(Tower.begin)
                await t.app.kv.set("cities", "Rome", 3)
                assert (await web.get("/threads/tower/x", headers={"x-user": "bob"})).status_code == 200
                await t.clock.advance(2 * HOUR)
                assert (await web.get("/threads/tower/x", headers={"x-user": "bob"})).status_code == 200
                assert ada.state.ticks == 120

    for _ in range(3):
        asyncio.run(play())


async def test_two_apps_in_one_test_share_a_clock() -> None:
    async with serve(make_app()) as one, serve(make_app()) as other:
        assert one.clock is other.clock
        towers = [each.app.thread(Tower, "x") for each in (one, other)]
        for tower in towers:
            await tower.call(Tower.begin)
        await one.clock.advance(HOUR)
        assert [(await tower.state()).ticks for tower in towers] == [60, 60]


async def test_an_error_of_the_test_comes_out_and_ends_the_app() -> None:
    app = make_app()

    async def fail() -> None:
        async with serve(app) as t, t.connect(Tower, "x") as room:
            await room.call(Tower.begin)
            raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        await fail()
    assert "time" not in vars(asyncio.get_running_loop())
    async with serve(app) as t:
        assert [row.key.name async for row in t.app.threads()] == []


# Applications around it


async def test_clients_come_through_the_application_that_an_app_is_mounted_in() -> None:
    seen: list[str] = []

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        if scope["headers"] and dict(scope["headers"]).get(b"x-blocked"):
            await send({"type": "websocket.close"})
            return
        await app({**scope, "root_path": "/live"}, receive, send)

    app = make_app()
    async with serve(app, asgi=outer, path="/live") as t:
        async with t.connect(Tower, "x", principal=ADA) as ada:
            assert await ada.call(Tower.say_who) == "ada"
        with pytest.raises(Closed, match="the application has refused the request"):
            await t.connect(Tower, "x", headers={"X-Blocked": "1"}).__aenter__()
    assert seen == ["/live/threads/tower/x"] * 2


async def test_an_application_that_raises_is_told_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def outer(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("broken")

    async with serve(make_app(), asgi=outer) as t:
        with pytest.raises(ClientError, match=r"the application raised LookupError\('broken'\)"):
            await t.connect(Tower, "x").__aenter__()


# Another event loop


def make_api(app: Plait) -> FastAPI:
    api = FastAPI(lifespan=app.lifespan)

    @api.get("/ticks/{name}")
    async def find_ticks(name: str) -> int:
        return (await app.thread(Tower, name).state()).ticks

    api.mount("/live", app)
    return api


async def test_requests_in_the_loop_of_the_test_reach_an_app_that_is_mounted() -> None:
    api = make_api(app := make_app())
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://localhost")
    async with serve(app, asgi=api, path="/live") as t, web, t.connect(Tower, "x") as room:
        await room.update("/ticks", 7)
        assert (await web.get("/ticks/x")).json() == 7
        assert (await web.get("/live/threads/tower/x")).json()["ticks"] == 7


@each_case("path", ["/ticks/x", "/live/threads/tower/x"])
async def test_a_test_client_in_another_loop_gets_an_error(path: str) -> None:
    api = make_api(app := make_app())
    async with serve(app):
        with pytest.raises(
            RuntimeError, match=r"^this app runs in another event loop; in a test, use httpx\.ASGITransp"
        ):
            TestClient(api, base_url="http://localhost").get(path)
    with TestClient(api, base_url="http://localhost") as web:
        assert web.get(path).status_code in (200, 404)
