"""Thread, the class that authors subclass."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.actor.connection import Connection, Source, prepare_message
from plait.actor.connections import Connections
from plait.actor.handle import Handle
from plait.actor.kind import Kind
from plait.actor.logs import log_error
from plait.actor.past import check_type_at, read_past
from plait.actor.programs import ProgramActor, RunsCode
from plait.actor.thread_settings import ThreadSettings
from plait.actor.turn import check_may_write
from plait.limits import Limits
from plait.state.authors import Stretch, find_authors
from plait.state.change_log import Change, ChangeLog
from plait.state.commit import Commit
from plait.state.edit import Edit
from plait.state.thread_records import Records
from plait.state.transaction import Transaction
from plait.state.undo import redo, undo
from plait.state.update import splice, update
from plait.store.thread_rows import ThreadKey
from plait_schemas.encoding import encode_given

__all__ = ["Thread", "ThreadActor"]

State = TypeVar("State")
T = TypeVar("T", bound="Thread[Any]")


class ThreadActor(ProgramActor, Protocol):
    """An actor, as its thread and its parts use it; `Actor` describes the members."""

    key: ThreadKey
    kind: Kind
    limits: Limits
    log: ChangeLog
    # The records beside the state.
    records: Records
    terminated_at: int | None

    @property
    def thread(self) -> Any: ...

    @property
    def sockets(self) -> Connections: ...

    def make_handle(self, kind: "type[T]", name: str) -> Handle[T]: ...

    def check_active(self) -> None: ...

    def terminate(self) -> Commit: ...

    async def destroy(self) -> None: ...


class Thread(ThreadSettings, RunsCode, Generic[State]):
    """A named, long-lived actor with one durable state, whose type is given as `Thread[State]`.

    The node creates the instances. Hooks may be `def` or `async def`, except `validate_state_change` and
    `resolve_conflict`. Each call of a hook is a turn, and the turns of one thread run one at a time.
    """

    # The state of a new thread, or a function without arguments that returns it. Without this attribute, the thread has
    # no state until one is set.
    initial_state: State | Callable[[], State]

    _actor: ThreadActor
    _kind: ClassVar[Kind]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._kind = Kind(cls, Thread)

    # Identity

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._actor.key.name

    @property
    def user_id(self) -> str | None:
        """The id of the user for whom the thread was created: the user in its name, or else its creator; None for none.

        The creator is not known before the first write, which creates the thread.
        """
        return self._actor.state.history.user

    @property
    def created_at(self) -> int | None:
        """The time of the thread's creation, in microseconds since the epoch; None before the first write."""
        return self._actor.state.history.created_at or None

    # State

    @property
    def state(self) -> State:
        """The current state, including changes that are not durable yet; None if no state has been set.

        Hooks that decide about the rights of a client see the last durable state.
        """
        state: State = self._actor.state.show()
        return state

    @property
    def version(self) -> int:
        """The version of the current state."""
        return self._actor.state.shown.version

    def set_state(self, value: State | Callable[[State], State]) -> Commit:
        """Set the state to `value`, or to the result of a function that takes the current state.

        The change is made when this returns. Awaiting the result waits until the change is durable and sent, and
        returns its version. Raises InvalidState, TooLarge, Readonly, and the error of `validate_state_change`; awaiting
        raises StoreError if the change could not be stored and was rolled back.
        """
        check_may_write(self._actor.key)
        return self._actor.state.set(value, "server")

    def edit(self) -> Edit:
        """Change a large state in place: the edits of a draft, in `with self.edit() as draft:`, make one change.

        The draft is the state as JSON: objects are dicts, whose members can also be read and set as attributes, and
        arrays are lists. The cost depends only on the edited parts. If the block raises, nothing is changed.
        """
        check_may_write(self._actor.key)
        return Edit(self._actor.state, self._actor.log)

    def transaction(self) -> Transaction:
        """Combine all changes of a block into one: `with self.transaction():`, with `set_state`, `update` and others.

        If the block raises, nothing is changed. The block must not await anything.
        """
        check_may_write(self._actor.key)
        return Transaction(self._actor.state, self._actor.key)

    def update(self, pointer: str, value: object) -> Commit:
        """Set the value at a JSON pointer: a member of an object, or an element of an array (`-` appends one).

        Returns the same as `set_state`, and raises the same errors, and Conflict if the place does not exist.
        """
        check_may_write(self._actor.key)
        return update(self._actor.state, pointer, value, self._actor.limits)

    def splice(self, pointer: str, at: int, remove: int = 0, insert: str = "") -> Commit:
        """Change a part of the string at a JSON pointer: at the character `at`, remove characters and insert others.

        Concurrent changes of others in the same string are kept. Returns the same as `update`, and raises the same
        errors. The cost depends on the size of the change, not of the string.
        """
        check_may_write(self._actor.key)
        return splice(self._actor.state, pointer, at, remove, insert)

    def append(self, pointer: str, text: str) -> Commit:
        """Add to the end of the string at a JSON pointer, as `splice` does: for text that arrives in pieces."""
        check_may_write(self._actor.key)
        return splice(self._actor.state, pointer, None, insert=text)

    # History

    async def history(self, since: int | None = None, *, limit: int | None = None) -> list[Change]:
        """Return the durable changes after a version, in order; without a version, all changes that are kept.

        `limit` is the maximum number of changes: the first ones after the version, or without a version the last ones.
        Raises NotFound when some of the changes after the version are not kept.
        """
        return await self._actor.log.read(since, limit)

    async def at(self, version: int) -> State:
        """Return the state at a version.

        Raises NotFound when the version is not kept, and InvalidState when its state does not fit the class's type, for
        example for a version from before a migration.
        """
        state: State = await read_past(self._actor.log, self._kind, version)
        return state

    async def revert(self, version: int) -> int:
        """Set the state back to an earlier version, by a new change, and return the new version.

        Raises the errors of `at`, and InvalidState for a version from before a migration, as the migration would not
        run again.
        """
        state = await self.at(version)
        await check_type_at(self._actor.log, self._kind, version)
        return await self.set_state(state)

    async def undo(self, source: Connection | str) -> int | None:
        """Undo the last change of a source that has not been undone, by a new change, and return the new version.

        `source` may also be a connection's id, which stays the same across reconnects; for a connection, the class's
        `can_write` is checked. Returns None when the log has no change to undo. Raises Conflict when others have
        changed the same place since, and Forbidden.

        Text that the source has typed in one place, with pauses of at most a second, is undone together.
        """
        check_may_write(self._actor.key)
        commit = await undo(self._actor.state, self._actor.log, *_find_source(source))
        return None if commit is None else await commit

    async def redo(self, source: Connection | str) -> int | None:
        """Reverse the last undo of a source, and return the new version.

        Returns None if there is no such undo, or if the source has made a change since. Raises the errors of `undo`.
        """
        check_may_write(self._actor.key)
        commit = await redo(self._actor.state, self._actor.log, *_find_source(source))
        return None if commit is None else await commit

    async def authors(self, pointer: str) -> list[Stretch]:
        """Return the parts of the durable text at a JSON pointer with their sources, as far as the log reaches.

        Changes that were undone do not count. Raises Conflict if there is no text at the pointer.
        """
        change_log = self._actor.log
        return await find_authors(change_log, self._actor.state.history.durable.version, pointer)

    # Agents

    @property
    def agents(self) -> Any:
        """The `ThreadAgents` of this thread. Raises RuntimeError unless the class was given to `app.execution`."""
        if (find := self._actor.kind.find_agents) is None:
            raise RuntimeError(f"{type(self).__name__} has no agents: give it some with `app.execution`")
        return find(self._actor)

    @property
    def execution(self) -> Any:
        """The `ExecutionState` of the run that the calling code is a part of; None at rest."""
        return None if self._actor.kind.find_agents is None else self.agents.execution

    # Connections

    def connections(self, tag: str | None = None) -> list[Connection]:
        """Return the open connections, or only the ones that have `tag`."""
        return self._actor.sockets.find_by_tag(tag)

    def broadcast(self, data: object, *, without: Collection[Connection] = ()) -> None:
        """Send a message to every connection: a str as text, bytes as binary, anything else as JSON text.

        The message is sent after all changes made so far.
        """
        self._actor.sockets.broadcast(prepare_message(data), without=without)

    def emit(self, name: str, data: object = None, *, without: Collection[Connection] = ()) -> None:
        """Send an event to every connection, after all changes made so far; the Cloudflare protocol has no events.

        Raises TypeError for another name than a str, ValueError if the class has `events` without it, and EncodeError.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of an event must be a str, not {name!r}")
        if self.events and name not in self.events:
            raise ValueError(f"{name!r} is not one of the events of {type(self).__name__}: {', '.join(self.events)}")
        encode_given(name)
        self._actor.sockets.broadcast(Raw(encode_given(data)), event=name, without=without)

    def presence(self) -> dict[str, Any]:
        """Return the presence of each connection and agent, by connection id or the name passed to `set_presence`."""
        return self._actor.sockets.presence.values()

    def set_presence(self, name: str, data: object) -> None:
        """Set the presence of a member without a connection, such as an agent; None removes it. Never stored."""
        encode_given(name)  # Raises an error for a name that could not be sent.
        encoded = None if data is None else encode_given(data)
        presence = self._actor.sockets.presence
        self._actor.state.after(lambda error: presence.set(name, encoded) if error is None else None)

    def thread(self, kind: type[T], name: str) -> Handle[T]:
        """Return a handle to another thread of this app."""
        return self._actor.make_handle(kind, name)

    async def destroy(self) -> None:
        """Destroy this thread: run `on_destroyed`, delete everything stored, and close the sockets with 4410.

        Waits for earlier turns. When it returns, the deletion is durable and the thread refuses all changes; the name
        may be used for a new thread. Raises Readonly, Unavailable if the server shuts down first, and StoreError if the
        thread could not be deleted: its stored state remains, except that after Indeterminate it may be gone.
        """
        await self._actor.destroy()

    @property
    def terminated_at(self) -> int | None:
        """The time of the termination, in microseconds since the epoch; None without one."""
        return self._actor.terminated_at

    def terminate(self) -> Commit:
        """Stop taking new work: no runs of agents, no messages, no schedules. The thread can still be read.

        One write marks the thread and removes its schedules; queued messages stay pending. The running run is
        interrupted, unless it is the caller. Awaiting the result waits until the write is durable; then `on_terminated`
        is called. Terminating a thread again does nothing. Raises Readonly.
        """
        check_may_write(self._actor.key)
        return self._actor.terminate()

    # Hooks

    def validate_state_change(self, next_state: State, source: Source) -> None:
        """Raise an exception, preferably Reject, to refuse a change. Called before it is made; must not make another.

        With a parameter `before`, the hook also gets the state that the change replaces. With `ops`, it gets the
        operations that lead to the next state; they show how the change was written.
        """

    def card(self, state: State) -> object:
        """Return the data that listings show of the thread, which becomes JSON; None for nothing.

        Called while a change is made; must not make another. The card is stored with the change. If this hook raises,
        the change is made, the last card stays, and `on_error` gets the exception.
        """
        return None

    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        """Return the value for `path`: a push changes it, and others have changed it since the push was made.

        The values are JSON: `base` is the value on which the push was made, `current` the present value, and `proposed`
        the value of the push; each may be None, for no value.
        """
        return proposed

    def on_state_changed(self, state: State, source: Source) -> Awaitable[None] | None:
        """Called for each change, in order, after the change was stored and sent."""

    def on_start(self) -> Awaitable[None] | None:
        """Called when the thread wakes, before clients are served."""

    def on_stop(self) -> Awaitable[None] | None:
        """Called before the thread goes to sleep."""

    def on_destroyed(self) -> Awaitable[None] | None:
        """Called when the thread is destroyed, before it is deleted. The state can be read, but not changed."""

    def on_terminated(self) -> Awaitable[None] | None:
        """Called after the thread was terminated, durably."""

    def on_task_end(self, run: Any) -> Awaitable[None] | None:
        """Called after a run of a task, a TaskRun, has ended, has failed or was cancelled, durably."""

    def on_connect(self, connection: Connection, request: Request) -> Awaitable[None] | None:
        """Called when a connection has joined and the state has been sent to it. An exception closes it with 1011."""

    def on_message(self, connection: Connection, data: str | bytes) -> Awaitable[None] | None:
        """Called for each message that is not a frame of the protocol."""

    def on_close(self, connection: Connection, code: int, reason: str) -> Awaitable[None] | None:
        """Called when a connection that had joined is closed."""

    def on_error(self, error: BaseException, connection: Connection | None) -> Awaitable[None] | None:
        """Called when another hook has raised. By default the error is logged."""
        log_error(error, self._actor.key, connection)
        return None

    def on_request(self, request: Request) -> Awaitable[Response] | Response:
        """Answer an HTTP request below the thread's URL that plait itself does not answer."""
        return JSONResponse({"error": {"code": "not_found", "message": "there is nothing here"}}, 404)

    def connection_tags(self, connection: Connection, request: Request) -> Awaitable[Collection[str]] | Collection[str]:
        """Return the tags of a new connection."""
        return ()

    def should_be_readonly(self, connection: Connection, request: Request) -> Awaitable[bool] | bool:
        """Return whether a new connection may only read."""
        return False

    def should_send_protocol_messages(self, connection: Connection, request: Request) -> Awaitable[bool] | bool:
        """Return whether a new connection gets the protocol's frames, or only messages and answers."""
        return True


def _find_source(source: Connection | str) -> tuple[str, Connection | None]:
    """Return the name of a source in the log, and, for a connection, the connection, as its permissions are checked."""
    return (source, None) if isinstance(source, str) else (source.id, source)
