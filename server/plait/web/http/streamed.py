"""Streamed answers over HTTP."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property, partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.outcome import RunningCall
from plait.actor.rpc import Arguments, Method
from plait.actor.transport import HIGH_WATER, Frame, OneWay
from plait.errors import CallFailed, PlaitError, TooLarge, Unauthenticated
from plait.web.lost import abort

__all__ = ["Encode", "ResponseAborted", "ResponseLines", "StreamedCall", "StreamedResponse", "wants_events"]

# Tells nginx not to buffer the answer.
_HEADERS: Final = {"x-accel-buffering": "no"}

Encode = Callable[[str, Any], tuple[bytes | None, bool]]
"""Returns the bytes for a "chunk", the "end" or the "error" of a stream, and whether they are the last.

None aborts the response, if its format cannot express an error.
"""


def wants_events(request: Request) -> bool:
    """Return whether a request asks for server-sent events."""
    return request.method == "GET" and "text/event-stream" in request.headers.get("accept", "")


class StreamedResponse(StreamingResponse):
    """Calls `ended` when everything is sent or the client disconnects, even before the first byte."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        *,
        media_type: str,
        ended: Callable[[], None] = lambda: None,
        status_code: int = 200,
        headers: Mapping[str, str] = _HEADERS,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._ended = ended
        self._has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # For later versions of ASGI, Starlette would notice a disconnect only when it sends.
        asgi = {**scope.get("asgi", {}), "spec_version": "2.3"}
        try:
            await super().__call__({**scope, "asgi": asgi}, receive, send)
        except ResponseAborted:
            abort(scope)
        finally:
            self._end()

    async def listen_for_disconnect(self, receive: Receive) -> None:
        await super().listen_for_disconnect(receive)
        # Do not rely on cancellation: anyio never cancels a task that is always ready to run.
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended()


class ResponseAborted(Exception):
    """Raised by the content of an answer that must not look complete."""


class ResponseLines(OneWay):
    """Keeps the lines of an answer until they are read. It is full if more than `limit` bytes wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._size = 0
        # Whether the last line has been put, or the client has disconnected.
        self._is_over = False
        # Whether the response ends without its final chunk.
        self._is_broken = False

    # The events are created on first use, as most answers are not streamed.

    @cached_property
    def _filled(self) -> asyncio.Event:
        """Set when there is something to read."""
        return asyncio.Event()

    @cached_property
    def _drained(self) -> asyncio.Event:
        """Set when there is room for more."""
        return asyncio.Event()

    @property
    def is_backed_up(self) -> bool:
        """Whether the reader is slow."""
        return self._size > HIGH_WATER

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another line."""
        return self._size > self._limit and not self._is_over

    def put(self, line: bytes, *, is_last: bool) -> None:
        """Append a line; ignore it after the last one."""
        if not self._is_over:
            self._lines.append(line)
            self._size += len(line)
            self._is_over = is_last
            self._filled.set()

    def abort(self) -> None:
        """Abort the response without the final chunk, so that it does not look complete."""
        if not self._is_over:
            self._is_over = self._is_broken = True
            self._filled.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the lines up to the last. Raises ResponseAborted."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                yield line
                self._size -= len(line)
                if not self.is_backed_up:
                    self._drained.set()
            if self._is_broken:
                raise ResponseAborted
            if self._is_over:
                return
            self._filled.clear()
            await self._filled.wait()

    def end(self) -> None:
        """Drop the lines, as the client has disconnected."""
        self._is_over = True
        self._drained.set()

    async def drain(self) -> None:
        """Wait while the reader is slow."""
        while self.is_backed_up and not self._is_over:
            self._drained.clear()
            await self._drained.wait()

    # The rest of a transport, which requests do not use

    def send(self, frame: Frame) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        pass


class StreamedCall:
    """Calls a streaming method, and answers with its chunks; ends with an error if the client reads too slowly."""

    def __init__(self, lines: ResponseLines, encode: Encode, actor: Actor) -> None:
        self._lines = lines
        self._encode = encode
        self._actor = actor
        self._turn: RunningCall | None = None
        # Done when there is something to send; the result is the error if the call fails before its first chunk.
        self.began: asyncio.Future[PlaitError | None] = asyncio.get_running_loop().create_future()

    def begin(self, method: Method, arguments: Arguments, connection: Connection, request: Request) -> None:
        """Call the method."""
        self._turn = self._actor.turns.call(
            method, arguments, self._done, sink=self._sink, connection=connection, request=request, by_client=True
        )

    def answer(self, media_type: str) -> Response:
        """Return the answer; it ends when the call ends."""
        return StreamedResponse(self._lines.read(), media_type=media_type, ended=self.leave)

    async def join(self, most: int) -> bytes:
        """Return the whole output of the call after its end. Raises TooLarge for more bytes, and ResponseAborted."""
        found = bytearray()
        try:
            async for line in self._lines.read():
                found += line
                if len(found) > most:
                    raise TooLarge(f"the chunks have more than {most} bytes", limit="write_buffer")
        finally:
            self.leave()
        return bytes(found)

    def close(self, _: int, reason: str) -> None:
        """Abandon the call with a reason, as the client's rights have ended."""
        self._fail(Unauthenticated(reason))
        self._abandon()

    def leave(self) -> None:
        """Abandon the call if it has not ended, as its answer is no longer read."""
        self._lines.end()
        self._abandon()

    # Inside

    def _sink(self, what: str, value: object) -> Callable[[], None]:
        value = None if value is msgspec.UNSET else CallFailed(str(value)) if what == "error" else value
        return partial(self._put, what, value, self._encode(what, value))

    def _put(self, what: str, value: Any, encoded: tuple[bytes | None, bool]) -> None:
        lines = self._lines
        if what == "chunk" and lines.is_full:
            self._actor.instruments.limit_hit("write_buffer")
            self._fail(CallFailed("the client reads too slowly"))
            self._abandon()
            return
        if not self.began.done():
            self.began.set_result(value if what == "error" else None)
        line, is_last = encoded
        if line is None:
            lines.abort()
        else:
            lines.put(line, is_last=is_last)

    def _fail(self, error: PlaitError) -> None:
        self._put("error", error, self._encode("error", error))

    def _done(self, _: object, error: BaseException | None) -> None:
        self._turn = None
        if error is not None:
            self._fail(self._actor.explain(error))

    def _abandon(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.abandon()
