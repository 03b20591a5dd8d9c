"""The card of a thread, for listings: a record that is stored with each change that makes it differ."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from plait.author_code import call_now
from plait.errors import TooLarge
from plait.limits import Limits
from plait.state.revision import Revision
from plait.state.source import Turns
from plait.store.protocol import Write
from plait.store.thread_rows import Record
from plait_schemas.encoding import encode_given

__all__ = ["CARD", "Card"]

CARD: Final = ("thread-life", "card")
"""The part and the key of the record; no attribute of a class can have the name of the part."""


class Card:
    """Adds the card of one thread to its writes.

    `make` returns it for a state, and for what `find_facts` finds of the thread's parts; without a state, it is called
    if there are such parts. A class that no longer has cards removes a stored one. An exception of `make` is reported:
    the change is made, and the stored card stays until the next change.
    """

    __slots__ = ("_facts", "_find_facts", "_limits", "_make", "_revision", "_stored", "_turns")

    def __init__(
        self,
        make: Callable[[Any], object] | None,
        limits: Limits,
        turns: Turns,
        find_facts: Callable[[], Sequence[object]],
    ) -> None:
        self._make = make
        self._limits = limits
        self._turns = turns
        self._find_facts = find_facts
        # The card of the last write, None without a card; UNSET if it is not known.
        self._stored: bytes | UnsetType | None = None
        # The revision of the last card, and the facts that it may show.
        self._revision: Revision | None = None
        self._facts: Sequence[object] = ()

    def load(self, records: Iterable[Record]) -> None:
        """Read the stored card of a waking thread."""
        self._stored = next((each.value for each in records if (each.part, each.key) == CARD), None)

    def add_to(self, write: Write, revision: Revision) -> Write:
        """Return a write, with the card of the stored revision if the card has changed."""
        facts = self._find_facts()
        if revision is self._revision and facts == self._facts:
            return write
        self._revision, self._facts = revision, facts
        try:
            card = call_now(self._encode, revision)
        except Exception as error:  # The author's code may raise any exception.
            # Later, as the change that the card is of is being made.
            report = partial(self._turns.report, error, None)
            asyncio.get_running_loop().call_soon(report, context=Context())
            return write
        if card == self._stored:
            return write
        self._stored = card
        return replace(write, records=(*write.records, Record(*CARD, card)))

    def forget(self) -> None:
        """Store the card again with the next write, as the last write may be lost."""
        self._stored, self._revision = UNSET, None

    # Inside

    def _encode(self, revision: Revision) -> bytes | None:
        if self._make is None or not (revision.has_state or self._facts):
            return None
        if (card := self._make(revision.copy())) is None:
            return None
        data = encode_given(card)
        if len(data) > (most := self._limits.card):
            raise TooLarge(f"the card has {len(data)} bytes, the limit is {most}", limit="card")
        return data
