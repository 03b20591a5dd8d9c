"""One client cannot fill the queues of a thread that others use, too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import TIMEOUT, CallError, connected, http
from tests.integration.test_http import error_of
from tests.running import running
from tests.server.session.guests import until

from plait import Connection, Context, Limits, MemoryStore, Plait, Principal, Thread, ThreadKey, rpc
from plait_client import connect

pytestmark = pytest.mark.relayed(in_soak=True)

LIMITS = Limits(waiting_turns=3, waiting_turns_per_address=5, waiting_runs=2, messages_per_second=1000)
PATH = "/threads/busy/one"


class Busy(Thread[dict[str, Any]]):
    initial_state: Any = {"order": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    @rpc
    async def hold(self) -> None:
        self.has_begun.set()
        await self.may_end.wait()

    @rpc
    def note(self, what: str) -> str:
        self.set_state(lambda state: {"order": [*state["order"], what]})
        return what

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.heard.put_nowait(data)

    async def on_request(self, request: Request) -> Response:
        return JSONResponse("answered")


def authenticate(request: Request) -> Principal | None:
    return Principal(request.headers.get("authorization", "guest"))


def as_user(user: str) -> dict[str, str]:
    return {"authorization": user}


class Held:
    """An app whose thread is held up by a turn, and by a run, of server code."""

    def __init__(self, app: Plait, address: str, thread: Busy) -> None:
        self.app = app
        self.address = address
        self.thread = thread

    def release(self) -> None:
        self.thread.may_end.set()

    @property
    def waiting(self) -> int:
        """How many turns of clients wait."""
        length: int = self.thread._actor.turns.mailbox.length  # type: ignore[attr-defined]
        return length


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    async with holding(authenticate=authenticate) as held:
        yield held


@asynccontextmanager
async def holding(**settings: Any) -> AsyncIterator[Held]:
    app = Plait(Busy, store=MemoryStore(), secret="s", limits=LIMITS, **settings)

    @app.agent("wait", thread=Busy)
    async def wait(ctx: Context[Busy]) -> str:
        await ctx.thread.may_end.wait()
        return "ended"

    async with running(app) as address:
        handle = app.thread(Busy, "one")
        holding = asyncio.create_task(handle.call(Busy.hold))
        run = asyncio.create_task(app.run("wait", thread="one"))
        thread = (await app._node.actor(ThreadKey("busy", "one"))).thread
        assert isinstance(thread, Busy)
        await asyncio.wait_for(thread.has_begun.wait(), TIMEOUT)
        held = Held(app, address, thread)
        yield held
        held.release()
        await asyncio.gather(holding, run)


async def outcomes(answers: list[asyncio.Task[httpx.Response]], count: int) -> list[httpx.Response]:
    """Return the first answers that come, so many."""
    found = []
    async with asyncio.timeout(TIMEOUT):
        for each in asyncio.as_completed(answers):
            found.append(await each)
            if len(found) == count:
                return found
    raise AssertionError(len(found))


async def refusal(call: Awaitable[Any]) -> str:
    with pytest.raises(CallError) as refused:
        await asyncio.wait_for(asyncio.ensure_future(call), TIMEOUT)
    return str(refused.value)


async def test_a_principal_has_so_many_calls_waiting_on_all_its_sockets_and_others_go_on(held: Held) -> None:
    async with (
        connected(held.address, PATH, headers=as_user("greedy")) as one,
        connected(held.address, PATH, headers=as_user("greedy")) as two,
        connected(held.address, PATH, headers=as_user("modest")) as modest,
        http(held.address) as web,
    ):
        for n, client in enumerate((one, two, one)):
            await client.begin("note", f"greedy {n}")
            await until(lambda n=n: held.waiting == n + 1)  # type: ignore[misc]
        for client in (one, two):
            assert "3 of your calls and messages wait in this thread" in await refusal(await client.begin("note", "no"))
        answer = await web.post(f"{PATH}/rpc/note", json={"args": ["no"]}, headers=as_user("greedy"))
        assert answer.status_code == 429
        last = await modest.begin("note", "modest")
        await until(lambda: held.waiting == 4)
        await modest.send("to be heard")
        held.release()
        assert await asyncio.wait_for(asyncio.ensure_future(last), TIMEOUT) == "modest"
        assert held.thread.state["order"] == ["greedy 0", "modest", "greedy 1", "greedy 2"]
        # What waited has ended, so others may wait.
        assert await two.call("note", "again") == "again"


async def test_clients_without_a_principal_count_for_their_address_with_a_limit_of_its_own() -> None:
    async with (
        holding() as held,
        connected(held.address, PATH) as one,
        connected(held.address, PATH) as two,
        http(held.address) as web,
    ):
        for n, client in enumerate((one, two, one, two, one)):
            await client.begin("note", f"{n}")
            await until(lambda n=n: held.waiting == n + 1)  # type: ignore[misc]
        many = "5 calls and messages of your address wait in this thread"
        assert many in await refusal(await two.begin("note", "no"))
        answer = await web.post(f"{PATH}/rpc/note", json={"args": ["no"]})
        assert (answer.status_code, many in answer.text) == (429, True)
        # Each socket has runs of its own.
        runs = [[await client.begin("run:wait", None) for _ in range(3)] for client in (one, two)]
        for _, _, third in runs:
            assert "2 of your runs wait in this thread" in await refusal(third)
        held.release()
        for first, second, _ in runs:
            assert await asyncio.wait_for(asyncio.ensure_future(first), TIMEOUT) == "ended"
            assert await asyncio.wait_for(asyncio.ensure_future(second), TIMEOUT) == "ended"


async def test_a_native_call_is_refused_and_messages_come_again(held: Held) -> None:
    client = NativeClient(held.address, PATH, "a")
    await client.join()
    for ref in range(1, 5):
        await client.send("call", ref=ref, method="note", args=[str(ref)])
    await client.until(lambda client: client.of("error", ref=4))
    assert client.of("error", ref=4)[0]["code"] == "rate_limited"
    await client.send("message", data="wait")
    await client.until(lambda client: client.of("error", refused="message"))
    assert client.of("error", refused="message")[0]["retry_after"] > 0
    held.release()
    await client.until(lambda client: client.of("result", ref=3))
    await client.close()
    assert held.thread.heard.empty()


async def test_a_client_that_says_much_while_the_thread_is_busy_is_heard_in_order(held: Held) -> None:
    async with connect(f"ws://{held.address}{PATH}") as room:
        for n in range(20):
            room.send(n)
        asyncio.get_running_loop().call_later(0.3, held.release)
        heard = [await asyncio.wait_for(held.thread.heard.get(), TIMEOUT) for _ in range(20)]
    assert heard == [str(n) for n in range(20)]


@pytest.mark.parametrize("path", ["rpc/note", "page"])
async def test_over_http_a_principal_has_so_many_requests_waiting(held: Held, path: str) -> None:
    async with http(held.address) as web:
        post = lambda user: asyncio.create_task(  # noqa: E731
            web.post(f"{PATH}/{path}", json={"args": ["x"]}, headers={"authorization": user})
        )
        greedy = [post("greedy") for _ in range(5)]
        for answer in await outcomes(greedy, 2):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited")
            assert answer.headers["retry-after"] == "1"
        modest = post("modest")
        held.release()
        assert (await modest).status_code == 200
        assert sorted([(await each).status_code for each in greedy]) == [200, 200, 200, 429, 429]


async def test_of_a_client_so_many_runs_wait(held: Held) -> None:
    async with http(held.address) as web, connected(held.address, PATH) as client:
        run = lambda user: asyncio.create_task(  # noqa: E731
            web.post(f"{PATH}/run/wait", headers={"authorization": user})
        )
        greedy = [run("greedy") for _ in range(3)]
        (refused,) = await outcomes(greedy, 1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert "2 of your runs wait in this thread" in refused.text
        calls = [await client.begin("run:wait", None) for _ in range(3)]
        with pytest.raises(CallError, match="2 of your runs wait in this thread"):
            await asyncio.wait_for(asyncio.ensure_future(calls[2]), TIMEOUT)
        modest = run("modest")
        held.release()
        assert (await modest).json() == "ended"
        assert sorted([(await each).status_code for each in greedy]) == [200, 200, 429]
        for call in calls[:2]:
            assert await asyncio.wait_for(asyncio.ensure_future(call), TIMEOUT) == "ended"


async def test_of_ten_runs_at_once_of_one_client_over_http_nine_run() -> None:
    app = Plait(Busy, store="memory:", secret="s")
    ends = asyncio.Event()

    @app.agent("wait", thread=Busy)
    async def wait(ctx: Context[Busy]) -> None:
        await ends.wait()

    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        answers = [asyncio.create_task(web.post(f"{PATH}/run/wait")) for _ in range(10)]
        done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert [error_of(each.result()) for each in done] == [(429, "rate_limited")]
        ends.set()
        codes = sorted([(await each).status_code for each in answers])
        assert codes == [200] * 9 + [429]
