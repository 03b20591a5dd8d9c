"""`with thread.edit() as draft:` changes a large state in place, without comparing all of it."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from plait.errors import Conflict, InvalidState
from plait.state.commit import Commit
from plait.state.log import ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.work import Work
from plait.store.protocol import ChangeRow
from plait_schemas.draft import Draft, NotFinite, draft, recorded

__all__ = ["Edit"]


class Edit:
    """Makes one change of what is done to a draft in the block, and none when the block raises.

    With `async with`, leaving the block waits until the change is durable and sent. What others change while the
    block awaits something is kept: the change is brought behind theirs. Leaving raises what `set_state` raises, and
    Conflict when what was edited is gone. An edit and its draft are for one block.
    """

    __slots__ = ("_base", "_change_log", "_draft", "_older", "_pipeline", "_was_durable", "commit")

    def __init__(self, pipeline: Pipeline, change_log: ChangeLog) -> None:
        self._pipeline = pipeline
        self._change_log = change_log
        self._draft: Draft | None = None
        # What the draft was made of, and whether that could be taken back.
        self._base = pipeline.history.current
        self._was_durable = False
        # What others have changed meanwhile, as far as it had to be read from the store.
        self._older: Sequence[ChangeRow] = ()
        # The change, when the block has been left.
        self.commit: Commit | None = None

    def __enter__(self) -> Any:
        if self._draft is not None:
            raise RuntimeError("this edit has been entered before: each block takes an `edit()` of its own")
        history = self._pipeline.history
        self._base, self._was_durable = history.current, history.current is history.durable
        self._draft = draft(self._base.tree)
        return self._draft

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._draft is not None
        ops = recorded(self._draft)
        if isinstance(error, NotFinite):
            raise InvalidState(str(error), path=error.path) from error
        if error is not None:
            return
        history = self._pipeline.history
        base = self._base.version
        if not self._was_durable and self._base is not history.current:
            row = history.since(base - 1, base, self._older)
            if not row or row[0] != self._base.change:
                raise Conflict("the state that was edited could not be stored, or has changed too often meanwhile")
        rows = history.since(base, history.current.version, self._older)
        if rows is None:
            raise Conflict("the state has changed too often meanwhile")
        if rows:
            work = Work()
            result = work.rebase(ops, [op for row in rows for op in work.decode(row)], history.current.tree)
            if result.is_lost:
                raise Conflict("what was edited is gone", path=next(iter(result.conflicts), None))
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
