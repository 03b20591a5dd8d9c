"""A request whose body has a limit."""

from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from plait.errors import TooLarge

__all__ = ["BodyLimit", "LimitedRequest"]


class BodyLimit(NamedTuple):
    """The maximum bytes of the body of a request, and the name of the field of `Limits` with them."""

    size: int
    name: str = "frame"

    def check(self, size: int) -> None:
        """Raise TooLarge for a body of more bytes."""
        if size > self.size:
            raise TooLarge(f"a body may have at most {self.size} bytes", limit=self.name)


class LimitedRequest(Request):
    """Raises TooLarge if the body has more bytes than its limit; reads a small body faster than Starlette."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, limit: BodyLimit) -> None:
        super().__init__(scope, _limit_body(receive, limit), send)
        self._receive_any = receive
        self._whole: bytes | None = None
        self._is_begun = False
        # Whether another reader has begun.
        self._is_passed_on = False

    async def body(self) -> bytes:
        """Return the body. Raises ClientDisconnect."""
        if self._whole is not None:
            return self._whole
        if self._is_begun:
            return await super().body()
        self._is_begun = True
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = b"".join([body, *[chunk async for chunk in super().stream()]])
        self._whole = body
        return body

    async def receive_anew(self) -> Message:
        """Return the next message of the request, for another reader: first the body, if it has been read.

        The size of the body is not limited. Raises RuntimeError if only a part of the body has been read.
        """
        if self._is_passed_on or not self._is_begun:
            self._is_passed_on = True
            return await self._receive_any()
        if self._whole is None:
            raise RuntimeError("a part of the request's body has been read: read it with request.body()")
        self._is_passed_on = True
        return {"type": "http.request", "body": self._whole, "more_body": False}

    async def stream(self) -> AsyncGenerator[bytes, Any]:
        """Yield the parts of the body as they arrive, and an empty one at the end. Raises ClientDisconnect."""
        if self._whole is not None:
            yield self._whole
            yield b""
            return
        self._is_begun = True
        async for chunk in super().stream():
            yield chunk


def _limit_body(receive: Receive, limit: BodyLimit) -> Receive:
    """Return a `receive` that raises TooLarge if the body has more bytes than its limit."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        limit.check(size)
        return message

    return receive_limited
