"""The chat of a thread over HTTP, without its packages: bodies that are refused, rights, and the ends of streams."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT
from tests.integration.test_agents_client_trouble import HeldStore
from tests.integration.test_http import error_of
from tests.running import running

from plait import Context, Files, Limits, Message, MessageHooks, Messages, Plait, Principal, Thread, ThreadKey
from plait.parts.attempts import RetryPolicy
from plait.store.protocol import ThreadQuery

pytestmark = pytest.mark.relayed

CHAT = "/threads/room/one/chat"
DATA = f"data:text/plain;base64,{base64.b64encode(b'hello').decode()}"


class Room(Thread[None]):
    clients_may_destroy = True
    files = Files()
    messages = Messages(agent="echo", live=True)


class Bare(Thread[None]):
    messages = Messages(agent="echo2", live=True)


class Silent(Thread[None]):
    messages = Messages(agent="echo2")


def strip(_: Any, message: Message) -> Message:
    return replace(message, content=(message.content or "").strip())


class Strict(Thread[None]):
    messages = Messages(agent="echo3", live=True, hooks=MessageHooks(before_create_message=strip))


class Served:
    """An app whose agent says "one", waits, and says "two"."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.store = HeldStore()
        # The actions that are refused.
        self.forbidden: set[str] = set()
        # The seconds for which a token is valid.
        self.seconds: float | None = None
        self.may_end = asyncio.Event()
        self.app = Plait(
            Room,
            Bare,
            Silent,
            Strict,
            store=self.store,
            secret="x" * 32,
            authenticate=self._authenticate,
            authorize=lambda principal, thread, action: action not in self.forbidden,
            limits=limits or Limits(),
        )

        @self.app.agent("echo", thread=Room)
        async def echo(ctx: Context[Room]) -> None:
            while taken := await ctx.thread.messages.take(limit=1):
                async with ctx.thread.messages.stream() as answer:
                    answer.append("one ")
                    if taken[0].content == "fail":
                        raise LookupError
                    while not self.may_end.is_set():
                        await ctx.checkpoint()
                        await asyncio.sleep(0.01)
                    answer.append(f"two (to: {taken[0].content})")

        @self.app.agent("echo2", thread=Bare)
        async def echo2(ctx: Context[Bare]) -> None:
            await ctx.thread.messages.take()

        @self.app.agent("echo3", thread=Strict)
        async def echo3(ctx: Context[Strict]) -> None:
            for each in await ctx.thread.messages.take():
                ctx.thread.messages.inject("assistant", f"to: {each.content}")

    def _authenticate(self, request: Request) -> Principal:
        expires_at = None if self.seconds is None else time.time() + self.seconds
        return Principal(request.headers.get("x-user", "ann"), expires_at=expires_at)


@asynccontextmanager
async def serving(
    limits: Limits | None = None, *, ends: bool = True
) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """Serve an app, and yield it with a client."""
    served = Served(limits)
    async with (
        running(served.app) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=TIMEOUT) as client,
    ):
        try:
            yield served, client
        finally:
            served.may_end.set()


@pytest.fixture
async def room() -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    async with serving() as served:
        yield served


def text(content: str, id: str = "q", **more: Any) -> dict[str, Any]:
    """Return a body with one message."""
    return {
        "id": "page",
        "messages": [{"id": id, "role": "user", "parts": [{"type": "text", "text": content}]}],
        **more,
    }


def with_parts(*parts: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    """Return a body whose second message has these parts."""
    first = {"id": "p", "role": "user", "parts": [{"type": "text", "text": "first"}]}
    return {"messages": [first, {"id": "q", "role": role, "parts": parts}], **more}


def read_chunks(said: str) -> list[dict[str, Any]]:
    """Return the chunks of a stream."""
    lines = [line.removeprefix("data: ") for line in said.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def until(lines: AsyncIterator[str], part: str) -> None:
    """Read a stream up to a line with some text."""
    async with asyncio.timeout(TIMEOUT):
        async for line in lines:
            if part in line:
                return
    raise AssertionError(f"the stream has ended without {part}")


# Bodies


@each_case(
    ("body", "message"),
    [
        (b"{", "the body: "),
        (b"[]", "the body: Expected `object`, got `array`"),
        ({}, "the body: Object missing required field `messages`"),
        ({"messages": []}, "messages: there is no message"),
        (text("x", trigger="continue"), "trigger: Invalid enum value 'continue'"),
        ({"messages": [7]}, "messages[0]: Expected `object`, got `int`"),
        ({"messages": [7, *text("x")["messages"]]}, "messages[0]: Expected `object`, got `int`"),
        ({"messages": [{"id": 7, "role": "user", "parts": []}]}, "messages[0].id: Expected `str`, got `int`"),
        (text("x", "a\n"), "messages[0].id: an id has 1 to 200 characters, and no control characters"),
        (text("x", "a" * 201), "messages[0].id: an id has 1 to 200 characters"),
        (with_parts(role="tool"), "messages[1].role: Invalid enum value 'tool'"),
        (with_parts(role="system"), "messages[1].role: the last message is the user's, not of 'system'"),
        (with_parts(), "messages[1].parts: there is neither text nor a file"),
        (with_parts({"type": "text"}), "messages[1].parts[0].text: it is missing"),
        (with_parts({"text": "x"}), "messages[1].parts[0]: Object missing required field `type`"),
        (with_parts({"type": "data-x", "data": 1}), "messages[1].parts[0].type: a user's message has text and files"),
        (with_parts({"type": "file"}), "messages[1].parts[0].url: it is missing"),
        (with_parts({"type": "file", "url": 7}), "messages[1].parts[0].url: Expected `str`, got `int`"),
        (with_parts({"type": "file", "url": "javascript:x"}), "messages[1].parts[0].url: the URL of a file begins"),
        (with_parts({"type": "file", "url": "data:x"}), "messages[1].parts[0].url: a data URL has a comma"),
        (
            with_parts({"type": "text", "text": "x"}, {"type": "file", "url": "data:;base64,a"}),
            "messages[1].parts[1].url: the data is not base64",
        ),
        (
            with_parts({"type": "file", "url": "data:,x", "mediaType": "é"}),
            "messages[1].parts[0].url: ",
        ),
        (
            with_parts({"type": "text", "text": "x"}, role="assistant"),
            "messages[1].parts: an assistant's message",
        ),
        (
            with_parts({"type": "tool-x", "toolCallId": "c", "state": "approval-responded"}, role="assistant"),
            "messages[1].parts[0].approval: it has no answer to a call",
        ),
    ],
)
async def test_a_body_that_is_refused_names_its_fault_and_the_place(
    room: tuple[Served, httpx.AsyncClient], body: Any, message: str
) -> None:
    _, client = room
    answer = await client.post(CHAT, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["message"].startswith(message)
    assert (await client.get(CHAT)).json()["messages"] == []


async def test_the_path_of_an_error_leads_to_the_fault(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    answer = await client.post(CHAT, json=with_parts({"type": "file", "url": "ftp://x"}))
    assert answer.json()["error"]["path"] == "/messages/1/parts/0/url"


async def test_a_file_in_a_body_needs_files_in_the_class(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    body = with_parts({"type": "file", "url": DATA, "mediaType": "text/plain"})
    answer = await client.post("/threads/bare/one/chat", json=body)
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["message"] == "messages[1].parts[0].url: these threads have no files"


async def test_only_the_last_message_is_weighed_and_a_body_may_have_sixteen_frames() -> None:
    async with serving(Limits(frame=10_000, weight=1_000)) as (served, client):
        served.may_end.set()
        many = [{"id": f"m{n}", "role": "user", "parts": [{"type": "text", "text": "x" * 50}]} for n in range(900)]
        answer = await client.post(CHAT, json={"messages": [*many, *text("last")["messages"]]})
        assert '"stop"' in answer.text
        heavy = with_parts(*({"type": "text", "text": "x"} for _ in range(200)))
        assert error_of(await client.post(CHAT, json=heavy)) == (413, "too_large")
        assert error_of(await client.post(CHAT, json=text("x" * 160_000))) == (413, "too_large")


async def test_a_deep_message_is_refused(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    deep = json.loads("[" * 70 + "]" * 70)
    answer = await client.post(CHAT, json=with_parts({"type": "text", "text": "x", "more": deep}))
    assert error_of(answer) == (422, "invalid_arguments")
    assert "nested more than 64 deep" in answer.json()["error"]["message"]


async def test_only_live_messages_with_an_agent_have_a_chat(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    assert (await client.get("/threads/bare/one/chat")).status_code == 200
    assert (await client.get("/threads/silent/one/chat")).status_code == 404
    for method, path in (("GET", "/x"), ("POST", "/x"), ("DELETE", ""), ("GET", "/x/stream/y")):
        assert error_of(await client.request(method, CHAT + path)) == (404, "not_found")
    assert error_of(await client.get(CHAT, params={"before": "x"})) == (422, "invalid_arguments")


# Rights


@each_case(
    ("method", "path", "body", "action"),
    [
        ("GET", "", None, "messages"),
        ("GET", "/x/stream", None, "messages"),
        ("POST", "", text("x"), "messages"),
        ("POST", "", text("x"), "send"),
        ("POST", "", text("x", trigger="regenerate-message"), "send"),
        ("POST", "", with_parts({"type": "file", "url": DATA}), "upload"),
        (
            "POST",
            "",
            with_parts({"type": "file", "url": "/threads/room/one/files/attachments/a"}),
            "upload",
        ),
        (
            "POST",
            "",
            with_parts(
                {
                    "type": "tool-x",
                    "toolCallId": "c",
                    "state": "approval-responded",
                    "approval": {"id": "c", "approved": True},
                },
                role="assistant",
            ),
            "approve",
        ),
        ("POST", "/stop", None, "call"),
    ],
)
async def test_each_request_needs_its_right(
    room: tuple[Served, httpx.AsyncClient], method: str, path: str, body: Any, action: str
) -> None:
    served, client = room
    served.forbidden = {action}
    assert error_of(await client.request(method, CHAT + path, json=body)) == (403, "forbidden")
    assert await served.store.find(ThreadKey("room", "one")) is None


async def test_the_message_of_another_user_is_neither_sent_edited_nor_answered_again(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    served, client = room
    served.may_end.set()
    assert (await client.post(CHAT, json=text("hello"))).status_code == 200
    served.forbidden = {"approve"}
    for body, error in (
        (text("hello"), (409, "conflict")),
        (text("mine"), (409, "conflict")),
        (text("mine", messageId="q"), (403, "forbidden")),
        (text("hello", trigger="regenerate-message"), (403, "forbidden")),
    ):
        assert error_of(await client.post(CHAT, json=body, headers={"x-user": "bob"})) == error
    assert error_of(await client.post(CHAT, json=text("other words"))) == (409, "conflict")
    found = (await client.get(CHAT)).json()["messages"]
    assert [each["parts"][-1]["text"] for each in found] == ["hello", "one two (to: hello)"]
    assert found[0]["metadata"]["user"] == "ann"


async def test_a_thread_that_a_question_begins_is_its_users(room: tuple[Served, httpx.AsyncClient]) -> None:
    served, client = room
    served.may_end.set()
    body = with_parts({"type": "file", "url": DATA, "filename": "../a/b\\c.txt", "mediaType": "text/plain"})
    assert '"stop"' in (await client.post(CHAT, json=body)).text
    (row,) = await served.store.threads(ThreadQuery(kind="room", user="ann"))
    assert row.key == ThreadKey("room", "one")
    file = (await client.get(CHAT)).json()["messages"][0]["parts"][0]
    assert (file["filename"], file["mediaType"]) == ("..-a-b-c.txt", "text/plain")
    assert (await client.get(file["url"])).text == "hello"


async def test_a_question_that_a_hook_changes_is_sent_again_and_edited_like_any_other(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    _, client = room
    for words, more in ((" one ", {}), (" one ", {}), (" one ", {"messageId": "q"}), (" two ", {"messageId": "q"})):
        answer = await client.post("/threads/strict/one/chat", json=text(words, **more))
        assert f"to: {words.strip()}" in answer.text
    found = (await client.get("/threads/strict/one/chat")).json()["messages"]
    assert [each["parts"][-1]["text"] for each in found] == ["two", "to: two"]
    assert len(found[0]["metadata"]["siblings"]) == 2


# Streams


async def test_a_stream_has_the_headers_and_the_chunks_of_the_protocol(room: tuple[Served, httpx.AsyncClient]) -> None:
    served, client = room
    served.may_end.set()
    answer = await client.post(CHAT, json=text("hello"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.headers["cache-control"] == "no-store"
    chunks = read_chunks(answer.text)
    types = [each["type"] for each in chunks if each["type"] != "text-delta"]
    assert types == ["start", "start-step", "text-start", "text-end", "finish-step", "finish"]
    assert chunks[0]["messageId"] == "q.answer"
    assert "".join(each.get("delta", "") for each in chunks) == "one two (to: hello)"
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_reader_who_does_not_read_delays_no_other(room: tuple[Served, httpx.AsyncClient]) -> None:
    served, client = room
    long = "x" * 400_000
    async with client.stream("POST", CHAT, json=text(long)) as slow:
        await until(slow.aiter_lines(), "text-delta")
        served.may_end.set()
        answer = await client.get(f"{CHAT}/x/stream")
        assert long in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.local
async def test_nothing_is_sent_before_it_is_durable(room: tuple[Served, httpx.AsyncClient]) -> None:
    served, client = room
    lines = list[str]()
    async with client.stream("POST", CHAT, json=text("hello")) as answer:
        stream = answer.aiter_lines()
        await until(stream, "text-delta")

        async def collect() -> None:
            lines.extend([line async for line in stream])

        collecting = asyncio.create_task(collect())
        messages = Room.messages.of(await served.app._node.actor(ThreadKey("room", "one")))
        served.store.hold()
        served.may_end.set()
        async with asyncio.timeout(TIMEOUT):
            while messages.status != "idle":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        messages._writer.tell_watchers()  # As another write does that is durable.
        for _ in range(5):
            assert (await client.get("/healthz")).status_code == 200
        assert "".join(lines) == ""
        served.store.resume()
        await collecting
    assert [each["type"] for each in read_chunks("\n\n".join(filter(None, lines)))][-1] == "finish"


async def test_a_stream_ends_with_an_error_when_its_token_expires(room: tuple[Served, httpx.AsyncClient]) -> None:
    served, client = room
    served.seconds = 1
    answer = await client.post(CHAT, json=text("hello"))
    assert read_chunks(answer.text)[-1] == {"type": "error", "errorText": "the token has expired"}
    assert not answer.text.endswith("data: [DONE]\n\n")


async def test_a_stream_ends_with_an_error_when_its_user_is_disconnected(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    served, client = room
    async with client.stream("POST", CHAT, json=text("hello")) as answer:
        lines = answer.aiter_lines()
        await until(lines, "text-delta")
        assert await served.app.disconnect("ann") == 1
        await until(lines, "the server has disconnected this user")


async def test_a_stream_breaks_off_when_its_thread_is_destroyed(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    async with client.stream("POST", CHAT, json=text("hello")) as answer:
        lines = answer.aiter_lines()
        await until(lines, "text-delta")
        await client.delete("/threads/room/one")
        with pytest.raises(httpx.RemoteProtocolError):
            await until(lines, "never")


async def test_a_stream_breaks_off_when_the_server_shuts_down_and_the_page_resumes(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    served, client = room
    async with client.stream("POST", CHAT, json=text("hello")) as answer:
        lines = answer.aiter_lines()
        await until(lines, "text-delta")
        served.app._context.end_streams()
        with pytest.raises(httpx.RemoteProtocolError):
            await until(lines, "never")
    served.may_end.set()
    assert "two (to: hello)" in (await client.get(f"{CHAT}/x/stream")).text


@pytest.mark.local
async def test_a_stream_counts_as_a_socket_of_its_address() -> None:
    async with serving(Limits(connections_per_address=4)) as (served, client):
        async with client.stream("POST", CHAT, json=text("hello")) as answer:
            await until(answer.aiter_lines(), "text-delta")
            streams = [client.stream("GET", f"{CHAT}/x/stream") for _ in range(6)]
            opened = [await each.__aenter__() for each in streams]
            assert {each.status_code for each in opened} == {200, 429}
            for each in streams:
                await each.__aexit__(None, None, None)
        served.may_end.set()
        async with asyncio.timeout(TIMEOUT):
            while served.app._context.addresses._sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_stopped_answer_is_interrupted_for_all_viewers(room: tuple[Served, httpx.AsyncClient]) -> None:
    _, client = room
    async with client.stream("POST", CHAT, json=text("hello")) as answer:
        lines = answer.aiter_lines()
        await until(lines, "text-delta")
        watching = asyncio.create_task(client.get(f"{CHAT}/x/stream"))
        assert (await client.post(f"{CHAT}/stop")).json() == {"stopped": True}
        await until(lines, '"finishReason":"interrupted"')
        assert '"finishReason":"interrupted"' in (await watching).text
    assert (await client.post(f"{CHAT}/stop")).json() == {"stopped": False}


async def test_a_page_that_resumes_sees_the_next_answer_after_one_that_was_stopped(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    served, client = room
    async with client.stream("POST", CHAT, json=text("hello")) as first:
        await until(first.aiter_lines(), "text-delta")
        async with (
            client.stream("POST", CHAT, json=text("next", "next")),
            client.stream("GET", f"{CHAT}/x/stream") as resumed,
        ):
            lines = resumed.aiter_lines()
            await until(lines, "text-delta")
            assert (await client.post(f"{CHAT}/stop")).json() == {"stopped": True}
            await until(lines, '"messageId":"next.answer"')
            served.may_end.set()
            await until(lines, '"finishReason":"stop"')


@pytest.mark.local
async def test_a_failed_answer_is_an_error_even_if_the_next_question_is_answered_by_then(
    room: tuple[Served, httpx.AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.messages.caller.PAUSES", RetryPolicy(5, 0.001, 0.001, is_random=False))
    served, client = room
    served.may_end.set()
    failed = [read_chunks((await client.post(CHAT, json=text("fail"))).text)]
    assert read_chunks((await client.post(CHAT, json=text("next", "next"))).text)[-1]["type"] == "finish"
    failed.append(read_chunks((await client.post(CHAT, json=text("fail"))).text))
    assert [each[-1]["type"] for each in failed] == ["error", "error"]


async def test_a_long_history_has_pages_and_each_begins_with_a_question(
    room: tuple[Served, httpx.AsyncClient],
) -> None:
    served, client = room
    thread: Any = served.app.thread(Room, "one")
    for number in range(70):
        await thread.messages.inject("user", f"question {number}", id=f"q{number}")
        await thread.messages.inject("assistant", f"answer {number}")
        await thread.messages.inject("assistant", f"more {number}")
    found, before = list[Any](), None
    while True:
        page = (await client.get(CHAT, params={} if before is None else {"before": before})).json()
        assert page["messages"][0]["role"] == "user"
        found = [*page["messages"], *found]
        if (before := page["before"]) is None:
            break
    assert [each["id"] for each in found] == [id for n in range(70) for id in (f"q{n}", f"q{n}.answer")]
    assert [part.get("text") for part in found[1]["parts"]] == [None, "answer 0", None, "more 0"]
