"""Takes the items that the parent and the children of a thread send to it, each once."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.errors import TooMany, is_outage
from plait.parts.attachments import ATTACHMENTS
from plait.parts.family import rows
from plait.parts.family.copying import Copied, fetch_files, put_file
from plait.parts.family.rows import DESTROYED, TERMINATED, Birth, Item, Notice, Seen, WithFiles
from plait.parts.family.store import HEAD, FamilyStore
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.parts.part import find_part_of, find_takers
from plait.state.transaction import Transaction
from plait_schemas.codec import decode_json

__all__ = ["STRANGER", "ItemReceiver"]

STRANGER: Final = "it is not of its family"
"""Why a thread takes nothing from a thread outside of its family."""

_decode_birth: Final = msgspec.json.Decoder(Birth).decode
_decode_notice: Final = msgspec.json.Decoder(Notice).decode
_decode_files: Final = msgspec.json.Decoder(WithFiles).decode


class ItemReceiver:
    """Applies items to one thread; each item and the record that it was taken are one write."""

    def __init__(self, actor: Actor, store: FamilyStore) -> None:
        self._actor = actor
        self._store = store

    async def receive(self, sender: str, items: Sequence[Item]) -> str:
        """Apply the items of a thread that were not taken before; return when that is durable.

        Returns why they are refused, empty if they are not. Raises an error if they must be sent again.
        """
        if refusal := self._refuse(sender, items[0]):
            return refusal
        files = {item.number: await self._fetch(sender, item) for item in items}
        with Transaction(self._actor.state, self._actor.key) as transaction:
            for item in items:
                if not self._find_seen(sender).has(item):
                    self._take_alone(sender, item, files[item.number])
                    self._set_seen(sender, Seen(item.epoch, item.number))
        assert transaction.commit is not None
        await transaction.commit
        return ""

    # Inside

    def _refuse(self, sender: str, first: Item) -> str:
        parent, children = self._store.head.parent, self._store.rows
        if sender == parent or (sender in children and first.kind != rows.BIRTH):
            return ""
        if first.kind != rows.BIRTH:
            return STRANGER
        if parent or children:  # A thread with children could have its own parent below it.
            return "it has another parent, or children"
        return "it was terminated" if self._actor.terminated_at is not None else ""

    def _find_seen(self, sender: str) -> Seen:
        row = self._store.rows.get(sender)
        return self._store.head.seen if row is None else row.seen

    async def _fetch(self, sender: str, item: Item) -> Mapping[str, Copied]:
        """Receive the files that come with an item."""
        if item.kind not in (rows.BIRTH, rows.NOTICE) or self._find_seen(sender).has(item):
            return {}
        paths = _decode_files(item.body).files
        return await fetch_files(self._actor, sender, paths) if paths else {}

    def _set_seen(self, sender: str, seen: Seen) -> None:
        store, row = self._store, self._store.rows.get(sender)
        store.write({HEAD: replace(store.head, seen=seen)} if row is None else {sender: replace(row, seen=seen)})

    def _take_alone(self, sender: str, item: Item, files: Mapping[str, Copied]) -> None:
        """Apply an item; one that cannot be applied is reported, and does not hold up the later ones."""
        try:
            with Transaction(self._actor.state, self._actor.key):
                self._take(sender, item, files)
        except Exception as error:
            if is_outage(error) or isinstance(error, TooMany):
                raise
            self._actor.turns.report(error, None)

    def _take(self, sender: str, item: Item, files: Mapping[str, Copied]) -> None:
        match item.kind:
            case rows.BIRTH:
                self._be_born(sender, _decode_birth(item.body), files)
            case rows.NOTICE:
                self._add_notice(sender, item, _decode_notice(item.body), files)
            case rows.STATUS:
                self._set_status(sender, decode_json(bytes(item.body)))
            case kind if (part := find_takers(self._actor.kind.cls).get(kind)) is not None:
                part.take_item(self._actor, decode_json(bytes(item.body)))

    def _be_born(self, sender: str, birth: Birth, files: Mapping[str, Copied]) -> None:
        self._store.write({HEAD: replace(self._store.head, parent=sender)})
        takers = find_takers(self._actor.kind.cls)
        for name, body in birth.parts.items():
            if (part := takers.get(name)) is not None:
                part.take_item(self._actor, decode_json(bytes(body)))
        for path, copied in files.items():
            put_file(self._actor, path, copied)
        if birth.message is not None:
            self._find_messages().queue(birth.message, attachments=[{"path": path} for path in files])

    def _add_notice(self, sender: str, item: Item, notice: Notice, files: Mapping[str, Copied]) -> None:
        if self._actor.terminated_at is not None:
            return  # It takes no messages.
        folder = f"{ATTACHMENTS}/{item.epoch}-{item.number}"
        places = {path: f"{folder}/{path}" for path in files}
        for path, copied in files.items():
            put_file(self._actor, places[path], copied)
        attachments = [{"path": place} for place in places.values()]
        metadata = {"subagent_id": sender}
        self._find_messages().inject("user", notice.text, silent=True, metadata=metadata, attachments=attachments)

    def _set_status(self, sender: str, status: str) -> None:
        row = self._store.rows.get(sender)
        if row is not None and (row.child.status != TERMINATED or status == DESTROYED):
            self._store.write({sender: replace(row, child=replace(row.child, status=status))})

    def _find_messages(self) -> ThreadMessages:
        cls = self._actor.kind.cls
        if (part := find_part_of(cls, Messages)) is None:
            raise TypeError(f"{cls.__name__} has no Messages")
        return part.of(self._actor)
