"""HTTP requests that gateways relay to the threads of this node: the owner's end."""

from contextlib import suppress

from starlette.types import ASGIApp, Message, Scope

from plait.actor.logs import log_internal
from plait.web.links.link import LOST
from plait.web.links.pipe import Incoming, Lost
from plait.web.relay.messages import pack_head

__all__ = ["RemoteRequest"]


class RemoteRequest(Incoming):
    """One request of a gateway, and `receive` and `send` of ASGI. A client that disconnects cancels it."""

    # Whether the whole answer has been sent.
    _is_answered = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have an app answer the request. Without its last part, the answer ends as if the link was lost."""
        try:
            await app(scope, self._receive_message, self._send_message)
        except Exception as error:
            log_internal(error)
        finally:
            self._link.forget(self._number)
            if not self._is_answered:
                self._link.put(LOST, self._number)

    # ASGI

    async def _receive_message(self) -> Message:
        if not self._is_over:
            with suppress(Lost):
                body, is_last = await self.next()
                self.use(len(body))
                return {"type": "http.request", "body": body, "more_body": not is_last}
        return {"type": "http.disconnect"}

    async def _send_message(self, message: Message) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self.put(pack_head(message["status"], message.get("headers", ())))
        elif message["type"] == "http.response.body":
            is_last = not message.get("more_body", False)
            await self.send(bytes(message.get("body", b"")), is_last=is_last)
            if is_last:
                self._is_answered = True
                self.finish(Lost())  # As under a server, the app sees a disconnect.
