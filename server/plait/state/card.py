"""The card of a thread, which listings show: a record that is stored with the change that makes another one."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from plait.author_code import call_now
from plait.errors import TooLarge
from plait.limits import Limits
from plait.state.revision import Revision
from plait.store.protocol import Write
from plait.store.thread_rows import Record
from plait_schemas.encoding import encode_given

__all__ = ["CARD", "Card"]

CARD: Final = ("thread-life", "card")
"""The part and the key of the record; no attribute of a class can have the name of the part."""


class Card:
    """Adds the card of one thread to its writes.

    `make` returns it for a state; a class that no longer has cards removes a stored one. An exception of `make` is
    passed to `tell`: the change is made, and the stored card stays until the next change.
    """

    __slots__ = ("_limits", "_make", "_revision", "_stored", "_tell")

    def __init__(
        self, make: Callable[[Any], object] | None, limits: Limits, *, tell: Callable[[Exception], object]
    ) -> None:
        self._make = make
        self._limits = limits
        self._tell = tell
        # The card of the last write, None without one; UNSET if that is not known.
        self._stored: bytes | UnsetType | None = None
        # The revision for which it was made last.
        self._revision: Revision | None = None

    def load(self, records: Iterable[Record]) -> None:
        """Read the stored card of a waking thread."""
        self._stored = next((each.value for each in records if (each.part, each.key) == CARD), None)

    def add_to(self, write: Write, revision: Revision) -> Write:
        """Return a write, with the card of the revision that it stores if that is another one than before."""
        if revision is self._revision:
            return write
        self._revision = revision
        try:
            card = call_now(self._encode, revision)
        except Exception as error:  # The code of the author.
            self._tell(error)
            return write
        if card == self._stored:
            return write
        self._stored = card
        return replace(write, records=(*write.records, Record(*CARD, card)))

    def forget(self) -> None:
        """Store the card with the next write, as the last one may be lost."""
        self._stored, self._revision = UNSET, None

    # Inside

    def _encode(self, revision: Revision) -> bytes | None:
        if self._make is None or not revision.has_state or (card := self._make(revision.copy())) is None:
            return None
        data = encode_given(card)
        if len(data) > (most := self._limits.card):
            raise TooLarge(f"the card has {len(data)} bytes, the limit is {most}", limit="card")
        return data
