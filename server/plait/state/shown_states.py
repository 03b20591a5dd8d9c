"""The states that the turns of a thread have read, and changes made to them in place, which are not stored."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from plait.errors import InvalidState
from plait.state.revision import Revision
from plait.state.source import StateTurn, Turns
from plait.state.state_history import StateHistory

__all__ = ["ShownStates"]

log = logging.getLogger("plait.thread")

_WAS_EDITED: Final = "the state was changed in place, which is not stored: use `with self.edit() as draft:`"


class ShownStates:
    """Finds changes in place, and names the turns that may have made them: the turns that have read a state."""

    __slots__ = ("_earlier", "_history", "_readers", "is_unchecked")

    def __init__(self, history: StateHistory) -> None:
        self._history = history
        # The running turns that have read a state, and the names of such turns that have ended while others ran.
        self._readers: dict[StateTurn, None] = {}
        self._earlier: Sequence[str] = ()
        # Whether a state was read since the last search for changes in place.
        self.is_unchecked = False

    def show(self, revision: Revision, reader: StateTurn | None) -> Any:
        """Return the state of a revision to a turn of the thread, or to other code."""
        self.is_unchecked = True
        if reader is not None and reader not in self._readers:
            self._readers[reader] = None
            reader.on_end(partial(self._end, reader))
        return revision.state

    def tell(self, revision: Revision) -> None:
        """Discard and log changes made in place in a revision, before it is replaced."""
        if (path := revision.take_edit()) is not None:
            self._log(path, [*self._readers])

    def check(self, revision: Revision, turns: Turns | None) -> None:
        """Discard changes made in place in a revision, before a function gets it.

        Raises InvalidState if only the calling code can have made them, in its turn or outside of turns; otherwise logs
        them.
        """
        if (path := revision.take_edit()) is None:
            return
        calling = None if turns is None else turns.find_own_turn()
        is_own = calling is None or calling in self._readers
        if is_own and not self._earlier and not self._readers.keys() - {calling}:
            raise InvalidState(_WAS_EDITED, path=path)
        self._log(path, [*self._readers])

    def check_query(self, revision: Revision) -> None:
        """Discard changes that a query has made in place in a revision. Raises RuntimeError if there are any."""
        if self._readers:
            return  # A turn that is under way may have made them.
        if (path := revision.take_edit()) is not None:
            raise RuntimeError(f"a query only reads, and has changed the state in place at {path or '/'}")

    def _end(self, reader: StateTurn, *_: object) -> None:
        """Discard and log changes in place, after the last of the turns that have read a state.

        States that `set_state` has replaced are not checked: code may change a state that it has read, and then set it.
        """
        del self._readers[reader]
        if self._readers:
            if reader.name not in self._earlier:
                self._earlier = (*self._earlier, reader.name)
            return
        self.is_unchecked = False
        if (path := self._history.current.take_edit()) is not None:
            self._log(path, (reader,))
        self._earlier = ()

    def _log(self, path: str, readers: Sequence[StateTurn]) -> None:
        names = dict.fromkeys((*self._earlier, *(each.name for each in readers)))
        connection = readers[0].connection if len(names) == len(readers) == 1 else None
        self._earlier = ()  # These turns had another object than the one that is shown from now on.
        log.error(
            "%s: the state was changed in place at %s, which is not stored: use `with self.edit() as draft:`",
            " or ".join(names) or "a task",
            path or "/",
            extra={
                "plait_thread": str(self._history.key),
                "plait_connection": None if connection is None else connection.id,
            },
        )
