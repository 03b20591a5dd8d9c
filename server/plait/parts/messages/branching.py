"""The branches of a conversation: questions in other words, and further answers, beside the earlier ones."""

from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.begun import Begun
from plait.actor.connection import Connection
from plait.actor.turn import find_rights, find_user
from plait.clock import read_due_clock
from plait.errors import Conflict, NotFound
from plait.parts.attachments import find_attached
from plait.parts.encoding import check_type
from plait.parts.messages.caller import AgentCaller, TaskCaller
from plait.parts.messages.changes import MOST_TOLD, Changes
from plait.parts.messages.message import Message, Outline, drop_own, encode_message
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.overview import is_told
from plait.parts.messages.reading import MessageReader
from plait.parts.messages.state import QueueAttempts
from plait.parts.messages.tree import END, Span, find_end, find_path, find_shared, is_within, list_branches
from plait.parts.part import check_writable
from plait.parts.stage import begin_staged, find_stage
from plait.state.transaction import Transaction

__all__ = ["Branching"]

T = TypeVar("T")

# The messages that are read at first where the one that people see is near.
_NEAR: Final = 4


def _is_seen(message: Message) -> bool:
    """Whether people see a message in the line of the conversation."""
    return not message.silent and not message.depth and message.status != "pending"


class _Branch(NamedTuple):
    """A new branch: the position that it follows, and what else is changed with it."""

    after: int
    change: Callable[[Changes], object]


class Branching:
    """Moves a conversation from one branch to another, for the messages of a thread: other branches are hidden."""

    _actor: Actor
    _writer: MessageWriter
    _reader: MessageReader
    caller: AgentCaller | None

    def check_room(self, message: Message, staged: Changes | None = None) -> None:
        """Raise TooMany if a message may not be queued."""
        raise NotImplementedError

    def shows(self, message: Message) -> bool:
        """Whether a message is on the branch that is shown."""
        return message.status == "pending" or is_within(self._writer.state.path, message.position)

    def regenerate(self, id: str | None = None) -> Begun[bool]:
        """Have the agent answer a question again, beside its other answers; without an id, the last question.

        `id` is a question or an answer. A run that is answering is stopped. If the message is hidden by now, others
        were faster: nothing is done, and the result is False. Raises NotFound, Conflict for a pending question, and
        Terminated.
        """
        check_type("id", id, str, NoneType)
        if self.caller is None:
            raise NotFound("these messages have no agent that could answer again")
        self._actor.check_active()
        return self._begin(self._regenerate(id))

    def edit(
        self,
        id: str,
        content: str,
        *,
        attachments: Sequence[Mapping[str, Any]] | None = None,
        metadata: Mapping[str, Any] | None = None,
        sender: Connection | None = None,
    ) -> Begun[Message]:
        """Ask a question in other words, beside it, and return the queued message.

        Without others, it has the same attachments and metadata. Raises NotFound, Conflict for a message that is no
        question or is pending, and the errors of `queue`.
        """
        check_type("id", id, str)
        check_type("content", content, str)
        self._actor.check_active()
        user = find_user() if sender is None else sender.user
        given = {"attachments": attachments, "metadata": metadata}
        fields = {name: value for name, value in given.items() if value is not None}
        return self._begin(self._edit(id, content, {**fields, "sender": user}))

    def switch(self, id: str) -> Begun[bool]:
        """Show the newest branch with a message; return whether the message was hidden.

        A run that is answering on the other branch is stopped. Raises NotFound.
        """
        check_type("id", id, str)
        return self._begin(self._switch(id))

    async def siblings(self, id: str) -> Sequence[Message]:
        """Return the messages that people see after the same message as this one, with it, oldest first.

        They are the versions of a question, or the answers to it. Raises NotFound.
        """
        await self._actor.state.wait_for_shown()
        found = await self._get(id)
        return (
            [found] if found.status == "pending" else await self._find_siblings(found, await self._find_parent(found))
        )

    async def forks(self, messages: Sequence[Message]) -> dict[str, Sequence[Message]]:
        """Return the siblings of those of some successive messages that have any, by their ids."""
        await self._actor.state.wait_for_shown()
        found, parents = dict[str, Sequence[Message]](), {each.parent for each in self._writer.state.cuts}
        before: int | None = None
        for message in filter(_is_seen, messages) if parents else ():
            parent = await self._find_parent(message, before)
            if parent in parents and len(siblings := await self._find_siblings(message, parent)) > 1:
                found[message.id] = siblings
            before = message.position
        return found

    async def check_own(self, id: str | None) -> None:
        """Raise Forbidden if the calling client may not change the branch at the question of a message.

        It may if it has sent the question, and may end the run that is answering. Raises NotFound.
        """
        question = await self._find_question(None if id is None else await self._get(id))
        if (rights := find_rights()) is None:
            return
        if question.sender is not None:
            rights.check_own(question.sender)
        if self.caller is not None:
            self.caller.check_end(rights)

    # Inside

    def _begin(self, work: Coroutine[Any, Any, T]) -> Begun[T]:
        """Begin to change the branch. Raises RuntimeError in a run of the thread, which would have to end first."""
        try:
            check_writable(self._actor)
            if find_stage(self._actor) is not None or (self.caller is not None and self.caller.is_calling):
                raise RuntimeError("a run cannot change the branch of its own thread: other code must, without waiting")
            return begin_staged(self._actor, work)
        except BaseException:
            work.close()
            raise

    async def _regenerate(self, id: str | None) -> bool:
        async def find() -> _Branch | None:
            found = None if id is None else await self._get(id)
            if found is not None and not self.shows(found):
                return None
            question = await self._find_question(found)
            self._check_asked(question)
            return _Branch(question.position, lambda changes: changes.ask_again(question, read_due_clock()))

        found = None if id is None else await self._get(id)
        if found is not None and not self.shows(found):
            return False
        if found is not None:
            self._check_asked(found, taken=self._writer.taken)
        return await self._move(find)

    async def _edit(self, id: str, content: str, fields: Mapping[str, Any]) -> Message:
        async def read(taken: Container[int] = ()) -> Message:
            found = await self._get(id)
            if found.role != "user" or found.depth or found.silent:
                raise Conflict(f"the message {id} is no question: only these can be edited")
            self._check_asked(found, taken=taken)
            return found

        async def find() -> _Branch:
            return _Branch((await read()).position - 1, ask)

        def ask(changes: Changes) -> None:
            self.check_room(message)
            # Positions after the beginning of a branch belong to it.
            queued.append(changes.queue_message(replace(message, position=self._writer.numbers.next_position())))

        # No run is ended for an edit that is refused.
        found, queued = await read(self._writer.taken), list[Message]()
        kept = {"name": found.name, "attachments": found.attachments, "metadata": drop_own(found.metadata)}
        message = self._writer.make("user", content, status="pending", **{**kept, **fields})
        encode_message(message, self._actor.limits.record)
        self.check_room(message)
        await self._move(find)
        return queued[-1]

    def _check_asked(self, question: Message, *, taken: Container[int] = ()) -> None:
        """Raise Conflict for a question that is queued, unless its position is in those that a run has `taken`."""
        if question.status == "pending" and question.position not in taken:
            raise Conflict(f"the question {question.id} is queued, and has no answer yet: update it")

    async def _switch(self, id: str) -> bool:
        async def find() -> _Branch | None:
            found = await self._get(id)
            if self.shows(found):
                return None
            return _Branch(find_end(self._writer.state.cuts, found.position), lambda _: None)

        return await find() is not None and await self._move(find)

    async def _move(self, find: Callable[[], Awaitable[_Branch | None]]) -> bool:
        """Begin a branch after the end of the running attempt; return whether one was found."""
        async with nullcontext() if self.caller is None else self.caller.hold():
            return await self._begin_branch(find)

    async def _begin_branch(self, find: Callable[[], Awaitable[_Branch | None]]) -> bool:
        """Begin a branch, in one write with the end of a durable agent's run; return whether one was found.

        `find` is called again if the messages were changed while they were read.
        """
        writer, caller = self._writer, self.caller
        while True:
            state, edits = writer.state, writer.edits
            if (branch := await find()) is None:
                return False
            path = find_path(state.cuts, branch.after)
            shared = find_shared(state.path, path)
            hidden: list[Outline | Message]
            shown: Sequence[Outline | Message]
            hidden = [each async for page in writer.history.outlines(state.path, after=shared) for each in page]
            shown = [each async for page in writer.history.outlines(path, after=shared) for each in page]
            if len(hidden) + len(shown) <= MOST_TOLD:
                shown = [
                    each async for page in writer.history.pages(reverse=False, after=shared, path=path) for each in page
                ]
            before = last = await self._find_seen(path, is_last=True)
            if before is not None and not is_told(before):
                last = await self._find_seen(path, is_last=True, is_wanted=is_told)
            is_busy = isinstance(caller, TaskCaller) and caller.is_busy
            calls = await self._reader.find_open_calls() if is_busy else ()
            if (edits, state.head.last) == (writer.edits, writer.state.head.last):
                break
        with Transaction(self._actor.state, self._actor.key):
            is_stopped = writer.state.head.is_stopped
            if isinstance(caller, TaskCaller) and caller.is_busy:
                hidden += caller.stop(calls).results
            changes = writer.edit()
            changes.cut(branch.after, before, last, hidden=hidden, shown=shown)
            changes.is_stopped = is_stopped
            changes.attempts = QueueAttempts(due=read_due_clock(), until=changes.attempts.until)
            branch.change(changes)
            commit = writer.store(changes)
        await commit
        return True

    async def _get(self, id: str) -> Message:
        if (found := await self._reader.find(id)) is None:
            raise NotFound(f"there is no message {id}")
        return found

    async def _find_question(self, found: Message | None) -> Message:
        """Return the question that a message is or answers; without one, the last question."""
        if found is not None and found.status == "pending":
            return found
        path = find_path(self._writer.state.cuts, END if found is None else found.position)
        question = await self._find_seen(
            path, is_last=True, is_wanted=lambda each: each.role == "user" and _is_seen(each)
        )
        if question is None:
            raise NotFound("there is no question that could be answered again")
        return question

    # Siblings

    async def _find_parent(self, message: Message, before: int | None = None) -> int:
        """Return the position of the message that people see before one on its branch, even if it was deleted.

        It is 0 if there is none; `before` is the position of the nearest one that is there, if it is known.
        """
        cuts, end = self._writer.state.cuts, message.position - 1
        path = find_path(cuts, end)
        if before is None:
            found = await self._find_seen(path, is_last=True)
            before = 0 if found is None else found.position
        return max([before, *(each.parent for each in cuts if before < each.parent and is_within(path, each.parent))])

    async def _find_siblings(self, message: Message, parent: int) -> Sequence[Message]:
        """Return the messages of a role that directly follow a parent, each on a branch."""
        branches = list_branches(self._writer.state.cuts)
        spans = [span for cut, span in branches if cut is not None and cut.parent == parent]
        spans.append(Span(parent, next(span.high for _, span in branches if span.low <= parent)))
        found = [await self._find_seen([span], is_last=False) for span in spans]
        siblings = {each.position: each for each in (*found, message) if each is not None and each.role == message.role}
        return [siblings[position] for position in sorted(siblings)]

    async def _find_unshared(self, message: Message, results: Sequence[Message]) -> list[Mapping[str, Any]]:
        """Return the attachments of a message and its results whose files no sibling or queued message names."""
        attachments, cuts = [file for each in (message, *results) for file in each.attachments], self._writer.state.cuts
        if not (attachments and cuts):
            return attachments
        # An edit that is queued has no place beside its question yet.
        parents = {each.parent for each in cuts} if message.status == "pending" else {await self._find_parent(message)}
        siblings = [each for parent in parents for each in await self._find_siblings(message, parent)]
        others = [each for each in (*siblings, *self._writer.state.queue) if each.id != message.id]
        kept = {path for each in others for path in find_attached(each.attachments)}
        return [each for each in attachments if kept.isdisjoint(find_attached([each]))]

    async def _find_seen(
        self, path: Sequence[Span], *, is_last: bool, is_wanted: Callable[[Message], bool] = _is_seen
    ) -> Message | None:
        """Return the last or the first message of a path that people see."""
        async for page in self._writer.history.pages(reverse=is_last, path=path, count=_NEAR):
            for each in filter(is_wanted, page):
                return each
        return None
