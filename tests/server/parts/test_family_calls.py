"""Children that are called as soon as their names are known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from tests.cases import each_case
from tests.server.nodes import Nodes, make_node, open_nodes
from tests.server.parts.family_lab import until

from plait import Context, Family, Indeterminate, Messages, Plait, Thread, rpc

PATIENCE = 20.0


class Kid(Thread[dict[str, Any]]):
    initial_state: ClassVar[Any] = {"found": None}
    family = Family()

    async def on_start(self) -> None:
        parent = self.family.parent
        self.set_state({"found": (None if parent is None else parent.name, self.user_id)})
        self.family.notify_parent("started")

    @rpc
    def look(self) -> Any:
        return self.state["found"]

    @rpc
    async def words(self) -> AsyncIterator[Any]:
        yield self.state["found"]


class Boss(Thread[None]):
    turn_timeout = 10.0
    family = Family()
    messages = Messages()

    kid: ClassVar[type[Thread[Any]]] = Kid

    def spawn(self, name: str) -> str:
        self.family.spawn(self.kid, name, user="ada")  # Not awaited.
        return name

    @rpc
    def make(self, name: str) -> str:
        return self.spawn(name)

    @rpc(concurrent=True)
    def make_beside(self, name: str) -> str:
        return self.spawn(name)

    @rpc
    async def make_in_block(self, name: str) -> str:
        with self.transaction():
            return self.spawn(name)

    @rpc
    async def make_streaming(self, name: str) -> AsyncIterator[str]:
        yield self.spawn(name)

    @rpc
    async def make_and_look(self, name: str) -> Any:
        return await self.thread(self.kid, self.spawn(name)).call("look")

    @rpc(concurrent=True)
    async def make_beside_and_look(self, name: str) -> Any:
        return await self.make_and_look(name)

    @rpc
    async def make_and_read(self, name: str) -> Any:
        (found,) = [each async for each in self.thread(self.kid, self.spawn(name)).stream("words")]
        return found

    @rpc
    async def make_and_state(self, name: str) -> Any:
        return (await self.thread(self.kid, self.spawn(name)).state())["found"]

    @rpc
    def ping(self) -> str:
        return "pong"

    async def on_request(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(self.spawn(request.query_params["name"]))


class Asking(Thread[None]):
    """A child whose `on_start` calls its parent."""

    family = Family()
    answers: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        assert self.family.parent is not None
        self.answers.append(await self.family.parent.call("ping"))


class Broken(Thread[None]):
    """A child that cannot start."""

    family = Family()

    def on_start(self) -> None:
        raise LookupError("there is no plan")


class Asked(Boss):
    kid = Asking


class Hasty(Boss):
    """A parent that does not wait for long."""

    turn_timeout = 0.3


class Failing(Boss):
    kid = Broken


class Early(Thread[dict[str, Any]]):
    """A thread that has a child, and calls it, when it starts."""

    initial_state: ClassVar[Any] = {"found": None}
    family = Family()
    messages = Messages()

    async def on_start(self) -> None:
        self.family.spawn(Kid, "early", user="ada")
        self.set_state({"found": await self.thread(Kid, "early").call(Kid.look)})


def make() -> Plait:
    app = Plait(Boss, Asked, Hasty, Failing, Early, Kid, Asking, Broken, store="memory://")

    @app.agent("maker", thread=Boss)
    async def maker(ctx: Context[Boss], name: str) -> str:
        return ctx.thread.spawn(name)

    return app


async def outcome(call: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await call


async def notices(app: Plait, cls: type[Boss] = Boss, name: str = "boss") -> list[str | None]:
    """Return the texts of the notices of a parent, when there are any."""
    messages, found = app.thread(cls, name).part(cls.messages), list[str | None]()

    async def is_told() -> bool:
        found[:] = [each.content for each in (await messages.list(include_silent=True)).messages]
        return bool(found)

    await until(is_told)
    return found


@each_case("door", ["make", "make_beside", "make_in_block", "make_streaming", "run:maker", "http", "on_request"])
async def test_an_answer_leaves_when_the_children_that_it_names_are_born(door: str) -> None:
    app = make()
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        match door:
            case "http":
                answer = await web.post("/threads/boss/boss/rpc/make", json={"args": ["k"]})
                assert answer.json() == {"result": "k"}
            case "on_request":
                assert (await web.get("/threads/boss/boss/make?name=k")).text == "k"
            case _:
                await outcome(app.thread(Boss, "boss").call(door, "k"))
        assert await outcome(app.thread(Kid, "k").call(Kid.look)) == ["boss", "ada"]
        assert await notices(app) == ["started"]


@each_case("how", ["make_and_look", "make_and_read", "make_and_state"])
@each_case("owner", [0, 1])
async def test_a_call_of_a_child_waits_until_it_is_born(how: str, owner: int) -> None:
    async with open_nodes(make) as nodes:
        boss, name = nodes.handle(Boss, 0), nodes.name(Kid, owner)
        assert await outcome(boss.call(how, name)) == [nodes.name(Boss, 0), "ada"]
        assert await notices(nodes.apps[0], name=nodes.name(Boss, 0)) == ["started"]


async def test_a_child_may_be_called_by_the_on_start_that_has_spawned_it() -> None:
    async with make() as app:
        assert await outcome(app.thread(Early, "one").state()) == {"found": ["one", "ada"]}


async def test_an_answer_that_waits_for_a_birth_does_not_hold_up_calls_of_the_child() -> None:
    async with make() as app:
        assert await outcome(app.thread(Asked, "boss").call(Asked.make, "k")) == "k"
        assert Asking.answers == ["pong"]


async def test_an_answer_is_indeterminate_if_a_child_cannot_be_born() -> None:
    async with make() as app:
        with pytest.raises(Indeterminate, match=r"^broken/k was spawned, but is not born yet$") as caught:
            await outcome(app.thread(Failing, "boss").call(Failing.make, "k"))
        assert isinstance(caught.value.__cause__, LookupError)
        await outcome(app.thread(Kid, "k").call(Kid.look))  # A thread of another user.
        with pytest.raises(Indeterminate, match="it belongs to another user"):
            await outcome(app.thread(Boss, "boss").call(Boss.make, "k"))


@pytest.mark.parametrize("how", ["make", "make_beside_and_look"])
async def test_an_answer_is_indeterminate_while_the_node_of_the_child_is_dead(how: str, tmp_path: Path) -> None:
    async with make_node(make, 0, 2, tmp_path) as app:
        nodes = Nodes([app])
        app._context.links.hold = 0.1
        with pytest.raises(Indeterminate, match="is not born yet"):
            await outcome(nodes.handle(Hasty, 0).call(how, nodes.name(Kid, 1)))


async def test_a_turn_whose_spawn_was_rolled_back_waits_for_no_birth_of_another_turn() -> None:
    rolled_back, spawned = asyncio.Event(), asyncio.Event()

    class Unborn(Thread[dict[str, Any]]):
        family = Family()

        def on_start(self) -> None:
            raise ValueError("never")

    class Boss(Thread[dict[str, Any]]):
        family = Family()

        @rpc(concurrent=True)
        async def give_up(self) -> str:
            try:
                with self.transaction():
                    self.family.spawn(Unborn, "k")
                    raise KeyError
            except KeyError:
                rolled_back.set()
                await spawned.wait()
            return "nothing was spawned"

        @rpc(concurrent=True)
        async def spawn(self) -> None:
            self.family.spawn(Unborn, "k")
            spawned.set()

    async with Plait(Boss, Unborn, store="memory://", shutdown_timeout=0.1) as app:
        boss = app.thread(Boss, "one")
        first = asyncio.create_task(boss.call(Boss.give_up))
        await rolled_back.wait()
        with pytest.raises(Indeterminate, match="was spawned, but is not born yet"):
            await boss.call(Boss.spawn)
        assert await first == "nothing was spawned"
