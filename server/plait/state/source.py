"""The causes of changes: clients and turns, as the state layer knows them."""

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Literal, Protocol

from plait.errors import PlaitError
from plait.state.principal import Principal

__all__ = ["Client", "HasUser", "Source", "StateTurn", "Turns"]


class HasUser(Protocol):
    """The party for which a thread is created."""

    @property
    def user(self) -> str | None:
        """The id of the party's principal; None without one."""
        ...


class Client(HasUser, Protocol):
    """A connection, as far as the state layer knows it. Its id is the source of its changes in the log."""

    id: str

    @property
    def principal(self) -> Principal | None:
        """The client's principal, which methods of the author get; None without one."""
        ...

    # The trace of the last message, which is the parent of the traces of the client's changes.
    trace: object


Source = Client | Literal["server"]
"""The cause of a change: a client, or "server" for code of the server."""


class StateTurn(Hashable, Protocol):
    """A turn, as far as the state layer knows it: code that reads the state of its thread, or makes changes."""

    name: str
    # Whether its code sees only durable states, as it decides about the rights of a client.
    sees_durable: bool

    @property
    def connection(self) -> Client | None:
        """The connection that has caused the turn, if there is one."""
        ...

    def on_end(self, callback: Callable[[object, BaseException | None], None]) -> None:
        """Call `callback` when the turn has ended, after the callbacks that were added earlier."""

    def expect_change(self) -> None:
        """Note that a change of this turn is being stored."""

    def decide_change(self, *, may_be_stored: bool) -> None:
        """Note the outcome of a change of this turn."""

    def tell_made(self, sockets: object, version: int) -> None:
        """Tell the callers that wait for it of the first change of the thread with these sockets."""


class Turns(Protocol):
    """The turns of a thread, whose code makes changes and reads them before they are durable."""

    def find_turn(self) -> StateTurn | None:
        """Return the turn in which the calling code runs, of any thread; None outside of turns."""
        ...

    def find_own_turn(self) -> StateTurn | None:
        """Return the turn in which the calling code runs, if it is a turn of this thread."""
        ...

    def find_loss(self) -> PlaitError | None:
        """Return the error that cut the turn of the calling code short, if it is a turn of this thread."""
        ...

    def find_trace(self) -> object:
        """Return the trace of the cause of the calling code's changes."""
        ...

    def report(self, error: BaseException, connection: None) -> None:
        """Report an exception of the author's code to `on_error`."""

    def cut(self, failure: PlaitError, told: Collection[asyncio.Task[object]]) -> None:
        """Cut the running turns short, except turns in a task of `told`, which awaits the change and gets the error."""
