"""Calls between nodes: sends calls to the owners of threads, and answers the calls of other nodes."""

import asyncio
from collections.abc import AsyncGenerator
from contextvars import Context
from functools import partial
from typing import Final, Self

import msgspec

from plait.errors import Indeterminate, Unavailable
from plait.node.remote_calls import RemoteCalls, Reply
from plait.node.remote_errors import decode_error, encode_error
from plait.node.remote_nodes import Ask, Settle
from plait.web.links.link import Link
from plait.web.links.links import Attempts, Links
from plait.web.links.pipe import Incoming, Lost, Outgoing, Refused

__all__ = ["Calls"]

_CALL: Final = 41

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode


class Calls:
    """Sends the calls of this node, and answers the calls of the other nodes."""

    def __init__(self, links: Links, answers: RemoteCalls) -> None:
        self._links = links
        self._answers = answers
        self._tasks: set[asyncio.Task[Reply | None]] = set()
        links.openers[_CALL] = self._open

    async def stop(self) -> None:
        """Cancel the calls of other nodes, and wait until they have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def call(self, ask: Ask) -> bytes:
        async with _CallAttempts(self._links, ask) as attempts:
            while True:
                call = await attempts.begin()
                try:
                    if ask.upload is not None:
                        await call.send_body(ask.upload)
                    while not (await call.next())[1]:
                        pass
                    return call.take_result()
                except (Lost, Refused) as failure:
                    await attempts.handle(failure)

    async def stream(self, ask: Ask) -> AsyncGenerator[bytes]:
        async with _CallAttempts(self._links, ask) as attempts:
            while True:
                call = await attempts.begin()
                try:
                    while True:
                        chunk, is_reply = await call.next()
                        if is_reply:
                            call.take_result()
                            return
                        attempts.may_repeat = False
                        yield chunk
                        call.give_room(len(chunk))
                except (Lost, Refused) as failure:
                    await attempts.handle(failure)

    # Inside

    def _open(self, link: Link, number: int, data: bytes) -> Incoming:
        incoming = Incoming(link, number)
        # The task must not inherit the context variables of the code that opened the link.
        work = self._answers.answer(data, incoming)
        task = asyncio.get_running_loop().create_task(work, context=Context(), name="plait call of another node")
        incoming.on_cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_finish, incoming))
        return incoming


class _CallAttempts(Attempts):
    """Sends a call; retries until the deadline if it only reads, or certainly was not executed."""

    def __init__(self, links: Links, ask: Ask) -> None:
        super().__init__(links, ask.to, is_of_turn=ask.is_of_turn)
        self.reads = self.may_repeat = ask.reads
        self._request = ask.request
        self._settle: Settle | None = ask.settle
        self._call: _Call | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_repeat = False
        if self._call is None or not self._call.cancel():
            self.settle(may_have_stored=False)

    async def begin(self) -> "_Call":
        """Put the call on a link. Raises Unavailable if there is none in time."""
        self._call = _Call(await self.reach(), self._request, self)
        return self._call

    async def handle(self, failure: Lost | Refused) -> None:
        """Wait before the next attempt. Raises Indeterminate if the call may have been executed, else Unavailable."""
        if isinstance(failure, Refused):
            self.correct(failure.owner)
        elif not self.may_repeat and self.reads:
            raise Unavailable("another process was lost during a call; try again") from None
        elif not self.may_repeat:
            raise Indeterminate("another process was lost during a call: the call may have been executed") from None
        await self.pause()

    def settle(self, *, may_have_stored: bool) -> None:
        """Report whether the call may have stored something; only the first report counts."""
        if self._settle is not None:
            settle, self._settle = self._settle, None
            settle(may_have_stored)


class _Call(Outgoing):
    """The caller's end of a call. It reports whether the call may have stored something even if the caller has left."""

    def __init__(self, link: Link, request: bytes, attempts: _CallAttempts) -> None:
        super().__init__(link, _CALL, request)
        self._attempts = attempts
        self._reply: Reply | None = None

    def take_result(self) -> bytes:
        """Return the result after the reply has arrived. Raises the exception with which the call has ended."""
        assert self._reply is not None
        if self._reply.is_error:
            raise decode_error(self._reply.data)
        return self._reply.data

    def finish(self, found: tuple[bytes, bool] | Lost | Refused) -> None:
        if isinstance(found, tuple):
            self._reply = _decode_reply(found[0])
            self._attempts.settle(may_have_stored=self._reply.may_have_stored)
        elif isinstance(found, Lost) and not self._attempts.may_repeat:
            self._attempts.settle(may_have_stored=not self._attempts.reads)
        super().finish(found)


def _finish(incoming: Incoming, task: asyncio.Task[Reply | None]) -> None:
    """Send the end of a call, as its task has ended."""
    incoming.finish(Lost())  # A write that has begun may still read the body.
    error = Unavailable("the call was cancelled") if task.cancelled() else task.exception()
    reply = task.result() if error is None else Reply(not task.cancelled(), encode_error(error, None), is_error=True)
    if reply is None:
        incoming.refuse()
    else:
        incoming.reply(_encode(reply))
