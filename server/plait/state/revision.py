"""One version of a thread's state, as JSON, as a document and as an object of its type."""

from typing import Any

from plait.state.types import UNDECODED, StateType
from plait.store.protocol import ChangeRow
from plait_schemas.codec import decode_json, encode_json, is_large, read_parts

__all__ = ["Revision"]


class Revision:
    """A state and its version. It is made in one form and converted to the others on demand."""

    __slots__ = (
        "_document",
        "_is_partial",
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
        "weight",
    )

    def __init__(
        self,
        type_: StateType,
        *,
        json: bytes | None = None,
        state: Any = UNDECODED,
        document: Any = UNDECODED,
        is_partial: bool = False,
    ) -> None:
        self.version = 0
        # The change that made this version; None for one that was loaded, or that has been durable for some time.
        self.change: ChangeRow | None = None
        # A new thread may have no state, and then no form of it.
        self.has_state = json is not None or state is not UNDECODED or document is not UNDECODED
        # Whether replaying the log gives exactly this document.
        self.is_stored = True
        # Bytes of the JSON, or an upper bound until the JSON is made.
        self.size = len(json) if json is not None else 0
        # An upper bound of the weight of the JSON, see `Limits.weight`; None until a large state has been weighed.
        self.weight: int | None = None
        # Bytes of the log since the last snapshot, and of that snapshot.
        self.log_size = 0
        self.snapshot_size = 0
        self._type = type_
        self._json = json
        # A tree of dicts and lists, which must not be changed.
        self._document = document
        # Whether parts of it may still be JSON.
        self._is_partial = is_partial
        # An object of the type, which must not be changed; UNDECODED for a plain type.
        self.base = state
        # The object that authors see.
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
        if self._document is UNDECODED or self._is_partial:
            self._document = None if not self.has_state else decode_json(self.require_json())
            self._is_partial = False
        return self._document

    @property
    def tree(self) -> Any:
        """The form in which a place is found at the least cost: the object of the type, or else the document."""
        return self.document if self.base is UNDECODED else self.base

    @property
    def partial(self) -> Any:
        """The tree, for `find`, `apply` and `rebase`: large parts of a plain state may be JSON, as msgspec.Raw."""
        if self._document is UNDECODED and self.base is UNDECODED and self.has_state:
            json = self.require_json()
            self._document, self._is_partial = read_parts(json), is_large(json)
        return self._document if self._is_partial else self.tree

    @property
    def is_partial(self) -> bool:
        """Whether large parts of the document may still be JSON."""
        return self._is_partial

    @property
    def state(self) -> Any:
        """The state for authors. If it could be changed in place, it is a separate copy, made on first use."""
        if not self.has_state:
            return None
        if self._shown is UNDECODED:
            self._shown = self.copy()
        return self._shown

    def copy(self) -> Any:
        """Return the state; if it could be changed in place, as a new copy."""
        if not self.has_state:
            return None
        return self.base if self._type.is_immutable else self._type.decode(self.require_json())

    def discard_edits(self) -> None:
        """Discard changes that authors may have made in place."""
        if not self._type.is_immutable:
            self._shown = UNDECODED
