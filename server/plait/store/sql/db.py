"""The protocols of a connection to a database, and of what opens it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Connector", "Db", "Queries"]


class Queries(Protocol):
    """The queries of a connection.

    In SQL, `$1` is the first of the values, and names in double quotes are no words of the SQL.
    """

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Any]:
        """Return the rows that a statement finds, which can be indexed and unpacked."""
        ...


class Db(Queries, Protocol):
    """A connection."""

    async def execute(self, query: str, /, *args: Any) -> Any:
        """Execute a statement."""
        ...

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    def terminate(self) -> None:
        """Close the connection at once; a statement that waits for its answer fails."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection in order."""
        ...

    def add_termination_listener(self, callback: Callable[[Any], Any], /) -> None:
        """Call `callback` with this connection when it has ended."""
        ...


class Connector(Protocol):
    """Opens connections to the server of a URL, and knows the errors of its driver."""

    # What the driver raises, apart from errors of arguments.
    errors: tuple[type[Exception], ...]
    # Begins a transaction that sees one moment.
    begin_view: str

    async def connect(self) -> Db:
        """Return a new connection to a server that was identified. Raises Unreachable."""
        ...

    async def identify(self, db: Db) -> None:
        """Check which server a connection leads to, and whether it keeps what the URL promises. Raises Unreachable."""
        ...

    def is_lost(self, error: BaseException, /, *, is_closed: bool = False) -> bool:
        """Whether an error means that the outcome of a statement is not known; `is_closed` tells of the connection."""
        ...

    def explain(self, error: BaseException, /) -> str:
        """Return in one line what an error means."""
        ...
