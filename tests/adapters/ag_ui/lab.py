"""Agents that tests hold and release, and clients of AG-UI in Node that talk to them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from ag_ui.core import (
    Event,
    Interrupt,
    RunAgentInput,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from pydantic import TypeAdapter

from plait import Context, Plait, Reject, Text, Thread, rpc
from plait.adapters.ag_ui import AgUi, ask, emit

__all__ = ["FOLDER", "TIMEOUT", "Chat", "Conversation", "Lab", "Player", "make_app", "until_connected"]

FOLDER: Final = Path(__file__).parent / "client"
TIMEOUT: Final = 60.0

_EVENTS: Final = TypeAdapter[Any](Event)


class Chat(msgspec.Struct, frozen=True):
    answer: Text = ""
    steps: tuple[str, ...] = ()
    note: str = ""


class Conversation(Thread[Chat]):
    initial_state = Chat()

    @rpc
    def connected(self) -> int:
        return len(self.connections())

    def validate_state_change(self, next_state: Chat, source: Any) -> None:
        if next_state.note == "bad":
            raise Reject("no bad notes", path="/note")


class Gate:
    """A gate for agents: each `open` ends one `wait`. `reached` waits until an agent waits."""

    def __init__(self) -> None:
        self._opened = asyncio.Semaphore(0)
        self._reached = asyncio.Semaphore(0)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self._opened.release()

    async def reached(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._reached.acquire()

    async def wait(self) -> None:
        self._reached.release()
        async with asyncio.timeout(TIMEOUT):
            await self._opened.acquire()


def make_app(**settings: Any) -> Plait:
    """Return an app with agents; waiting agents wait at `gate`, an attribute of the app."""
    app = Plait(Conversation, **{"secret": "s", **settings})
    gate = Gate()
    app.gate = gate  # type: ignore[attr-defined]

    @app.agent("writer", thread=Conversation)
    async def writer(ctx: Context, text: str) -> AsyncIterator[str]:
        """Yield the words of a text, each when the gate opens; also write them into the state."""
        for word in text.split():
            await gate.wait()
            ctx.thread.append("/answer", word)
            yield word

    @app.agent("quick", thread=Conversation)
    async def quick(ctx: Context, text: str) -> AsyncIterator[Any]:
        """Call a tool between two texts."""
        yield "Looking "
        yield "it up"
        ctx.thread.set_state(lambda s: msgspec.structs.replace(s, steps=(*s.steps, "looked up")))
        emit(
            ctx,
            ToolCallStartEvent(tool_call_id="t1", tool_call_name="weather"),
            ToolCallArgsEvent(tool_call_id="t1", delta=json.dumps({"town": text})),
            ToolCallEndEvent(tool_call_id="t1"),
            ToolCallResultEvent(message_id="m1", tool_call_id="t1", content="18 degrees"),
        )
        yield f"It is mild in {text}"
        yield {"source": "station 7"}

    @app.agent("adder", thread=Conversation)
    async def adder(ctx: Context) -> dict[str, int]:
        """Add as many as there are messages."""
        given = ctx.get(RunAgentInput)
        assert given is not None
        return {"messages": len(given.messages)}

    @app.agent("failing", thread=Conversation)
    async def failing(ctx: Context, text: str) -> AsyncIterator[str]:
        """Fail in the middle of a text."""
        yield "so far"
        raise ValueError("the model is gone")

    @app.agent("buyer", thread=Conversation)
    async def buyer(ctx: Context, text: str) -> str:
        """Ask before it buys."""
        given = ctx.get(RunAgentInput)
        answer = given.resume[0] if given is not None and given.resume else None
        if answer is None:
            ask(ctx, Interrupt(id="i1", reason="approval", message="Buy it?"))
            return ""
        assert answer.interrupt_id == "i1"
        assert isinstance(answer.payload, dict)
        return f"bought: {answer.payload['approved']}"

    @app.agent("busy", thread=Conversation, multitask="reject")
    async def busy(ctx: Context, text: str) -> AsyncIterator[str]:
        """Run alone."""
        await gate.wait()
        yield text

    app.mount("/ag-ui", AgUi(app))
    return app


async def until_connected(app: Plait, count: int) -> None:
    """Wait until this many clients follow the thread of most tests."""
    async with asyncio.timeout(TIMEOUT):
        while await app.thread(Conversation, "one").call(Conversation.connected) != count:
            pass


class Player:
    """One client, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.events: list[dict[str, Any]] = []
        self.outcomes: list[str] = []

    async def line(self) -> dict[str, Any]:
        """Return the next line of the client."""
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            text = await self._process.stdout.readline()
        assert text, "the client has ended"
        line: dict[str, Any] = json.loads(text)
        if "event" in line:
            _EVENTS.validate_python(line["event"])
            self.events.append(line["event"])
        if "outcome" in line:
            self.outcomes.append(line["outcome"])
        return line

    async def until(self, wanted: str) -> dict[str, Any]:
        """Read up to a type of events, or another line that has this member."""
        while True:
            line = await self.line()
            if wanted in line or line.get("event", {}).get("type") == wanted:
                found: Any = line.get("event", line.get(wanted))
                return dict(found) if isinstance(found, dict) else line

    async def done(self) -> dict[str, Any]:
        """Read up to the end, and return how it has ended."""
        return await self.until("done")

    def go(self) -> None:
        """Continue the client after a cut."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    @property
    def types(self) -> list[str]:
        """The types of the events so far."""
        return [each["type"] for each in self.events]

    @property
    def text(self) -> str:
        """All texts so far."""
        return "".join(each["delta"] for each in self.events if each["type"] == "TEXT_MESSAGE_CONTENT")

    def find(self, type: str) -> list[dict[str, Any]]:
        """Return the events of a type."""
        return [each for each in self.events if each["type"] == type]


class Lab:
    """A served app, and its clients."""

    def __init__(self, app: Plait, address: str) -> None:
        self.app = app
        self.address = address

    @property
    def gate(self) -> Gate:
        gate: Gate = self.app.gate  # type: ignore[attr-defined]
        return gate

    def url(self, agent: str, name: str = "one") -> str:
        return f"http://{self.address}/ag-ui/{agent}/{name}"

    @property
    def thread(self) -> Any:
        """A handle to the thread of most tests."""
        return self.app.thread(Conversation, "one")

    @asynccontextmanager
    async def play(self, agent: str, name: str = "one", **options: Any) -> AsyncIterator[Player]:
        """Start a client."""
        command = json.dumps({"url": self.url(agent, name), "threadId": "t", **options})
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "node", "play.js", command, cwd=FOLDER, stdin=pipe, stdout=pipe, limit=2**24
        )
        try:
            yield Player(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
