"""The states that the turns of a thread have read, and changes in place of these, which are not stored."""

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from plait.errors import InvalidState
from plait.state.revision import Revision
from plait.state.source import Client
from plait.store.protocol import ThreadKey

__all__ = ["Reader", "ShownStates"]

log = logging.getLogger("plait.thread")

_WAS_EDITED: Final = "the state was changed in place, which is not stored: use `with self.edit() as draft:`"


class Reader(Hashable, Protocol):
    """A turn that reads the state of its thread."""

    name: str
    # Whether its code sees only durable states, as it decides what a client may do.
    sees_durable: bool

    @property
    def connection(self) -> Client | None:
        """The connection that has caused it, if one has."""
        ...

    def on_end(self, callback: Callable[[object, BaseException | None], None]) -> None:
        """Call `callback` when it has ended, after the callbacks that were added before."""


class Revisions(Protocol):
    """The revisions of one thread."""

    key: ThreadKey
    current: Revision


class ShownStates:
    """Finds changes in place, and names the turns that can have made them: those that have read a state."""

    __slots__ = ("_earlier", "_readers", "_revisions", "is_unchecked")

    def __init__(self, revisions: Revisions) -> None:
        self._revisions = revisions
        # The running turns that have read a state, and the names of those that have ended while others ran.
        self._readers: dict[Reader, None] = {}
        self._earlier: Sequence[str] = ()
        # Whether a state was read since changes in place were looked for.
        self.is_unchecked = False

    def show(self, revision: Revision, reader: Reader | None) -> Any:
        """Return the state of a revision to a turn of the thread, or to other code."""
        self.is_unchecked = True
        if reader is not None and reader not in self._readers:
            self._readers[reader] = None
            reader.on_end(partial(self._end, reader))
        return revision.state

    def tell(self, revision: Revision) -> None:
        """Discard and log what was changed in place in a revision, before it is replaced."""
        if (path := revision.take_edit()) is not None:
            self._log(path, [*self._readers])

    def check(self, revision: Revision, find_calling: Callable[[], Reader | None]) -> None:
        """Discard what was changed in place in a revision, before a function gets it.

        Raises InvalidState if the calling code must have done it, in a turn or outside of all; otherwise logs it.
        """
        if (path := revision.take_edit()) is None:
            return
        calling = find_calling()
        is_own = calling is None or calling in self._readers
        if is_own and not self._earlier and not self._readers.keys() - {calling}:
            raise InvalidState(_WAS_EDITED, path=path)
        self._log(path, [*self._readers])

    def _end(self, reader: Reader, *_: object) -> None:
        """Discard and log what was changed in place, when the last of the turns that have read a state has ended.

        A state that `set_state` has replaced is not looked at: code may change the one that it has read and set that.
        """
        del self._readers[reader]
        if self._readers:
            if reader.name not in self._earlier:
                self._earlier = (*self._earlier, reader.name)
            return
        self.is_unchecked = False
        if (path := self._revisions.current.take_edit()) is not None:
            self._log(path, (reader,))
        self._earlier = ()

    def _log(self, path: str, readers: Sequence[Reader]) -> None:
        names = dict.fromkeys((*self._earlier, *(each.name for each in readers)))
        connection = readers[0].connection if len(names) == len(readers) == 1 else None
        self._earlier = ()  # They had another object than is shown from now on.
        log.error(
            "%s: the state was changed in place at %s, which is not stored: use `with self.edit() as draft:`",
            " or ".join(names) or "a task",
            path or "/",
            extra={
                "plait_thread": str(self._revisions.key),
                "plait_connection": None if connection is None else connection.id,
            },
        )
