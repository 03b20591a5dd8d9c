"""The heads of answers: whether a server can send them, and who may keep the answers."""

import re
from collections.abc import Awaitable
from typing import Final

from starlette.staticfiles import StaticFiles
from starlette.types import Message, Scope, Send

__all__ = ["check_head", "keep_private"]

_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def check_head(head: Message) -> None:
    """Raise ValueError for a head that HTTP does not have, which uvicorn finds when it has begun to send it."""
    names, values = zip(*(head.get("headers") or [(b"", b"")]), strict=True)
    if _NOT_IN_NAMES.search(b"".join(names)) or _CONTROL.search(b"".join(values)) or not 200 <= head["status"] < 600:
        raise ValueError(f"HTTP has no answer with the status {head['status']} and values of the headers {names}")


def keep_private(send: Send, scope: Scope) -> Send:
    """Return a `send` that adds a `Cache-Control` to an answer without one, so that no proxy gives it to others.

    Static files stay as they are, but not their errors.
    """

    def send_private(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            is_static = message["status"] < 400 and isinstance(scope.get("endpoint"), StaticFiles)
            if not is_static and b"cache-control" not in names:
                value = b"private, no-cache" if b"etag" in names else b"no-store"
                message["headers"] = [*message.get("headers", ()), (b"cache-control", value)]
        return send(message)

    return send_private
