"""Takes the items that the parent and the children of a thread send to it, each once."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.errors import NotFound, TooLarge, TooMany, is_outage
from plait.parts.attachments import ATTACHMENTS
from plait.parts.family.calls import answer_calls, end_calls
from plait.parts.family.rows import Birth, Call, Cancel, Handed, Item, Question, Report, Seen, Status, find_key
from plait.parts.family.store import HEAD, FamilyStore
from plait.parts.files.file import File, Upload
from plait.parts.messages.message import make_own
from plait.parts.part import find_role, require_role
from plait.state.transaction import Transaction

__all__ = ["STRANGER", "ItemReceiver"]

STRANGER: Final = "it is not of its family"
"""The reason why a thread takes no items from a thread outside of its family."""

Copies = Mapping[str, tuple[File, Upload]]
"""Files of the sender of an item, by path, with their contents, which this thread has received."""


class ItemReceiver:
    """Applies items to one thread; each item, and that it was taken, are one write."""

    def __init__(self, actor: Actor, store: FamilyStore) -> None:
        self._actor = actor
        self._store = store
        # The files copied for items that must be sent again, by sender, epoch and number.
        self._copies: dict[tuple[str, str, int], Copies] = {}

    async def receive(self, sender: str, items: Sequence[Item]) -> str:
        """Apply the items of a thread that were not taken before; return when they are durable.

        Returns why the items are refused for good, or an empty text. Raises an error if the items must be sent again.
        """
        if refusal := self._refuse(sender, items[0]):
            return refusal
        seen = self._find_seen(sender)
        if not (items := [item for item in items if not seen.has(item)]):
            await self._actor.records.write([])  # They were taken by a write that may not be durable yet.
        for has_files, group in groupby(items, lambda item: bool(item.files)):
            # An item with files is taken by itself, before the files of the next one are copied.
            for taken in [[item] for item in group] if has_files else [list(group)]:
                copies = await self._copy(sender, taken[0])
                if refusal := self._refuse(sender, items[0]):  # The thread has got another parent since, for example.
                    return refusal
                await self._take_all(sender, taken, copies)
        return ""

    def prepare(self, sender: str, item: Item) -> None:
        """Make a new thread a child before `on_start`; the message and the files come after that.

        Without these, the item is then taken.
        """
        assert isinstance(item.body, Birth)
        if not self._refuse(sender, item):
            birth = item.body
            is_taken = birth.message is None and not birth.files
            is_one_write = not birth.parts and not birth.variables
            with nullcontext() if is_one_write else Transaction(self._actor.state, self._actor.key):
                self._adopt(sender, birth, Seen(item.epoch, item.number) if is_taken else self._store.head.seen)

    # Inside

    def _refuse(self, sender: str, first: Item) -> str:
        parent, children = self._store.head.parent, self._store.rows
        if (parent and sender == parent) or (sender in children and not isinstance(first.body, Birth)):
            return ""
        if not isinstance(first.body, Birth) or first.body.is_known:
            return STRANGER
        if parent or children:  # A thread with children could get a parent that is below it.
            return "it has another parent, or children"
        if self._find_owner(first.body) != first.body.user:
            return "it belongs to another user"
        return "it was terminated" if self._actor.terminated_at is not None else ""

    def _find_owner(self, birth: Birth) -> str | None:
        """Return the user of this thread; if none is stored, the user in its birth."""
        history = self._actor.state.history
        return history.user if history.is_begun else history.user or birth.user

    def _find_seen(self, sender: str) -> Seen:
        row = self._store.rows.get(sender)
        return self._store.head.seen if row is None else row.seen

    def _set_seen(self, sender: str, seen: Seen) -> None:
        store, row = self._store, self._store.rows.get(sender)
        store.write({HEAD: replace(store.head, seen=seen)} if row is None else {sender: replace(row, seen=seen)})

    async def _take_all(self, sender: str, items: Sequence[Item], copies: Copies) -> None:
        """Apply items that were not taken before as one write; only the first one may have files."""
        with Transaction(self._actor.state, self._actor.key) as transaction:
            for item in items:
                if not self._find_seen(sender).has(item):
                    if isinstance(item.body, Birth) and item.is_birth:
                        self._adopt(sender, item.body, self._store.head.seen)
                    self._take_alone(sender, item, copies)
                    self._set_seen(sender, Seen(item.epoch, item.number))
        self._copies.pop((sender, items[0].epoch, items[0].number), None)
        assert transaction.commit is not None
        await transaction.commit

    def _take_alone(self, sender: str, item: Item, copies: Copies) -> None:
        """Apply an item; an item that cannot be applied is reported, and does not hold up the later ones."""
        try:
            with Transaction(self._actor.state, self._actor.key):
                self._take(sender, item, copies)
        except Exception as error:
            if is_outage(error) or isinstance(error, TooMany):
                raise
            self._actor.turns.report(error, None)

    def _take(self, sender: str, item: Item, copies: Copies) -> None:
        match item.body:
            case Birth(message=message) as birth if not birth.is_known:
                attachments = self._put(copies, "")
                if message is not None:
                    self._ask(sender, message, attachments, birth.call)
            case Question(message=message, call=call):
                self._ask(sender, message, self._put(copies, self._find_folder(item)), call)
            case Report() as report:
                answer_calls(self._actor, self._store, sender, report, self._put(copies, self._find_folder(item)))
            case Cancel() if not self._store.head.resumable:
                self._actor.terminate()
            case Cancel(calls=calls):
                require_role(self._actor.kind.cls, "messages").of(self._actor).cancel_calls(calls)
                require_role(self._actor.kind.cls, "tasks").of(self._actor).cancel_all(self._actor.kind.tasks)
            case Status(text=text):
                row = self._store.rows[sender]
                if row.child.status != "terminated" or text == "destroyed":
                    self._store.write({sender: replace(row, child=replace(row.child, status=text))})
                if text in ("terminated", "destroyed"):
                    end_calls(self._actor, self._store, sender, f"it was {text}")
            case Handed(role=role, body=body):
                attachments = self._put(copies, self._find_folder(item))
                self._hand(role, {**body, "attachments": attachments} if attachments else body)

    def _adopt(self, sender: str, birth: Birth, seen: Seen) -> None:
        head = self._store.head
        if head.parent == sender:
            return
        if not self._actor.state.history.is_begun:
            self._actor.state.history.set_owner(self._find_owner(birth))
        resumable = None if birth.call is None else bool(birth.child.resumable)
        self._store.write({HEAD: replace(head, parent=sender, seen=seen, resumable=resumable, depth=birth.depth)})
        for role, body in birth.parts.items():
            self._hand(role, body)
        for name, (type, data) in birth.variables.items():  # These are the child's own, even if their names are scoped.
            require_role(self._actor.kind.cls, "env").of(self._actor).put(name, b64decode(data), type)

    def _ask(self, sender: str, message: str, attachments: list[dict[str, str]], call: Call | None) -> None:
        """Queue a message of the parent, once for a call."""
        body: dict[str, Any] = {"content": message, "attachments": attachments}
        if call is not None:
            body |= {"role": call.role, "sender": sender, "key": call.id, "metadata": make_own({"call": call.id})}
            body |= {"agent": call.agent} if call.agent else {}
        self._hand("messages", body)

    def _hand(self, role: str, body: Mapping[str, Any]) -> None:
        if (part := find_role(self._actor.kind.cls, role)) is not None:
            part.take_item(self._actor, body)

    # Files

    def _find_folder(self, item: Item) -> str:
        return f"{ATTACHMENTS}/{item.epoch}-{item.number}/"

    async def _copy(self, sender: str, item: Item) -> Copies:
        """Receive the files that come with an item; a file that is missing or too large is reported."""
        key = sender, item.epoch, item.number
        if (copies := self._copies.get(key)) is not None:
            return copies
        found: dict[str, tuple[File, Upload]] = {}
        for path in item.files:
            try:
                found[path] = await self._copy_file(sender, path)
            except (NotFound, TooLarge) as error:
                self._actor.turns.report(error, None)
        if found:
            self._copies[key] = found
        return found

    async def _copy_file(self, sender: str, path: str) -> tuple[File, Upload]:
        key, host = find_key(sender), self._actor.host
        cls = host.find_class(key.kind)
        theirs = getattr(host.make_handle(cls, key.name), require_role(cls, "files").name)
        if (file := await theirs.stat(path)) is None:
            raise NotFound(f"{sender} has no file {path} for {self._actor.key}")
        async with aclosing(theirs.stream(path)) as content:
            return file, await require_role(self._actor.kind.cls, "files").of(self._actor).receive(content)

    def _put(self, copies: Copies, folder: str) -> list[dict[str, str]]:
        """Give received files paths in a folder; return attachments that name them."""
        for path, (file, upload) in copies.items():
            files = require_role(self._actor.kind.cls, "files").of(self._actor)
            files.put(folder + path, upload, mime=file.mime, metadata=file.metadata)
        return [{"path": folder + path} for path in copies]
