"""One streamed response: each chunk is sent when the changes made before it are durable."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from plait.actor.connection import Connection, Gate
from plait.actor.outcome import Done, maybe_await
from plait.actor.rpc import Method, Sent, Stream, StreamSink
from plait.errors import PlaitError, RolledBack, StoreError

__all__ = ["StreamRunner"]

# A stream that never awaits yields to other tasks after this many chunks.
_CHUNKS_AT_ONCE: Final = 64


class StreamRunner:
    """Runs a streaming method, and passes its chunks to `sink` and its outcome to `done`."""

    __slots__ = (
        "_connection",
        "_done",
        "_drain",
        "_draining",
        "_failed",
        "_gate",
        "_report",
        "_sink",
        "_stream",
        "explain",
    )

    def __init__(
        self,
        sink: StreamSink,
        done: Done,
        *,
        gate: Gate,
        connection: Connection | None,
        report: Callable[[BaseException, Connection | None], None],
        drain: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self._sink = sink
        self._done = done
        self._gate = gate
        self._connection = connection
        # Awaited before each yielded chunk is sent, while the reader is too slow.
        self._drain = drain if connection is None else connection.drain
        # The task that is waiting for the reader, if any.
        self._draining: asyncio.Task[Any] | None = None
        # Called with an error that is raised after the end of the stream.
        self._report = report
        self._stream = Stream(self._emit)
        # Whether the stream has ended because a change could not be stored, and the function that makes its error.
        self._failed = False
        self.explain: Callable[[PlaitError], PlaitError] = lambda failure: failure

    async def run(self, method: Method, thread: object, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Run the method to its end."""
        if method.stream_parameter is None:
            await self._yield(method, thread, args, kwargs)
            return
        stream = self._stream
        args, kwargs = method.insert_stream(args, kwargs, stream)
        try:
            result = await maybe_await(method.function(thread, *args, **kwargs))
        except Exception as error:
            if not stream.is_ended:
                raise
            self._report(error, self._connection)
            return
        if not stream.is_ended:
            stream.end() if result is None else stream.end(result)

    def hurry(self) -> None:
        """Stop waiting for the reader; the stream is ending."""
        if self._drain is not None and self._draining is not None:
            self._draining.cancel()
        self._drain = None

    def finish(self, result: object, error: BaseException | None) -> None:
        """Call `done` with the outcome, unless the stream has ended with an error of the store."""
        if isinstance(error, StoreError) and self._stream.is_ended and not self._failed:
            self._report(error, self._connection)  # The reader already has the end of the stream.
            error = None
        if not self._failed:
            self._done(result, error)

    # Inside

    async def _yield(self, method: Method, thread: object, args: list[Any], kwargs: dict[str, Any]) -> None:
        count = 0
        # Close the generator in this turn, so that its cleanup runs here.
        async with aclosing(method.function(thread, *args, **kwargs)) as chunks:
            async for chunk in chunks:
                # Wait before sending, so that the end of the stream does not wait until the last chunk is read.
                await self._wait_for_reader()
                self._stream.send(chunk)
                count += 1
                if count % _CHUNKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self._stream.end()

    async def _wait_for_reader(self) -> None:
        if self._drain is None:
            return
        self._draining = task = asyncio.current_task()
        try:
            await self._drain()
        except asyncio.CancelledError:
            if self._drain is not None or task is None or task.uncancel() > 0:
                raise
        finally:
            self._draining = None

    def _emit(self, what: Sent, value: object) -> None:
        go = self._sink(what, value)

        def release(failure: PlaitError | None) -> None:
            if self._failed:
                return
            if failure is None:
                go()
            elif what == "chunk" and isinstance(failure, RolledBack):
                pass  # Drop it, like a message sent in a transaction that is rolled back.
            else:
                self._failed = True
                self._done(None, self.explain(failure))

        self._gate(release)
