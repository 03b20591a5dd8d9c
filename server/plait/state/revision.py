"""One state of a thread, in the forms in which it is needed."""

from typing import Any

from plait.state.types import UNDECODED, StateType
from plait.store.protocol import ChangeRow
from plait_schemas.codec import decode_json, encode_json

__all__ = ["Revision"]


class Revision:
    """A state and its version. It is made in one form and turned into the others when they are asked for."""

    __slots__ = (
        "_document",
        "_json",
        "_shown",
        "_type",
        "base",
        "change",
        "has_state",
        "is_stored",
        "log_size",
        "size",
        "snapshot_size",
        "version",
    )

    def __init__(
        self,
        type_: StateType,
        *,
        json: bytes | None = None,
        state: Any = UNDECODED,
        document: Any = UNDECODED,
    ) -> None:
        self.version = 0
        # What led here from the version before, None when that is not known here.
        self.change: ChangeRow | None = None
        # Without a state, no form of it is there.
        self.has_state = json is not None or state is not UNDECODED or document is not UNDECODED
        # Whether the log leads to just this document.
        self.is_stored = True
        # Bytes of the JSON, or a bound for it while that has not been made.
        self.size = len(json) if json is not None else 0
        # Bytes of the log since the last snapshot, and of that snapshot; without one nothing is stored yet.
        self.log_size = 0
        self.snapshot_size = 0
        self._type = type_
        self._json = json
        # A tree of dicts and lists, which nobody changes.
        self._document = document
        # Of the type, as it was made, for comparing; UNDECODED where any JSON is a state. And as authors see it.
        self.base = state
        self._shown = state if type_.is_immutable and self.has_state else UNDECODED

    @property
    def json(self) -> bytes | None:
        """The state as JSON, None when there is no state."""
        if self._json is None and self.has_state:
            self._json = encode_json(self.base if self.base is not UNDECODED else self._document)
            self.size = len(self._json)
        return self._json

    def require_json(self) -> bytes:
        """Return the state as JSON; there must be one."""
        json = self.json
        assert json is not None
        return json

    @property
    def document(self) -> Any:
        """The state as a tree of dicts and lists, which must not be changed; None when there is no state."""
        if self._document is UNDECODED:
            self._document = None if not self.has_state else decode_json(self.require_json())
        return self._document

    @property
    def tree(self) -> Any:
        """The state as it can be looked into most cheaply: of its type, or else as a document."""
        return self.document if self.base is UNDECODED else self.base

    @property
    def state(self) -> Any:
        """The state for authors. Where they could change it in place, it is a copy of its own, made on first use."""
        if not self.has_state:
            return None
        if self._shown is UNDECODED:
            self._shown = self.copy()
        return self._shown

    def copy(self) -> Any:
        """Return the state for somebody else: an object of its own, where it could be changed in place."""
        if not self.has_state:
            return None
        return self.base if self._type.is_immutable else self._type.decode(self.require_json())

    def discard_edits(self) -> None:
        """Undo what authors may have changed in place."""
        if not self._type.is_immutable:
            self._shown = UNDECODED
