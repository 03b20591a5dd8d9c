"""Editing in place: the changes of a draft in a `with` block become one push."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from plait_client.errors import Refused
from plait_schemas.draft import draft, recorded
from plait_schemas.elements import Keys
from plait_schemas.patch import Op
from plait_schemas.rebase import rebase

__all__ = ["AwaitableEdit", "Edit", "rebase_edit"]

T = TypeVar("T")


class Edit(Generic[T]):
    """A draft of the state, pushed as one change at the end of its block; not at all when the block raises.

    `with` makes the change at once and does not wait, and the edit may be awaited afterwards; `async with` waits at the
    end. Both return the version of the change, or raise Refused.
    """

    def __init__(self, state: Any, keys: Keys | None, push: Callable[[Any, list[Op]], T]) -> None:
        self._state = state
        self._push = push
        self._draft = draft(state, keys)
        self._is_entered = False
        self._pushed: T | None = None

    @property
    def pushed(self) -> T:
        """The result of the push."""
        if self._pushed is None:
            raise RuntimeError("the block of this edit has not ended")
        return self._pushed

    def __enter__(self) -> Any:
        if self._is_entered:
            raise RuntimeError("an edit has one block: call edit for each")
        self._is_entered = True
        return self._draft

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._pushed = self._push(self._state, recorded(self._draft))


class AwaitableEdit(Edit[Awaitable[int]]):
    """An Edit for asyncio."""

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
        if kind is None:
            await self.pushed

    def __await__(self) -> Generator[Any, None, int]:
        return self.pushed.__await__()


def rebase_edit(
    made_on: Any, ops: list[Op], shown: Any, difference: Callable[[Any, Any, list[Op]], list[Op]]
) -> list[Op]:
    """Return operations made on one state, rebased onto the state shown now. Raises Refused.

    `difference` returns the changes that may lead from one state to another, for rebasing operations over them.
    """
    if made_on is shown:
        return ops
    moved = rebase(ops, difference(made_on, shown, ops), shown)
    if moved.is_lost:
        raise Refused("conflict", "the edited place no longer exists", next(iter(moved.conflicts), None))
    return moved.ops
