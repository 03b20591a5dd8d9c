"""A call whose result is streamed over HTTP."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.outcome import RunningCall
from plait.actor.rpc import Arguments, Method
from plait.errors import CallFailed, PlaitError, TooLarge, Unauthenticated
from plait.web.http.streamed import ResponseLines, StreamedResponse

__all__ = ["Encode", "StreamedCall"]

Encode = Callable[[str, Any], tuple[bytes | None, bool]]
"""Returns the bytes for a "chunk", the "end" or the "error" of a stream, and whether they are the last.

None aborts the response, if its format cannot express an error.
"""


class StreamedCall:
    """Calls a streaming method, and answers with its chunks; ends with an error if the client reads too slowly."""

    def __init__(self, lines: ResponseLines, encode: Encode, actor: Actor) -> None:
        self._lines = lines
        self._encode = encode
        self._actor = actor
        self._turn: RunningCall | None = None
        # Done when there is something to send; its result is the error if there is nothing else.
        self.began: asyncio.Future[PlaitError | None] = asyncio.get_running_loop().create_future()

    def begin(self, method: Method, arguments: Arguments, connection: Connection, request: Request) -> None:
        """Call the method."""
        self._turn = self._actor.turns.call(
            method, arguments, self._done, sink=self._sink, connection=connection, request=request, by_client=True
        )

    def answer(self, media_type: str) -> Response:
        """Return the answer, which ends with the call."""
        return StreamedResponse(self._lines.read(), media_type=media_type, ended=self.leave)

    async def join(self, most: int) -> bytes:
        """Return all that the call sends, when it has ended. Raises TooLarge for more bytes, and ResponseAborted."""
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
        """Abandon the call, and tell the reason, as the client's rights have ended."""
        self._fail(Unauthenticated(reason))
        self._abandon()

    def leave(self) -> None:
        """Abandon the call if it has not ended, as its answer is not read."""
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
