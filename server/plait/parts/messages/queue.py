"""The queue of a thread: adds messages, and calls, hands over, stops and resumes the agent."""

from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Literal, TypeVar

from msgspec.structs import replace

from plait.actor.begun import Begun
from plait.actor.connection import Connection
from plait.actor.turn import find_client_turn, find_rights, find_user, latest_turn
from plait.errors import Forbidden, NotFound, TooMany
from plait.parts.encoding import check_type, encode_key
from plait.parts.messages.approvals import Approvals
from plait.parts.messages.caller import TaskCaller, make_caller
from plait.parts.messages.changes import Changes
from plait.parts.messages.message import Message, Role, measure_message, read_own
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.messages_draft import MessagesDraft
from plait.parts.messages.overview import describe_last, is_told
from plait.parts.messages.reading import MessageReader
from plait.parts.messages.state import make_sent_id
from plait.parts.part import check_writable
from plait.parts.stage import begin_staged, find_stage, use_draft
from plait.parts.written import STAGED, Result, Written
from plait.spelling import suggest
from plait.state.commit import Commit
from plait_schemas.conversation import PendingApproval

__all__ = ["MOST_QUEUED", "AgentStatus", "MessageQueue", "find_sender"]

T = TypeVar("T")

AgentStatus = Literal["idle", "running", "waiting", "stopped", "failed"]
"""The states of the agent of a queue."""

MOST_QUEUED: Final = 1000
"""The maximum number of queued messages of a thread."""

# The maximum bytes of all queued messages, as a multiple of the maximum bytes of a record.
_MOST_RECORDS: Final = 8


class MessageQueue:
    """The queue of one thread, and the agent that is called for it; ThreadMessages derives from it."""

    def __init__(self, writer: MessageWriter) -> None:
        self._actor = writer.actor
        self._writer = writer
        self._reader = MessageReader(writer)
        # The object that calls the agent for the queue; None without an agent.
        self.caller = make_caller(writer, self._reader.find_open_calls_now)
        self.waiting = Approvals(writer, self._reader.find_calls)

    @property
    def is_live(self) -> bool:
        """Whether clients may see the messages."""
        return self._writer.is_live

    @property
    def is_stopped(self) -> bool:
        """Whether the thread's durable agent is stopped."""
        staged = self._writer.find_staged()
        return self._writer.state.head.is_stopped if staged is None else staged.is_stopped

    @property
    def senders(self) -> set[str]:
        """The ids of the principals that have sent the queued messages."""
        return self._writer.state.senders

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers: that of the class, or the one to which the thread was handed over."""
        found = self._writer.state.head.agent
        return found if found in self._actor.kind.agent_names else self._writer.agent

    # What the card shows

    @property
    def status(self) -> AgentStatus:
        """The state of the agent of the queue; it is `waiting` while people must approve a call."""
        head, found = self._writer.state.head, "idle" if self.caller is None else self.caller.status
        if found in ("running", "waiting"):
            return found
        if self.caller is not None and (head.is_stopped or self._actor.terminated_at is not None):
            return "stopped"
        if found == "queued":
            return "running"
        return "failed" if head.newest is not None and head.newest.status == "failed" else "idle"

    @property
    def last(self) -> dict[str, str] | None:
        """The last message that people see, with its `id`, `role`, `status` and first 200 characters as `text`.

        A message that is being written is not the last one until it is complete. Known in classes with a `card`.
        """
        state = self._writer.state
        queued = (
            next((each for each in reversed(state.queue) if is_told(each)), None) if self._writer.has_card else None
        )
        found = state.head.newest if queued is None else describe_last(queued)
        return None if found is None else {name: getattr(found, name) for name in ("id", "role", "status", "text")}

    @property
    def told(self) -> int:
        """The number of messages that people were ever told; a message counts once, when it is complete.

        Counted in classes with a `card`.
        """
        return self._writer.state.head.told

    @property
    def facts(self) -> object:
        """Everything that a card may show of the messages."""
        return self.last, self.told, self.status

    def mark_read(self, user: str | None = None) -> Written:
        """Note that a user has read all messages; by default, the user of the calling code.

        This does not count as a change of the thread. Raises Forbidden without a user.
        """
        check_type("user", user, str, NoneType)
        if (reader := user or find_user()) is None:
            raise Forbidden("only a user has read messages, and the calling code has none")
        return self._written(self._writer.mark_read(reader))

    # The queue

    async def pending(self) -> list[Message]:
        """Return the queued messages, in order; in a run, those that the run has not taken."""
        await self._actor.state.wait_for_shown()
        return self._reader.find_untaken() if self._is_run() else [*self._writer.state.queue]

    def queue(
        self,
        content: str,
        role: Role = "user",
        key: str | None = None,
        *,
        name: str | None = None,
        subagent_id: str | None = None,
        silent: bool = False,
        metadata: Mapping[str, Any] | None = None,
        attachments: Sequence[Mapping[str, Any]] = (),
        sender: str | Connection | None = None,
        id: str | None = None,
    ) -> Result[Message]:
        """Add a message to the queue, from which the agent takes it: at once, or when the current run has ended.

        If the sender has used the `key` among the last 10,000 keys, nothing is added, and the result has the id of the
        first message. The sender is the client of the calling code, or of the connection `sender`; a text names another
        sender for keys. An `id` is the message's own id and, for all senders, its key. Raises TooMany if 1,000 messages
        are queued, and the errors of `inject`.
        """
        check_type("content", content, str)
        if role == "tool":
            raise ValueError("the result of a tool cannot be queued: use `inject`")
        check_type("sender", sender, str, Connection, NoneType)
        found, user = find_sender(sender if isinstance(sender, Connection) else None)
        if id is not None:
            encode_key(id)
        elif key is not None:
            id = make_sent_id((isinstance(sender, str) and sender) or found, encode_key(key))
        is_known = id is not None and self._writer.state.keys.has(id)
        check_writable(self._actor)
        if not is_known:
            self._actor.check_active()
        draft = self._use_draft()
        message = self._writer.make(
            role,
            content,
            id=id,
            name=name,
            subagent_id=subagent_id,
            silent=silent,
            metadata={} if metadata is None else metadata,
            attachments=attachments,
            sender=user,
            status="pending",
            is_new=not is_known,
        )
        if is_known:
            queued = (each for each in self._writer.state.queue if each.id == id)
            return Result(next(queued, message), self._written(None))
        if draft is not None:
            if id is None or not draft.changes.has_sent(id):
                self.check_room(message, draft.changes)
                draft.queue(message, is_keyed=id is not None)
            return Result(message, STAGED)
        return self._add(message, is_keyed=id is not None)

    def find_sent(self, sender: Connection, key: str) -> str | None:
        """Return the id of the message that a client has queued with a key; None if it is not known.

        The message may not be durable yet. Raises Destroyed, Unavailable and StoreError.
        """
        self._actor.state.check_open()
        id = make_sent_id(find_sender(sender)[0], key)
        return id if self._writer.state.keys.has(id) else None

    def take(self, limit: int | None = None) -> Result[list[Message]]:
        """Move queued messages, the first `limit` or all, to the end of the history, in order, and return them.

        If the run raises, they are queued again. Messages that a run has taken cannot be cancelled. After a failed
        attempt of the agent, each message that the attempt may have taken is attempted alone.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit must be a whole number of at least 1, or None, not {limit!r}")
        check_writable(self._actor)
        draft = self._use_draft()
        if draft is not None:
            return Result(draft.take(limit), STAGED)
        untaken = [each for each in self._reader.find_untaken() if each.status == "pending"][:limit]
        if not untaken:
            return Result([], self._written(None))
        moves = [(each, self._writer.numbers.next_position()) for each in untaken]
        changes = self._writer.edit()
        return self._store(changes, changes.take(moves))

    def hand_over(self, agent: str) -> Result[None]:
        """Hand the thread over to another agent of the execution. Raises NotFound."""
        check_type("agent", agent, str)
        if agent not in (names := self._actor.kind.agent_names):
            raise NotFound(f"there is no agent named {agent!r}{suggest(agent, names)}")
        self._check_may_add()
        if (draft := self._use_draft()) is not None:
            draft.set("agent", agent)
            return Result(None, STAGED)
        changes = self._writer.edit()
        changes.agent = agent
        return self._store(changes, None)

    def stop(self) -> Begun[bool]:
        """Cancel the runs of durable agents, and begin none until `resume`, or until a `user` message is queued.

        Calls of tools without results get results that say so, and streaming messages become failed. Queued messages
        stay. In a run, nothing is cancelled: the run ends after its step. Returns whether there was a run.
        """
        check_writable(self._actor)
        return begin_staged(self._actor, self._stop(self._use_draft()))

    async def _stop(self, draft: MessagesDraft | None) -> bool:
        caller = self._find_caller()
        if draft is not None:
            draft.set("is_stopped", True)
            return True
        stopped = caller.stop(await self._reader.find_open_calls_now())
        await stopped.commit
        return stopped.has_run

    def resume(self) -> Result[bool]:
        """Resume the durable agent after a stop; return whether it was stopped. Raises Terminated."""
        self._check_may_add()
        caller = self._find_caller()
        if (draft := self._use_draft()) is not None:
            was_stopped = draft.changes.is_stopped
            draft.set("is_stopped", False)
            return Result(was_stopped, STAGED)
        was_stopped, commit = caller.resume()
        return Result(was_stopped, self._written(commit))

    async def approvals(self) -> list[PendingApproval]:
        """Return the calls of tools that wait for a person, and whether the calling client may answer them."""
        await self._actor.state.wait_for_shown()
        may = (rights := find_rights()) is None or rights.may_approve
        return [replace(each, may_approve=may) for each in await self.waiting.list()]

    def approve(self, call: str, approved: bool, note: str = "") -> Begun[bool]:
        """Approve a call of a tool by its id, or refuse it, with a note for the model; return whether it has waited.

        The first answer counts. Raises NotFound if there is no such call among the newest 1,000 messages.
        """
        check_type("call", call, str)
        check_type("approved", approved, bool)
        check_type("note", note, str)
        check_writable(self._actor)
        return begin_staged(self._actor, self.waiting.answer(call, approved, note))

    def cancel_calls(self, calls: Collection[str]) -> None:
        """Remove the queued messages that are these calls of the parent, in the open transaction."""
        changes = self._writer.edit()
        for each in self._writer.state.queue:
            if read_own(each).get("call") in calls:
                changes.cancel(each)
        self._writer.store(changes)

    # Inside

    def preview(self, content: str) -> str | None:
        """Return the content that a user's message would get from its hook. Raises the hook's error."""
        return self._writer.make("user", content, status="pending").content

    def check_room(self, message: Message, staged: Changes | None = None) -> None:
        """Raise TooMany if a message may not be added to the queue and to the messages that a run has `staged` for it.

        Messages that the run has taken count until that is stored, because they are queued again if the write fails.
        """
        state, most = self._writer.state, _MOST_RECORDS * self._actor.limits.record
        added = {} if staged is None else staged.records.added
        size = state.head.queued_bytes + sum(added.values()) + measure_message(message)
        if len(state.queue) + len(added) >= MOST_QUEUED or size > most:
            many = f"{MOST_QUEUED:,} messages, or {most:,} bytes of them, may be queued in a thread; try again later"
            raise TooMany(many, retry_after=1.0)

    def _add(self, message: Message, *, is_keyed: bool) -> Result[Message]:
        """Queue a message, and call the agent for it if it is not busy. Raises TooMany."""
        self.check_room(message)
        changes, caller = self._writer.edit(), self.caller
        if is_keyed:
            changes.remember(message.id)
        stored = changes.queue_message(message)
        has_begun = caller is not None and caller.begin_with(changes)
        commit = self._writer.store(changes)
        if caller is not None and has_begun:
            caller.follow(commit)
        return Result(stored, self._written(commit))

    def _find_caller(self) -> TaskCaller:
        if not isinstance(self.caller, TaskCaller):
            raise NotFound("only a durable agent can be stopped, and these messages have none: interrupt its run")
        return self.caller

    def _is_run(self) -> bool:
        """Whether the calling code is a part of a run, and is not in a transaction."""
        return find_stage(self._actor) is not None and self._actor.state.find_own_transaction() is None

    def _use_draft(self) -> MessagesDraft | None:
        """Return the draft of the run; None outside of runs and in a transaction. Raises Interrupted."""
        if self._actor.state.find_own_transaction() is not None:
            return None
        return use_draft(self._actor, self._writer, MessagesDraft, lambda stage: MessagesDraft(self._writer, stage))

    def _check_may_add(self) -> None:
        """Raise the errors of `check_writable`, and Terminated."""
        check_writable(self._actor)
        self._actor.check_active()

    def _store(self, changes: Changes, result: T) -> Result[T]:
        return Result(result, self._written(self._writer.store(changes)))

    def _written(self, commit: Commit | None) -> Written:
        """Return an awaitable write; without a commit, it stands for all writes so far."""
        return Written(commit or self._actor.records.write([]), self._actor.state.find_own_transaction())


def find_sender(connection: Connection | None = None) -> tuple[str, str | None]:
    """Return the sender, of a connection or of the calling code: its name for keys, and the id of its principal."""
    if connection is not None:
        user = connection.user
    else:
        user, turn = find_user(), latest_turn()
        if find_client_turn() is None and (turn is None or turn.request is None):
            return "server", user
    # Another connection, and another request, may be a retry of the same client.
    return "anonymous" if user is None else f"principal {user}", user
