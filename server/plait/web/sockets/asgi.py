"""WebSockets under any ASGI server. The server itself has to detect dead peers with pings."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Receive, Send

from plait.actor.logs import log_internal
from plait.actor.transport import HIGH_WATER, Frame, Receiver
from plait.web.fairness import AT_ONCE, LARGE, FairScheduler, Ticket
from plait.web.sockets.framing import shorten
from plait_schemas.codes import INTERNAL_ERROR, TRY_AGAIN_LATER

__all__ = ["AsgiSocket"]


_CLOSE_TIMEOUT: Final = 5.0
# After a message that took this many seconds, other work is done before the next message.
_NOTICED: Final = 0.001
_NO_CODE: Final = 1005
_TOO_BIG: Final = 1009


class AsgiSocket:
    """The transport of a connection whose frames are ASGI messages."""

    can_ping = False

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        max_size: int,
        write_buffer: int,
        scheduler: FairScheduler,
        ended: Callable[[], None],
    ) -> None:
        self._receive = receive
        self._send = send
        self._max_size = max_size
        self._limit = write_buffer
        # The queue for costly work.
        self._scheduler = scheduler
        # Called when the socket is closed.
        self._ended = ended
        self._receiver: Receiver | None = None
        self._queue: deque[Frame] = deque()
        # Bytes of the frames that the server has not sent yet.
        self._waiting = 0
        self._was_backed_up = False
        self._code, self._reason = _NO_CODE, ""
        # The close code, and the exceeded limit if that is the reason.
        self.code = _NO_CODE
        self.hit: str | None = None
        self._over = asyncio.Event()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._may_read = asyncio.Event()
        # Whether reading is stopped for good.
        self._is_stopped = False

    @property
    def is_backed_up(self) -> bool:
        """Whether frames wait to be sent."""
        return self._waiting > HIGH_WATER

    def attach(self, receiver: Receiver) -> None:
        """Pass the peer's messages to `receiver` from now on; nothing is read before the first call."""
        if self._receiver is None:
            self._may_read.set()
        self._receiver = receiver

    async def run(self) -> None:
        """Carry messages both ways until the socket is closed."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            await self._over.wait()
            await asyncio.wait(tasks[1:], timeout=_CLOSE_TIMEOUT)
        finally:
            self._end(_NO_CODE, "")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._ended()

    # The Transport of a connection

    def send(self, frame: Frame) -> None:
        if self._over.is_set():
            return
        if self._waiting > self._limit:
            self.hit = "write_buffer"
            self.close(TRY_AGAIN_LATER, "the client reads too slowly")
            return
        self._queue.append(frame)
        self._waiting += len(frame.data)
        self._was_backed_up |= self.is_backed_up
        self._drained.clear()
        self._wake.set()

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        raise AssertionError("ASGI has no pings")

    def close(self, code: int, reason: str) -> None:
        if not self._over.is_set():
            self._code, self._reason = code, shorten(reason)
            self._end(code, reason)

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        if not self._is_stopped:
            self._may_read.set()

    def stop_reading(self) -> None:
        self._is_stopped = True
        self.pause()

    def schedule(self, work: Callable[[], None]) -> Ticket | None:
        return self._scheduler.run(work)

    async def drain(self) -> None:
        if not self._over.is_set():
            await self._drained.wait()

    # Inside

    async def _read(self) -> None:
        is_cheap = True
        try:
            while not self._over.is_set():
                await self._may_read.wait()
                message = await self._receive()
                if len(message.get("text") or message.get("bytes") or "") >= LARGE or not is_cheap:
                    await self._scheduler.wait_for_slot()
                start, worked = self._scheduler.clock(), self._scheduler.work_clock()
                self._take(message)
                spent = self._scheduler.clock() - start
                is_cheap = self._scheduler.work_clock() - worked < AT_ONCE
                if spent > _NOTICED:
                    self._scheduler.spend(spent)
                    # The server may have more data, so the `await` above may not wait.
                    await asyncio.sleep(0)
        except Exception as error:
            self.close(INTERNAL_ERROR, log_internal(error))

    def _take(self, message: Message) -> None:
        if self._over.is_set():
            return  # The receiver is already closed.
        if message["type"] == "websocket.disconnect":
            self._queue.clear()
            self._end(message.get("code") or _NO_CODE, message.get("reason") or "")
            return
        text = message.get("text")
        data: bytes = message["bytes"] if text is None else text.encode()
        if len(data) > self._max_size:
            self.hit = "frame"
            self.close(_TOO_BIG, f"a message may have at most {self._max_size} bytes")
        elif self._receiver is not None:
            self._receiver.receive(data, is_text=text is not None)

    async def _write(self) -> None:
        while True:
            while self._queue:
                frame = self._queue.popleft()
                if frame.is_text:
                    await self._send({"type": "websocket.send", "text": frame.data.decode()})
                else:
                    await self._send({"type": "websocket.send", "bytes": frame.data})
                self._waiting -= len(frame.data)
            self._drained.set()
            if self._was_backed_up and self._receiver is not None and not self._over.is_set():
                self._was_backed_up = False
                self._receiver.drained()
                continue
            if self._over.is_set():
                await self._send({"type": "websocket.close", "code": self._code, "reason": self._reason})
                return
            self._wake.clear()
            await self._wake.wait()

    def _end(self, code: int, reason: str) -> None:
        """Close the receiver."""
        if self._over.is_set():
            return
        self._over.set()
        self.code = code
        self._wake.set()
        self._drained.set()
        if self._receiver is not None:
            self._receiver.close(code, reason)
