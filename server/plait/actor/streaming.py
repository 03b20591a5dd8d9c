"""One streamed response: each chunk is sent once all earlier changes are durable."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol

from plait.actor.connection import Connection, Gate
from plait.actor.outcome import Done
from plait.actor.rpc import Method, Sent, Stream, StreamSink
from plait.author_code import call
from plait.errors import CallFailed, PlaitError, RolledBack, StoreError
from plait_schemas.codec import UNENCODABLE, encode_json

__all__ = ["StreamReader", "StreamRunner"]

# A stream that never awaits yields to other tasks after this many chunks.
_CHUNKS_AT_ONCE: Final = 64
# Bytes of a run's chunks that may wait for the reader, and the seconds that it then gets to catch up.
_MOST_AHEAD: Final = 1 << 20
_PATIENCE: Final = 3.0


class StreamReader(Protocol):
    """The reader of a stream: a connection, or the window of a handle."""

    @property
    def is_backed_up(self) -> bool:
        """Whether the reader is too slow."""
        ...

    async def drain(self) -> None:
        """Wait while the reader is too slow."""
        ...


class StreamRunner:
    """Runs a streaming method, and passes its chunks to `sink` and its outcome to `done`."""

    __slots__ = (
        "_ahead",
        "_connection",
        "_done",
        "_draining",
        "_failed",
        "_gate",
        "_gated",
        "_reader",
        "_report",
        "_sink",
        "_stream",
        "births",
        "explain",
        "lose",
    )

    def __init__(
        self,
        sink: StreamSink,
        done: Done,
        *,
        gate: Gate,
        connection: Connection | None,
        report: Callable[[BaseException, Connection | None], None],
        reader: StreamReader | None,
    ) -> None:
        self._sink = sink
        self._done = done
        self._gate = gate
        self._connection = connection
        # Yielded chunks wait for this reader; None if nothing waits for it.
        self._reader: StreamReader | None = reader if connection is None else connection
        # Bytes of a run's chunks sent since the reader last had all chunks, and the number of outputs that wait for the
        # store.
        self._ahead = self._gated = 0
        # The task that is waiting for the reader, if any.
        self._draining: asyncio.Task[Any] | None = None
        # Called with an error that is raised after the end of the stream.
        self._report = report
        self._stream = Stream(self._emit)
        # Whether the stream has ended because a change could not be stored, and the function that makes its error.
        self._failed = False
        self.explain: Callable[[PlaitError], PlaitError] = lambda failure: failure
        # Waits for the births of children that the turn has spawned; None without a family.
        self.births: Callable[[], Awaitable[None]] | None = None
        # Makes the turn independent of its caller, as the stream of a run has ended before the run. None for other
        # streams: they wait for their reader for as long as it takes.
        self.lose: Callable[[], None] | None = None

    async def run(self, method: Method, thread: object, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Run the method to its end."""
        stream, result = self._stream, None
        if method.stream_parameter is None:
            await self._yield(method, thread, args, kwargs)
        else:
            args, kwargs = method.insert_stream(args, kwargs, stream)
            try:
                result = await call(partial(method.function, thread, *args, **kwargs))
            except Exception as error:
                if not stream.is_ended:
                    raise
                self._report(error, self._connection)
        if self.births is not None:
            await self.births()
        if not stream.is_ended:
            stream.end() if result is None else stream.end(result)

    def hurry(self) -> None:
        """Stop waiting for the reader; the stream is ending."""
        if self._reader is not None and self._draining is not None:
            self._draining.cancel()
        self._reader = None

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
                if self._is_ahead():
                    await self._wait_for_reader()
                if self.births is not None:
                    await self.births()
                self._stream.send(chunk)
                count += 1
                if count % _CHUNKS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _is_ahead(self) -> bool:
        """Whether the stream must wait for its reader."""
        if not self._is_behind():
            self._ahead = 0
            return False
        return self.lose is None or self._ahead > _MOST_AHEAD

    def _is_behind(self) -> bool:
        """Whether the reader does not have all chunks yet."""
        return self._reader is not None and (self._gated > 0 or self._reader.is_backed_up)

    async def _wait_for_reader(self) -> None:
        assert self._reader is not None
        self._draining = task = asyncio.current_task()
        try:
            if self.lose is not None and self._gated:
                stored = asyncio.get_running_loop().create_future()
                self._gate(lambda _: None if stored.done() else stored.set_result(None))
                await stored
            async with asyncio.timeout(None if self.lose is None else _PATIENCE):
                await self._reader.drain()
        except TimeoutError:
            self._lose_reader()
        except asyncio.CancelledError:
            if self._reader is not None or task is None or task.uncancel() > 0:
                raise
        finally:
            self._draining = None

    def _lose_reader(self) -> None:
        """End the stream of a run. The run goes on, as others may wait for it."""
        assert self.lose is not None
        self.lose()
        if not self._failed:
            self._done(None, CallFailed("the client reads too slowly"))
        self._reader, self._sink = None, lambda what, value: lambda: None
        self._done = lambda _, error: None if error is None else self._report(error, self._connection)

    def _emit(self, what: Sent, value: object) -> None:
        release = partial(self._release, what, self._sink(what, value))
        self._gated += 1
        self._gate(release)
        if self.lose is not None and what == "chunk" and self._is_behind():
            self._ahead += _measure(value)

    def _release(self, what: Sent, go: Callable[[], None], failure: PlaitError | None) -> None:
        self._gated -= 1
        if self._failed:
            return
        if failure is None:
            go()
        elif what != "chunk" or not isinstance(failure, RolledBack):  # Dropped, as a message of the block is.
            self._failed = True
            self._done(None, self.explain(failure))


def _measure(value: object) -> int:
    """Return the bytes of a chunk as JSON; 0 for a chunk that is not JSON, which only server code gets."""
    try:
        return len(encode_json(value))
    except UNENCODABLE:
        return 0
