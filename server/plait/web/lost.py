"""Ends a request whose answer is lost: with an error, or, if the answer has begun, by closing the connection."""

from typing import Final

from starlette.types import Scope

from plait.errors import Indeterminate, PlaitError, Unavailable

__all__ = ["ABORT", "SAFE", "abort", "make_lost"]

ABORT: Final = "plait.abort"
"""The key in a scope of the function that closes the connection, under `plait serve`."""

SAFE: Final = ("GET", "HEAD", "OPTIONS")
"""The methods of requests that only read, and may be sent again."""


def make_lost(method: str, why: str) -> PlaitError:
    """Return the error for a request that has begun, perhaps in another process, and that will get no answer."""
    if method in SAFE:
        return Unavailable(f"{why}; try again")
    return Indeterminate(f"{why}; the request may have been carried out")


def abort(scope: Scope) -> None:
    """Close the connection of a request whose answer has begun, so that it does not look complete.

    Other servers do so when the app returns.
    """
    if (close := scope.get(ABORT)) is not None:
        close()
