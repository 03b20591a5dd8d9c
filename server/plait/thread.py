"""Thread: what an author subclasses."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.connection import Connection, Connections, Source, encode_message
from plait.errors import Readonly
from plait.kind import Kind
from plait.logs import log_error
from plait.mailbox import current_turn
from plait.pipeline import Commit, Pipeline
from plait.store.protocol import ThreadKey

__all__ = ["Core", "Thread"]

State = TypeVar("State")


class Core:
    """What a thread is made of; the actor that runs it gives it these."""

    __slots__ = ("connections", "key", "peer", "pipeline")

    def __init__(self, key: ThreadKey, pipeline: Pipeline, peer: Callable[[Any, str], Any]) -> None:
        self.key = key
        self.pipeline = pipeline
        self.connections = Connections()
        # Makes a handle to another thread.
        self.peer = peer


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
    # Seconds without a socket or a turn, after which the thread is stopped.
    idle_timeout: ClassVar[float] = 60.0
    # Seconds after which a turn is cancelled, and logged with its stack; None for never.
    turn_timeout: ClassVar[float | None] = 30.0

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
        turn = current_turn()
        if turn is not None and turn.by_client and turn.connection is not None and turn.connection.readonly:
            raise Readonly("Connection is readonly")
        return self._core.pipeline.set(value, "server")

    # Connections

    def connections(self, tag: str | None = None) -> list[Connection]:
        """Return the open connections, or those that carry `tag`."""
        return self._core.connections.tagged(tag)

    def broadcast(self, data: object, *, without: Collection[Connection] = ()) -> None:
        """Send a message to every connection: a str as text, bytes as binary, anything else as JSON text.

        It leaves after all changes made so far.
        """
        self._core.connections.broadcast(encode_message(data), without=without)

    def thread(self, kind: "type[Thread[Any]]", name: str) -> Any:
        """Return a handle to another thread of this app."""
        return self._core.peer(kind, name)

    # Hooks

    def validate_state_change(self, next_state: State, source: Source) -> None:
        """Refuse a change by raising, best a Reject. Called before the change is made, and must not change anything."""

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
