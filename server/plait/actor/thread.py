"""Thread: what an author subclasses."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.actor.connection import Connection, Source
from plait.actor.connections import Connections
from plait.actor.kind import Kind
from plait.actor.logs import log_error
from plait.actor.mailbox import find_client_turn
from plait.actor.presence import Presence
from plait.errors import InvalidState, NotFound, Readonly
from plait.state.commit import Commit
from plait.state.conflicts import Policy
from plait.state.edit import Edit
from plait.state.log import Change, ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.retention import DEFAULT_RETENTION, Retention
from plait.state.types import parse_json_error
from plait.state.undo import undo
from plait.store.protocol import ThreadKey
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["Core", "Thread"]

State = TypeVar("State")


class Core:
    """What a thread is made of; the actor that runs it gives it these."""

    __slots__ = ("change_log", "connections", "key", "make_handle", "pipeline", "presence")

    def __init__(
        self,
        key: ThreadKey,
        pipeline: Pipeline,
        change_log: ChangeLog,
        presence: Presence,
        make_handle: Callable[[Any, str], Any],
    ) -> None:
        self.key = key
        self.pipeline = pipeline
        self.change_log = change_log
        self.presence = presence
        self.connections = Connections()
        # Makes a handle to another thread.
        self.make_handle = make_handle


class Thread(Generic[State]):
    """A named, long-lived actor with one durable state, of the type that is given as `Thread[State]`.

    The node makes the instances. Hooks may be `def` or `async def`, except `validate_state_change`; each is a turn,
    and turns of one thread run one at a time.
    """

    # The state that a new thread begins with, or a function of no arguments that returns it. Without it, the thread
    # has no state until one is set.
    initial_state: State | Callable[[], State]

    # The name in URLs; by default made from the class's name.
    kind: ClassVar[str]
    # Whether clients of the Cloudflare protocol are told the thread's kind and name.
    send_identity: ClassVar[bool] = True
    # Seconds without a socket or a turn, after which the thread is stopped; None for never.
    idle_timeout: ClassVar[float | None] = 60.0
    # Seconds after which a turn is cancelled, and logged with its stack; None for never.
    turn_timeout: ClassVar[float | None] = 30.0

    # What happens to a push that was made on an older state, where others have changed the same place since: it wins,
    # or it is refused. A class with `resolve_conflict` decides for each place.
    conflict: ClassVar[Policy] = "last-writer"
    # Whether a client of the Cloudflare protocol, which writes whole states, changes only what differs from the state
    # that it showed. Otherwise each of its writes replaces the state.
    merge_whole_states: ClassVar[bool] = True
    # Which member identifies the elements of a list, where it is none of `id`, `key` and `_id`: by the JSON pointer of
    # the list, in which `*` is any part, as in {"/columns/*/cards": "slug"}.
    list_keys: ClassVar[Mapping[str, str]] = {}
    # How much of the log is kept.
    retention: ClassVar[Retention] = DEFAULT_RETENTION
    # The version of the state's type: one more each time that `@migrate` brings stored states up to date.
    state_version: ClassVar[int] = 1
    # The events that the thread emits, each with its type, for `plait types`. With any here, no others are emitted.
    events: ClassVar[Mapping[str, Any]] = {}

    _core: Core
    _kind: ClassVar[Kind]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._kind = Kind(cls, Thread)

    # State

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._core.key.name

    @property
    def state(self) -> State:
        """The current state, with changes that are on their way to the disk; None when there is no state yet."""
        state: State = self._core.pipeline.state
        return state

    @property
    def version(self) -> int:
        """The version of the current state."""
        return self._core.pipeline.history.current.version

    def set_state(self, value: State | Callable[[State], State]) -> Commit:
        """Change the state to `value`, or to what a function returns for the current one.

        The change is made when this returns. Awaiting the result waits until it is durable and sent, and returns
        its version. Raises InvalidState, TooLarge, Readonly, and what `validate_state_change` raises; awaiting
        raises StoreError when the change could not be stored and was taken back.
        """
        _check_may_write(self._core.key)
        return self._core.pipeline.set(value, "server")

    def edit(self) -> Edit:
        """Change a large state in place: `with self.edit() as draft:` makes one change of what is done to the draft.

        The draft is the state as JSON: objects are dicts, whose members are attributes, too, and arrays are lists.
        Only what is touched is looked at. When the block raises, nothing is changed.
        """
        _check_may_write(self._core.key)
        return Edit(self._core.pipeline, self._core.change_log)

    def update(self, pointer: str, value: object) -> Commit:
        """Set what is at a JSON pointer: a key of an object, or an element of an array (`-` puts one at its end).

        Raises and returns what `set_state` does, and Conflict when the place is not there.
        """
        _check_may_write(self._core.key)
        return self._core.pipeline.update(pointer, value)

    # History

    async def history(self, since: int | None = None, *, limit: int | None = None) -> list[Change]:
        """Return the durable changes behind a version, in order; without one, all that are kept.

        With `limit` no more than so many: the first behind the version, or the last of all. Raises NotFound when not
        all changes since the version are kept.
        """
        change_log, found = self._core.change_log, list[Change]()
        after = await change_log.start(limit) if since is None else since
        while (limit is None or len(found) < limit) and (rows := await change_log.page(after + len(found))) != []:
            if rows is not None:
                found += [Change.of(row) for row in rows]
            elif since is None:
                after, found = await change_log.start(limit), []  # Meanwhile the log has been shortened.
            else:
                raise NotFound(f"the changes behind version {since} are not all there any more")
        return found[:limit]

    async def at(self, version: int) -> State:
        """Return the state as it was at a version.

        Raises NotFound when that is not kept, and InvalidState when it is not one of the class's type, as none is from
        before a migration, unless any JSON is.
        """
        data = await self._core.change_log.json(version)
        if not self._kind.state_type.is_plain:
            await _check_type_at(self, version)
        try:
            state: State = self._kind.state_type.decode(data)
        except NOT_JSON as error:
            message, where = parse_json_error(error)
            raise InvalidState(f"version {version} is of another type: {message}", path=where) from None
        return state

    async def revert(self, version: int) -> int:
        """Make the state what it was at a version, by a new change; returns its version.

        Raises as `at` does, and InvalidState for a version from before a migration, which would not be run again.
        """
        state = await self.at(version)
        await _check_type_at(self, version)
        return await self.set_state(state)

    async def undo(self, source: Connection | str) -> int | None:
        """Take back the last change of a source that has not been taken back, by a new change; returns its version.

        `source` may also be a connection's id, which stays the same over reconnects. Returns None when there is
        nothing to take back that is kept. Raises Conflict when somebody else has changed the same place since.
        """
        _check_may_write(self._core.key)
        name = source if isinstance(source, str) else source.id
        commit = await undo(self._core.pipeline, self._core.change_log, name)
        return None if commit is None else await commit

    # Connections

    def connections(self, tag: str | None = None) -> list[Connection]:
        """Return the open connections, or those that carry `tag`."""
        return self._core.connections.with_tag(tag)

    def broadcast(self, data: object, *, without: Collection[Connection] = ()) -> None:
        """Send a message to every connection: a str as text, bytes as binary, anything else as JSON text.

        It leaves after all changes made so far.
        """
        self._core.connections.broadcast(lambda wire: wire.encode_message(data), without=without)

    def emit(self, name: str, data: object = None, *, without: Collection[Connection] = ()) -> None:
        """Tell every connection of an event, behind all changes made so far. Clients of Cloudflare get none.

        Raises ValueError when the class has `events` and this is not one of them.
        """
        if self.events and name not in self.events:
            raise ValueError(f"{name!r} is not one of the events of {type(self).__name__}: {', '.join(self.events)}")
        self._core.connections.broadcast(lambda wire: wire.encode_event(name, data), without=without)

    def presence(self) -> dict[str, Any]:
        """Return who is here: what each shows of itself, by connection id or the name that `set_presence` was given."""
        return self._core.presence.values()

    def set_presence(self, name: str, data: object) -> None:
        """Show somebody who has no connection, such as an agent; None for nothing any more. It is never stored."""
        encode_json(name)  # Raises for a name that could not be sent.
        encoded = None if data is None else encode_json(data)
        presence = self._core.presence
        self._core.pipeline.after(lambda error: presence.set(name, encoded) if error is None else None)

    def thread(self, kind: "type[Thread[Any]]", name: str) -> Any:
        """Return a handle to another thread of this app."""
        return self._core.make_handle(kind, name)

    # Hooks

    def validate_state_change(self, next_state: State, source: Source) -> None:
        """Refuse a change by raising, best a Reject. Called before the change is made, and must not make another."""

    def resolve_conflict(self, base: Any, current: Any, proposed: Any, path: str) -> Any:
        """Return what is to be at `path`, which a push changes and others have changed since it was made.

        All three are JSON: what was there when the push was made, what is there, and what the push would have there;
        None for nothing.
        """
        return proposed

    def on_state_changed(self, state: State, source: Source) -> Awaitable[None] | None:
        """Called after a change was stored and sent, for each change in order."""

    def on_start(self) -> Awaitable[None] | None:
        """Called when the thread wakes; nobody is served before it returned."""

    def on_stop(self) -> Awaitable[None] | None:
        """Called before the thread goes to sleep."""

    def on_connect(self, connection: Connection, request: Request) -> Awaitable[None] | None:
        """Called when a connection has joined and been sent the state. Raising closes it with 1011."""

    def on_message(self, connection: Connection, data: str | bytes) -> Awaitable[None] | None:
        """Called for each message that is not one of the protocol's."""

    def on_close(self, connection: Connection, code: int, reason: str) -> Awaitable[None] | None:
        """Called when a connection that had joined is closed."""

    def on_error(self, error: BaseException, connection: Connection | None) -> Awaitable[None] | None:
        """Called when another hook raised. By default it is logged."""
        log_error(error, self._core.key, connection)
        return None

    def on_request(self, request: Request) -> Awaitable[Response] | Response:
        """Answer an HTTP request below the thread's URL that plait itself does not."""
        return JSONResponse({"error": {"code": "not_found", "message": "there is nothing here"}}, 404)

    def connection_tags(self, connection: Connection, request: Request) -> Awaitable[Collection[str]] | Collection[str]:
        """Return the tags of a new connection."""
        return ()

    def should_be_readonly(self, connection: Connection, request: Request) -> Awaitable[bool] | bool:
        """Tell whether a new connection may only read."""
        return False

    def should_send_protocol_messages(self, connection: Connection, request: Request) -> Awaitable[bool] | bool:
        """Tell whether a new connection gets the protocol's frames; without, it gets messages and answers only."""
        return True


def _check_may_write(key: ThreadKey) -> None:
    """Raise Readonly when a client of this thread that may only read has caused the calling code to run."""
    turn = find_client_turn()
    if turn is None or turn.connection is None or not turn.connection.readonly:
        return
    # A connection has rights in its own thread only.
    if turn.owner.key == key:
        raise Readonly("Connection is readonly")


async def _check_type_at(thread: Thread[Any], version: int) -> None:
    """Raise InvalidState for a version from before a migration, when states were of another type."""
    if thread.state_version == 1:
        return  # There has been none, and the log need not be read.
    after = version
    while rows := await thread._core.change_log.page(after):
        if any(row.source == "migration" for row in rows):
            raise InvalidState(f"version {version} is from before a migration, when the state had another type")
        after = rows[-1].version
    if rows is None:
        raise NotFound(f"the changes behind version {version} are not all there any more")
