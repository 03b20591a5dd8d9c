"""Keeps the family of one thread: its parent, its children and its items, and writes their records."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.parts.family.rows import EVERY_CHILD, Head, Item, Outbox, Row
from plait.state.commit import Commit
from plait.state.thread_records import Change, Table, Values, apply
from plait.store.thread_rows import Record

__all__ = ["HEAD", "Changes", "FamilyStore"]

HEAD: Final = ""
"""The key of the head in changes."""

Changes = Mapping[str | int, Head | Row | Item | None]
"""The new head, rows by the references of the children, and items by their numbers; None for those to remove."""


class FamilyStore:
    """The family of one thread in memory, and its writes."""

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self.head = Head()
        self.rows = Values[str, Row]()
        self.outbox = Outbox()
        # The children that have not got all items for every child.
        self.lacking: dict[str, None] = {}
        self._head = Table(part, "head", Head, self._set_head)
        self._rows = Table(part, "c/", Row, self._set_row, name=_name_row)
        self._items = Table(part, "o/", Item, self._set_item, digits=16)

    @property
    def targets(self) -> list[str]:
        """The threads for which items wait."""
        return [to for to in dict.fromkeys([*self.outbox.targets, *self.lacking]) if to != EVERY_CHILD]

    def find_handed(self, to: str) -> int | None:
        """Return the number after which a thread needs items for every child; None if it needs none."""
        return self.rows[to].handed if to in self.lacking else None

    def load(self, records: Sequence[Record]) -> None:
        """Load the stored records of a waking thread. Raises CorruptThread."""
        key = self._actor.key
        self.head = dict(self._head.load(records, key)).get("", self.head)
        self.rows.update((row.child.reference, row) for _, row in self._rows.load(records, key))
        for number, item in self._items.load(records, key):
            self.outbox.set(number, item)
        self.outbox.stored = self.outbox.last = max(self.outbox.last, self.head.sent)
        self._find_lacking()

    def write(self, changes: Changes) -> Commit:
        """Store changes as one write; items that wait for a child that becomes destroyed are removed.

        Raises what `Records.put` raises; then nothing is changed.
        """
        return self._actor.records.put(self._complete(changes))

    def clear(self) -> Sequence[Record]:
        """Forget everything, and return the records that store this."""
        keys: list[str | int] = [HEAD, *self.rows]
        keys += [number for to in self.outbox.targets for number in self.outbox.find(to)]
        return apply(self._change(dict.fromkeys(keys)))[0]

    # Inside

    def _complete(self, changes: Changes) -> list[Change]:
        """Add the removal of items that no child needs, and after a removal the number after which to continue."""
        found = dict(changes)
        needless = [key for key in changes if key in self.lacking and not self._lacks(changes[key])]
        if self.lacking and len(needless) == len(self.lacking):
            found.update(dict.fromkeys(self.outbox.find(EVERY_CHILD)))
        for value in changes.values():
            if isinstance(value, Row) and value.child.is_destroyed:
                found.update(dict.fromkeys(self.outbox.find(value.child.reference)))
        if any(isinstance(key, int) and value is None for key, value in found.items()):
            head = found.get(HEAD, self.head)
            assert isinstance(head, Head)
            found[HEAD] = replace(head, sent=self.outbox.last)
        return self._change(found)

    def _change(self, values: Changes) -> list[Change]:
        tables: list[Table[Any]] = [
            self._items if isinstance(key, int) else self._rows if key else self._head for key in values
        ]
        return [
            table.change(key, value, is_readable=table is not self._items)
            for table, (key, value) in zip(tables, values.items(), strict=True)
        ]

    def _set_head(self, _: str, head: Head | None) -> Head:
        before, self.head = self.head, head or Head()
        return before

    def _set_row(self, reference: str, row: Row | None) -> Row | None:
        before = self.rows.set(reference, row)
        self.lacking.pop(reference, None)
        if row is not None and self._lacks(row):
            self.lacking[reference] = None
        return before

    def _set_item(self, number: int, item: Item | None) -> Item | None:
        newest, before = self.outbox.newest, self.outbox.set(number, item)
        if newest != self.outbox.newest:
            self._find_lacking()
        return before

    def _lacks(self, row: object) -> bool:
        """Whether a row's child needs an item for every child."""
        return isinstance(row, Row) and row.handed < self.outbox.newest and not row.child.is_destroyed

    def _find_lacking(self) -> None:
        self.lacking = {reference: None for reference, row in self.rows.items() if self._lacks(row)}


def _name_row(reference: str) -> str:
    """Return the end of the key of the record of a child, whose name may be longer than a key."""
    return blake2b(reference.encode(), digest_size=16).hexdigest()
