"""The cause of a change."""

from typing import Literal, Protocol

__all__ = ["Client", "HasUser", "Source"]


class HasUser(Protocol):
    """The party that a thread is created for."""

    @property
    def user(self) -> str | None:
        """The id of its principal; None if it has none."""
        ...


class Client(HasUser, Protocol):
    """A connection, as far as the state layer knows it: its id is logged with its changes."""

    id: str

    @property
    def principal(self) -> object:
        """Its principal, which methods of the author get; None if it has none."""
        ...

    # The trace of its last message, which is the parent of the traces of its changes.
    trace: object


Source = Client | Literal["server"]
"""The cause of a change: a client, or "server" for code of the server."""
