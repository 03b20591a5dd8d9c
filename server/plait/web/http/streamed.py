"""Streamed answers over HTTP."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property
from typing import Final

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from plait.actor.transport import HIGH_WATER, Frame, OneWay
from plait.web.lost import abort

__all__ = ["ResponseAborted", "ResponseLines", "StreamedResponse", "wants_events"]

# No proxy holds the answer back.
_HEADERS: Final = {"x-accel-buffering": "no"}


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
        # For servers of later versions, Starlette would notice only when it sends that the client has disconnected.
        asgi = {**scope.get("asgi", {}), "spec_version": "2.3"}
        try:
            await super().__call__({**scope, "asgi": asgi}, receive, send)
        except ResponseAborted:
            abort(scope)
        finally:
            self._end()

    async def listen_for_disconnect(self, receive: Receive) -> None:
        await super().listen_for_disconnect(receive)
        # Do not leave it to cancellation: anyio never cancels a task that is always ready to run.
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended()


class ResponseAborted(Exception):
    """Raised by the content of an answer that must not look complete."""


class ResponseLines(OneWay):
    """Keeps the lines of an answer until they are read; is full if more than `limit` bytes wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._size = 0
        # Whether the last line has been put, or the client has disconnected.
        self._is_over = False
        # Whether the response ends without its final chunk.
        self._is_broken = False

    # The events are made on first use, as most requests are not answered in lines.

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
