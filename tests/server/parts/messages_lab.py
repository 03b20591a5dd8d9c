"""An app whose agent does what a test says with the messages of its thread, on either store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from plait import Context, Limits, Plait, Thread, Values
from plait.actor.actor import Actor
from plait.parts.messages.frames import (
    ChunkFrame,
    DeleteFrame,
    EndFrame,
    Frame,
    InputFrame,
    InsertFrame,
    ResetFrame,
    TakeFrame,
    UpdateFrame,
)
from plait.parts.messages.message import Message, Page, make_call
from plait.parts.messages.thread_messages import Messages, ThreadMessages

__all__ = ["Chat", "MessagesLab", "Shared", "Viewer", "Work", "contents", "open_lab"]


class Chat(Thread[dict[str, Any]]):
    """A conversation, which clients see, with an agent."""

    @staticmethod
    def initial_state() -> dict[str, Any]:
        return {"count": 0}

    values = Values()
    messages = Messages(agent="bot", live=True)

    async def on_error(self, error: BaseException, connection: Any) -> None:
        Chat.told.append(error)

    told: list[BaseException] = []  # noqa: RUF012


Work = Callable[[Context[Chat]], Awaitable[Any]]


def contents(messages: list[Message]) -> list[str | None]:
    """Return what messages say."""
    return [each.content for each in messages]


class Shared:
    """A store that another app has open: an app that uses it takes over the threads that it wakes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class MessagesLab:
    """An app with an agent `bot`, which is called for what is queued and does `work`, and `do`, which tests call."""

    def __init__(self, store: Any, **settings: Any) -> None:
        self.store = store
        self.app = Plait(Chat, store=store, **settings)
        self.app._node._host = self.app._node._host._replace(timer_interval=0.01)
        # What the bot does, how often it was called, and set at each end of a call.
        self.work: Work = answer
        self.calls = 0

        @self.app.agent("bot", thread=Chat)
        async def bot(ctx: Context[Chat]) -> None:
            self.calls += 1
            await self.work(ctx)

        @self.app.agent("do", thread=Chat)
        async def do(ctx: Context[Chat], work: Any) -> Any:
            return await work(ctx)

    async def do(self, work: Work, name: str = "one") -> Any:
        """Do something in a run of another agent."""
        return await self.app.run("do", work, thread=name)

    @property
    def handle(self) -> Any:
        """The messages of a thread, by its handle."""
        return self.app.thread(Chat, "one").part(Chat.messages)

    async def thread(self, name: str = "one") -> Chat:
        """Return a thread itself, awake."""
        thread = (await self.actor(name)).thread
        assert isinstance(thread, Chat)
        return thread

    async def actor(self, name: str = "one") -> Actor:
        """Return the actor of a thread, awake."""
        return await self.app._node.actor(self.app.thread(Chat, name)._key)

    async def messages(self, name: str = "one") -> ThreadMessages:
        """Return the messages of a thread, awake."""
        return (await self.thread(name)).messages

    async def all(self, name: str = "one") -> list[Message]:
        """Return all messages of a thread at rest."""
        page = await self._read(name)
        assert page.total == len(page.messages)
        assert not page.has_more
        return page.messages

    async def _read(self, name: str) -> Page:
        return await (await self.messages(name)).list(100_000, include_silent=True, max_depth=1000)

    async def until(self, check: Callable[[list[Message]], bool], name: str = "one") -> list[Message]:
        """Wait until the messages of a thread are as they must be, and return them."""
        async with asyncio.timeout(30):
            # Until then, an attempt may remove the answer of an earlier one while the messages are read.
            while not check((await self._read(name)).messages):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return await self.all(name)

    async def restart(self) -> None:
        """Put all threads to sleep, so that the next use reads what is stored."""
        await self.app.__aexit__(None, None, None)
        await self.app.__aenter__()


async def answer(ctx: Context[Chat]) -> None:
    """Answer each message that is queued."""
    for message in await ctx.thread.messages.take():
        ctx.thread.messages.inject("assistant", f"re {message.content}")


class Viewer:
    """A client that holds the messages that it was told of."""

    def __init__(self, messages: ThreadMessages) -> None:
        self._messages = messages
        self.revision = 0
        self.held: dict[str, Message] = {}
        self.frames: list[Frame] = []
        self._leave: Callable[[], None] | None = None
        # Whether it must open the messages again.
        self.is_reset = False
        # What came while it opens.
        self._early: list[Frame] | None = None

    async def open(self, messages: ThreadMessages | None = None) -> None:
        """Connect, and ask for what was missed."""
        self.is_reset = False
        self._messages = messages or self._messages
        self._early = []
        self._leave = self._messages.feed.watch(self._receive)
        missed = await self._messages.feed.since(self.revision) if self.revision else None
        if missed is None:
            self.revision, page = await self._messages.feed.newest(100_000)
            self.held = {each.id: each for each in page.messages}
        else:
            self.held.update((each.id, each) for each in missed.items)
            for id in missed.removed:
                self.held.pop(id, None)
            self.revision = missed.revision
        early, self._early = self._early, None
        for frame in early:
            self._take(frame)

    def close(self) -> None:
        """Be away."""
        if self._leave is not None:
            self._leave()
            self._leave = None

    @property
    def shown(self) -> list[Message]:
        """The messages as they are shown: the history, then what is pending."""
        return sorted(self.held.values(), key=lambda each: (each.status == "pending", each.position))

    def _receive(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._early is None:
                self._take(frame)
            else:
                self._early.append(frame)

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame, ResetFrame):
            self.is_reset = True
        if self.is_reset:
            return
        if isinstance(frame, ChunkFrame | InputFrame):
            assert frame.revision >= self.revision or frame.id in self.held
        elif frame.revision <= self.revision:
            return
        else:
            assert frame.revision == self.revision + 1, "there is a gap"
            self.revision = frame.revision
        self._apply(frame)

    def _apply(self, frame: Frame) -> None:
        match frame:
            case InsertFrame(message=message) | UpdateFrame(message=message):
                self.held[message.id] = message
            case DeleteFrame(id=id):
                self.held.pop(id, None)
            case TakeFrame(taken=taken):
                for id, position in taken:
                    self.held[id] = replace(self.held[id], position=position, status="completed")
            case ChunkFrame(id=id, at=at, text=text):
                held = self.held[id]
                known = held.content or ""
                assert at <= len(known), "text is missing"
                self.held[id] = replace(held, content=known[:at] + text if at + len(text) > len(known) else known)
            case InputFrame(id=id, input=added):
                held = self.held[id]
                known = {call["id"]: call for call in held.tool_calls or ()}
                before = known[added.call]["function"]["arguments"] if added.call in known else ""
                assert added.at <= len(before), "arguments are missing"
                arguments = before + added.text[len(before) - added.at :]
                known[added.call] = make_call(added.call, added.name, arguments)
                self.held[id] = replace(held, tool_calls=[*known.values()])
            case EndFrame(id=id, status=status):
                self.held[id] = replace(self.held[id], status=status, taken=(), tool_calls=None)


@asynccontextmanager
async def open_lab(store: Any, *, limits: Limits | None = None) -> AsyncIterator[MessagesLab]:
    """Run a lab with a store."""
    Chat.told = []
    lab = MessagesLab(store, limits=limits, shutdown_timeout=2.0)
    async with lab.app:
        yield lab
