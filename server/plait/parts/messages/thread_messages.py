"""`messages = Messages()`: the conversation of a thread."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.begun import Begun
from plait.actor.rpc import Method
from plait.actor.thread import Thread, ThreadActor
from plait.actor.turn import find_user
from plait.errors import NotFound
from plait.parts.attachments import unlink_attachments
from plait.parts.encoding import check_type
from plait.parts.messages.branching import Branching
from plait.parts.messages.client_methods import make_methods
from plait.parts.messages.history import Order
from plait.parts.messages.message import Message, Page, Role, find_run
from plait.parts.messages.message_hooks import NO_HOOKS, MessageHooks, check_message
from plait.parts.messages.message_stream import MessageStream
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.messages_draft import MessagesDraft, edit_message
from plait.parts.messages.queue import MessageQueue
from plait.parts.messages.reading import Feed, MessageListing, add_subagent
from plait.parts.messages.state import HEAD, SENT, load_state
from plait.parts.part import ALL, Part, check_writable, find_parts, find_role
from plait.parts.stage import begin_staged
from plait.parts.written import STAGED, Result
from plait.state.transaction import Transaction
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Messages", "ThreadMessages", "find_chat"]

# In the class, `list` is a method.
_Messages = list[Message]


class Messages(Part["ThreadMessages"]):
    """Declares messages: `messages = Messages(agent="support", live=True)` gives each thread a `ThreadMessages`.

    The agent is called while messages are queued, and takes them. With `live`, clients see the messages. `hooks` are
    called before and after messages are made or changed.
    """

    reading: ClassVar = frozenset({"list", "get", "open_calls", "pending", "siblings", "forks", "approvals"})
    role: ClassVar = "messages"
    inner: ClassVar = frozenset({"check_room", "check_own", "preview", "shows"})

    def __init__(self, agent: str | None = None, *, live: bool = False, hooks: MessageHooks = NO_HOOKS) -> None:
        super().__init__()
        self.agent = agent
        self.is_live = live
        self.hooks = hooks
        hooks.check()

    def bind(self, actor: ThreadActor) -> "ThreadMessages":
        assert isinstance(actor, Actor)
        hooks = self.hooks if self.agent is None else actor.kind.message_hooks or self.hooks
        return ThreadMessages(MessageWriter(actor, self.name, agent=self.agent, is_live=self.is_live, hooks=hooks))

    def ranges(self) -> list[RecordRange]:
        keys = (HEAD, "q/", SENT)
        return [RecordRange(self.name, key, limit=ALL) for key in keys]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        await self.of(actor).load(*records)

    def leave_work(self, actor: ThreadActor) -> Sequence[Record]:
        return self.of(actor).clear_queue()

    def make_methods(self, cls: type[Any]) -> Iterable[Method]:
        return make_methods(self.name) if self.is_live else ()

    def find_facts(self, actor: ThreadActor) -> object:
        return self.of(actor).facts

    def unload(self, actor: ThreadActor) -> None:
        self.of(actor).feed.close()

    def take_item(self, actor: ThreadActor, body: Mapping[str, Any]) -> None:
        """Queue a message; one that no agent would take is added to the history. A terminated thread takes none."""
        if actor.terminated_at is None:
            messages = self.of(actor)
            if (agent := body.get("agent", "")) in actor.kind.agent_names:
                messages.hand_over(agent)
            body = {name: value for name, value in body.items() if name != "agent"}
            is_for_list = messages.agent is None and body.get("silent", False)
            (messages.inject if is_for_list else messages.queue)(**body)


def find_chat(cls: type[Thread[Any]]) -> Messages | None:
    """Return the messages of a class that clients see and that an agent answers; None if there are none."""
    parts = find_parts(cls).values()
    return next((each for each in parts if isinstance(each, Messages) and each.is_live and each.agent), None)


class ThreadMessages(MessageQueue, Branching):
    """The messages of one thread: a history, and a queue for its agent.

    The methods that write do so when they are called; awaiting the result waits until the write is durable. `update`
    and `delete` read first, so they only begin when they are called, and cannot be used in a transaction. In a run of
    an agent, writes are staged, and stored with the run; the history is then the one that the agent needs: without
    pending and failed messages, and with silent ones.
    """

    def __init__(self, writer: MessageWriter) -> None:
        super().__init__(writer)
        # The messages that clients see.
        self.feed = Feed(writer)
        if self.caller is not None:
            self._actor.timer.add(self.caller, *self.caller.deciding)

    async def load(self, head: Sequence[Record], queue: Sequence[Record], keys: Sequence[Record]) -> None:
        """Load the stored records of a waking thread. Raises StoreError."""
        writer = self._writer
        state = load_state(self._actor.key, head, queue, keys)
        if again := state.head.attempts.again:
            state = replace(state, asked_again=await writer.history.at(again))
        writer.load(state)
        for place in writer.state.head.streams:
            if (found := await writer.history.read_stream(place.position)) is not None:
                writer.lost[place.position] = found
        if self.caller is not None:
            self.caller.recover()

    def clear_queue(self) -> Sequence[Record]:
        """Forget the queue, and return the records that store this."""
        return self._writer.clear_queue()

    # Reading

    @property
    def mark(self) -> object:
        """A value that stays equal while messages are only added at the end; None while one is being written."""
        return None if self._writer.state.head.streams else self._writer.rewrites

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
        """Return the newest messages, oldest first, without the last `offset`.

        With `order` "asc", returns the oldest messages; with "desc", the newest first. Silent messages are left out
        outside of runs, unless `include_silent` says otherwise; so are messages nested more than `max_depth` deep. The
        messages are between the positions `after` and `before`; pending ones follow the history.
        """
        await self._actor.state.wait_for_shown()
        is_run = self._is_run()
        listing = MessageListing(
            self._writer,
            self._writer.find_staged(),
            statuses="c" if is_run else "cpsf",
            is_silent=is_run if include_silent is None else include_silent,
            max_depth=max_depth,
        )
        page = await listing.read(limit, offset, order, after=after, before=before)
        found = [add_subagent(self._actor, each) if each.subagent_id else each for each in page.messages]
        return replace(page, messages=found)

    async def get(self, id: str) -> Message | None:
        """Return a message by its id, even if it is silent or nested; None if there is none."""
        await self._actor.state.wait_for_shown()
        found = await self._reader.find(id)
        return add_subagent(self._actor, found) if found is not None and found.subagent_id else found

    async def open_calls(self) -> Sequence[Mapping[str, Any]]:
        """Return the calls of tools that have no result yet, in order; a model may only be asked if there are none.

        They are in the last message with calls. Once a model has answered after that message, in one whose `metadata`
        has a `model`, none of its calls is open, even if a result was deleted.
        """
        await self._actor.state.wait_for_shown()
        return (await self._reader.find_open_calls())[0].calls

    # Writing

    def inject(
        self,
        role: Role,
        content: str | None = None,
        *,
        name: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] | None = None,
        tool_call_id: str | None = None,
        subagent_id: str | None = None,
        parent_id: str | None = None,
        depth: int = 0,
        silent: bool = False,
        metadata: Mapping[str, Any] | None = None,
        attachments: Sequence[Mapping[str, Any]] = (),
        id: str | None = None,
    ) -> Result[Message]:
        """Add a message at the end of the history. No agent is called for it.

        An `id` must not be the id of another message. Raises ValueError and TypeError for an invalid message, TooLarge,
        and Terminated.
        """
        self._check_may_add()
        draft = self._use_draft()
        message = self._writer.make(
            role,
            content,
            id=id,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            subagent_id=subagent_id,
            parent_id=parent_id,
            depth=depth,
            silent=silent,
            metadata={} if metadata is None else metadata,
            attachments=attachments,
            sender=find_user() if role == "user" else None,
        )
        if draft is not None:
            draft.add(message)
            return Result(message, STAGED)
        changes = self._writer.edit()
        return self._store(changes, changes.add(message))

    def update(
        self, id: str, content: str | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Begun[Message]:
        """Change the content of a message, or add to its metadata, and return it.

        Raises NotFound, Conflict for a message that is being written, and the errors of `inject`.
        """
        check_type("id", id, str)
        check_writable(self._actor)
        # The added message, as it will be read.
        metadata = {} if metadata is None else metadata
        added = check_message(Message(id=id, role="user", content=content, metadata=metadata))
        added = self._writer.hooks.update(self._actor.thread, added)
        edit = partial(edit_message, content=added.content, metadata=added.metadata)
        return self.change(id, edit)

    def change(self, id: str, edit: Callable[[Message], Message]) -> Begun[Message]:
        """Change a message, as `update` does, but without its hooks."""
        check_writable(self._actor)
        return begin_staged(self._actor, self._change(id, edit, self._use_draft()))

    async def _change(self, id: str, edit: Callable[[Message], Message], draft: MessagesDraft | None) -> Message:
        before, *_ = await self._reader.find_present(id)
        check_writable(self._actor)
        if before is None:
            raise NotFound(f"there is no message {id}")
        after = edit(before)
        if draft is not None:
            return draft.edit(before, edit)
        changes = self._writer.edit()
        change = changes.change_pending if before.status == "pending" else changes.change
        return await self._store(changes, change(after))

    def delete(self, id: str) -> Begun[bool]:
        """Remove a message, the results of its tool calls, and their attached files; return whether it existed.

        Attached files are the files below `attachments/` with the `path` of an attachment. A pending message is
        cancelled unless a run has taken it. Raises Conflict for one that is being written.
        """
        check_type("id", id, str)
        check_writable(self._actor)
        return begin_staged(self._actor, self._delete(id, self._use_draft()))

    async def _delete(self, id: str, draft: MessagesDraft | None) -> bool:
        while True:
            edits = self._writer.edits
            message, results, is_open, last = await self._reader.find_present(id)
            if message is None or (message.status == "pending" and message.position in self._writer.taken):
                return False
            attachments = await self._find_unshared(message, results)
            if edits == self._writer.edits:
                break
        check_writable(self._actor)
        if draft is not None:
            for each in (message, *results):
                draft.remove(each, last)
            unlink_attachments(self._actor, attachments)
            self._release(message, is_open=is_open)
            return True
        with Transaction(self._actor.state, self._actor.key):
            changes = self._writer.edit()
            for each in (message, *results):
                (changes.cancel if each.status == "pending" else partial(changes.remove, last=last))(each)
            written = self._store(changes, None)
            unlink_attachments(self._actor, attachments)
            self._release(message, is_open=is_open)
        await written
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
        """Write a message in pieces: `async with messages.stream() as m: m.append(text)`.

        The message is shown and durable while it grows. In a run, the message joins the history with the run, at the
        position that it gets now, after the messages that the run has taken.
        """
        self._check_may_add()
        draft = self._use_draft()
        message = self._writer.make(
            role,
            "",
            name=name,
            parent_id=parent_id,
            depth=depth,
            silent=silent,
            metadata={} if metadata is None else metadata,
            status="streaming",
            taken=[] if draft is None else draft.find_taken(),
        )
        return MessageStream(self._writer, message, draft)

    # Inside

    def _release(self, message: Message, *, is_open: bool) -> None:
        """Wake the run of a removed message, if it waits for answers to its calls, and end the calls' children."""
        tasks, run = find_role(self._actor.kind.cls, "tasks"), find_run(message)
        if is_open and tasks is not None and run is not None:
            tasks.of(self._actor).release(run)
            # In a run, the removal is staged, and this release would not be.
            if (family := find_role(self._actor.kind.cls, "family")) is not None and not self._is_run():
                family.of(self._actor).cancel_calls(run)
