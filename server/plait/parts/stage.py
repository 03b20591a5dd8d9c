"""What a run does to the parts of its thread, until it is committed."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from plait.actor.thread import ThreadActor
from plait.state.commit import Commit
from plait.state.transaction import Transaction

__all__ = ["Draft", "Stage", "find_stage"]

_innermost: Final[ContextVar["Stage | None"]] = ContextVar("plait_stage", default=None)


def find_stage(actor: ThreadActor) -> "Stage | None":
    """Return the open stage of a thread in which the calling code runs, None outside of its runs."""
    stage = _innermost.get()
    while stage is not None and (stage.actor is not actor or stage.is_closed):
        stage = stage.around
    return stage


class Draft(Protocol):
    """What has been done to one part."""

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to store."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether `write` can be called: what it needs is known."""
        ...

    async def prepare(self) -> None:
        """Read what `write` needs. Raises StoreError."""
        ...

    def write(self) -> None:
        """Store what was done, in the open transaction. Raises what makes that impossible.

        The draft is empty then. If the write is rolled back, it is at once as it was, with what was done since.
        """
        ...

    def drop(self) -> None:
        """Forget what was done: the run has raised, or could not store it."""
        ...


class Stage:
    """Keeps what is done to the parts of a thread, for one write. Call `enter` in the task that does it."""

    def __init__(self, actor: ThreadActor, check: Callable[[], None]) -> None:
        self.actor = actor
        # Called at each use of a part: raises to interrupt the run.
        self.check = check
        self.drafts: dict[Any, Draft] = {}
        # Whether nothing more can be staged: what is done from now on is stored at once.
        self.is_closed = False
        # The last write.
        self._commit: Commit | None = None
        self.around = _innermost.get()

    @property
    def may_be_dirty(self) -> bool:
        """Whether there is something to store, or something that cannot be stored."""
        try:
            return any(draft.is_dirty for draft in self.drafts.values())
        except (TypeError, ValueError):  # A value was changed in place to what is not JSON.
            return True

    def enter(self) -> None:
        """Let the calling task, and the tasks that it begins, use this stage."""
        _innermost.set(self)

    async def commit(self, *, is_last: bool = False) -> None:
        """Store what was done so far, in one write; return when it is durable.

        With `is_last`, nothing more is staged from when that is being stored: what is done meanwhile is stored at once.
        Raises StoreError, TooLarge, TypeError for a `push` to what is no list, and what the function of an `update`
        raises; nothing is stored then, and it stays to be stored until it is dropped.
        """
        while True:
            if self._commit is not None and not self._commit.is_done:
                # What it stores is to be stored before, and again if it fails.
                await self._commit.wait()
                continue
            drafts = [draft for draft in self.drafts.values() if draft.is_dirty]
            waiting = [draft for draft in drafts if not draft.is_ready]
            if not waiting:
                break
            for draft in waiting:
                await draft.prepare()
        if is_last:
            self.close()
        if not drafts:
            return
        with Transaction(self.actor.state, self.actor.key) as transaction:
            for draft in drafts:
                draft.write()
        assert transaction.commit is not None
        self._commit = transaction.commit
        await transaction.commit

    def drop(self) -> None:
        """Forget what was not committed."""
        for draft in self.drafts.values():
            draft.drop()
        self.drafts.clear()

    def close(self) -> None:
        """Stage nothing more."""
        self.is_closed = True
        self.check = _do_nothing  # What it was refers to this stage, and would keep it until garbage is collected.


def _do_nothing() -> None:
    pass
