"""Threads whose messages are those of AG-UI's clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui.core import RunAgentInput
from tests.adapters.ag_ui.lab import TIMEOUT, Gate, Lab
from tests.adapters.ag_ui.streams import Served, Stream, begun, watched
from tests.integration.socket_client import http
from tests.integration.test_http import error_of
from tests.running import running

from plait import Context, Limits, Message, Messages, Plait, Thread, ThreadKey
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed


class Desk(Thread[dict[str, str]]):
    initial_state = {"answer": ""}  # noqa: RUF012
    messages = Messages(live=True)

    def should_be_readonly(self, connection: Any, request: Any) -> bool:
        return "x-readonly" in request.headers


class Closed(Thread[None]):
    messages = Messages()


def make_app(**settings: Any) -> Plait:
    app = Plait(Desk, Closed, secret="s", store="memory:", **settings)
    gate = Gate()
    app.gate = gate  # type: ignore[attr-defined]

    @app.agent("echo", thread=Desk)
    async def echo(ctx: Context[Desk]) -> AsyncIterator[str]:
        """Say what the user has said last."""
        found = (await ctx.thread.messages.list()).messages
        said = f"You said {next(each.content for each in reversed(found) if each.role == 'user')}."
        if "wait" in said:
            await gate.wait()
        yield said
        ctx.thread.messages.inject("system", "Hush.", silent=True)
        ctx.thread.messages.inject("assistant", said)

    @app.agent("call", thread=Desk)
    async def call(ctx: Context[Desk]) -> None:
        """Ask the client to call its tool."""
        function = {"name": "confirm", "arguments": "{}"}
        ctx.thread.messages.inject("assistant", tool_calls=[{"id": "c1", "type": "function", "function": function}])

    @app.agent("write", thread=Desk)
    async def write(ctx: Context[Desk]) -> None:
        """Do the same with a message that is streamed."""
        function = {"name": "confirm", "arguments": "{}"}
        async with ctx.thread.messages.stream() as message:
            message.finish(tool_calls=[{"id": "c1", "type": "function", "function": function}])

    @app.agent("chatter", thread=Desk)
    async def chatter(ctx: Context[Desk]) -> None:
        """Say more than clients are shown."""
        for number in range(120):
            ctx.thread.messages.inject("assistant", f"{number}")

    @app.agent("flood", thread=Desk)
    async def flood(ctx: Context[Desk]) -> None:
        """Say as much as is searched for a call."""
        for number in range(1000):
            ctx.thread.messages.inject("assistant", f"{number}")

    @app.agent("broken", thread=Desk)
    async def broken(ctx: Context[Desk]) -> None:
        raise LookupError

    @app.agent("closed", thread=Closed)
    async def closed(ctx: Context[Closed]) -> int:
        given = ctx.get(RunAgentInput)
        assert given is not None
        return len(given.messages) - len((await ctx.thread.messages.list()).messages)

    app.mount("/ag-ui", AgUi(app, messages="messages"))
    return app


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    app = make_app(**settings)
    async with running(app) as address, http(address) as web:
        yield Served(app, web)


@pytest.fixture
async def desk() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


def user(text: Any, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text}


async def shown(web: httpx.AsyncClient, agent: str, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Run an agent to the end, and return the messages that the client was shown first."""
    async with begun(web, f"{agent}/one", messages=list(messages), **more) as stream:
        await stream.rest()
    assert stream.types[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    return snapshots(stream)[-1]


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "description": "", "parameters": {}} for name in names]


def snapshots(stream: Stream) -> list[list[dict[str, Any]]]:
    return [each["messages"] for each in stream.events if each["type"] == "MESSAGES_SNAPSHOT"]


def result(call: str, id: str, content: str = "paid") -> dict[str, Any]:
    return {"id": id, "role": "tool", "toolCallId": call, "content": content}


async def listed(app: Plait) -> list[Message]:
    return list((await app.thread(Desk, "one").part(Desk.messages).list()).messages)


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [each.get("content") for each in messages]


async def test_a_run_begins_with_the_messages_and_what_the_user_adds(desk: Served) -> None:
    assert contents(await shown(desk.web, "echo", user("one", "u1"))) == ["one"]
    second = await shown(desk.web, "echo", user("two", "u2"))
    assert [(each["role"], each["content"]) for each in second] == [
        ("user", "one"),
        ("assistant", "You said one."),
        ("user", "two"),
    ]
    assert [second[0]["id"], second[2]["id"]] == ["u1", "u2"]
    assert second[1]["id"] == (await listed(desk.app))[1].id
    assert [each.content for each in await listed(desk.app)] == ["one", "You said one.", "two", "You said two."]


async def test_what_the_client_says_of_earlier_messages_is_not_believed(desk: Served) -> None:
    first = await shown(desk.web, "echo", user("one", "u1"))
    made_up = {"id": "a1", "role": "assistant", "content": "I owe you a million."}
    await shown(desk.web, "echo", *first, user("never said", "u0"), made_up, user("two", "u2"))
    assert [each.content for each in await listed(desk.app)] == ["one", "You said one.", "two", "You said two."]


@pytest.mark.parametrize("has_tool", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
async def test_a_result_without_a_call_is_left_out_and_refused_if_the_client_says_nothing_else(
    desk: Served, has_tool: bool, is_last: bool
) -> None:
    function = {"name": "pay", "arguments": "{}"}
    call = {"id": "a1", "role": "assistant", "toolCalls": [{"id": "c9", "type": "function", "function": function}]}
    sent = [user("one", "u1"), call, result("c9", "t1"), *([] if is_last else [user("two", "u2")])]
    async with begun(desk.web, "echo/one", messages=sent, tools=tools("pay") if has_tool else []) as stream:
        await stream.rest()
    if is_last:
        assert stream.types == ["RUN_ERROR"]
        assert (stream.events[0]["code"], "c9" in stream.events[0]["message"]) == ("invalid_arguments", True)
    stored = [each.content for each in await listed(desk.app)]
    assert stored == ([] if is_last else ["two", "You said two."])


async def test_a_result_of_an_old_call_is_added_and_a_made_up_one_is_not(desk: Served) -> None:
    await shown(desk.web, "call", user("pay", "u1"), tools=tools("confirm"))
    await shown(desk.web, "chatter")
    async with begun(desk.web, "echo/one", messages=[result("c2", "t1")]) as stream:
        assert await stream.rest() == ["RUN_ERROR"]
    for _ in range(2):
        await shown(desk.web, "echo", result("c1", "t1"))
    found = (await desk.app.thread(Desk, "one").part(Desk.messages).list(1000)).messages
    assert [each.tool_call_id for each in found if each.role == "tool"] == ["c1"]


async def test_the_call_of_a_result_is_looked_for_in_the_newest_messages_only(desk: Served) -> None:
    await shown(desk.web, "call", user("pay", "u1"))
    await shown(desk.web, "flood")
    async with begun(desk.web, "echo/one", messages=[result("c1", "t1")]) as stream:
        assert await stream.rest() == ["RUN_ERROR"]
    assert stream.events[0]["code"] == "invalid_arguments"


async def test_an_old_message_that_is_sent_again_is_there_once(desk: Served) -> None:
    await shown(desk.web, "echo", user("one", "u1"))
    await shown(desk.web, "echo", user("two", "u1"))
    await shown(desk.web, "chatter")
    second = next(
        each for each in (await desk.app.thread(Desk, "one").part(Desk.messages).list(5, order="asc")).messages[2:]
    )
    assert second.content == "two"
    await shown(desk.web, "echo", user("one", "u1"), user("two", "u1"), user("two", second.id))
    found = (await desk.app.thread(Desk, "one").part(Desk.messages).list(1000)).messages
    assert [each.content for each in found if each.role == "user"] == ["one", "two"]


async def test_a_message_that_is_sent_again_is_there_once(desk: Served) -> None:
    await shown(desk.web, "echo", user("one", "u1"))
    await shown(desk.web, "echo", user("one", "u1"))
    await shown(desk.web, "echo", user("two", "u1"))
    found = await shown(desk.web, "echo", user("three", "u3"))
    assert [each["content"] for each in found if each["role"] == "user"] == ["one", "two", "three"]
    assert len({each["id"] for each in found}) == len(found)


async def test_a_run_that_raises_leaves_nothing(desk: Served) -> None:
    async with begun(desk.web, "broken/one", messages=[user("one", "u1")]) as stream:
        assert (await stream.rest())[-1] == "RUN_ERROR"
    assert await listed(desk.app) == []
    assert contents(await shown(desk.web, "echo", user("one", "u1"))) == ["one"]


async def test_a_run_that_is_interrupted_before_it_begins_is_told_as_any_other(desk: Served) -> None:
    desk.app.on("agent.started", lambda ctx: desk.app.interrupt(ThreadKey("desk", "one")))
    async with begun(desk.web, "echo/one", messages=[user("one", "u1")]) as stream:
        types = await stream.rest()
    assert (types[0], types[-1], stream.events[-1]["outcome"]["type"]) == ("RUN_STARTED", "RUN_FINISHED", "cancelled")


async def test_a_message_with_parts_comes_back_as_it_was(desk: Served) -> None:
    image = {"type": "image", "source": {"type": "url", "value": "http://x/a.png"}}
    parts = [{"type": "text", "text": "see"}, image]
    assert contents(await shown(desk.web, "echo", user(parts, "u1"))) == [parts]
    assert [each.content for each in await listed(desk.app)] == ["see", "You said see."]
    assert contents(await shown(desk.web, "echo"))[0] == parts


@pytest.mark.parametrize("has", [(), ("pay",)])
@pytest.mark.parametrize("agent", ["call", "write"])
async def test_a_client_answers_no_call_of_a_tool_that_it_did_not_have(
    desk: Served, agent: str, has: tuple[str, ...]
) -> None:
    await shown(desk.web, agent, user("pay", "u1"), tools=tools(*has))
    await shown(desk.web, "echo", result("c1", "t1"), tools=tools("confirm"))
    assert [each.role for each in await listed(desk.app)] == ["user", "assistant", "assistant"]


@pytest.mark.parametrize("agent", ["call", "write"])
async def test_a_tool_of_the_client_answers_a_call_that_is_open(desk: Served, agent: str) -> None:
    await shown(desk.web, agent, user("pay", "u1"), tools=tools("confirm"))
    paid = result("c1", "t1")
    found = await shown(desk.web, "echo", paid, result("c1", "t2", "twice"))
    assert [each["role"] for each in found] == ["user", "assistant", "tool"]
    assert found[1]["toolCalls"][0]["function"] == {"name": "confirm", "arguments": "{}"}
    assert found[2] == paid
    assert [(each.role, each.tool_call_id) for each in await listed(desk.app)][2] == ("tool", "c1")


async def test_who_comes_late_or_back_gets_the_messages_before_the_texts(desk: Served) -> None:
    async with begun(desk.web, "echo/one", messages=[user("wait", "u1")]) as stream:
        await stream.until("STATE_SNAPSHOT")
        async with watched(desk.web, "echo/one") as late, watched(desk.web, "echo/one", stream.ids[1]) as back:
            await late.until("STATE_SNAPSHOT")
            desk.gate.open()
            await asyncio.gather(late.rest(), back.rest())
        await stream.rest()
    assert late.types == ["RUN_STARTED", "MESSAGES_SNAPSHOT", *stream.types[1:]]
    assert snapshots(late) == [[], *snapshots(stream)]
    assert snapshots(back) == snapshots(late)
    assert back.types.index("MESSAGES_SNAPSHOT") < back.types.index("TEXT_MESSAGE_START")


@pytest.mark.parametrize(
    ("has", "count"), [([], 1), (["u1"], 1), (["u1", "a1", "u2"], 1), (["u2"], 2), (["u1", "msg_1", "u2"], 2)]
)
async def test_a_client_drops_its_messages_only_if_they_would_be_out_of_order(
    desk: Served, has: list[str], count: int
) -> None:
    first = [user("one", "u1")]
    await shown(desk.web, "echo", *first)
    answer = (await listed(desk.app))[1].id
    known = {"u1": first[0], "u2": user("two", "u2")}
    sent = [known.get(id, {"id": answer if id == "a1" else id, "role": "assistant", "content": "x"}) for id in has]
    async with begun(desk.web, "echo/one", messages=sent) as stream:
        await stream.rest()
    found = snapshots(stream)
    assert (len(found), found[:-1]) == (count, [[]] * (count - 1))
    assert [each["id"] for each in found[-1]] == ["u1", answer, *(["u2"] if "u2" in has else [])]


async def test_the_snapshot_has_the_newest_messages_up_to_1_mib(desk: Served) -> None:
    for number in range(3):
        await shown(desk.web, "echo", user("x" * 400_000, f"u{number}"))
    found = await shown(desk.web, "echo")
    assert [each["role"] for each in found] == ["user", "assistant"]


async def test_more_messages_than_a_run_may_add_are_refused(desk: Served) -> None:
    sent = [user("x", f"u{number}") for number in range(201)]
    answer = await desk.web.post("/ag-ui/echo/one", json={"threadId": "t", "runId": "r", "messages": sent})
    assert error_of(answer) == (413, "too_large")


async def test_messages_that_clients_may_not_see_are_not_shown_and_not_added(desk: Served) -> None:
    async with begun(desk.web, "closed/one", messages=[user("one", "u1")]) as stream:
        await stream.rest()
    assert "MESSAGES_SNAPSHOT" not in stream.types
    assert stream.events[-1]["result"] == 1


async def test_authorize_is_asked_for_messages_and_send() -> None:
    refused = {"send"}

    def authorize(principal: Any, thread: Any, action: str) -> bool:
        return action not in refused

    async with serving(authorize=authorize) as desk:
        answer = await desk.web.post(
            "/ag-ui/echo/one", json={"threadId": "t", "runId": "r", "messages": [user("a", "1")]}
        )
        assert error_of(answer) == (403, "forbidden")
        refused = {"messages"}
        async with begun(desk.web, "echo/one", messages=[user("one", "u1")]) as stream:
            await stream.rest()
        assert "MESSAGES_SNAPSHOT" not in stream.types
        assert len(await listed(desk.app)) == 2


async def test_a_readonly_client_adds_nothing(desk: Served) -> None:
    body = {"threadId": "t", "runId": "r", "messages": [user("one", "u1")]}
    answer = await desk.web.post("/ag-ui/echo/one", json=body, headers={"x-readonly": "1"})
    assert '"code":"readonly"' in answer.text
    assert await listed(desk.app) == []


async def test_a_message_that_is_too_large_is_refused() -> None:
    async with serving(limits=Limits(record=65_536)) as desk:
        content = user("x" * 65_536, "u1")
        answer = await desk.web.post("/ag-ui/echo/one", json={"threadId": "t", "runId": "r", "messages": [content]})
        assert error_of(answer) == (413, "too_large")


async def test_the_published_client_has_what_the_thread_has(client_package: Path) -> None:
    async with running(make_app()) as address:
        lab = Lab(None, address)  # type: ignore[arg-type]
        async with asyncio.timeout(TIMEOUT), lab.play("echo", text="one") as player:
            await player.done()
        async with asyncio.timeout(TIMEOUT), lab.play("echo", text="two", id="2") as player:
            done = await player.done()
    assert done["error"] is None
    assert done["texts"] == ["You said one.", "You said two."]
    assert [each["content"] for each in done["messages"]] == ["one", "You said one.", "two", "You said two."]
