"""Calls between nodes: carries requests to the owners of threads, and answers those of other nodes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextvars import Context
from typing import Final, Self

import msgspec

from plait.errors import Indeterminate, Unavailable
from plait.node.remote_calls import RemoteCalls, Reply
from plait.node.remote_errors import decode_error, encode_error
from plait.node.remote_nodes import Ask, Settle
from plait.store.protocol import ThreadKey
from plait.web.links.link import Link
from plait.web.links.links import Links
from plait.web.links.pipe import WINDOW, Pipe

__all__ = ["Calls"]

# Of the caller: the call, with its request or without one; a long request; that the caller is gone; that a chunk was
# read; a piece of an upload, and its end.
_CALL: Final = 41
_REQUEST: Final = 42
_CANCEL: Final = 43
_READ: Final = 44
_UPLOAD: Final = 45
_UPLOADED: Final = 46
# Of the owner: the end of the call; a chunk; that no further chunk comes, with an error or without one; that the call
# was not begun, as the node is shutting down.
_REPLY: Final = 50
_CHUNK: Final = 51
_FINISHED: Final = 52
_REFUSED: Final = 53

# Seconds before a call is tried again that a node has refused.
_PAUSE: Final = 0.05

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode


class _Lost(Exception):
    """The link was lost after the request was put on it."""


class _Refused(Exception):
    """The node is shutting down or does not own the thread, and has not begun the call."""


class Calls:
    """Carries the calls of one node, and those of the others to it."""

    def __init__(self, links: Links, answers: RemoteCalls) -> None:
        self._links = links
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()
        links.openers[_CALL] = self._open

    async def stop(self) -> None:
        """Cancel the calls of other nodes, and wait until they have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    # Calling

    async def call(self, ask: Ask) -> bytes:
        async with _Attempts(self._links, ask) as attempts:
            while True:
                call = await attempts.begin()
                try:
                    if ask.upload is not None:
                        await call.send_all(ask.upload)
                    while not isinstance(found := await call.next(), Reply):
                        pass
                    return _take(found)
                except (_Lost, _Refused) as failure:
                    await attempts.pause(failure)

    async def stream(self, ask: Ask) -> AsyncGenerator[bytes]:
        async with _Attempts(self._links, ask) as attempts:
            while True:
                call = await attempts.begin()
                try:
                    while not isinstance(found := await call.next(), Reply):
                        attempts.may_repeat = False
                        yield found
                        call.tell_read()
                    _take(found)
                    return
                except (_Lost, _Refused) as failure:
                    await attempts.pause(failure)

    # Answering

    def _open(self, link: Link, number: int, data: bytes) -> "_Incoming":
        incoming = _Incoming(link, number, self._begin)
        if data:
            incoming.begin(data)
        return incoming

    def _begin(self, incoming: "_Incoming", request: bytes) -> asyncio.Task[None]:
        # Without the context variables of the code that has opened the link.
        work = self._answer(incoming, request)
        task = asyncio.get_running_loop().create_task(work, context=Context(), name="plait call of another node")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(incoming.finish)
        return task

    async def _answer(self, incoming: "_Incoming", request: bytes) -> None:
        incoming.reply = await self._answers.answer(request, incoming)
        incoming.is_refused = incoming.reply is None
        await incoming.wait_for_room()


class _Attempts:
    """Sends a call; retries until the deadline if it only reads, or certainly was not executed."""

    def __init__(self, links: Links, ask: Ask) -> None:
        self.may_repeat = ask.reads
        self._links = links
        self._ask = ask
        self._settle: Settle | None = ask.settle
        self._clock = asyncio.get_running_loop().time
        self._until = links.begin_hold()
        self._call: _Outgoing | None = None
        self._was_refused = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._call is None or not self._call.leave():
            self.settle(may_have_stored=False)

    async def begin(self) -> "_Outgoing":
        """Put the call on a link. Raises Unavailable if there is none in time."""
        try:
            async with asyncio.timeout_at(self._until):
                may_be_away = self._ask.is_of_turn and not self._was_refused
                to = self._ask.to
                if isinstance(to, ThreadKey):
                    link = await self._links.reach(to, self._until, may_be_away=may_be_away)
                else:
                    link = await self._links.link(to, may_be_away=may_be_away)
        except TimeoutError:
            raise _make_away() from None
        self._call = _Outgoing(link, self._ask.request, self)
        return self._call

    async def pause(self, failure: "_Lost | _Refused") -> None:
        """Wait before the next attempt. Raises Indeterminate if the call may have been done, and Unavailable."""
        if isinstance(failure, _Lost) and not self.may_repeat:
            self.settle(may_have_stored=True)
            raise Indeterminate(
                "another process was lost during a call, and it is not known whether it has done it"
            ) from None
        self._was_refused = isinstance(failure, _Refused)
        if self._was_refused and isinstance(self._ask.to, ThreadKey):
            self._links.correct(self._ask.to, None)
        if self._clock() >= self._until:
            raise _make_away() from None
        await asyncio.sleep(_PAUSE)

    def settle(self, *, may_have_stored: bool) -> None:
        """Tell whether the call has stored something, or may have; the first time counts."""
        if self._settle is not None:
            settle, self._settle = self._settle, None
            settle(may_have_stored)


class _Outgoing(Pipe):
    """A call at its caller."""

    def __init__(self, link: Link, request: bytes, attempts: _Attempts) -> None:
        super().__init__(link)
        self._attempts = attempts
        # Chunks, and then the reply or the exception that ends the call.
        self._found: asyncio.Queue[bytes | Reply | BaseException] = asyncio.Queue()
        self._has_left = False
        is_short = len(request) <= WINDOW
        self._number = link.open(_CALL, request if is_short else b"", self)
        if not is_short:
            self.put(_REQUEST, request)

    async def next(self) -> bytes | Reply:
        """Return the next chunk, or the reply. Raises the error that ends the chunks, _Lost and _Refused."""
        found = await self._found.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def tell_read(self) -> None:
        """Tell that a chunk was read."""
        self.put(_READ)

    async def send_all(self, upload: AsyncIterable[bytes]) -> None:
        """Send what follows a request, when the owner reads it. Ends early if the call has ended."""
        await self.wait_for_room(1)
        if self._is_over:
            return
        async for data in upload:
            await self.send(_UPLOAD, data, last=_UPLOAD)
            if self._is_over:
                return
        self.put(_UPLOADED)

    def leave(self) -> bool:
        """Cancel the call if it has not ended; return whether its end is still to come."""
        self._has_left = True
        if not self._is_over:
            self.put(_CANCEL)
        return not self._is_over

    # Pipe

    def take(self, kind: int, data: bytes) -> None:
        if kind == _CHUNK:
            self._found.put_nowait(data)
        elif kind == _FINISHED:
            self._found.put_nowait(decode_error(data) if data else Reply(may_have_stored=False, data=b""))
        elif kind == _REFUSED:
            self._link.forget(self._number)
            self._end(_Refused())
        else:
            self._link.forget(self._number)
            reply = _decode_reply(data)
            self._attempts.settle(may_have_stored=reply.may_have_stored)
            self._end(reply)

    def lose(self) -> None:
        if self._has_left or not self._attempts.may_repeat:
            self._attempts.settle(may_have_stored=True)
        self._end(_Lost())

    def _end(self, found: Reply | BaseException) -> None:
        self.end()
        self._found.put_nowait(found)


class _Incoming(Pipe):
    """A call at the owner, and the way back to the caller."""

    def __init__(self, link: Link, number: int, begin: Callable[["_Incoming", bytes], asyncio.Task[None]]) -> None:
        super().__init__(link, number)
        self._begin = begin
        self._task: asyncio.Task[None] | None = None
        # The pieces of an upload, and None after the last one, or at the end of the call.
        self._uploaded: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._has_all = False
        self.on_read: Callable[[], object] = lambda: None
        # The end of the call.
        self.reply: Reply | None = None
        self.is_refused = False

    def begin(self, request: bytes) -> None:
        """Begin to answer a request."""
        self._task = self._begin(self, request)

    def finish(self, task: asyncio.Task[None]) -> None:
        """Send the end of the call, as its task has ended."""
        self._link.forget(self._number)
        self._uploaded.put_nowait(None)  # A write that has begun may still read it.
        if self.is_refused:
            self.put(_REFUSED)
            return
        if self.reply is None:
            cancelled: BaseException = Unavailable("the call was cancelled")
            error = cancelled if task.cancelled() else task.exception() or cancelled
            self.reply = Reply(may_have_stored=not task.cancelled(), data=encode_error(error, None), is_error=True)
        self.put(_REPLY, _encode(self.reply))

    # CallStream

    def put_chunk(self, data: bytes) -> None:
        self.put(_CHUNK, data)

    def finish_chunks(self, error: bytes | None) -> None:
        self.put(_FINISHED, error or b"")

    async def upload(self) -> AsyncIterator[bytes]:
        self.give_room()
        while (data := await self._uploaded.get()) is not None:
            yield data
            self.use(len(data))
        if not self._has_all:
            raise Unavailable("the call has ended before its upload")

    # Pipe

    def take(self, kind: int, data: bytes) -> None:
        if kind == _REQUEST:
            self.begin(data)
        elif kind == _READ:
            self.on_read()
        elif kind == _UPLOAD:
            self._uploaded.put_nowait(data)
        elif kind == _UPLOADED:
            self._has_all = True
            self._uploaded.put_nowait(None)
        else:
            self._cancel()

    def lose(self) -> None:
        super().lose()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _take(reply: Reply) -> bytes:
    """Return the result of a call. Raises the exception that it has ended with."""
    if reply.is_error:
        raise decode_error(reply.data)
    return reply.data


def _make_away() -> Unavailable:
    return Unavailable("the process that is called is not running; try again later")
