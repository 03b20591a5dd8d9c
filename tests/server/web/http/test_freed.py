"""What a request that fails has used is freed by reference counting, however seldom garbage is collected."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NoReturn
from weakref import ref

import httpx
from starlette.requests import Request
from starlette.responses import Response
from tests.cases import each_case

from plait import Plait, Reject, Source, Thread, rpc


class Used:
    """What the code of a request holds when it fails."""


used: Final[list[ref[Used]]] = []


def fail() -> NoReturn:
    held = Used()
    used.append(ref(held))
    raise Reject("no")


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
        fail()

    def on_request(self, request: Request) -> Response:
        fail()

    @rpc
    async def work(self) -> None:
        fail()


async def call_handle(app: Plait, _: httpx.AsyncClient) -> None:
    with suppress(Reject):
        await app.thread(Room, "one").call(Room.work)


def request(method: str, path: str, json: Any = None) -> Callable[[Plait, httpx.AsyncClient], Awaitable[None]]:
    async def go(_: Plait, web: httpx.AsyncClient) -> None:
        assert (await web.request(method, f"/threads/room/one{path}", json=json)).status_code == 409

    return go


@each_case(
    "fails",
    [request("POST", "/rpc/work", {}), request("GET", "/other"), request("PUT", "", {"n": 1}), call_handle],
)
async def test_what_a_failed_request_has_used_is_freed_at_once(
    fails: Callable[[Plait, httpx.AsyncClient], Awaitable[None]],
) -> None:
    app = Plait(Room, store="memory://")
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        used.clear()
        gc.disable()
        try:
            await fails(app, web)
            await asyncio.sleep(0)  # The loop holds the future that has woken this task.
            assert [held() for held in used] == [None]
        finally:
            gc.enable()
