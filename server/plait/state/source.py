"""Who caused a change."""

from typing import Literal, Protocol

__all__ = ["Client", "Source"]


class Client(Protocol):
    """A connection, as far as the state of its thread knows it: changes are logged under its id."""

    id: str


Source = Client | Literal["server"]
"""Who caused a change."""
