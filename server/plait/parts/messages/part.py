"""`messages = Messages()`: the conversation of a thread."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from plait.actor.actor import Actor
from plait.actor.thread import ThreadActor, check_may_write
from plait.actor.timer import read_clock
from plait.actor.turn import find_client_turn
from plait.errors import Conflict, NotFound, TooMany
from plait.parts.messages.caller import AgentCaller
from plait.parts.messages.changes import Changes
from plait.parts.messages.draft import MessagesDraft, edit_message
from plait.parts.messages.frames import Frame, Missed
from plait.parts.messages.history import Order
from plait.parts.messages.listing import Listing
from plait.parts.messages.message import Message, Page, Role, measure_message
from plait.parts.messages.sent_keys import SENT, make_sent_id
from plait.parts.messages.state import HEAD, State, load_state
from plait.parts.messages.stream import MessageStream
from plait.parts.messages.writer import Writer
from plait.parts.part import Part
from plait.parts.stage import find_stage
from plait.parts.written import STAGED, Result, Written
from plait.state.commit import Commit
from plait.store.protocol import Record, RecordRange

__all__ = ["MOST_QUEUED", "Messages", "ThreadMessages"]

T = TypeVar("T")

# In the class, `list` is a method.
_Messages = list[Message]
Viewer = Callable[[list[Frame]], None]

MOST_QUEUED: Final = 1000
"""The most messages that may be queued in a thread, and the most records' worth of bytes that they may have is 8."""

_MOST_RECORDS: Final = 8
_ALL: Final = 1 << 30


class Messages(Part["ThreadMessages"]):
    """Declares messages: `messages = Messages(agent="support", live=True)` gives each thread a `ThreadMessages`.

    The agent is called while anything is queued, and takes that. With `live`, clients see the messages.
    """

    reading: ClassVar = frozenset({"list", "get", "pending"})

    is_timed: ClassVar = True

    def __init__(self, agent: str | None = None, *, live: bool = False) -> None:
        super().__init__()
        self.agent = agent
        self.is_live = live

    def bind(self, actor: ThreadActor) -> "ThreadMessages":
        assert isinstance(actor, Actor)
        return ThreadMessages(actor, self.name, agent=self.agent, is_live=self.is_live)

    def ranges(self) -> list[RecordRange]:
        keys = (HEAD, "q/", SENT)
        return [RecordRange(self.name, key, limit=_ALL) for key in keys]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor).load(*records)


class ThreadMessages:
    """The messages of one thread: a history, and a queue for its agent.

    The methods that write do so when they are called, and return what can be awaited until it is durable; `update` and
    `delete` read first, so they are coroutines and of no use in a transaction. In a run of an agent, what they write is
    staged, and stored with the run; the history is then as the agent is to see it: without what is pending or failed,
    and with silent messages.
    """

    def __init__(self, actor: Actor, part: str, *, agent: str | None, is_live: bool) -> None:
        self._actor = actor
        self._writer = Writer(actor, part, agent=agent, is_live=is_live)
        self._caller = None if agent is None else AgentCaller(self._writer, agent)
        if self._caller is not None:
            actor.timer.add(self._caller)

    def load(self, head: Sequence[Record], queue: Sequence[Record], keys: Sequence[Record]) -> None:
        """Take the stored records of a thread that wakes. Raises CorruptThread."""
        self._writer.load(load_state(self._writer.part, head, queue, keys))
        if self._caller is not None:
            self._caller.recover()

    # Reading

    async def list(
        self,
        limit: int = 100,
        offset: int = 0,
        *,
        order: Order | None = None,
        include_silent: bool | None = None,
        max_depth: int = 0,
        before: int | None = None,
        after: int | None = None,
    ) -> Page:
        """Return the newest messages, oldest first; `offset` of them are left out.

        With `order` "asc" it begins with the oldest, with "desc" it returns the newest first. Silent messages are left
        out, except in a run, unless `include_silent` says otherwise, and so are those nested more than `max_depth`
        deep. `before` and `after` are positions between which the messages are; what is pending follows the history.
        """
        await self._actor.records.wait_for_shown()
        is_run = self._is_run()
        listing = Listing(
            self._writer,
            self._find_draft(),
            statuses="c" if is_run else "cpsf",
            is_silent=is_run if include_silent is None else include_silent,
            max_depth=max_depth,
        )
        return await listing.read(limit, offset, order, after=after, before=before)

    async def get(self, id: str) -> Message | None:
        """Return a message by its id, silent and nested ones, too; None if there is none."""
        await self._actor.records.wait_for_shown()
        return await self._find(id)

    async def pending(self) -> _Messages:
        """Return what is queued, in order; in a run, what that has not taken."""
        await self._actor.records.wait_for_shown()
        if not self._is_run():
            return [*self._writer.state.queue]
        draft = self._find_draft()
        return self._find_untaken() if draft is None else draft.find_untaken()

    # Writing

    def inject(
        self,
        role: Role,
        content: str | None = None,
        *,
        name: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] | None = None,
        tool_call_id: str | None = None,
        parent_id: str | None = None,
        depth: int = 0,
        silent: bool = False,
        metadata: Mapping[str, Any] | None = None,
        attachments: Sequence[Mapping[str, Any]] = (),
    ) -> Result[Message]:
        """Add a message at the end of the history. No agent is called for it.

        Raises ValueError and TypeError for what is no message, TooLarge, and Terminated.
        """
        self._check_may_add()
        draft = self._use_draft()
        message = self._make(
            role,
            content,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            parent_id=parent_id,
            depth=depth,
            silent=silent,
            metadata=metadata or {},
            attachments=attachments,
        )
        if draft is not None:
            draft.add(message)
            return Result(message, STAGED)
        return self._write(lambda changes: changes.add(message))

    def queue(
        self,
        content: str,
        role: Role = "user",
        key: str | None = None,
        *,
        name: str | None = None,
        silent: bool = False,
        metadata: Mapping[str, Any] | None = None,
        attachments: Sequence[Mapping[str, Any]] = (),
        sender: str | None = None,
    ) -> Result[Message]:
        """Add a message to the queue, which the agent takes: at once if none runs, else when that one has ended.

        A message with a `key` that its sender has used among the last 10,000 is not added again; what is returned has
        the id of the first one. The sender is the client for which the calling code runs, or `sender`. Raises TooMany
        if 1,000 messages are queued, and what `inject` raises.
        """
        if not isinstance(content, str):
            raise TypeError(f"content must be a str, not {content!r}")
        if role == "tool":
            raise ValueError("a tool's result cannot be queued: inject it")
        id = None if key is None else make_sent_id(_find_sender() if sender is None else sender, key)
        self._check_may_add()
        draft = self._use_draft()
        message = self._make(
            role,
            content,
            id=id,
            name=name,
            silent=silent,
            metadata=metadata or {},
            attachments=attachments,
            status="pending",
        )
        if id is not None and self._writer.state.keys.has(id):
            return Result(self._writer.state.find_pending(id) or message, self._written(None))
        if id is not None and draft is not None and any(each.id == id for each in draft.view.queued):
            return Result(message, STAGED)
        self._check_room(message, draft)
        if draft is not None:
            draft.queue(message, is_keyed=id is not None)
            return Result(message, STAGED)
        return self._queue_now(message, is_keyed=id is not None)

    def take(self) -> Result[_Messages]:
        """Move all that is queued to the end of the history, in order, and return it.

        A run that raises gives it back. What a run has taken cannot be cancelled.
        """
        self._check_may_write()
        draft = self._use_draft()
        if draft is not None:
            return Result(draft.take(), STAGED)
        untaken = self._find_untaken()
        if not untaken:
            return Result([], self._written(None))
        moves = [(each, self._writer.numbers.next_position()) for each in untaken]
        return self._write(lambda changes: changes.take(moves))

    async def update(
        self, id: str, content: str | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Message:
        """Change the content of a message, or add to its metadata, and return it.

        Raises NotFound, Conflict for a message that is being written, and what `inject` raises.
        """
        self._check_may_write()
        before, _ = await self._find_present(id)
        self._check_may_write()
        if before is None:
            raise NotFound(f"there is no message {id}")
        after = edit_message(before, content, metadata or {})
        after.check()
        if (draft := self._use_draft()) is not None:
            return draft.edit(before, content, metadata or {})
        is_pending = before.status == "pending"
        return await self._write(lambda changes: changes.change_pending(after) if is_pending else changes.change(after))

    async def delete(self, id: str) -> bool:
        """Remove a message, and the results of the calls of tools in it; return whether it was there.

        A pending message is cancelled, unless a run has taken it. Raises Conflict for one that is being written.
        """
        self._check_may_write()
        message, results = await self._find_present(id)
        self._check_may_write()
        draft = self._use_draft()
        if message is None or (message.status == "pending" and message.position in self._writer.taken):
            return False
        if draft is not None:
            for each in (message, *results):
                draft.remove(each)
            return True

        def work(changes: Changes) -> None:
            for each in (message, *results):
                (changes.cancel if each.status == "pending" else changes.remove)(each)

        await self._write(work)
        return True

    def stream(
        self,
        role: Role = "assistant",
        *,
        name: str | None = None,
        parent_id: str | None = None,
        depth: int = 0,
        silent: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> MessageStream:
        """Write a message bit by bit: `async with messages.stream() as m: m.append(text)`.

        It is shown and durable while it grows. In a run it becomes history with the run, at the position that it gets
        now, after what the run has taken.
        """
        self._check_may_add()
        draft = self._use_draft()
        message = self._make(
            role,
            "",
            name=name,
            parent_id=parent_id,
            depth=depth,
            silent=silent,
            metadata=metadata or {},
            status="streaming",
            taken=[] if draft is None else draft.find_taken(),
        )
        return MessageStream(self._writer, message, draft)

    # For clients

    def watch(self, viewer: Viewer) -> Callable[[], None]:
        """Call a function with what clients are told, when that is durable, in order; return how to stop that."""
        self._writer.viewers.append(viewer)
        return lambda: self._writer.viewers.remove(viewer)

    async def since(self, revision: int) -> Missed | None:
        """Return what clients were told after a revision; None if they must begin with the newest messages."""
        state = await self._find_durable()
        return await self._writer.history.since(state, revision)

    async def newest(self, limit: int, before: int | None = None, *, size: int | None = None) -> tuple[int, Page]:
        """Return the newest messages that clients may see, also nested ones, and the revision of which they are.

        What is pending comes in addition to `limit`, and to `size` in bytes.
        """
        state = await self._find_durable()
        listing = Listing(self._writer, None, statuses="cpsf", is_silent=False, max_depth=_ALL)
        if before is None:
            limit += len(self._writer.state.queue)
            queued = sum(map(measure_message, self._writer.state.queue))
            size = None if size is None else max(size, self._actor.limits.record) + queued
        return state.head.revision, await listing.read(limit, 0, None, before=before, size=size)

    # Inside

    def _is_run(self) -> bool:
        """Whether the calling code is a part of a run, and is not in a transaction."""
        return find_stage(self._actor) is not None and self._actor.state.find_own_transaction() is None

    def _find_draft(self) -> MessagesDraft | None:
        """Return what the run has done; None outside of runs, or if it has done nothing."""
        stage = find_stage(self._actor)
        draft = None if stage is None else stage.drafts.get(self)
        assert draft is None or isinstance(draft, MessagesDraft)
        return draft

    def _use_draft(self) -> MessagesDraft | None:
        """Return the draft of the run, None outside of runs and in a transaction. Raises what interrupts the run."""
        stage = find_stage(self._actor)
        if stage is None or self._actor.state.find_own_transaction() is not None:
            return None
        stage.check()
        if (draft := self._find_draft()) is None:
            draft = stage.drafts[self] = MessagesDraft(self._writer)
        return draft

    def _check_may_write(self) -> None:
        """Raise what `set_state` raises: Readonly, and Destroyed when the thread has ended."""
        check_may_write(self._actor.key)
        self._actor.state.check_open()

    def _check_may_add(self) -> None:
        """Raise also Terminated."""
        self._check_may_write()
        self._actor.check_active()

    def _check_room(self, message: Message, draft: MessagesDraft | None) -> None:
        """Raise TooMany if no other message may be queued."""
        state, added = self._writer.state, [] if draft is None else draft.view.queued
        most = _MOST_RECORDS * self._actor.limits.record
        size = sum(map(measure_message, (*added, message))) + state.head.queued_bytes
        if len(state.queue) + len(added) >= MOST_QUEUED or size > most:
            many = f"{MOST_QUEUED:,} messages, or {most:,} bytes of them, may be queued in a thread; try again later"
            raise TooMany(many, retry_after=1.0)

    def _make(self, role: Role, content: str | None, *, id: str | None = None, **fields: Any) -> Message:
        """Return a new message at the next position. Raises what makes it no message."""
        numbers = self._writer.numbers
        message = Message(
            id=id or secrets.token_hex(12),
            role=role,
            content=content,
            position=numbers.next_position(),
            created_at=numbers.next_time(read_clock()),
            **fields,
        )
        message.check()
        return message

    def _find_untaken(self) -> _Messages:
        return [each for each in self._writer.state.queue if each.position not in self._writer.taken]

    async def _find(self, id: str) -> Message | None:
        if (draft := self._find_draft()) is not None:
            if id in draft.view.removed or id in draft.view.ids:
                return draft.view.ids.get(id)
            if (pending := next((each for each in draft.find_untaken() if each.id == id), None)) is not None:
                return pending
        return self._writer.state.find_pending(id) or await self._writer.history.find(id)

    async def _find_present(self, id: str) -> tuple[Message | None, _Messages]:
        """Return a message and the results of the calls of tools in it, as they are when this returns.

        Raises Conflict for a message that is being written.
        """
        while True:
            edits = self._writer.edits
            message = await self._find(id)
            results = [] if message is None or not message.tool_calls else await self._find_results(message)
            if message is not None and message.status == "streaming":
                raise Conflict(f"the message {id} is being written")
            if edits == self._writer.edits:
                return message, results

    async def _find_results(self, message: Message) -> _Messages:
        wanted, draft = message.tool_call_ids, self._find_draft()
        pages = self._writer.history.pages(
            reverse=False,
            after=message.position,
            before=self._writer.numbers.position + 1,
            staged={} if draft is None else draft.view.rows,
            removed=() if draft is None else draft.view.removed,
        )
        return [each async for page in pages for each in page if each.tool_call_id in wanted]

    async def _find_durable(self) -> State:
        """Return the state, when that is durable. Raises StoreError."""
        while True:
            state, losses = self._writer.state, self._writer.losses
            await self._actor.state.wait_until_stored()
            if losses == self._writer.losses:
                return state

    def _queue_now(self, message: Message, *, is_keyed: bool) -> Result[Message]:
        """Queue a message, and call the agent for it if it is not busy."""
        caller, has_begun = self._caller, False

        def work(changes: Changes) -> Message:
            nonlocal has_begun
            if is_keyed:
                changes.remember(message.id)
            stored = changes.queue_message(message)
            has_begun = caller is not None and caller.begin_with(changes)
            return stored

        try:
            stored, commit = self._writer.write(work)
        except BaseException:
            if caller is not None and has_begun:
                caller.free()
            raise
        if caller is not None and has_begun:
            caller.follow(commit)
        return Result(stored, self._written(commit))

    def _write(self, work: Callable[[Changes], T]) -> Result[T]:
        result, commit = self._writer.write(work)
        return Result(result, self._written(commit))

    def _written(self, commit: Commit | None) -> Written:
        """Return a write that can be awaited; without a commit, all those so far."""
        return Written(commit or self._actor.records.write([]), self._actor.state.find_own_transaction())


def _find_sender() -> str:
    """Return for whom the calling code runs: a principal, a connection, or the server."""
    turn = find_client_turn()
    connection = None if turn is None else turn.connection
    if connection is None:
        return "server"
    return f"connection {connection.id}" if connection.principal is None else f"principal {connection.principal.id}"
