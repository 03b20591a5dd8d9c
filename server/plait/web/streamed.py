"""An answer over HTTP that goes on, and whose end is told."""

from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["Streamed"]


class Streamed(StreamingResponse):
    """Calls `ended` when all is sent, or nobody reads it any more, be it before the first byte."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        *,
        media_type: str,
        ended: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
