"""Keeps the family of one thread: its parent, its children and its items, and writes their records."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.parts.encoding import decode_record
from plait.parts.family.rows import EVERY_CHILD, Head, Item, Outbox, Row
from plait.state.commit import Commit
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["HEAD", "Changes", "FamilyStore"]

HEAD: Final = ""
"""The key of the head in changes."""

Changes = Mapping[str | int, Head | Row | Item | None]
"""The new head, rows by the references of the children, and items by their numbers; None for those to remove."""

_decode_head: Final = msgspec.json.Decoder(Head).decode
_decode_row: Final = msgspec.json.Decoder(Row).decode
_decode_item: Final = msgspec.json.Decoder(Item).decode


class FamilyStore:
    """The family of one thread in memory, and its writes."""

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        self.head = Head()
        self.rows: dict[str, Row] = {}
        self.outbox = Outbox()
        # The children that have not got all items for every child.
        self.lacking: dict[str, None] = {}

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
        for record in records:
            match record.key[:2]:
                case "c/":
                    row = decode_record(record, key, _decode_row)
                    self.rows[row.child.reference] = row
                case "o/":
                    item = decode_record(record, key, _decode_item)
                    self.outbox.set(item.number, item)
                case _:
                    self.head = decode_record(record, key, _decode_head)
        self.outbox.stored = self.outbox.last = max(self.outbox.last, self.head.sent)
        self._find_lacking()

    def write(self, changes: Changes) -> Commit:
        """Store changes as one write; what waits for a child that becomes destroyed is removed.

        Raises what `Pipeline.store` raises; then nothing is changed.
        """
        changes = self._complete(changes)
        before = {key: self._set(key, value) for key, value in changes.items()}

        def undo() -> None:
            for key, value in reversed(before.items()):
                self._set(key, value)

        try:
            return self._actor.records.write([self._encode(*each) for each in changes.items()], undo=undo)
        except BaseException:
            undo()
            raise

    def clear(self) -> Sequence[Record]:
        """Forget everything, and return the records that store this."""
        keys: tuple[str | int, ...] = (
            HEAD,
            *self.rows,
            *(number for to in self.outbox.targets for number in self.outbox.find(to)),
        )
        self.head, self.rows, self.outbox, self.lacking = Head(), {}, Outbox(), {}
        return [self._encode(key, None) for key in keys]

    # Inside

    def _complete(self, changes: Changes) -> Changes:
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
        return found

    def _set(self, key: str | int, value: Head | Row | Item | None) -> Head | Row | Item | None:
        """Replace a value in memory; return the earlier one."""
        match key, value:
            case int(), Item() | None:
                newest, item = self.outbox.newest, self.outbox.set(key, value)
                if newest != self.outbox.newest:
                    self._find_lacking()
                return item
            case str(), Head():
                head, self.head = self.head, value
                return head
        before = self.rows.pop(str(key), None)
        self.lacking.pop(str(key), None)
        if isinstance(value, Row):
            self.rows[str(key)] = value
            if self._lacks(value):
                self.lacking[str(key)] = None
        return before

    def _lacks(self, row: object) -> bool:
        """Whether the row is that of a child that needs an item for every child."""
        return isinstance(row, Row) and row.handed < self.outbox.newest and not row.child.is_destroyed

    def _find_lacking(self) -> None:
        self.lacking = {reference: None for reference, row in self.rows.items() if self._lacks(row)}

    def _encode(self, key: str | int, value: Head | Row | Item | None) -> Record:
        if isinstance(key, int):
            name = f"o/{key:016x}"
        else:  # A name may be longer than a key.
            name = f"c/{blake2b(key.encode(), digest_size=16).hexdigest()}" if key else "head"
        return Record(self._part, name, None if value is None else encode_json(value))
