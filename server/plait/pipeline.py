"""The path of a change: validated, applied, made durable, then let out. No I/O but the store that it is given.

What leaves a thread waits behind the changes made before it (an output gate): `after` calls at once when everything is
durable, and otherwise when the last change made so far is.
"""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from plait.connection import Connection, Source
from plait.errors import Fenced, StoreError, Unavailable
from plait.history import History, Revision
from plait.limits import Limits
from plait.state import StateType
from plait.store.protocol import Store, Write

__all__ = ["Commit", "Pipeline"]


class Commit:
    """A change on its way to the disk. Awaiting it returns its version once it is durable and sent.

    Raises StoreError when it could not be made durable; the thread is then back at its last durable state.
    """

    __slots__ = ("_callbacks", "_error", "is_settled", "revision", "source")

    def __init__(self, revision: Revision, source: Source) -> None:
        self.revision = revision
        self.source: Source = source
        self.is_settled = False
        self._error: StoreError | None = None
        self._callbacks: list[Callable[[StoreError | None], None]] = []

    @property
    def version(self) -> int:
        """The version of the state that this change made."""
        return self.revision.version

    def then(self, callback: Callable[[StoreError | None], None]) -> None:
        """Call `callback` when the change is durable and sent, or with what prevented it."""
        if self.is_settled:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    def settle(self, error: StoreError | None) -> None:
        """Let out what waits for this change, in order."""
        self.is_settled = True
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

    def __await__(self) -> Generator[Any, None, int]:
        if not self.is_settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if future.done() else future.set_result(None))
            yield from future
        if self._error is not None:
            raise self._error
        return self.version


class Pipeline:
    """Carries the changes of one thread to its store, and out when they are durable."""

    __slots__ = (
        "_committed",
        "_fenced",
        "_is_closed",
        "_limits",
        "_pending",
        "_store",
        "_type",
        "_validate",
        "history",
    )

    def __init__(
        self,
        history: History,
        state_type: StateType,
        store: Store,
        limits: Limits,
        *,
        validate: Callable[[Any, Source], None] | None,
        committed: Callable[[Commit], None],
        fenced: Callable[[], None],
    ) -> None:
        self.history = history
        self._type = state_type
        self._store = store
        self._limits = limits
        # Refuses a change by raising; None where every state of the type is taken.
        self._validate = validate
        # Is told of each change that became durable, in order, before anything that waits for it.
        self._committed = committed
        # Is told that somebody else has written this thread.
        self._fenced = fenced
        # Changes on their way to the disk, in order. None of most threads has any at most times.
        self._pending: list[Commit] = []
        self._is_closed = False

    @property
    def is_settled(self) -> bool:
        """Whether every change is durable."""
        return not self._pending

    @property
    def state(self) -> Any:
        """The current state, None when there is none."""
        return self.history.current.state

    def start(self, value: object) -> Commit:
        """Make `value` the state that the thread begins with."""
        write = self.history.start(*self._type.from_value(value, self._limits))
        return self._submit(write, "server")

    def set(self, value: object, source: Source) -> Commit:
        """Change the state to `value`, or to what it returns for the current state when it is a function."""
        try:
            if callable(value):
                value = value(self.state)
            return self._apply(*self._type.from_value(value, self._limits), source)
        except BaseException:
            # What may have been changed in place was refused with the rest.
            self.history.current.show_anew()
            raise

    def push(self, data: bytes, source: Connection) -> Commit:
        """Change the state to what a client sent as JSON."""
        return self._apply(*self._type.from_json(data, self._limits), source)

    def close(self) -> None:
        """Refuse further changes: the thread has been stopped, and another instance may have its place."""
        self._is_closed = True

    def after(self, callback: Callable[[StoreError | None], None]) -> None:
        """Call `callback` when every change made so far is durable: at once, when all are."""
        if self._pending:
            self._pending[-1].then(callback)
        else:
            callback(None)

    def _apply(self, state: Any, data: bytes, source: Source) -> Commit:
        if self._is_closed:
            raise Unavailable("the thread has been stopped: get it anew from the app")
        if self._validate is not None:
            # What an author might change in place is not what is stored.
            self._validate(state if self._type.is_immutable else self._type.read(data, self._limits), source)
        ops = self.history.diff(state, data, self._limits)
        if not ops:
            commit = Commit(self.history.current, source)
            self.after(commit.settle)
            return commit
        name = source if isinstance(source, str) else source.id
        return self._submit(self.history.append(ops, state, data, name), source)

    def _submit(self, write: Write, source: Source) -> Commit:
        commit = Commit(self.history.current, source)
        self._pending.append(commit)
        self._store.submit(write).add_done_callback(partial(self._stored, commit))
        return commit

    def _stored(self, commit: Commit, outcome: asyncio.Future[None]) -> None:
        error = outcome.exception()
        if commit.is_settled:
            return  # It leaned on a change that failed before.
        if error is None:
            assert self._pending[0] is commit
            del self._pending[0]
            self.history.commit(commit.revision)
            self._committed(commit)
            commit.settle(None)
            return
        failure = error if isinstance(error, StoreError) else StoreError(str(error))
        self.history.rollback()
        failed, self._pending = self._pending, []
        for each in failed:
            each.settle(failure)
        if isinstance(failure, Fenced):
            self._fenced()
