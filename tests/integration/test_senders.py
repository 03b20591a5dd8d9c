"""The senders of messages, by all doors at which they come in."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.adapters.ag_ui.streams import begun
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import http
from tests.running import running

from plait import Connection, Context, Messages, Plait, Principal, Thread, rpc
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed


class Room(Thread[dict[str, Any]]):
    initial_state: Any = dict
    messages = Messages(live=True)

    @rpc
    async def say(self, text: str) -> None:
        await self.messages.queue(text)

    @rpc
    async def say_by(self, text: str) -> None:
        await self.thread(Room, "one").part(Room.messages).queue(text)

    async def on_connect(self, connection: Connection, request: Request) -> None:
        await self.messages.queue("on_connect")

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await self.messages.queue("on_message")

    async def on_request(self, request: Request) -> Response:
        await self.thread(Room, "one").call(Room.say, "on_request")
        return Response()


def make_app() -> Plait:
    def authenticate(request: Request) -> Principal | None:
        user = request.headers.get("x-user")
        return None if user is None else Principal(user)

    app = Plait(Room, secret="s", store="memory:", authenticate=authenticate)

    @app.agent("add", thread=Room)
    async def add(ctx: Context[Room]) -> None:
        """Add nothing to what the client adds."""

    app.mount("/ag-ui", AgUi(app, messages="messages"))
    return app


async def test_each_door_names_the_principal_as_the_sender() -> None:
    app = make_app()
    async with running(app) as address, http(address, headers={"x-user": "ada"}) as web:
        client = NativeClient(address, "/threads/room/one", "c", headers={"x-user": "ada"})
        await client.open()
        await client.send("send", ref=1, part="messages", content="send", key="k")
        await client.send("message", data="hello")
        await client.call("say", "rpc")  # A turn after those of the hooks.
        for method, name in (("say", "one"), ("say_by", "two")):
            answer = await web.post(f"/threads/room/{name}/rpc/{method}", json={"args": [f"http {method}"]})
            assert answer.is_success, answer.text
        assert (await web.get("/threads/room/three/x")).is_success
        async with begun(web, "add/one") as stream:
            await stream.rest()
        await app.thread(Room, "one").part(Room.messages).queue("server")
        wanted = {"on_connect", "send", "rpc", "on_message", "http say", "http say_by", "on_request", "a b c"}
        found = (await app.thread(Room, "one").part(Room.messages).list()).messages
        assert {each.content: each.sender for each in found} == {**dict.fromkeys(wanted, "ada"), "server": None}
        await client.close()
