"""Streams of AG-UI's events over HTTP, as a client without a library reads them."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from ag_ui.core import Event
from pydantic import TypeAdapter
from tests.adapters.ag_ui.lab import TIMEOUT, Gate, make_app
from tests.integration.socket_client import http
from tests.running import running

from plait import MemoryStore, Plait

__all__ = ["EVENTS", "Served", "Stream", "begun", "body", "serving", "watched"]

EVENTS = TypeAdapter[Any](Event)

_NUMBERS = itertools.count()


class Stream:
    """One stream of events; `ids` are the ids of received events, in order."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.ids: list[str] = []
        self.events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any] | None:
        """Return the next event, None at the end."""
        async with asyncio.timeout(TIMEOUT):
            async for line in self._lines:
                if line.startswith("id:"):
                    self.ids.append(line[3:].strip())
                elif line.startswith("data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    EVENTS.validate_python(event)
                    self.events.append(event)
                    return event
        return None

    async def until(self, type: str) -> dict[str, Any]:
        while (event := await self.next()) is not None:
            if event["type"] == type:
                return event
        raise AssertionError(f"no {type} came, but {self.types}")

    async def rest(self) -> list[str]:
        """Read up to the end, and return the types of all events."""
        while await self.next() is not None:
            pass
        return self.types

    @property
    def types(self) -> list[str]:
        return [each["type"] for each in self.events]


def body(text: str = "a b c", **more: Any) -> dict[str, Any]:
    message = {"id": "1", "role": "user", "content": text}
    return {"threadId": "t", "runId": f"r{next(_NUMBERS)}", "messages": [message], **more}


@asynccontextmanager
async def begun(web: httpx.AsyncClient, path: str, **more: Any) -> AsyncIterator[Stream]:
    """Begin a run."""
    async with web.stream("POST", f"/ag-ui/{path}", json=body(**more)) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


@asynccontextmanager
async def watched(web: httpx.AsyncClient, path: str, id: str = "") -> AsyncIterator[Stream]:
    """Watch a run, or come back."""
    headers = {"Last-Event-ID": id} if id else {}
    async with web.stream("GET", f"/ag-ui/{path}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Stream(answer)


class Served:
    """A served app, and a client of it."""

    def __init__(self, app: Plait, web: httpx.AsyncClient) -> None:
        self.app = app
        self.web = web
        self.gate: Gate = app.gate  # type: ignore[attr-defined]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    app = make_app(**{"store": MemoryStore(), **settings})
    async with running(app) as address, http(address) as web:
        yield Served(app, web)
