"""The protocol of a connection to a database."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Db", "Queries"]


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
