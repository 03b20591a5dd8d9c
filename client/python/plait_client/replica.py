"""The state as the server last told it, and what follows on it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from plait_schemas.align import Keys
from plait_schemas.codec import decode_json
from plait_schemas.diff import diff
from plait_schemas.messages import Joined, Version
from plait_schemas.patch import Op, PatchError, apply

__all__ = ["Gap", "Replica"]


class Gap(Exception):
    """What came does not follow on what is known."""


class Replica:
    """A thread's confirmed state by epoch and version. Each method that raises Gap has changed nothing."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.version = 0
        # A tree of dicts and lists that nobody changes, None where the thread has no state.
        self.state: Any = None
        # Whether it is not to be built on: it is still shown, until the server has told the whole state.
        self.is_forgotten = False
        # Which members identify the elements of lists, where the server has named any.
        self.keys: Keys | None = None

    @property
    def have(self) -> Version | None:
        """What a join says that the client has."""
        return None if self.epoch is None or self.is_forgotten else (self.epoch, self.version)

    @property
    def base(self) -> Version:
        """What a change of the state that is shown is based on."""
        assert self.epoch is not None
        return self.epoch, self.version

    def join(self, frame: Joined) -> Sequence[Op] | None:
        """Take in what a join was answered with; return the operations that it was, None for a whole state."""
        self.keys = Keys(frame.list_keys) if frame.list_keys else None
        if frame.state is not msgspec.UNSET:
            self.replace(frame.epoch, frame.version, decode_json(frame.state))
            return None
        if frame.ops is not msgspec.UNSET:
            if self.have is None or self.epoch != frame.epoch:
                raise Gap
            self._set(frame.version, frame.ops)
            return frame.ops
        if self.have == (frame.epoch, frame.version):
            return ()
        if frame.version:
            raise Gap
        self.replace(frame.epoch, 0, None)
        return None

    def advance(self, version: int, ops: Sequence[Op]) -> None:
        """Carry out the operations that made `version`, which is the next one. Raises Gap."""
        if version != self.version + 1:
            raise Gap
        self._set(version, ops)

    def skip(self, start: int, end: int, ops: Sequence[Op]) -> None:
        """Carry out the operations of all versions after `start`, up to `end`. Raises Gap."""
        if start != self.version or end < start:
            raise Gap
        self._set(end, ops)

    def replace(self, epoch: str, version: int, state: Any) -> None:
        """Take a whole state, whatever was known before."""
        self.epoch, self.version, self.state = epoch, version, state
        self.is_forgotten = False

    def diff(self, old: Any, new: Any) -> list[Op]:
        """Return the operations that turn one state of the thread into another."""
        return diff(old, new, self.keys)

    def forget(self) -> None:
        """Build no more on what is known."""
        self.is_forgotten = True

    def _set(self, version: int, ops: Sequence[Op]) -> None:
        try:
            self.state = apply(self.state, ops)
        except PatchError as error:
            raise Gap from error
        self.version = version
