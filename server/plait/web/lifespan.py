"""Reports a failed start in one line."""

import logging
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["StartupFilter", "run_lifespan"]

# The beginnings of a traceback's last line if the error is one of plait's, whose message says what to do.
_OWN: Final = ("plait.errors.", "plait.settings.")


async def run_lifespan(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an app's lifespan; if it cannot start, report the error to the server without a traceback."""

    async def tell(message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            message = {**message, "message": _shorten(message.get("message", ""))}
        await send(message)

    await app(scope, receive, tell)


class StartupFilter(logging.Filter):
    """Shortens the traceback that a server logs for an app that cannot start."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith("Traceback "):
            record.msg = _shorten(record.msg)
        return True


def _shorten(traceback: str) -> str:
    lines = traceback.rstrip().splitlines() or [""]
    return lines[-1].partition(": ")[2] if lines[-1].startswith(_OWN) else traceback
