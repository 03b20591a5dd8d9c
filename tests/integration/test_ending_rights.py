"""Who may end runs, by every door: clients that have begun them, and clients that may approve."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, connected, http
from tests.integration.socket_client import CallError as CloudflareError
from tests.running import running

from plait import (
    Agent,
    Context,
    MemoryStore,
    Messages,
    Model,
    Plait,
    Principal,
    Prompt,
    Side,
    Tasks,
    Thread,
    ThreadKey,
)
from plait.adapters.ag_ui import AgUi
from plait_client import CallError, connect

pytestmark = pytest.mark.relayed

FORBIDDEN = "another user has begun the run"


class Desk(Thread[dict[str, Any]]):
    """Its agent is durable, and is stopped."""

    initial_state: Any = dict
    tasks = Tasks()
    messages = Messages(agent="clerk", live=True)


class Room(Thread[dict[str, Any]]):
    """Its agent is interrupted."""

    initial_state: Any = dict
    messages = Messages(agent="guide", live=True)


class Served:
    def __init__(self) -> None:
        # Has an item for each run that has begun.
        self.begun: asyncio.Queue[None] = asyncio.Queue()

    async def wait(self) -> None:
        self.begun.put_nowait(None)
        await asyncio.Event().wait()


def make_app(served: Served) -> Plait:
    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "Well"
        await served.wait()

    def authenticate(request: Request) -> Principal:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return Principal(token or request.query_params["token"])

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        assert principal is not None
        return action not in (("write", "send") if principal.id == "staff" else ("approve",))

    checks: dict[str, Any] = {"authenticate": authenticate, "authorize": authorize}
    app = Plait(Desk, Room, store=MemoryStore(), secret="s", shutdown_timeout=0.1, **checks)
    app.execution(
        Desk,
        agents=[Agent("clerk", Side("clerk"))],
        models=[Model("script", FunctionModel(stream_function=say))],
        prompts=[Prompt("clerk", "You are a clerk.", "script")],
    )

    @app.agent("guide", thread=Room)
    async def guide(ctx: Context[Room]) -> None:
        await ctx.thread.messages.take()
        served.begun.put_nowait(None)
        while True:
            await asyncio.sleep(0.005)
            await ctx.checkpoint()

    app.mount("/ag-ui", AgUi(app, messages="messages"))
    return app


async def end(door: str, address: str, kind: str, name: str, user: str) -> object:
    """End the run of a thread as a user; return the server's answer or refusal."""
    place, what = f"/threads/{kind}/{name}", "stop" if kind == "desk" else "interrupt"
    if door == "native":
        async with connect(f"ws://{address}{place}", token=user) as room:
            try:
                return await room.call(f"run:{what}")
            except CallError as error:
                return error.code if FORBIDDEN in str(error) else str(error)
    if door == "cloudflare":
        async with connected(address, place, query={"token": user}) as cloudflare:
            try:
                return await cloudflare.call(f"run:{what}")
            except CloudflareError as error:
                return "forbidden" if FORBIDDEN in str(error) else str(error)
    agent = "clerk" if kind == "desk" else "guide"
    paths = {"http": f"{place}/{what}", "rpc": f"{place}/rpc/run:{what}", "ag-ui": f"/ag-ui/{agent}/{name}/interrupt"}
    async with http(address, headers={"authorization": f"Bearer {user}"}) as web:
        answer = (await web.post(paths[door])).json()
    if "error" in answer:
        return answer["error"]["code"] if FORBIDDEN in answer["error"]["message"] else answer
    (value,) = answer.values()
    return value


@each_case("kind", ["desk", "room"])
@each_case("door", ["native", "cloudflare", "http", "rpc", "ag-ui"])
async def test_a_run_is_ended_by_who_began_it_and_who_may_approve(door: str, kind: str) -> None:
    app = make_app(served := Served())
    async with running(app) as address, asyncio.timeout(TIMEOUT):
        for user in ("ada", "staff"):
            place = f"ws://{address}/threads/{kind}/{user}"
            async with connect(place, token="ada") as ada, connect(place, token="bob") as bob:
                assert await end(door, address, kind, user, "bob") is False
                await ada.messages.send("Hello.")
                await served.begun.get()
                await bob.messages.send("What comes later does not begin it.")
                assert await end(door, address, kind, user, "bob") == "forbidden"
                assert await end(door, address, kind, user, user) is True
