"""Streams an answer to a page while it is made: the differences between what the page has and what it is to have."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import dropwhile
from typing import Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.errors import PlaitError
from plait.parts.messages.call_inputs import extend_call
from plait.parts.messages.caller import FAILED
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
from plait.parts.messages.message import INTERRUPTED, Message, read_own
from plait.parts.messages.reading import Feed
from plait.parts.messages.thread_messages import ThreadMessages
from plait.parts.part import find_role
from plait.web.http.chat.parts import Chunk, Part, encode_chunks
from plait.web.http.chat.rendering import ANSWER, Group, Link, Shown, find_chunks, render, split
from plait.web.http.streamed import ResponseAborted

__all__ = ["Viewer", "find_awaited", "read_messages"]

# The maximum messages that are read at once, and their bytes; and the pages that are read to find a question.
_MOST_ON_PAGE: Final = 100
_MOST_BYTES: Final = 1 << 20
_MOST_PAGES: Final = 50
# Seconds of silence after which a comment is sent, so that proxies keep the stream open.
_SILENCE: Final = 15.0
_CHANGED: Final = "The conversation has changed: load it again."


class Viewer:
    """Shows one page the answer to a question, and then those to the questions in `after`, until nothing is answered.

    Each difference is made when it can be sent, so nothing waits for a slow page but the messages themselves. `ended`
    is called when the page leaves.
    """

    def __init__(self, messages: ThreadMessages, link: Link, ended: Callable[[], None]) -> None:
        self._messages = messages
        self._link = link
        self._question = ""
        self._after: list[str] = []
        # The messages from the question on, by id, as far as they are durable.
        self._found: dict[str, Message] = {}
        # The calls that wait for approval.
        self._awaited: Collection[str] = ()
        # The frames that wait until the messages are read; None after that.
        self._held: list[Frame] | None = []
        # What the page has, and whether the answer was begun there.
        self._shown: Sequence[Shown] = ()
        self._has_begun = False
        self._wake = asyncio.Event()
        # Whether the stream must end, and the reason if the page is to know it; otherwise the page resumes.
        self._is_closed = False
        self._reason = ""
        self._stack = ExitStack()
        self._stack.callback(ended)

    async def open(self, actor: Actor, question: str, *, after: Sequence[str], parts: Sequence[Part]) -> None:
        """Read the messages from a question on, and follow their changes; the page has `parts`. Raises StoreError."""
        self._question, self._after = question, [*after]
        self._shown = [
            Shown("", replace(each, state="input-available") if each.state == "approval-responded" else each)
            for each in parts
        ]
        feed, stack = self._messages.feed, self._stack
        stack.enter_context(actor.usage.keep_awake())
        stack.callback(feed.watch(self._take))
        stack.callback(feed.watch_writes(self._wake.set))
        if (tasks := find_role(actor.kind.cls, "tasks")) is not None:
            stack.callback(tasks.of(actor).follow(self._look))
        await self._read()

    def close(self, _: int = 0, reason: str = "") -> None:
        """End the stream, with a reason if the rights of its page have ended; without one, the page resumes."""
        self._is_closed, self._reason = True, reason
        self._wake.set()

    def leave(self) -> None:
        """Stop following the messages, as the page has left."""
        self._stack.close()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events up to the end of the answer. Raises ResponseAborted if the page is to resume."""
        try:
            while True:
                self._wake.clear()
                await self._read()
                if self._is_closed or self._messages.feed.is_closed:
                    if not self._reason:
                        raise ResponseAborted
                    yield encode_chunks([Chunk(type="error", error_text=self._reason)])
                    return
                chunks, end = self._advance()
                if chunks:
                    yield encode_chunks(chunks)
                if end is None:
                    async for comment in self._wait():
                        yield comment
                    continue
                await self._messages.feed.find_durable()  # What has decided the end may not be durable yet.
                if self._wake.is_set():
                    continue
                if end == "tool-calls" or not self._after:
                    yield encode_chunks([*self._finish(end)]) + b"data: [DONE]\n\n"
                    return
                self._question, self._shown, self._has_begun = self._after.pop(0), (), False
        except PlaitError as error:
            raise ResponseAborted from error

    # Inside

    async def _wait(self) -> AsyncIterator[bytes]:
        while not self._wake.is_set():
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._wake.wait()
            except TimeoutError:
                yield b": \n\n"

    async def _read(self) -> None:
        """Read the messages, unless they are known."""
        while (held := self._held) is not None:
            revision, found, _ = await read_messages(self._messages.feed, None, self._is_asked)
            if self._held is not held:
                continue
            self._look()
            asked = (at for at, each in enumerate(found) if self._is_asked(each) and each.status != "pending")
            start = next(asked, 0)
            self._found, self._held = {each.id: each for each in found[start:]}, None
            for frame in held:
                if frame.revision > revision or isinstance(frame, ChunkFrame | InputFrame):
                    self._apply(frame)

    def _look(self, _: object = None) -> None:
        self._awaited = find_awaited(self._messages)
        self._wake.set()

    def _is_asked(self, message: Message) -> bool:
        return message.id == self._question

    def _take(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if isinstance(frame, ResetFrame):
                self._held = []
            elif self._held is not None:
                self._held.append(frame)
            else:
                self._apply(frame)
        self._wake.set()

    def _apply(self, frame: Frame) -> None:
        found = self._found
        match frame:
            case InsertFrame(message=message) | UpdateFrame(message=message):
                found[message.id] = message
            case DeleteFrame(id=id):
                found.pop(id, None)
            case TakeFrame(taken=taken):
                for id, position in taken:
                    if id in found:
                        found[id] = replace(found[id], position=position, status="completed")
            case ChunkFrame(id=id, at=at, text=text) if id in found:
                have = found[id].content or ""
                if at <= len(have) < at + len(text):
                    found[id] = replace(found[id], content=have + text[len(have) - at :])
            case InputFrame(id=id, input=added) if id in found:
                found[id] = extend_call(found[id], added)
            case EndFrame(id=id, status=status) if id in found:
                found[id] = replace(found[id], status=status, taken=(), tool_calls=None)

    def _advance(self) -> tuple[list[Chunk], str | None]:
        """Return the chunks that bring the page up to date, and why the answer has ended; None while it is made."""
        groups, waiting = split(self._found.values())
        rest = [*dropwhile(lambda each: each.question is None or not self._is_asked(each.question), groups)]
        group, is_followed = rest[0] if rest else None, len(rest) > 1
        parts = render(group.messages if group else (), self._awaited, self._link)
        if (found := find_chunks(self._shown, parts)) is None:
            self.close(reason=_CHANGED)
            return [], None
        chunks, self._shown = found
        if group is not None and not self._has_begun and (parts or not is_followed):
            self._has_begun = True
            chunks.insert(0, Chunk(type="start", message_id=f"{self._question}{ANSWER}"))
        return chunks, self._find_end(group, is_followed=is_followed, waits=any(map(self._is_asked, waiting)))

    def _find_end(self, group: Group | None, *, is_followed: bool, waits: bool) -> str | None:
        """Return the reason why the answer has ended; None while it is made."""
        status = self._messages.status
        if group is None and not waits:
            return "other"
        if not is_followed:
            if any(each.part.state == "approval-requested" for each in self._shown):
                return "tool-calls"
            if status in ("running", "waiting"):
                return None
            if status == "stopped":
                return "interrupted"
        if group is None or group.question is None:
            return "other"
        last = [group.question, *(each for each in group.messages if not each.depth)][-1]
        # An attempt that has failed before the next question may go on after it.
        if last.status == "failed" and (group.question.status == "failed" or not is_followed):
            return "error"
        return "interrupted" if read_own(last).get(INTERRUPTED, False) else "stop"

    def _finish(self, end: str) -> Iterator[Chunk]:
        for each in self._shown:
            if each.part.state == "streaming":
                yield Chunk(type=f"{each.part.type}-end", id=each.id)
        if self._shown:
            yield Chunk(type="finish-step")
        if end == "error":
            yield Chunk(type="error", error_text=FAILED)
            return
        if end == "interrupted":
            yield Chunk(type="abort")
        yield Chunk(type="finish", finish_reason=end)


def find_awaited(messages: ThreadMessages) -> Collection[str]:
    """Return the ids of the calls for which the agent waits until people approve them."""
    return () if messages.caller is None else messages.caller.awaited


async def read_messages(
    feed: Feed, before: int | None, is_start: Callable[[Message], bool]
) -> tuple[int, list[Message], bool]:
    """Return the revision, the messages of a page, and whether there are older ones; the page has a start, if any.

    Raises StoreError.
    """
    revision, page = await feed.newest(_MOST_ON_PAGE, before, size=_MOST_BYTES)
    found = page.messages
    for _ in range(_MOST_PAGES):
        if not page.has_more or any(map(is_start, page.messages)):
            break
        _, page = await feed.newest(_MOST_ON_PAGE, found[0].position, size=_MOST_BYTES)
        found = [*page.messages, *found]
    return revision, found, page.has_more
