"""The errors of writes that were refused, failed, or may be stored."""

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.protocol import ThreadKey, Unreachable

__all__ = ["FileLost", "Outcome", "make_fenced", "make_indeterminate", "make_refusal"]

Outcome = tuple[int, StoreError | None]
"""The number of durable writes of a group, and the error of the others."""


class FileLost(StoreError):
    """The file of the store was deleted or replaced, which has been logged. Nothing more is stored in it."""

    def __init__(self, message: str = "the store's file was deleted or replaced") -> None:
        super().__init__(message)
        self.is_logged = True


def make_fenced(key: ThreadKey) -> Fenced:
    """Return the error of a write of an earlier owner."""
    return Fenced(f"{key} was written by another process")


def make_indeterminate(key: ThreadKey, cause: Exception, why: str) -> Indeterminate:
    """Return the error of a write that may be stored, or not."""
    error = Indeterminate(f"{key}: it is not known whether the change was stored: {why}")
    error.__cause__ = cause
    return error


def make_refusal(key: ThreadKey, cause: Exception, why: str, *, is_unreachable: bool = False) -> StoreError:
    """Return the error of a write that is known not to be stored; the health of the store logs it."""
    error = (Unreachable if is_unreachable else StoreError)(f"{key} could not be written: {why}")
    error.__cause__ = cause
    error.is_logged = True
    return error
