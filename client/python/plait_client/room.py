"""A thread in a client: its state, changes, calls, and events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from plait_client.edit import AwaitableEdit, rebase_edit
from plait_client.errors import Disconnected, Refused, Unanswered
from plait_client.listeners import Changes, Remove
from plait_client.live import Live
from plait_client.room_files import RoomFiles
from plait_client.room_messages import RoomMessages
from plait_client.room_query import RoomQuery
from plait_client.room_tasks import RoomTasks
from plait_client.session import Session, Status
from plait_client.typed import written
from plait_client.view import View
from plait_schemas.diff import replace
from plait_schemas.elements import Keys
from plait_schemas.patch import Op, find, parse, splice
from plait_schemas.rpc import read_rpc

__all__ = ["Room"]

S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")


class Room(Generic[S]):
    """A live copy of a thread's state, and the way to change it. `connect` returns it.

    A method that changes the state does so at once, in the shown state, and returns an awaitable that is not a
    coroutine: it gives the version of the change on the server, or raises Refused. It need not be awaited, and may be
    awaited more than once. After the end, every method raises Closed.
    """

    def __init__(self, live: Live, state_type: Any) -> None:
        self._live = live
        self._session = live.session
        self._shown: View[S] = View(state_type)
        self._confirmed: View[S] = View(state_type)
        live.listeners.add("news", partial(_follow, self._shown, self._confirmed))

    # The known state

    @property
    def state(self) -> S:
        """The shown state, with the changes made here that are not confirmed. None while there is no state.

        It is a copy, made once for a version. Changing the copy in place changes nothing for others, and is logged when
        the next version replaces it: see `edit`. Raises msgspec.ValidationError if it is not of the client's
        `state_type`.
        """
        return self._shown(self._session.shown)

    @property
    def confirmed(self) -> S:
        """The state that the server has confirmed, a copy like `state`."""
        return self._confirmed(self._session.confirmed)

    @property
    def epoch(self) -> str | None:
        """The history that `version` belongs to."""
        return self._session.epoch

    @property
    def version(self) -> int:
        """The version of the confirmed state."""
        return self._session.version

    @property
    def status(self) -> Status:
        """Whether the thread is joined: "connecting", "online", "offline" or "closed"."""
        return self._session.status

    @property
    def trouble(self) -> str:
        """The trouble since the last join, as a text: why there is no connection, for example.

        The text is for people, and empty without trouble.
        """
        return self._live.trouble

    @property
    def pending(self) -> int:
        """The number of changes made here that the server has not answered."""
        return len(self._session.pending)

    @property
    def connection(self) -> str | None:
        """The id by which others know this client; it stays the same over reconnects."""
        return self._session.connection

    @property
    def thread(self) -> str | None:
        """The thread's kind and name, with a slash between."""
        return self._session.thread

    @property
    def readonly(self) -> bool:
        """Whether the server will refuse every change."""
        return self._session.is_readonly

    @property
    def presence(self) -> Mapping[str, Any]:
        """The presence of each connection, by its id."""
        return MappingProxyType(self._session.presence)

    # Changing the state

    def set(self, state: S | Callable[[S], S]) -> Awaitable[int]:
        """Change the state to another one, or to a function's result for it; only the differences are sent.

        Members for which the client's `state_type` has no field stay.
        """
        self._live.check_open()
        shown = self.shown()
        lent = None
        value: Any = state
        if callable(state):
            lent = self._shown.lend(shown)
            value = state(lent)
        if self._shown.is_read(value):
            # Changes made in it are not lost.
            self._shown.forget()
        base = self._shown.base(shown, lent)
        return self.push(shown, self._session.diff(shown, written(value, base, shown, self._session.keys)))

    def update(self, pointer: str, value: Any) -> Awaitable[int]:
        """Change the value at a JSON pointer, or put it there. Raises ValueError if the pointer leads nowhere."""
        self._live.check_open()
        shown = self.shown()
        there = find(shown, parse(pointer))
        if there is msgspec.UNSET:
            return self.push(shown, [Op("add", pointer, value)])
        return self.push(shown, replace(there, value, pointer, self.keys()))

    def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> Awaitable[int]:
        """Change a part of the string at a JSON pointer: at the character `at`, remove some and insert others.

        Others' changes in the same string stay. Raises ValueError if the change does not fit.
        """
        self._live.check_open()
        return self.push(self.shown(), [splice(pointer, at, remove, insert)] if remove or insert else [])

    def append(self, pointer: str, text: str) -> Awaitable[int]:
        """Add to the end of the string at a JSON pointer. Raises ValueError if there is no string."""
        self._live.check_open()
        there = find(self.shown(), parse(pointer))
        return self.splice(pointer, len(there) if isinstance(there, str) else 0, insert=text)

    def edit(self) -> AwaitableEdit:
        """Return a block in which the state is changed in place: `with room.edit() as draft:`.

        The draft is a tree of dicts and lists, whose members may also be written as attributes. Raises TypeError if the
        state is not an object or array.
        """
        self._live.check_open()
        return AwaitableEdit(self.shown(), self.keys(), self.push)

    def shown(self) -> Any:
        """Return the shown state as JSON values, which must not be changed. Raises Refused with `state=False`."""
        self._session.check_state()
        return self._session.shown

    def keys(self) -> Keys | None:
        """Return which strings of the state are texts, and which members identify the elements of its lists."""
        return self._session.keys

    def push(self, made_on: Any, ops: list[Op]) -> Awaitable[int]:
        """Change the state by operations that were made on the state shown at that time. Raises ValueError, Refused."""
        self._live.check_open()
        try:
            rebased = rebase_edit(made_on, ops, self.shown(), self._session.difference)
            push = self._session.push(rebased, check=self._check)
        except Refused as error:
            self._live.refused(error)
            raise
        outcome = self._live.outcomes.wait(push, self.version)
        self._live.tell_soon()
        return outcome

    def _check(self, document: Any) -> None:
        """Raise Refused for a document that is not of the client's type, unless the shown state is not either."""
        try:
            self._shown.check(document)
        except msgspec.ValidationError as error:
            if self._shown.takes(self.shown()):
                raise Refused("invalid_state", str(error)) from error

    # Calling

    @overload
    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def call(
        self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    @overload
    async def call(
        self, method: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def call(self, method: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its name and return its result; for a method that streams, the value at its end.

        A function, `call(GameRoom.add_player, "Ada")`, stands for its name: the result is of its annotated return type,
        or a list of the chunks if it is a generator. Raises msgspec.ValidationError if the result is of another type.

        Waits while there is no connection, and until all earlier changes are sent. Raises CallError, TooLarge, and
        Disconnected if the connection was lost before the result: the method may have run.
        """
        rpc, result, chunks = read_rpc(method), None, []
        self._live.check_open()
        async with aclosing(self._live.calls.run(rpc.name, args, kwargs)) as results:
            async for is_last, value in results:
                if rpc.is_stream:
                    chunks.append(rpc.convert(value))
                result = value if is_last else None
        return chunks if rpc.is_stream else rpc.convert(result)

    @overload
    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]: ...
    @overload
    def stream(
        self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R]: ...
    async def stream(self, method: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Call a method and iterate over its values. Raises what `call` raises.

        Closing the iterator cancels the call; so does leaving the loop, unless a variable keeps the iterator.
        """
        rpc = read_rpc(method)
        self._live.check_open()
        async with aclosing(self._live.calls.run(rpc.name, args, kwargs)) as results:
            async for _, value in results:
                yield rpc.convert(value)

    @overload
    def query(self, method: str, args: Iterable[Any] = ()) -> RoomQuery[Any]: ...
    @overload
    def query(self, method: Callable[..., Awaitable[R]], args: Iterable[Any] = ()) -> RoomQuery[R]: ...
    @overload
    def query(self, method: Callable[..., R], args: Iterable[Any] = ()) -> RoomQuery[R]: ...
    def query(self, method: Any, args: Iterable[Any] = ()) -> RoomQuery[Any]:
        """Follow a query, by its name or its function: `async for rows in room.query("open_orders", ["c1"]):`.

        The iterator goes on over reconnects. Closing it ends the query; so does leaving the loop, unless a variable
        keeps the iterator.
        """
        self._live.check_open()
        return RoomQuery(self._live, read_rpc(method), args)

    # Running agents

    async def run(self, agent: str, /, input: Any = None) -> Any:
        """Run an agent in this thread and return its output; a list for an agent that streams.

        The output of an interrupted run is `{"interrupted": True, "message": …, "output": …}`; in a list, this is the
        last element. Raises what `call` raises. When this is cancelled, a run that has begun goes on; the run of an
        agent that streams is interrupted.
        """
        chunks = []
        self._live.check_open()
        async with aclosing(self._live.calls.run(f"run:{agent}", _given(input), {})) as results:
            async for is_last, value in results:
                if is_last:
                    return value
                chunks.append(value)
        return chunks

    def run_stream(self, agent: str, /, input: Any = None) -> AsyncGenerator[Any, None]:
        """Run an agent in this thread and iterate over its chunks. Raises what `call` raises.

        Closing the iterator interrupts the agent, as `stream` cancels a call.
        """
        return self.stream(f"run:{agent}", *_given(input))

    async def interrupt(self, message: Any = None) -> bool:
        """Interrupt the agent that runs in this thread, even for another client, and return whether one runs.

        The agent gets `message`. Raises what `call` raises.
        """
        return bool(await self.call("run:interrupt", *_given(message)))

    # Parts

    @property
    def messages(self) -> RoomMessages:
        """The messages of the thread, as its class declares them: `messages = Messages(live=True)`."""
        return RoomMessages(self._live, "messages", self.call)

    @property
    def tasks(self) -> RoomTasks:
        """The runs of the thread's tasks, which its class declares: `tasks = Tasks(live=True)`."""
        return RoomTasks(self._live, "tasks", self.call)

    @property
    def files(self) -> RoomFiles:
        """The files of the thread, if its class has `files = Files()`."""
        return RoomFiles(self._live.carrier.target)

    # Sending

    def send(self, data: Any) -> None:
        """Send a message to the thread; bytes become a binary message.

        Raises Disconnected while there is no connection, and TooLarge.
        """
        self._live.check_open()
        if self.status != "online":
            raise Disconnected("there is no connection to send on")
        if isinstance(data, bytes | bytearray | memoryview):
            self._session.send_binary(bytes(data))
        else:
            self._session.send(data)
        self._live.carrier.wake()

    def set_presence(self, data: Any) -> None:
        """Show `data` of this client to others while it is connected; None shows nothing. Raises TooLarge."""
        self._live.check_open()
        self._session.set_presence(data)
        self._live.carrier.wake()

    def update_presence(self, members: Mapping[str, Any]) -> None:
        """Set members of the presence that others see of this client, and keep its other members. Raises TooLarge."""
        self._live.check_open()
        own = self._session.own_presence
        self.set_presence({**(own if isinstance(own, dict) else {}), **members})

    def emit(self, name: str, data: Any = None) -> None:
        """Emit an event to the others, if the thread's class allows it to clients. Raises TooLarge.

        An event is of a moment: without a connection it is dropped.
        """
        self._live.check_open()
        self._session.emit(name, data)
        self._live.carrier.wake()

    # Being told

    def on_event(self, name: str, callback: Callable[[Any], object] | Callable[[Any, str | None], object]) -> Remove:
        """Call `callback` with the data of each event of a name; return a function that ends this.

        A callback with two parameters also gets the id of the connection whose client has emitted the event; None if
        the thread has.
        """
        return self._live.listeners.add_event(name, callback)

    def on_message(self, callback: Callable[[Any], object]) -> Remove:
        """Call `callback` with each message of the thread, with bytes for a binary one."""
        return self._live.listeners.add("message", callback)

    def on_refused(self, callback: Callable[[Refused | Unanswered], object]) -> Remove:
        """Call `callback` with the error of each change that was refused, awaited or not."""
        return self._live.listeners.add("refusal", callback)

    def on_presence(self, callback: Callable[[Mapping[str, Any]], object]) -> Remove:
        """Call `callback` with the presence of all clients whenever it has changed."""
        return self._live.listeners.add("presence", callback)

    def changes(self) -> Changes[S]:
        """Follow the confirmed state from now on: `async for change in room.changes():`.

        The iterator ends when this client is closed, and raises Closed when the server has closed it for good.
        """
        self._session.check_state()
        follower: Changes[S] = Changes(self._confirmed.convert, self._why_no_more)
        self._live.followers.add(follower)
        return follower

    def _why_no_more(self) -> BaseException | None:
        return StopAsyncIteration() if self._live.is_closed else self._live.ending()

    async def wait_for(self, predicate: Callable[[S], object], timeout: float | None = None) -> S:
        """Wait until there is a state, and the shown state fulfils a condition, and return it. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not (self._is_to_be_seen and predicate(state := self.state)):
                await self._live.next_news()
        return state

    @property
    def _is_to_be_seen(self) -> bool:
        """Whether a state can be shown; one of another type counts only if no answer can change that."""
        shown = self.shown()
        return shown is not None and (self.pending == 0 or self._shown.takes(shown))

    # The end

    async def close(self) -> None:
        """Send the waiting frames, and close the connection when all are answered, which may take a few seconds.

        Changes that still have no answer, or for which there is no connection, raise Unanswered.
        """
        await self._live.close()


def _follow(shown: View[Any], confirmed: View[Any], session: Session) -> None:
    """Compare the states that were read with the current ones."""
    shown.follow(session.shown)
    confirmed.follow(session.confirmed)


def _given(value: Any) -> tuple[Any, ...]:
    """Return the arguments of a method that may be called without one."""
    return () if value is None else (value,)
