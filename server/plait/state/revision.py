"""One version of a thread's state, as JSON, as a tree and as the object that authors see."""

from collections.abc import Sequence, Set
from typing import Any, Final

import msgspec

from plait.state.types import UNDECODED, StateType
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import decode_json, encode_json, is_large, read_parts
from plait_schemas.diff import diff
from plait_schemas.patch import Op, decode_ops, find

__all__ = ["Revision"]

# Above this many bytes of JSON, only one decoded form is held: the tree, or the object that authors see.
_HELD_TWICE: Final = 256 * 1024


class Revision:
    """A state and its version. The state is made in one form and converted to the others on demand."""

    __slots__ = (
        "_copy",
        "_for_readers",
        "_json",
        "_ops",
        "_parts",
        "_shown",
        "_shown_json",
        "_tree",
        "_type",
        "change",
        "has_state",
        "is_partial",
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
        tree: Any = UNDECODED,
        copy: Any = UNDECODED,
        is_partial: bool = False,
    ) -> None:
        self.version = 0
        # The change that made this version; None if the version was loaded, or has been durable for some time.
        self.change: ChangeRow | None = None
        # A new thread may have no state, in any form.
        self.has_state = json is not None or tree is not UNDECODED
        # Whether replaying the log gives exactly this document.
        self.is_stored = True
        # Bytes of the JSON; an upper bound until the JSON is made.
        self.size = len(json) if json is not None else 0
        # An upper bound of the weight of the JSON, see `Limits.weight`; None until a large state has been weighed.
        self.weight: int | None = None
        # The bytes of the log since the last snapshot, and the bytes of that snapshot.
        self.log_size = 0
        self.snapshot_size = 0
        self._type = type_
        self._json = json
        # An object of the type, or dicts and lists. It must not be changed.
        self._tree = tree
        # Whether large parts of it may still be JSON.
        self.is_partial = is_partial
        # A copy that was made to check the state, for the first caller that needs a copy.
        self._copy = copy
        # The object that authors see, and its JSON at the time when it was made; None if the two are not compared.
        self._shown = tree if type_.is_immutable and self.has_state else UNDECODED
        self._shown_json: bytes | None = None
        # For readers who see a part of the state: the object that decides about the part, and the state and the
        # operations of the change, decoded.
        self._for_readers: Any = UNDECODED
        self._parts: Any = UNDECODED
        self._ops: Sequence[Op] | None = None

    @property
    def json(self) -> bytes | None:
        """The state as JSON, None when there is no state."""
        if self._json is None and self.has_state:
            self._json = encode_json(self._tree)
            self.size = len(self._json)
        return self._json

    def require_json(self) -> bytes:
        """Return the state as JSON; there must be one."""
        if (json := self._json) is None:
            json = self.json
            assert json is not None
        return json

    @property
    def tree(self) -> Any:
        """The form in which places are found fastest. It must not be changed; None without a state.

        The tree is an object of the type; for plain types and types with Pydantic models, it is dicts and lists.
        """
        if self._tree is UNDECODED or self.is_partial:
            if not self.has_state:
                return None
            self._free()
            self._tree, self.is_partial = self._type.decode_tree(self.require_json()), False
        return self._tree

    @property
    def base(self) -> Any:
        """The object of the type, which must not be changed; UNDECODED if the tree is dicts and lists."""
        return UNDECODED if self._type.is_document else self.tree

    @property
    def document(self) -> Any:
        """The state as dicts and lists, which must not be changed; None when there is no state."""
        return self.tree if self._type.is_document or not self.has_state else decode_json(self.require_json())

    @property
    def partial(self) -> Any:
        """The tree, for `find`, `apply` and `rebase`: large parts of a plain state may be JSON, as msgspec.Raw."""
        if self._tree is UNDECODED and self._type.is_plain and self.has_state:
            self._free()
            json = self.require_json()
            self._tree, self.is_partial = read_parts(json), is_large(json)
        return self._tree if self.is_partial else self.tree

    @property
    def parts(self) -> Any:
        """The state as dicts and lists, decoded once; large parts of a plain state may be JSON, as msgspec.Raw."""
        if self._type.is_document:
            return self.partial
        if self._parts is UNDECODED:
            self._parts = decode_json(self.require_json())
        return self._parts

    @property
    def ops(self) -> Sequence[Op]:
        """The operations of the change that made this version; they are decoded once."""
        if self._ops is None:
            assert self.change is not None
            self._ops = decode_ops(self.change.ops)
        return self._ops

    def has_array(self, parts: Sequence[str]) -> bool:
        """Whether the JSON has an array at a place."""
        found = find(self.partial, parts)
        if found is msgspec.UNSET:  # Below a set, or a Struct that is an array in JSON.
            found = find(self.parts, parts)
        if isinstance(found, msgspec.Struct):
            return found.__struct_config__.array_like
        return isinstance(found, list | tuple | Set)

    @property
    def state(self) -> Any:
        """The state for authors. If it could be changed in place, it is a separate copy, made on first use."""
        if self._shown is UNDECODED:
            if not self.has_state:
                return None
            json = self.require_json()
            if len(json) > _HELD_TWICE:
                self._free()
            if self._type.is_immutable:
                self._shown = self.tree
            else:
                self._shown = self._take_copy()
                if len(json) <= self._type.most_compared:
                    made = encode_json(self._shown)
                    self._shown_json = json if made == json else made
        return self._shown

    def lend(self) -> Any:
        """Return the state for a function that makes the next state of it, without edits in place.

        The caller has discarded such edits with `take_edit`. A state that is too large to be compared is copied.
        """
        if self._shown_json is not None:
            return self._shown
        if self._type.is_immutable:
            return self.state
        if self.has_state:
            self._free()
        return self.copy()

    def copy(self) -> Any:
        """Return the state; if it could be changed in place, as a new copy."""
        if not self.has_state:
            return None
        return self.tree if self._type.is_immutable else self._take_copy()

    @property
    def for_readers(self) -> Any:
        """A copy of the state for the method that decides about readers; all its calls share the copy."""
        if self._for_readers is UNDECODED:
            self._for_readers = self.copy()
        return self._for_readers

    def hold_once(self) -> None:
        """Drop the copy of a large state that was not needed while the change was made."""
        if self.size > _HELD_TWICE:
            self._copy = UNDECODED

    def discard_edits(self) -> None:
        """Discard changes that authors may have made in place."""
        if not self._type.is_immutable:
            self._shown, self._shown_json = UNDECODED, None

    def take_edit(self) -> str | None:
        """Discard changes that authors have made in place; return the first changed place, None without changes."""
        if (before := self._shown_json) is None:
            return None
        path: str | None
        try:
            if (after := encode_json(self._shown)) == before:
                return None
            # A different order of members is no change.
            path = next((op.path for op in diff(decode_json(before), decode_json(after))), None)
        except BaseException:  # Objects that authors put into the state may be no JSON, or run any code when encoded.
            path = ""
        self.discard_edits()
        return path

    def release(self) -> None:
        """Keep only the JSON; a later read decodes it."""
        if self.has_state:
            self.require_json()
            self._tree = self._shown = self._copy = self._parts = self._for_readers = UNDECODED
            self._shown_json, self.is_partial, self._ops = None, False, None

    # Inside

    def _take_copy(self) -> Any:
        copy, self._copy = self._copy, UNDECODED
        return self._type.decode(self.require_json()) if copy is UNDECODED else copy

    def _free(self) -> None:
        """Drop the decoded form of a large state, before the state is decoded in another form."""
        if self._shown_json is None and len(self.require_json()) > _HELD_TWICE and not self._type.is_immutable:
            self._tree = self._shown = UNDECODED
            self.is_partial = False
