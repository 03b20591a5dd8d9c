"""Opens the sockets and requests that gateways relay to the threads of this node."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from plait.actor.logs import log_internal
from plait.cluster.owners import NotOwner
from plait.store.thread_rows import ThreadKey
from plait.web.admission import Admission, join_in_task
from plait.web.links.link import LOST, Link
from plait.web.links.pipe import REFUSED, Incoming, Lost, pack_owner
from plait.web.relay.messages import OPEN, REQUEST, TAKEN, SentScope, pack_head
from plait.web.relay.remote_socket import RemoteSocket
from plait.web.server_context import THREAD, ServerContext
from plait.web.thread_urls import read_address

__all__ = ["Owner", "RemoteRequest"]


class RemoteRequest(Incoming):
    """One request of a gateway, and `receive` and `send` of ASGI. A client that disconnects cancels it."""

    # Whether the whole answer has been sent.
    _is_answered = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Answer the request with an app. An answer without its last part ends as if the link was lost."""
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
                self.finish(Lost())  # The app sees a disconnect, as under a server.


class Owner:
    """Makes the other ends of the streams of gateways, and owns their tasks."""

    def __init__(self, context: ServerContext, app: ASGIApp) -> None:
        self._context = context
        # The `app` of requests.
        self._app = app
        # All tasks, and the tasks that answer requests.
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Task[None]] = set()
        context.links.openers |= {OPEN: self._open_socket, REQUEST: self._open_request}

    async def finish(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until all requests are answered, as a server does for its own requests."""
        if self._answers:
            await asyncio.wait(self._answers, timeout=timeout)

    async def stop(self) -> None:
        """Cancel the tasks, and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Inside

    def _open_socket(self, link: Link, number: int, data: bytes) -> RemoteSocket | None:
        sent = SentScope.decode(data)
        scope = sent.make()
        key = read_address(scope).key
        if not self._take(link, number, key):
            return None
        link.put(TAKEN, number)
        socket = RemoteSocket(link, number, self._context.scheduler, can_ping=sent.can_ping)
        enter = Admission(self._context, scope, key, socket.resources).enter
        # Set before the task begins: the peer may disconnect first, which cancels it.
        socket.resources.joining = self._run(join_in_task(enter, socket, socket.resources, self._context))
        return socket

    def _open_request(self, link: Link, number: int, data: bytes) -> RemoteRequest | None:
        sent = SentScope.decode(data)
        if not self._take(link, number, ThreadKey(sent.kind, sent.thread)):
            return None
        scope = {**sent.make(), "app": self._app, THREAD: sent.thread}
        request = RemoteRequest(link, number, (sent.body, sent.is_whole))
        task = self._run(request.run(self._context.endpoints[sent.endpoint], scope))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        return request

    def _take(self, link: Link, number: int, key: ThreadKey) -> bool:
        """Return whether this node owns a thread; tell the gateway if it does not."""
        try:
            self._context.owners.check(key)
        except NotOwner as error:
            link.put(REFUSED, number, pack_owner(error.owner))
            return False
        return True

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="plait relay")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
