"""Working with a thread without asyncio, for scripts and notebooks: each method returns when it is done."""

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from types import EllipsisType, MappingProxyType, TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack, overload

from plait_client.client import Options, connect
from plait_client.edit import Edit
from plait_client.errors import Closed, Refused, Unanswered
from plait_client.listeners import Change, Changes, Remove
from plait_client.loop import LoopThread
from plait_client.room import Room
from plait_client.room_query import RoomQuery
from plait_client.session import Status
from plait_client.sync_files import SyncFiles
from plait_client.sync_messages import SyncMessages
from plait_client.sync_query import SyncQuery
from plait_client.sync_tasks import SyncTasks
from plait_schemas.patch import Op
from plait_schemas.rpc import read_rpc

__all__ = ["SyncChanges", "SyncRoom", "connect_sync"]

S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")

_CLOSED: Final = 1000
_END: Final = object()
_NO_ANSWER: Final = "no answer to the change"


class SyncChanges(Generic[S]):
    """The changes from now on, as an iterator; it raises TimeoutError if none comes in time."""

    def __init__(self, changes: Changes[S], wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        self._changes = changes
        self._wait = wait

    def __iter__(self) -> "SyncChanges[S]":
        return self

    def __next__(self) -> Change[S]:
        change: Change[S] | None = None
        try:
            change = self._wait(lambda: anext(self._changes, None))
        except Closed as error:
            if error.code != _CLOSED:
                raise
        if change is None:
            raise StopIteration
        return change


class SyncRoom(Generic[S]):
    """A Room whose methods return when they are done: changes, and the block of `edit`, when they are durable.

    Each raises TimeoutError after the `timeout` of `connect_sync`, but `changes` waits without a limit. Callbacks are
    called in a thread of the client's own; they may read the room, but not call methods that wait.
    """

    def __init__(self, room: Room[S], loop: LoopThread, close: Callable[[], Awaitable[None]], timeout: float | None):
        self._room = room
        self._loop = loop
        self._close = close
        self._timeout = timeout
        # For a room that was dropped without being closed.
        weakref.finalize(self, loop.begin_close, close).atexit = False

    def __enter__(self) -> "SyncRoom[S]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end its thread. The known state can still be read; all else raises Closed."""
        self._loop.close(self._close)

    def _wait(self, function: Callable[[], Awaitable[T]], missing: str) -> T:
        return self._loop.wait(function, self._timeout, missing)

    # The known state

    @property
    def state(self) -> S:
        """See Room."""
        return self._loop.do(lambda: self._room.state)

    @property
    def confirmed(self) -> S:
        """See Room."""
        return self._loop.do(lambda: self._room.confirmed)

    @property
    def epoch(self) -> str | None:
        """See Room."""
        return self._loop.do(lambda: self._room.epoch)

    @property
    def version(self) -> int:
        """See Room."""
        return self._loop.do(lambda: self._room.version)

    @property
    def status(self) -> Status:
        """See Room."""
        return self._loop.do(lambda: self._room.status)

    @property
    def trouble(self) -> str:
        """See Room."""
        return self._loop.do(lambda: self._room.trouble)

    @property
    def pending(self) -> int:
        """See Room."""
        return self._loop.do(lambda: self._room.pending)

    @property
    def connection(self) -> str | None:
        """See Room."""
        return self._loop.do(lambda: self._room.connection)

    @property
    def thread(self) -> str | None:
        """See Room."""
        return self._loop.do(lambda: self._room.thread)

    @property
    def readonly(self) -> bool:
        """See Room."""
        return self._loop.do(lambda: self._room.readonly)

    @property
    def presence(self) -> Mapping[str, Any]:
        """See Room."""
        return MappingProxyType(dict(self._loop.do(lambda: self._room.presence)))

    # Changing the state

    def set(self, state: S | Callable[[S], S]) -> int:
        """Change the state to another one, or to the result of a function of it; return the version. Raises Refused."""
        return self._wait(lambda: self._room.set(state), _NO_ANSWER)

    def update(self, pointer: str, value: Any) -> int:
        """Change the value at a JSON pointer, or put it there; return the version. Raises Refused, ValueError."""
        return self._wait(lambda: self._room.update(pointer, value), _NO_ANSWER)

    def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> int:
        """Change a part of the string at a JSON pointer, as in Room; return the version. Raises Refused, ValueError."""
        return self._wait(lambda: self._room.splice(pointer, at, remove, insert), _NO_ANSWER)

    def append(self, pointer: str, text: str) -> int:
        """Add to the end of the string at a JSON pointer; return the version. Raises Refused, ValueError."""
        return self._wait(lambda: self._room.append(pointer, text), _NO_ANSWER)

    def edit(self) -> Edit[int]:
        """Return a block in which the state is changed in place. The end of the block waits, and raises Refused."""

        def push(made_on: Any, ops: list[Op]) -> int:
            return self._wait(lambda: self._room.push(made_on, ops), _NO_ANSWER)

        return Edit(*self._loop.do(lambda: (self._room.shown(), self._room.keys())), push)

    # Calling

    @overload
    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def call(
        self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    @overload
    def call(self, method: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(self, method: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method, by its name or its function, and return its result, as Room does.

        Raises CallError, TooLarge, Disconnected.
        """
        return self._wait(lambda: self._room.call(method, *args, **kwargs), f"no result of {read_rpc(method).name}")

    @overload
    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]: ...
    @overload
    def stream(
        self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[R, None, None]: ...
    def stream(self, method: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Call a method and iterate over its values. Closing the iterator, or leaving the loop, cancels the call."""
        return self._iterate(read_rpc(method).name, self._room.stream(method, *args, **kwargs))

    @overload
    def query(self, method: str, args: Iterable[Any] = (), timeout: float | None = None) -> SyncQuery[Any]: ...
    @overload
    def query(
        self, method: Callable[..., Awaitable[R]], args: Iterable[Any] = (), timeout: float | None = None
    ) -> SyncQuery[R]: ...
    @overload
    def query(
        self, method: Callable[..., R], args: Iterable[Any] = (), timeout: float | None = None
    ) -> SyncQuery[R]: ...
    def query(self, method: Any, args: Iterable[Any] = (), timeout: float | None = None) -> SyncQuery[Any]:
        """Follow a query, as Room does; each result must come within `timeout` seconds, or at any time."""
        query: RoomQuery[Any] = self._loop.do(lambda: self._room.query(method, args))
        name = read_rpc(method).name
        return SyncQuery(query, lambda function: self._loop.wait(function, timeout, f"nothing from {name}"))

    def _iterate(self, name: str, values: AsyncGenerator[Any]) -> Generator[Any, None, None]:
        try:
            while (value := self._wait(lambda: anext(values, _END), f"nothing from {name}")) is not _END:
                yield value
        finally:
            with suppress(Closed):
                self._wait(values.aclose, f"no end of {name}")

    # Running agents

    def run(self, agent: str, /, input: Any = None) -> Any:
        """Run an agent in this thread and return its output, as Room does. Raises CallError, TooLarge, Disconnected."""
        return self._wait(lambda: self._room.run(agent, input), f"no result of {agent}")

    def run_stream(self, agent: str, /, input: Any = None) -> Generator[Any, None, None]:
        """Run an agent in this thread and iterate over its chunks. Closing the iterator interrupts the agent."""
        return self._iterate(agent, self._room.run_stream(agent, input))

    def interrupt(self, message: Any = None) -> bool:
        """Interrupt the agent that runs in this thread, and return whether one runs."""
        return self._wait(lambda: self._room.interrupt(message), "no answer to the interrupt")

    # Parts

    @property
    def messages(self) -> SyncMessages:
        """See Room."""
        return SyncMessages(self._loop.do(lambda: self._room.messages), self._loop, self._wait)

    @property
    def tasks(self) -> SyncTasks:
        """See Room."""
        return SyncTasks(self._loop.do(lambda: self._room.tasks), self._loop, self._wait)

    @property
    def files(self) -> SyncFiles:
        """The files of the thread, if its class has `files = Files()`."""
        return SyncFiles(self._room.files, self._loop)

    # Sending

    def send(self, data: Any) -> None:
        """See Room."""
        self._loop.do(lambda: self._room.send(data))

    def set_presence(self, data: Any) -> None:
        """See Room."""
        self._loop.do(lambda: self._room.set_presence(data))

    def update_presence(self, members: Mapping[str, Any]) -> None:
        """See Room."""
        self._loop.do(lambda: self._room.update_presence(members))

    def emit(self, name: str, data: Any = None) -> None:
        """See Room."""
        self._loop.do(lambda: self._room.emit(name, data))

    # Being told

    def on_event(self, name: str, callback: Callable[[Any], object] | Callable[[Any, str | None], object]) -> Remove:
        """Call `callback` with the data of each event of a name; return a function that ends this. See Room."""
        return self._loop.do(lambda: self._room.on_event(name, callback))

    def on_message(self, callback: Callable[[Any], object]) -> Remove:
        """Call `callback` with each message of the thread, with bytes for a binary one."""
        return self._loop.do(lambda: self._room.on_message(callback))

    def on_refused(self, callback: Callable[[Refused | Unanswered], object]) -> Remove:
        """Call `callback` with the error of each change that was refused."""
        return self._loop.do(lambda: self._room.on_refused(callback))

    def on_presence(self, callback: Callable[[Mapping[str, Any]], object]) -> Remove:
        """Call `callback` with the presence of all clients whenever it has changed."""
        return self._loop.do(lambda: self._room.on_presence(callback))

    def changes(self, timeout: float | None = None) -> SyncChanges[S]:
        """Follow the confirmed state from now on; each change must come within `timeout` seconds, or at any time."""

        def wait(function: Callable[[], Awaitable[Any]]) -> Any:
            return self._loop.wait(function, timeout, "no change")

        return SyncChanges(self._loop.do(self._room.changes), wait)

    def wait_for(self, predicate: Callable[[S], object], timeout: float | EllipsisType | None = ...) -> S:
        """Wait until the shown state fulfils a condition, and return it. Raises TimeoutError.

        Waits for the `timeout` of `connect_sync`, or for another one, which may be None. The function is called in a
        thread of the client's own, like callbacks.
        """
        seconds = self._timeout if isinstance(timeout, EllipsisType) else timeout
        return self._loop.wait(lambda: self._room.wait_for(predicate), seconds, "no state that was waited for")


@overload
def connect_sync(
    url: str, *, state_type: type[S], timeout: float | None = 30.0, **options: Unpack[Options]
) -> SyncRoom[S]: ...
@overload
def connect_sync(
    url: str, *, state_type: Any = Any, timeout: float | None = 30.0, **options: Unpack[Options]
) -> SyncRoom[Any]: ...
def connect_sync(
    url: str, *, state_type: Any = Any, timeout: float | None = 30.0, **options: Unpack[Options]
) -> SyncRoom[Any]:
    """Connect to a thread as `connect` does, and wait until it is joined: `with connect_sync(url) as room:`.

    `timeout` is the number of seconds that each method of the room may take. In a notebook, call `room.close()` at the
    end.
    """
    connecting = connect(url, state_type=state_type, **options)
    loop = LoopThread()
    try:
        room = loop.wait(connecting.__aenter__, None)
    except BaseException:
        loop.close()
        raise
    return SyncRoom(room, loop, room.close, timeout)
