"""The results of a part's methods that write, and the writes that a run has staged."""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["STAGED", "Draft", "Result", "Written"]

T = TypeVar("T")


class Written:
    """A write of a part. Awaiting it returns when it is durable, and raises StoreError if it could not be stored.

    In the block of its transaction, awaiting it returns at once, because the block must not wait.
    """

    __slots__ = ("_commit", "_transaction")

    def __init__(self, commit: Commit | None, transaction: Transaction | None) -> None:
        self._commit = commit
        self._transaction = transaction

    @property
    def is_in_block(self) -> bool:
        """Whether the block of its transaction has not ended."""
        return self._transaction is not None and self._transaction.is_open

    def __await__(self) -> Generator[Any, None, None]:
        if self._transaction is not None and self.is_in_block:
            self._transaction.check()
        elif self._commit is not None:
            yield from self._commit.__await__()


STAGED: Final = Written(None, None)
"""A write that a run has staged."""


class Result(Generic[T]):
    """A write with a value. Awaiting it returns the value when the write is durable."""

    __slots__ = ("_written", "value")

    def __init__(self, value: T, written: Written) -> None:
        self.value = value
        self._written = written

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._written.__await__()
        return self.value


class Draft:
    """The staged writes to one part."""

    @property
    def is_dirty(self) -> bool:
        """Whether there are writes to store."""
        raise NotImplementedError

    @property
    def is_ready(self) -> bool:
        """Whether `write` can be called without `prepare`."""
        return True

    async def prepare(self) -> None:
        """Read the records that `write` needs; by default, it needs none. Raises StoreError."""
        return

    def write(self) -> None:
        """Store the staged writes in the open transaction, and empty the draft. Raises an error if that is impossible.

        If the transaction is rolled back, the writes are staged again, before later ones.
        """
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the staged writes, because the run has raised or could not store them."""
        raise NotImplementedError
