"""Agents over HTTP: their answers, their errors, and whose thread they run in."""

import asyncio
import re
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.agents_app import SECRET, make_app
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import connected, http
from tests.integration.test_http import error_of
from tests.running import running
from tests.told import INTERNAL, check_internal

from plait import Limits, Principal, ThreadKey
from plait.agents.thread_ids import Signer

pytestmark = pytest.mark.relayed

FRIEND = "https://friend.example"


def make_header(id: str, secret: str = SECRET) -> dict[str, str]:
    return {"x-thread-id": f"{id};{Signer([secret]).sign(id)}"}


def id_of(answer: httpx.Response) -> str:
    """Return the id in the header and the cookie of an answer, which are signed alike."""
    id, _, signature = answer.headers["x-thread-id"].partition(";")
    (cookie,) = answer.headers.get_list("set-cookie")
    assert unquote(cookie.partition(";")[0]) == f"atid={id}.{signature}"
    assert Signer([SECRET]).verify(id, signature)
    return id


async def authenticate(request: Request) -> Principal | None:
    user = request.headers.get("authorization")
    return None if user is None else Principal(user)


# Answers


async def test_the_answer_is_the_output_as_json() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post("/run/say", json={"text": "hello"})
        assert (answer.status_code, answer.json()) == (200, ["hello"])
        assert answer.headers["content-type"] == "application/json"
        answer = await web.post("/run/count", content=b" \n")
        assert (answer.status_code, answer.content) == (200, b"1")


async def test_a_body_that_is_empty_is_the_default_of_the_input() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        for prefix in ("/run", "/threads/room/one/run"):
            for body in (b"", b" \n"):
                answer = await web.post(f"{prefix}/greet", content=body)
                assert (answer.status_code, answer.json()) == (200, "hi there")
            assert (await web.post(f"{prefix}/greet", json="Ada")).json() == "hi Ada"
            assert (await web.post(f"{prefix}/greet", content=b"null")).status_code == 422


async def test_an_agent_of_a_named_thread_runs_in_it_without_a_signed_id() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        for n in (1, 2):
            answer = await web.post("/threads/room/one/run/count")
            assert (answer.status_code, answer.json()) == (200, n)
            assert "x-thread-id" not in answer.headers
            assert "set-cookie" not in answer.headers
        assert (await web.post("/threads/room/a%2Fb/run/count")).json() == 1
        assert await chat.app.run("count", thread="one") == 3


@pytest.mark.parametrize("prefix", ["/run", "/threads/room/one/run"])
async def test_an_input_that_does_not_fit_is_refused_with_its_path(prefix: str) -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        for body, path in (
            (b'{"text": 1}', "/text"),
            (b"{}", ""),
            (b"", ""),
            (b"{", ""),
            (b'{"text": "a"} x', ""),
            (b'{"text": "a", "more": ' + b'{"a":' * 80 + b"1" + b"}" * 81, ""),
        ):
            answer = await web.post(f"{prefix}/say", content=body)
            assert (answer.status_code, answer.json()["error"].get("path")) == (422, path), body
        assert (await web.post(f"{prefix}/count", json={"text": "a"})).status_code == 422
        assert await chat.threads() == []


async def test_errors_have_their_status_and_no_traceback() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post("/run/fail")
        assert error_of(answer) == (500, "call_failed")
        assert INTERNAL.fullmatch(answer.json()["error"]["message"])
        assert (await web.post("/run/count", headers=make_header(id_of(answer)))).json() == 1
        for path in ("/run/nobody", "/threads/room/one/run/nobody", "/run/count/more"):
            assert (await web.post(path)).status_code == 404, path
        answer = await web.get("/run/count")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_an_answer_that_refuses_has_neither_id_nor_cookie() -> None:
    chat = make_app(
        limits=Limits(frame=2000),
        authorize=lambda principal, thread, action: not thread.name.endswith("f" * 32) or action != "call",
    )
    refused = make_header("thrd_" + "f" * 32)
    async with running(chat.app) as address, http(address) as web:
        begun = await web.post("/run/count")
        mine = make_header(id_of(begun))
        holding = asyncio.create_task(web.post("/run/wait", json="first", headers=mine))
        assert await chat.gate.wait() == "first"
        answers = [
            (404, await web.post("/run/nobody")),
            (404, await web.post("/run/count/more", headers=mine)),
            (405, await web.get("/run/count", headers=mine)),
            (403, await web.post("/run/count", headers=refused)),
            (403, await web.post("/run/count?session_id=s1")),
            (422, await web.post("/run/say", json={"text": 1}, headers=mine)),
            (413, await web.post("/run/say", json={"text": "x" * 2000}, headers=mine)),
            (409, await web.post("/run/impatient", json="x", headers=mine)),
            (429, await web.post("/run/hurry", headers=mine)),
        ]
        for status, answer in answers:
            assert answer.status_code == status, answer.text
            assert "x-thread-id" not in answer.headers, answer.text
            assert "set-cookie" not in answer.headers, answer.text
        chat.gate.is_open.set()
        assert id_of(await holding) == id_of(begun)
        # A run that fails after it was accepted has created a thread.
        assert id_of(await web.post("/run/fail"))


async def test_a_body_over_the_limit_is_refused() -> None:
    chat = make_app(limits=Limits(frame=2000))
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post("/run/say", json={"text": "x" * 2000})
        assert error_of(answer) == (413, "too_large")
        assert await chat.threads() == []


async def test_a_run_over_the_length_of_the_queue_is_told_when_to_come_again() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        url = "/threads/room/one/run/short-queue"
        first = asyncio.create_task(web.post(url, json="first"))
        assert await chat.gate.wait() == "first"
        answer = await web.post("/threads/room/one/run/hurry")
        assert error_of(answer) == (429, "rate_limited")
        assert "has waited" in answer.text
        assert int(answer.headers["retry-after"]) >= 1
        # One of them may wait, and the other is refused.
        others = [asyncio.create_task(web.post(url, json=name)) for name in ("second", "third")]
        (refused,), (waiting,) = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        answer = await refused
        assert error_of(answer) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1
        chat.gate.is_open.set()
        assert [(await each).status_code for each in (first, waiting)] == [200, 200]
        assert len(chat.gate.ran) == 2


async def test_a_run_that_fails_or_takes_too_long_frees_the_place_for_the_next() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        answers = [web.post(f"/threads/room/one/run/{name}") for name in ("fail", "stuck", "count", "stuck", "count")]
        codes = [answer.status_code for answer in await asyncio.gather(*answers)]
        assert sorted(codes) == [200, 200, 500, 504, 504]
        assert (await web.post("/threads/room/one/run/count")).json() == 3


async def test_a_server_that_shuts_down_is_to_be_tried_again() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        assert (await web.post("/threads/room/one/run/count")).json() == 1
        chat.app.drain()
        for path in ("/threads/room/one/run/count", "/run/count"):
            answer = await web.post(path)
            assert error_of(answer) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1


# Whose thread it is


async def test_the_header_or_the_cookie_alone_continues_the_thread() -> None:
    chat = make_app()
    async with running(chat.app) as address:
        async with http(address) as web:
            first = await web.post("/run/count")
            assert re.fullmatch("thrd_[0-9a-f]{32}", id_of(first))
            # httpx keeps the cookie.
            assert (await web.post("/run/count")).json() == 2
        async with http(address) as web:
            headers = {"x-thread-id": first.headers["x-thread-id"]}
            again = await web.post("/run/count", headers=headers)
            assert (again.json(), id_of(again)) == (3, id_of(first))
        async with http(address) as web:
            other = await web.post("/run/count")
            assert other.json() == 1
            assert id_of(other) != id_of(first)
        assert set(await chat.threads()) == {id_of(first), id_of(other)}


@each_case("forged", ["{id}", "{id};", "{id};{signature}x", "{id};{signature};", "{id};{foreign}", ""])
async def test_an_id_that_is_not_signed_well_reaches_a_new_thread(forged: str) -> None:
    chat = make_app()
    async with running(chat.app) as address:
        async with http(address) as web:
            id, _, signature = (await web.post("/run/count")).headers["x-thread-id"].partition(";")
        value = forged.format(id=id, signature=signature, foreign=Signer(["foreign"]).sign(id))
        async with http(address, headers={"x-thread-id": value}) as web:
            answer = await web.post("/run/count")
            assert answer.json() == 1
            assert id_of(answer) != id
        async with http(address, cookies={"atid": value.replace(";", ".")}) as web:
            answer = await web.post("/run/count")
            assert answer.json() == 1
            assert id_of(answer) != id


async def test_errors_and_streams_have_the_signed_id_too() -> None:
    chat = make_app()
    id = "thrd_" + "a1" * 16
    async with running(chat.app) as address, http(address, headers=make_header(id)) as web:
        for path, body in (("fail", None), ("number", 3), ("tell", 3), ("tell", 0)):
            assert id_of(await web.post(f"/run/{path}", json=body)) == id, path
        assert id_of(await web.post("/run/number", json=3, headers={"accept": "text/event-stream"})) == id
        assert id_of(await web.post("/run/number/interrupt")) == id


async def test_an_old_secret_still_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_SECRET", f"new, {SECRET}")
    chat = make_app(secret="overridden by the variable")
    id = "thrd_" + "b" * 32
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post("/run/describe", headers=make_header(id))
        assert answer.json()["thread"] == id
        assert answer.headers["x-thread-id"] == make_header(id, "new")["x-thread-id"]
        web.cookies.clear()
        answer = await web.post("/run/describe", headers=make_header(id, "overridden by the variable"))
        assert answer.json()["thread"] != id


async def test_the_same_traceparent_has_separate_sessions() -> None:
    chat = make_app()
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with running(chat.app) as address, http(address, headers=headers) as web:
        first, second = [(await web.post("/run/describe")).json() for _ in range(2)]
        assert first["thread"] == second["thread"]
        assert first["session"] != second["session"]
        assert all(re.fullmatch("sess_[0-9a-f]{32}", each["session"]) for each in (first, second))


# Providers


async def find_by_user(request: Request) -> str:
    return "thrd_" + request.state.principal.id * 32


async def test_a_provider_makes_the_id_from_the_user() -> None:
    chat = make_app(authenticate=authenticate, thread_ids=find_by_user)
    async with running(chat.app) as address, http(address) as web:
        for user in ("a", "b"):
            answer = await web.post("/run/describe", headers={"authorization": user})
            assert answer.json()["thread"] == id_of(answer) == "thrd_" + user * 32
        # What the other request's answer has set is not what decides.
        answer = await web.post("/run/describe", headers={"authorization": "a", **make_header("thrd_" + "b" * 32)})
        assert answer.json()["thread"] == "thrd_" + "a" * 32


def fail(request: Request) -> str:
    raise KeyError("a secret of the app")


@pytest.mark.local
@pytest.mark.parametrize(
    ("provider", "rule"),
    [
        (lambda _: "thrd_private!" + "a" * 30, "only letters and digits"),
        (lambda _: "private" + "a" * 30, "must begin with 'thrd_'"),
        (lambda _: None, "must be a str"),
        (fail, "a secret of the app"),
    ],
)
async def test_a_mistake_of_a_provider_is_logged_and_touches_nothing(
    provider: Any, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    chat = make_app(thread_ids=provider)
    async with running(chat.app) as address, http(address) as web:
        answer = await web.post("/run/count")
        assert error_of(answer) == (500, "internal")
        check_internal(answer.json()["error"]["message"], caplog, rule)
        assert await chat.threads() == []
        assert chat.app._node.actors == []


# Users


async def test_a_session_id_addresses_a_session_of_the_user() -> None:
    chat = make_app(authenticate=authenticate)
    async with running(chat.app) as address, http(address) as web:
        assert (await web.post("/run/count")).status_code == 401
        for user in ("alice", "bob"):
            for n in (1, 2):
                answer = await web.post("/run/count?session_id=s1", headers={"authorization": user})
                assert (answer.json(), answer.headers.get("x-thread-id")) == (n, None)
        assert (await web.post("/run/count?session_id=s2", headers={"authorization": "bob"})).json() == 1
        found = (await web.post("/run/describe?session_id=s1", headers={"authorization": "bob"})).json()
        assert (found["session"], found["user"]) == ("s1", "bob")
        assert await chat.app.run("count", user_id="alice", session_id="s1") == 3
        answer = await web.post("/run/count?session_id=", headers={"authorization": "bob"})
        assert (answer.status_code, answer.json()["error"]["path"]) == (422, "/session_id")
        answer = await web.post("/run/wait/interrupt?session_id=s1", headers={"authorization": "bob"})
        assert answer.json() == {"interrupted": False}


@each_case(
    "query",
    [
        "session_id=%FF",
        "session_id=a%C3",
        "session_id=%ED%A0%BD",
        "session_id=a&session_id=b",
        "session_id=a&session_id=",
    ],
)
async def test_a_session_id_that_is_not_one_text_is_refused(query: str) -> None:
    chat = make_app(authenticate=authenticate)
    async with running(chat.app) as address, http(address, headers={"authorization": "alice"}) as web:
        for path in ("count", "count/interrupt"):
            answer = await web.post(f"/run/{path}?{query}")
            assert (answer.status_code, answer.json()["error"]["path"]) == (422, "/session_id")
        assert await chat.threads() == []
        for other in ("session_id=%C3%A9+%26&other=%FF", "other=%FF&session%5Fid=%C3%A9%20%26"):
            assert (await web.post(f"/run/describe?{other}")).json()["session"] == "é &"


async def test_a_session_with_a_long_id_is_remembered() -> None:
    chat = make_app(authenticate=authenticate)
    long = "s" * 200
    async with running(chat.app) as address, http(address) as web:
        for n in (1, 2):
            assert (await web.post(f"/run/count?session_id={long}", headers={"authorization": "alice"})).json() == n
        assert [pair async for pair in chat.app.sessions(chat.room, "alice")] == [("alice", long)]


# Names of sessions that can be guessed, others that look like one, and who tries them.
OF_OTHERS = [
    *((f"alice:{rest}", "bob") for rest in ("s1", "", "%2573%2531", "a:b", "%25FF", "*")),
    (":s1", "bob"),
    *((name, user) for name in ("%2561lice:s1", "carol:s1") for user in ("alice", "bob")),
]


@each_case(("name", "user"), OF_OTHERS)
async def test_a_session_is_its_users_alone_though_its_name_can_be_guessed(name: str, user: str) -> None:
    chat = make_app(authenticate=authenticate)
    async with running(chat.app) as address, http(address) as web:
        await web.post("/run/count?session_id=s1", headers={"authorization": "alice"})
        await chat.app.run("count", session_id="s1")
        await chat.app.run("count", thread=unquote(name))
        path, mine = f"/threads/room/{name}", {"authorization": user}
        for answer in (
            await web.get(path, headers=mine),
            await web.put(path, json={"n": 5}, headers=mine),
            await web.post(f"{path}/run/count", headers=mine),
            await web.post(f"{path}/interrupt", headers=mine),
            await web.delete(path, headers=mine),
        ):
            assert error_of(answer) == (403, "forbidden")
        async with connected(address, path, headers=mine) as client:
            assert await client.until_closed() == 4403
            assert client.received == []
        native = NativeClient(address, path, "b", headers=mine)
        await native.open()
        assert (await native.until_closed(), native.frames) == (4403, [])
        await native.close()
        assert (await web.get("/threads/room/alice:s1", headers={"authorization": "alice"})).json() == {"n": 0}
        assert (await web.post("/threads/room/open/run/count", headers=mine)).json() == 1


@pytest.mark.local
async def test_nobody_has_no_sessions_to_address() -> None:
    chat = make_app()
    async with running(chat.app) as address, http(address) as web:
        assert error_of(await web.post("/run/count?session_id=s1")) == (403, "forbidden")
        assert await chat.threads() == []


# Who may


async def test_authorize_is_asked_to_call_and_to_create() -> None:
    asked: list[tuple[str, str]] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        asked.append((thread.name, action))
        return thread.name == "mine" or action != "call"

    chat = make_app(authorize=authorize)
    async with running(chat.app) as address, http(address) as web:
        assert (await web.post("/threads/room/mine/run/count")).json() == 1
        assert asked == [("mine", "call"), ("mine", "write"), ("mine", "create")]
        for path in ("/run/count", "/run/count/interrupt", "/threads/room/other/run/count"):
            assert error_of(await web.post(path)) == (403, "forbidden")
        assert error_of(await web.post("/threads/room/other/interrupt")) == (403, "forbidden")
        assert await chat.threads() == ["mine"]


async def test_pages_of_other_origins_need_to_be_allowed() -> None:
    foe = {"origin": "https://foe.example"}
    async with running(make_app().app) as address, http(address) as web:
        for path in ("/run/count", "/threads/room/one/run/count", "/run/count/interrupt"):
            assert error_of(await web.post(path, headers=foe)) == (403, "forbidden")
        assert (await web.post("/run/count", headers={"host": "evil.example"})).status_code == 421
    async with running(make_app(allowed_origins=[FRIEND]).app) as address, http(address) as web:
        assert error_of(await web.post("/run/count", headers=foe)) == (403, "forbidden")
        asks = {
            "origin": FRIEND,
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-thread-id,content-type",
        }
        assert (await web.options("/run/count", headers=asks)).status_code == 200
        answer = await web.post("/run/count", headers={"origin": FRIEND})
        assert "x-thread-id" in answer.headers["access-control-expose-headers"]


async def test_runs_count_as_requests() -> None:
    chat = make_app(limits=Limits(messages_per_second=1, message_burst=2))
    async with running(chat.app) as address, http(address) as web:
        answers = [await web.post("/run/count") for _ in range(4)]
        assert [answer.status_code for answer in answers][:2] == [200, 200]
        assert 429 in [answer.status_code for answer in answers]


@pytest.mark.local
async def test_an_app_without_agents_has_none_of_these_urls() -> None:
    chat = make_app()
    chat.app._runs.agents.clear()
    async with running(chat.app) as address, http(address) as web:
        assert error_of(await web.post("/run/count")) == (404, "not_found")
        assert "x-thread-id" not in (await web.post("/run/count")).headers
