"""`family = Family()`: the parent and the children of a thread, and its items for them."""

import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, ClassVar, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.handle import Handle
from plait.actor.thread import Thread, ThreadActor
from plait.clock import read_wall_clock
from plait.parts.encoding import check_type, encode_named, read_back
from plait.parts.family.receiving import STRANGER, ItemReceiver
from plait.parts.family.rows import (
    EVERY_CHILD,
    Birth,
    Body,
    Cancel,
    Child,
    Handed,
    Item,
    Question,
    Report,
    Status,
    find_key,
)
from plait.parts.family.sending import ItemSender
from plait.parts.family.store import FamilyStore
from plait.parts.files.paths import clean_path
from plait.parts.part import ALL, Part, check_writable, require_role
from plait.parts.stage import ItemsDraft, find_draft, use_draft
from plait.parts.written import STAGED, Result, Written
from plait.store.thread_rows import Record, RecordRange, ThreadKey

__all__ = ["Family", "Spawned", "ThreadFamily"]

# The statuses that no child may set.
_OWN: Final = ("starting", "terminated", "destroyed")


class Family(Part["ThreadFamily"]):
    """Declares a family: `family = Family()` in a Thread class gives each thread a `ThreadFamily`."""

    role: ClassVar = "family"
    loads_none: ClassVar = True  # A turn that spawns is answered by the family.
    is_only: ClassVar = True
    reading: ClassVar = frozenset({"_has_parent"})
    inner: ClassVar = frozenset(
        {"spawn", "children", "child", "parent", "tell_children"}
        | {"spawn_agent", "ask", "report", "works", "depth", "end_work", "cancel_calls"}
    )
    existing: ClassVar = {"_receive": STRANGER, "_has_parent": False}

    def bind(self, actor: ThreadActor) -> "ThreadFamily":
        assert isinstance(actor, Actor)
        return ThreadFamily(actor, self.name)

    def ranges(self) -> list[RecordRange]:
        return [RecordRange(self.name, limit=ALL)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor)._load(records[0])

    def find_child(self, actor: ThreadActor, reference: str) -> Child | None:
        return self.of(actor)._find_child(reference)

    def find_preparation(self, method: str, args: Sequence[Any]) -> Callable[[Any], None] | None:
        if method != "_begin":
            return None
        sender, items = args
        return lambda actor: self.of(actor)._receiver.prepare(sender, items[0])

    def leave_work(self, actor: ThreadActor) -> Sequence[Record]:
        return self.of(actor)._store.clear()


class Spawned(Result[str]):
    """The result of `spawn`: awaiting it returns the child's reference.

    Outside of transactions and runs, awaiting it waits until the child is born.
    """

    __slots__ = ("_sender",)

    def __init__(self, reference: str, written: Written, sender: ItemSender | None):
        super().__init__(reference, written)
        self._sender = sender

    def __await__(self) -> Generator[Any, None, str]:
        reference = yield from super().__await__()
        if self._sender is not None and not self._written.is_in_block:
            yield from self._sender.wait_for_birth(reference).__await__()
        return reference


class ThreadFamily:
    """The family of one thread: its parent, and at most 10,000 children.

    Its items for them are stored with the thread's other changes, and delivered once and in order after that, even if
    the server restarts. The methods that write do so when they are called, or stage it in a run. They raise what
    `set_state` raises for a thread that must not be changed, and TooMany if 10,000 items wait to be delivered.
    """

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._store = FamilyStore(actor, part)
        self._sender = ItemSender(actor, self._store, self._deliver)
        self._receiver = ItemReceiver(actor, self._store)
        actor.timer.add(self._sender, part)
        actor.relatives = self._sender

    # Children

    def spawn(
        self,
        kind: type[Thread[Any]],
        name: str | None = None,
        *,
        title: str = "",
        description: str = "",
        message: str | None = None,
        files: Iterable[str] = (),
        user: str | UnsetType | None = UNSET,
    ) -> Spawned:
        """Create a child, by default with a random name, for the user of this thread or another one.

        The child gets copies of `files` of this thread, and `message` in its queue. If there is a child with the name,
        its reference is returned, and nothing else is done; a destroyed child is born again. Outside of a block and a
        run, awaiting the result returns when the child is born. It raises Conflict if the name belongs to a thread with
        another user or parent, or with children, and any error of the child's `on_start`; after such an error, the
        birth is tried again. Raises TypeError for a class that has no Family, or lacks Messages or Files that are
        needed, NotFound for one that is not served, and Terminated.
        """
        handle = self._actor.make_handle(kind, name or secrets.token_hex(16))
        name = handle.name
        child = Child(
            reference=str(ThreadKey(kind._kind.name, name)),
            name=name,
            title=title,
            description=description,
            created_at=read_wall_clock(),
        )
        owner = self._actor.thread.user_id if isinstance(user, UnsetType) else user
        for what, text in {"title": title, "description": description, "message": message, "user": owner}.items():
            check_type(what, text, str, NoneType)  # JSON would turn bytes into a text.
        return self._spawn(kind, Birth(child=child, user=owner, message=message), files)

    def spawn_agent(self, kind: type[Thread[Any]], birth: Birth) -> Spawned:
        """Create a child that works for a call, for the user of this thread; raises what `spawn` raises."""
        return self._spawn(kind, replace(birth, user=self._actor.thread.user_id), birth.files)

    def _spawn(self, kind: type[Thread[Any]], birth: Birth, files: Iterable[str]) -> Spawned:
        require_role(kind, Family.role)
        if birth.message is not None:
            require_role(kind, "messages")
        if birth.user == "":
            raise ValueError("a user id must not be empty")
        depth = self.depth + (birth.call is not None)
        birth = read_back(replace(birth, files=self._check_files(kind, files), depth=depth), Birth)
        reference = birth.child.reference
        check_writable(self._actor)
        self._actor.check_active()
        written = self._post(reference, birth)
        return Spawned(reference, written, None if written is STAGED else self._sender)

    @property
    def depth(self) -> int:
        """The number of threads that work for calls: itself and those above it."""
        return self._store.head.depth

    @property
    def children(self) -> list[Child]:
        """The children, sorted by `created_at`."""
        children = {**{reference: row.child for reference, row in self._store.rows.items()}, **self._find_staged()}
        return sorted(children.values(), key=lambda child: child.created_at)

    async def child(self, reference: str) -> Handle[Any] | None:
        """Return a handle to a child when it is born; None for another thread, and for a child that was destroyed."""
        row = self._store.rows.get(reference)
        if row is None or row.child.is_destroyed:
            return None
        await self._sender.wait_for_birth(reference)
        handle = self._make_handle(reference)
        if not await self._call(reference, "_has_parent", str(self._actor.key)):
            self._sender.give_up(reference, STRANGER)
            return None
        return handle

    def tell_children(self, role: str, body: dict[str, Any]) -> Written:
        """Send an object to all children for their parts with a role; objects that wait for a child become one."""
        return self._post(EVERY_CHILD, Handed(role, body))

    def ask(self, reference: str, question: Question) -> Written:
        """Queue a message, which is a call, in a child, which gets copies of its files."""
        encode_named("message", question.message)
        return self._post(
            reference, replace(question, files=self._check_files(self._find_class(reference), question.files))
        )

    # The parent

    @property
    def parent(self) -> Handle[Any] | None:
        """A handle to the parent; None if there is none, or if it is known to be destroyed."""
        return self._make_handle(self._store.head.parent) if self._store.head.parent else None

    def notify_parent(self, text: str, *, files: Iterable[str] = ()) -> Written:
        """Queue a silent message in the parent, which gets copies of `files` of this thread as its attachments.

        Does nothing without a parent. Raises ValueError for an empty text, and TypeError if the parent has no Messages
        or, for files, one of the two threads has no Files.
        """
        check_type("text", text, str)
        if not text:
            raise ValueError("the text of a notice must not be empty")
        encode_named("text", text)
        if not (parent := self._store.head.parent):
            return self._skip()
        cls = self._find_class(parent)
        require_role(cls, "messages")
        body = {"role": "user", "content": text, "silent": True, "subagent_id": str(self._actor.key)}
        return self._post(parent, Handed("messages", body, self._check_files(cls, files)))

    @property
    def works(self) -> bool:
        """Whether the thread answers calls of its parent."""
        return self._store.head.resumable is not None

    def report(self, report: Report) -> Written:
        """Answer calls of the parent. Does nothing in a thread that answers none."""
        return self._post(self._store.head.parent, report) if self.works else self._skip()

    def end_work(self, error: str | None) -> None:
        """Record the end of a run, in its write: tell the parent of an error, and end a thread for one call."""
        if self.works and self._actor.terminated_at is None:
            if error is not None:
                self.report(Report(error, is_error=True))
            if not self._store.head.resumable:
                self._actor.terminate()

    def cancel_calls(self, run: str) -> None:
        """End children's work for the calls of a run that was cancelled or looks again, in its open transaction."""
        for reference, row in [*self._store.rows.items()]:
            if run in row.calls.values():
                calls = {id: other for id, other in row.calls.items() if other != run}
                self._store.write({reference: replace(row, calls=calls)})
                self._post(reference, Cancel([*row.calls.keys() - calls.keys()]))

    def set_status(self, status: str) -> Written:
        """Show a status in the parent's `children`. Does nothing without a parent."""
        check_type("status", status, str)
        status = status.strip()
        if not status or status in _OWN:
            raise ValueError(f"a status must not be empty, and not {', '.join(_OWN)}, which the family sets")
        encode_named("status", status)
        return self._post(parent, Status(status)) if (parent := self._store.head.parent) else self._skip()

    # Called by the threads of the family

    async def _receive(self, sender: str, items: list[Item]) -> str:
        return await self._receiver.receive(sender, items)

    async def _begin(self, sender: str, items: list[Item]) -> str:
        """Do what `_receive` does, even if this creates the thread."""
        return await self._receiver.receive(sender, items)

    async def _has_parent(self, reference: str) -> bool:
        return self._store.head.parent == reference

    # Inside

    def _load(self, records: Sequence[Record]) -> None:
        if records:
            self._store.load(records)
            self._sender.load()

    def _post(self, to: str, body: Body) -> Written:
        check_writable(self._actor)
        transaction = self._actor.state.find_own_transaction()
        if transaction is None:
            draft = use_draft(self._actor, self, ItemsDraft, lambda _: ItemsDraft(self._actor, self._sender.post))
            if draft is not None:
                draft.add(Item(to, body))
                return STAGED
        return Written(self._sender.post([Item(to, body)]), transaction)

    def _skip(self) -> Written:
        """Return a write that changes nothing: it is durable when the writes before it are."""
        check_writable(self._actor)
        return Written(self._actor.records.write([]), self._actor.state.find_own_transaction())

    def _find_staged(self) -> Mapping[str, Child]:
        """Return the children that the calling run has spawned."""
        draft: ItemsDraft[Item] | None = find_draft(self._actor, self, ItemsDraft)
        if draft is None or self._actor.state.find_own_transaction() is not None:
            return {}
        return {item.to: item.body.child for item in draft.items if isinstance(item.body, Birth)}

    def _find_child(self, reference: str) -> Child | None:
        row = self._store.rows.get(reference)
        return self._find_staged().get(reference, None if row is None else row.child)

    def _check_files(self, target: type[Thread[Any]], files: Iterable[str]) -> list[str]:
        if isinstance(files, str):
            raise TypeError("files must be several paths, not one text")
        paths = [clean_path(path) for path in files]
        for cls in (target, self._actor.kind.cls) if paths else ():
            require_role(cls, "files")
        return paths

    def _find_class(self, reference: str) -> type[Thread[Any]]:
        return self._actor.host.find_class(find_key(reference).kind)

    def _make_handle(self, reference: str) -> Handle[Any]:
        return self._actor.make_handle(self._find_class(reference), find_key(reference).name)

    async def _deliver(self, to: str, items: Sequence[Item]) -> str:
        method = "_begin" if items[0].is_birth else "_receive"
        refusal: str = await self._call(to, method, str(self._actor.key), items)
        return refusal

    async def _call(self, reference: str, method: str, *args: object) -> Any:
        """Call a method of the family of another thread."""
        key = find_key(reference)
        cls = self._actor.host.find_class(key.kind)
        family = getattr(self._actor.make_handle(cls, key.name), require_role(cls, Family.role).name)
        return await getattr(family, method)(*args)
