"""Readers that note everything that they are told, and the secrets that are looked for in it."""

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import httpx
from tests.integration.native_client import NativeClient
from tests.integration.socket_client import TIMEOUT, Client, http, websocket

__all__ = ["DEALER", "CloudflareReader", "NativeReader", "Stream", "Tape", "User"]

DEALER: Final = "dealer"
"""The user who knows all secrets."""

_SECRET: Final = re.compile(r"sec[0-9a-f]{12}")


class Tape:
    """Makes secrets, and counts the secrets in frames of readers who may not know them."""

    def __init__(self) -> None:
        # Who may know each secret; None for everybody.
        self._knowing: dict[str, set[str] | None] = {}
        # The frames and answers, by user and door.
        self.told: Counter[tuple[str, str]] = Counter()
        self.leaks: list[str] = []

    @property
    def count(self) -> int:
        """How many frames and answers were noted."""
        return self.told.total()

    def make(self, *users: str) -> str:
        """Return a new secret that only some users may know."""
        secret = f"sec{secrets.token_hex(6)}"
        self._knowing[secret] = {DEALER, *users}
        return secret

    def allow(self, secret: str, *users: str) -> None:
        """Allow more users to know a secret from now on, or all users if none are named."""
        known = self._knowing[secret]
        self._knowing[secret] = None if known is None or not users else known | set(users)

    def allow_all(self, data: object) -> None:
        """Allow all users to know the secrets in some data."""
        for secret in set(_SECRET.findall(json.dumps(data))):
            self.allow(secret)

    def note(self, user: str, door: str, data: str) -> None:
        """Note that a user was told something."""
        self.told[user, door] += 1
        for secret in set(_SECRET.findall(data)):
            users = self._knowing.get(secret, set())
            if users is not None and user not in users:
                self.leaks.append(f"{user} was told {secret} by {door}: {data[:2000]}")

    def check(self) -> None:
        """Check that no reader has received a secret of others."""
        assert not self.leaks, f"{len(self.leaks)} leaks of {self.count} frames: {self.leaks[:3]}"

    def search(self, text: str) -> list[str]:
        """Return all secrets in a text that should have none."""
        return _SECRET.findall(text)


class NativeReader(NativeClient):
    """A native client whose frames are noted."""

    def __init__(self, tape: Tape, user: str, door: str, address: str, path: str, **options: Any) -> None:
        super().__init__(address, path, f"{user}-{secrets.token_hex(4)}", **options)
        self._tape, self._user, self._door = tape, user, door
        self.types: Counter[str] = Counter()

    def _take(self, frame: dict[str, Any]) -> None:
        self.types[frame["type"]] += 1
        own = [op["path"] for push in self._sent for op in push.ops]
        shown = {name: value for name, value in frame.items() if name != "path" or value not in own}
        self._tape.note(self._user, self._door, json.dumps(shown))
        super()._take(frame)

    def fold(self, frame: dict[str, Any]) -> None:
        """Take in a frame that has come by another way."""
        if "type" in frame:
            super()._take(frame)

    async def push_and_wait(self, *ops: dict[str, Any], base: tuple[str, int] | None = None) -> dict[str, Any]:
        """Push operations, by default on the known state, and return the answer."""
        known = self.epoch, self.version
        self.epoch, self.version = base or known
        try:
            ref = await self.push(*ops)
        finally:
            self.epoch, self.version = known
        await self.until(lambda client: client.of(("ack", "nack"), ref=ref))
        answer: dict[str, Any] = self.of(("ack", "nack"), ref=ref)[0]
        return answer


class CloudflareReader(Client):
    """A client of the Cloudflare protocol whose frames are noted."""

    def __init__(self, tape: Tape, user: str, door: str, socket: Any) -> None:
        self._tape, self._user, self._door = tape, user, door
        super().__init__(socket)

    def _take(self, data: str | bytes) -> None:
        self._tape.note(self._user, self._door, str(data))
        super()._take(data)


class Stream:
    """An answer of server-sent events, which is read as it comes."""

    def __init__(self, tape: Tape, user: str, door: str, web: httpx.AsyncClient, request: httpx.Request) -> None:
        self.status = 0
        # The last id, the data of each event, and the state to which the events of a thread lead.
        self.id = ""
        self.events: list[Any] = []
        self.fold = NativeReader(Tape(), user, door, "", "")
        self._tape, self._user, self._door = tape, user, door
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(web, request))

    async def until(self, is_so: Callable[[Self], Any]) -> None:
        """Wait until the events make `is_so` true, or the stream has ended."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not is_so(self) and not self._task.done():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"{self._user} at {self._door}: {self.status} {self.id} {self.events[-3:]}") from None
        if self._task.done():
            self._task.result()
        assert is_so(self), (self.status, self.events)

    async def until_end(self) -> None:
        """Wait until the server has ended the stream."""
        await asyncio.wait_for(self._task, TIMEOUT)

    async def close(self) -> None:
        """Read no further."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _read(self, web: httpx.AsyncClient, request: httpx.Request) -> None:
        answer = await web.send(request, stream=True)
        self.status = answer.status_code
        try:
            async for line in answer.aiter_lines():
                self._tape.note(self._user, self._door, line)
                field, _, value = line.partition(":")
                if field == "id":
                    self.id = value.strip()
                elif field == "data" or line.startswith("{"):
                    self.events.append(json.loads(value if field == "data" else line))
                    self.fold.fold(self.events[-1])
                self._news.set()
        finally:
            await answer.aclose()
            self._news.set()


class User:
    """A user, or an anonymous client, of one thread at one address."""

    def __init__(
        self, tape: Tape, name: str, address: str, kind: str, thread: str, *, token: str | None = None
    ) -> None:
        self.tape = tape
        self.token = token
        self.name = name
        self.address = address
        self.kind, self.thread = kind, thread
        self.path = f"/threads/{kind}/{thread}"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        limits = httpx.Limits(max_connections=None)
        self.web = await self._stack.enter_async_context(http(self.address, headers=headers, limits=limits))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def ask(self, path: str = "", method: str = "GET", *, door: str = "http", **options: Any) -> httpx.Response:
        """Send a request for the thread, or a part of it."""
        return await self.ask_server(self.path + path, method, door=door, **options)

    async def ask_server(self, path: str, method: str = "GET", *, door: str, **options: Any) -> httpx.Response:
        """Send a request for anything."""
        answer = await self.web.request(method, path, **options)
        self.tape.note(self.name, door, f"{answer.headers}{answer.text}")
        return answer

    async def state(self) -> Any:
        """Return what the user sees of the state, over HTTP."""
        answer = await self.ask()
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def join(self, door: str = "socket", have: tuple[str, int] | None = None, state: Any = None) -> NativeReader:
        """Join the thread, and go on after a version and its state."""
        reader = NativeReader(self.tape, self.name, door, self.address, self.path, token=self.token)
        if have is not None:
            reader.epoch, reader.version, reader.state = *have, state
        self._stack.push_async_callback(reader.close)
        await reader.join()
        return reader

    async def connect(self, door: str = "cloudflare") -> CloudflareReader:
        """Open a socket of the Cloudflare protocol."""
        query = "" if self.token is None else f"?token={self.token}"
        reader = CloudflareReader(self.tape, self.name, door, await websocket(f"ws://{self.address}{self.path}{query}"))
        self._stack.push_async_callback(reader.close)
        await reader.until(lambda client: client.states)
        return reader

    def stream(
        self,
        path: str = "/changes",
        method: str = "GET",
        *,
        door: str = "events",
        headers: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Stream:
        """Open a stream of events."""
        url = path if path.startswith(("/ag-ui", "/threads")) else self.path + path
        sent = {"accept": "text/event-stream", **(headers or {})}
        request = self.web.build_request(method, url, headers=sent, json=json, timeout=TIMEOUT)
        stream = Stream(self.tape, self.name, door, self.web, request)
        self._stack.push_async_callback(stream.close)
        return stream

    def run(
        self, *, state: Any = None, version: str | None = None, id: str | None = None, door: str = "ag-ui"
    ) -> Stream:
        """Run the agent over AG-UI, which sends a state and its version if they are given."""
        props = {} if version is None else {"stateVersion": version}
        body = {
            "threadId": self.thread,
            "runId": id or secrets.token_hex(4),
            "messages": [],
            "tools": [],
            "context": [],
        }
        body |= {"state": state, "forwardedProps": props}
        return self.stream(f"/ag-ui/watch-{self.kind}/{self.thread}", "POST", json=body, door=door)

    async def call(self, method: str, *args: Any) -> Any:
        """Call an rpc over HTTP, and return its result."""
        answer = await self.ask(f"/rpc/{method}", "POST", door="rpc", json={"args": args})
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]
