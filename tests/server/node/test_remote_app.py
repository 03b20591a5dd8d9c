"""What an app does with threads that another of its nodes owns: runs, values of users, kv, listings and files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
from tests.server.nodes import Nodes, open_nodes

from plait import (
    CallFailed,
    Conflict,
    Context,
    Interruption,
    InvalidArguments,
    Messages,
    NotFound,
    Plait,
    Schedule,
    Thread,
    ThreadKey,
    Values,
    effect,
    rpc,
)
from plait.agents.session_names import find_session
from plait.node.node import Node
from plait.store.protocol import ThreadQuery

PATIENCE = 20.0


class Topic(msgspec.Struct, frozen=True):
    name: str


class Desk(Thread[dict[str, Any]]):
    initial_state: Any = dict
    values = Values()
    notes = Values()
    messages = Messages()
    schedule = Schedule()

    @effect
    async def remind(self, what: str) -> None:
        self.set_state({"reminded": what})

    @rpc
    async def fail_by(self, other: str) -> None:
        await self.thread(Desk, other).call(Desk.fail)

    @rpc
    async def fail(self) -> None:
        raise OwnError("with a secret")


class OwnError(Exception):
    pass


class Fleeting(Thread[int]):
    initial_state = 0
    expires_after = 0.5
    idle_timeout = 0.0

    @rpc
    def touch(self) -> None:
        self.set_state(1)


def make() -> Plait:
    app = Plait(Desk, Fleeting, store="memory://", secret="x" * 32, metrics=True)
    calls: dict[str, Any] = {}

    @app.agent("answer", thread=Desk)
    async def answer(ctx: Context[Desk], topic: Topic) -> Topic:
        await ctx.thread.values.set("topic", topic.name)
        calls.update(ctx.attributes, typed=ctx.get(Topic), session=ctx.session.id)
        if ctx.user is not None:
            await ctx.user.push("topics", topic.name)
            await ctx.kv.set("topics", topic.name, ctx.user.id)
        return Topic(topic.name.upper())

    @app.agent("count", thread=Desk)
    async def count(ctx: Context[Desk], to: int) -> AsyncIterator[Topic]:
        for n in range(to):
            yield Topic(str(n))

    @app.agent("wait", thread=Desk)
    async def wait(ctx: Context[Desk]) -> str:
        ctx.thread.set_state({"waits": True})
        try:
            while True:
                await ctx.checkpoint()
        finally:
            ctx.thread.set_state({"waits": False})

    app.told = calls  # type: ignore[attr-defined]
    return app


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with open_nodes(make) as opened:
        yield opened


# Runs


async def test_an_agent_runs_at_the_owner_of_its_thread(nodes: Nodes) -> None:
    app, name = nodes.apps[0], nodes.name(Desk, 1)
    typed = Topic("tenant")
    assert await app.run("answer", Topic("a"), thread=name, attributes={"plan": ["pro"], Topic: typed}) == Topic("A")
    assert await app.thread(Desk, name).part(Desk.values).get("topic") == "a"
    told = nodes.apps[1].told  # type: ignore[attr-defined]
    assert (told["plan"], told["typed"]) == (["pro"], typed)
    with pytest.raises(InvalidArguments):
        await app.run("answer", {"name": 1}, thread=name)
    assert await app.thread(Desk, name).call("run:answer", Topic("b")) == Topic("B")


@pytest.mark.parametrize(
    "attributes",
    [{"f": print}, {"t": (1, 2)}, {"x": Topic("a")}, [object()]],
    ids=["function", "tuple", "struct", "object"],
)
async def test_an_attribute_that_cannot_travel_is_an_error(nodes: Nodes, attributes: Any) -> None:
    with pytest.raises(TypeError, match=r"the attribute .* cannot be sent"):
        await nodes.apps[0].run("answer", Topic("a"), thread=nodes.name(Desk, 1), attributes=attributes)


async def test_an_agent_streams_from_the_owner(nodes: Nodes) -> None:
    app, name = nodes.apps[0], nodes.name(Desk, 1)
    assert [each async for each in app.stream("count", 40, thread=name)] == [Topic(str(n)) for n in range(40)]
    assert await app.run("count", 2, thread=name) == [Topic("0"), Topic("1")]


async def test_a_run_of_another_node_is_interrupted(nodes: Nodes) -> None:
    app, name = nodes.apps[0], nodes.name(Desk, 1)
    async with asyncio.timeout(PATIENCE):
        assert not await app.interrupt(app.thread(Desk, name))
        running = asyncio.create_task(app.run("wait", thread=name))
        while not (await app.thread(Desk, name).state()).get("waits"):
            pass
        assert await app.interrupt(app.thread(Desk, name), {"why": 10**30})
        assert await running == Interruption({"why": 10**30})


async def test_a_run_without_a_thread_gets_one_of_its_own_node(nodes: Nodes) -> None:
    for _ in range(8):
        await nodes.apps[0].run("answer", Topic("a"), user_id="ada")
    assert len([row async for row in nodes.apps[1].threads(user_id="ada")]) == 8
    assert [actor.key.kind for actor in nodes.apps[1]._node.actors if actor.key.kind == "desk"] == []


async def test_a_session_of_another_node_is_found(nodes: Nodes) -> None:
    app = nodes.apps[0]
    ids = [f"s{number}" * 40 for number in range(6)]
    for id in ids:
        await app.run("answer", Topic("a"), session_id=id, user_id="ada")
    assert sorted([session async for session in app.sessions(Desk, "ada")]) == sorted(("ada", id) for id in ids)
    owned = [await count_rows(each) for each in nodes.apps]
    assert min(owned) > 0
    assert await app.session(Desk, ids[0], user_id="ada").part(Desk.values).get("topic") == "a"


async def count_rows(app: Plait) -> int:
    rows = await app._store.threads(ThreadQuery(kind="desk"))
    assert None not in [await find_session(app._store, row.key) for row in rows]
    return len(rows)


# kv and users


async def test_kv_is_the_same_at_all_nodes(nodes: Nodes) -> None:
    here, there = (app.kv for app in nodes.apps)
    for number in range(8):
        await here.set(f"ns{number}", "a b", {"n": 10**30})
        await there.set(f"ns{number}", "bytes", b"\x00\xff" * 100_000, ttl=3600)
        await here.set(f"ns{number}", "\ud83d", "\ud83d")
        assert (await there.get(f"ns{number}", "a b")).data == {"n": 10**30}
        found = await here.get(f"ns{number}", "bytes")
        assert (found.data, found.content_type) == (b"\x00\xff" * 100_000, "application/octet-stream")
        assert found.expires_at is not None
        assert found.expires_at > datetime.now(UTC)
        assert (await there.get(f"ns{number}", "\ud83d")).data == "\ud83d"
        assert await there.keys(f"ns{number}") == await here.keys(f"ns{number}") == ["a b", "bytes", "\ud83d"]
        assert (await here.stats(f"ns{number}")).count == 3
    assert await here.namespaces() == await there.namespaces() == [f"ns{number}" for number in range(8)]
    for number in range(8):
        await there.delete(f"ns{number}", "bytes")
        await here.delete_namespace(f"ns{number}")
    assert await there.namespaces() == []
    assert not (await here.get("ns0", "bytes")).exists


async def test_the_values_of_a_user_are_the_same_at_all_nodes(nodes: Nodes) -> None:
    for user in ("ada", "bob", "eve", "joe"):
        here, there = (app.user(user) for app in nodes.apps)
        await here.set("n", 0)
        await asyncio.gather(*(each.update("n", lambda n: n + 1) for each in (here, there) for _ in range(10)))
        assert await here.get("n") == await there.get("n") == 20
        assert await here.update("fresh", lambda value: [*value, 1], default=[]) == [1]
        await there.push("list", "a")
        assert await here.items() == await there.items()
        missing = object()
        assert await here.get("missing", missing) is missing
        with pytest.raises(ZeroDivisionError):
            await here.update("n", lambda n: n / 0)
        await there.clear()
        assert await here.keys() == []


# Parts


async def test_values_messages_and_schedules_of_another_node(nodes: Nodes) -> None:
    desk = nodes.handle(Desk, 1)
    await desk.values.set("a", {"n": 10**30})
    assert await desk.values.update("a", lambda value: value | {"m": 1}) == {"n": 10**30, "m": 1}
    assert await desk.values.items() == [("a", {"n": 10**30, "m": 1})]
    sent = await desk.messages.queue("Hello", key="k", metadata={"x": [1]})
    assert (sent.content, sent.status, sent.metadata) == ("Hello", "pending", {"x": [1]})
    assert await desk.messages.pending() == [sent]
    note = await desk.messages.inject("assistant", "Hi", name="bot")
    page = await desk.messages.list(order="asc")
    assert (page.messages[0], page.total) == (note, 2)
    assert await desk.messages.get(note.id) == note
    assert (await desk.messages.update(note.id, "Hi there")).content == "Hi there"
    assert await desk.messages.get("missing") is None
    assert await desk.messages.delete(note.id)
    id = await desk.schedule.at(datetime(2100, 1, 1, tzinfo=UTC), "remind", "later")
    (planned,) = await desk.schedule.list()
    assert (planned.id, planned.args) == (id, ["later"])
    assert await desk.schedule.cancel(id)


async def test_errors_of_parts_arrive(nodes: Nodes) -> None:
    desk = nodes.handle(Desk, 1)
    with pytest.raises(ValueError, match="role must be one of"):
        await desk.messages.inject("nobody", "x")
    with pytest.raises(ValueError, match="there is no effect"):
        await desk.schedule.after(1, "missing")
    with pytest.raises(NotFound):
        await desk.messages.update("missing", "x")
    with pytest.raises(AttributeError, match="missing"):
        await desk.values.missing()
    with pytest.raises(TypeError, match=r"argument 1 of values.set cannot be sent|argument 2 of values.set"):
        await desk.values.set("f", print)


async def test_a_schedule_runs_where_its_thread_is_owned(nodes: Nodes) -> None:
    desk = nodes.handle(Desk, 1)
    await desk.schedule.after(0, "remind", "at once")
    async with asyncio.timeout(PATIENCE):
        while await desk.state() != {"reminded": "at once"}:
            pass
    assert await nodes.apps[0]._store.find(ThreadKey("desk", desk.name)) is None


async def test_threads_expire_where_they_are_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Node.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timer_interval", 0.05)
    async with asyncio.timeout(PATIENCE), open_nodes(make) as nodes:
        names = [nodes.name(Fleeting, number % 2, f"f{number}") for number in range(4)]
        for name in names:
            await nodes.apps[0].thread(Fleeting, name).call(Fleeting.touch)
        assert [row.key.name async for row in nodes.apps[0].threads(kind=Fleeting)] == names
        assert [len(await app._store.threads(ThreadQuery(kind="fleeting"))) for app in nodes.apps] == [2, 2]
        while [row async for row in nodes.apps[0].threads(kind=Fleeting)]:
            pass


# Errors that clients must not see


async def test_the_text_of_an_exception_of_another_node_is_not_shown_to_clients(nodes: Nodes) -> None:
    here, there = nodes.name(Desk, 0), nodes.name(Desk, 1)
    with pytest.raises(CallFailed, match="internal error") as found:
        await nodes.apps[0].thread(Desk, here).call(Desk.fail_by, there)
    assert found.value.detail == "OwnError: with a secret"
    async with open_http(nodes.apps[0]) as http:
        answer = await http.post(f"/threads/desk/{here}/rpc/fail_by", json={"args": [there]})
        assert answer.status_code == 500, answer.text
        assert "secret" not in answer.text
        assert "internal error" in answer.text


@asynccontextmanager
async def open_http(app: Plait) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http


# Listings and files


@pytest.mark.parametrize("order", ["name", "created", "changed"])
async def test_a_listing_merges_the_threads_of_all_nodes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    monkeypatch.setattr("plait.node.remote_nodes._PAGE", 3)
    monkeypatch.setattr("plait.node.listing._PAGE", 3)
    names = [f"t{number:02}" for number in range(20)]
    for name in names:
        desk = nodes.apps[0].thread(Desk, name)
        await desk.set_state({"n": 1})
        await desk.part(Desk.values).set_metadata({"even": int(name[1:]) % 2 == 0})
    expected = names if order == "name" else [*reversed(names)]
    for app in nodes.apps:
        assert [row.key.name async for row in app.threads(kind=Desk, order=order)] == expected
        rows = [row async for row in app.threads(order=order, limit=7)]
        assert [row.key.name for row in rows] == expected[:7]
        later = [row.key.name async for row in app.threads(order=order, after=rows[-1])]
        assert later == expected[7:]
        even = [row.key.name async for row in app.threads(order=order, metadata={"even": True}, limit=6)]
        assert even == [name for name in expected if int(name[1:]) % 2 == 0][:6]
    assert min([len(await app._store.threads(ThreadQuery(kind="desk"))) for app in nodes.apps]) > 0


async def test_a_thread_of_another_node_is_exported_and_imported(nodes: Nodes) -> None:
    desk, other = nodes.handle(Desk, 1), nodes.name(Desk, 0, "other")
    await desk.set_state({"text": "x" * 500_000})
    for number in range(200):
        await desk.values.set(f"k{number}", "v" * 1000)
    for app in nodes.apps:
        lines = b"".join([each async for each in app.export_thread(Desk, desk.name)])
        for name in (other, nodes.name(Desk, 1, "other")):
            copied = await app.import_thread(lines, name=name, replace=True)
            assert (await copied.state(), await copied.part(Desk.values).size()) == ({"text": "x" * 500_000}, 200)
            with pytest.raises(Conflict):
                await app.import_thread(lines, name=name)
        with pytest.raises(NotFound):
            [each async for each in app.export_thread(Desk, nodes.name(Desk, 1, "missing"))]
    await nodes.apps[0].destroy(Desk, desk.name)
    assert await nodes.apps[1]._store.find(ThreadKey("desk", desk.name)) is None


# What a server tells about itself


async def test_the_metrics_of_all_workers_are_shown(nodes: Nodes) -> None:
    await nodes.handle(Desk, 0).set_state({"a": 1})
    await nodes.handle(Desk, 1).values.set("a", 1)
    await nodes.handle(Desk, 1).set_state({"a": 1})
    async with open_http(nodes.apps[0]) as http:
        text = (await http.get("/metrics")).text
        for node in (0, 1):
            assert f'plait_threads_awake{{kind="desk",worker="{node}"}} 1.0' in text
            assert f'plait_worker_up{{worker="{node}"}} 1.0' in text
            assert f'process_resident_memory_bytes{{worker="{node}"}}' in text
            assert f'plait_commit_seconds_count{{kind="desk",worker="{node}"}}' in text
        assert text.count("# TYPE plait_threads_awake") == 1
        await nodes.apps[1]._context.links.stop()
        text = (await http.get("/metrics")).text
        assert 'plait_worker_up{worker="1"} 0.0' in text
        assert 'plait_worker_up{worker="0"} 1.0' in text


async def test_a_worker_is_ready_whatever_becomes_of_the_others(nodes: Nodes) -> None:
    async with open_http(nodes.apps[0]) as http, open_http(nodes.apps[1]) as other:
        await nodes.apps[1].drain()
        answer = await other.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert (await http.get("/readyz")).status_code == 200
        await nodes.apps[1]._context.links.stop()
        assert (await http.get("/readyz")).status_code == 200


async def test_a_thread_of_another_node_is_forked_there(nodes: Nodes) -> None:
    desk = nodes.handle(Desk, 1)
    await desk.set_state({"a": 1})
    forked = await nodes.apps[0].fork_thread(Desk, desk.name, nodes.name(Desk, 1, "other"))
    assert await forked.state() == {"a": 1}
    with pytest.raises(ValueError, match="belong to different processes"):
        await nodes.apps[0].fork_thread(Desk, desk.name, nodes.name(Desk, 0, "other"))
