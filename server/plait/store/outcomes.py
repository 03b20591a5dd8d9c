"""The errors of writes that were refused, failed, or may be stored."""

from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.protocol import ThreadKey, Unreachable

__all__ = ["make_fenced", "make_indeterminate", "make_refusal"]


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
