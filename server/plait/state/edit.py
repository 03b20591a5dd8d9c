"""`with thread.edit() as draft:` changes a large state in place, without comparing all of it."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from plait.errors import Conflict, InvalidState
from plait.state.budget import Budget
from plait.state.change_log import ChangeLog
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.store.thread_rows import ChangeRow
from plait_schemas.draft import Draft, draft, recorded
from plait_schemas.encoding import EncodeError
from plait_schemas.patch import Op

__all__ = ["Edit"]

_USE: Final = "change the draft of its block, `with self.edit() as draft: …`"


class Edit:
    """Turns the edits of a draft in a block into one change, or into none when the block raises.

    With `async with`, leaving the block waits until the change is durable and sent. Changes that others make while the
    block awaits something are kept: the edits are rebased onto them. Leaving the block raises the errors of
    `set_state`, and Conflict if the edited place no longer exists. An edit and its draft are for one block.
    """

    __slots__ = ("_base", "_change_log", "_draft", "_older", "_pipeline", "_was_durable", "commit")

    # Type checkers find these misuses of an edit by themselves.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            if name not in Edit.__slots__:
                raise AttributeError(f"an edit has no {name!r}: {_USE}")
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> None:
            raise AttributeError(f"an edit has no {name!r}: {_USE}")

        def __setitem__(self, *_: object) -> None:
            raise TypeError(f"an edit has no items: {_USE}")

        __getitem__ = __delitem__ = __setitem__

    def __init__(self, pipeline: Pipeline, change_log: ChangeLog) -> None:
        self._pipeline = pipeline
        self._change_log = change_log
        self._draft: Draft | None = None
        # The revision from which the draft was made, and whether it was durable, and so cannot be rolled back.
        self._base = pipeline.current
        self._was_durable = False
        # Later changes of others that had to be read from the store.
        self._older: Sequence[ChangeRow] = ()
        # The change, after the block.
        self.commit: Commit | None = None

    def __enter__(self) -> Any:
        if self._draft is not None:
            raise RuntimeError("this edit was already used for a block: call `edit()` for each block")
        self._base = self._pipeline.current
        self._was_durable = self._base is self._pipeline.history.durable
        self._draft = draft(self._base.tree, self._pipeline.keys)
        return self._draft

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._draft is not None
        ops = recorded(self._draft)
        if isinstance(error, EncodeError) and not isinstance(error, TypeError):
            raise InvalidState(error.message, path=error.path) from error
        if error is not None:
            return
        budget = Budget()
        if over := self._find_ops_since(budget):
            result = budget.rebase(ops, over, self._pipeline.current.tree)
            if result.is_lost:
                raise Conflict("the edited place no longer exists", path=next(iter(result.conflicts), None))
            ops = result.ops
        self.commit = self._pipeline.change(ops, "server")

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        history, first = self._pipeline.history, max(0, self._base.version - 1)
        if error is None and history.since(first, history.current.version) is None:
            self._older = await self._change_log.changes(first) or ()
        self.__exit__(kind, error, trace)
        if self.commit is not None:
            await self.commit

    def _find_ops_since(self, budget: Budget) -> list[Op]:
        """Return the operations since the draft was made. Raises Conflict when they are not kept."""
        history, base = self._pipeline.history, self._base.version
        if (own := self._pipeline.ops_since(self._base)) is not None:
            return own
        made = self._base.change
        if not self._was_durable and made is not None and self._base is not history.current:
            row = history.since(base - 1, base, self._older)
            if not row or row[0] != made:
                raise Conflict("the edited state could not be stored, or has changed too often since the edit began")
        rows = history.since(base, history.current.version, self._older)
        if rows is None:
            raise Conflict("the state has changed too often since the edit began")
        over = [op for row in rows for op in budget.decode(row)]
        return over + (self._pipeline.ops_since(history.current) or [])
