"""One pass of a run in memory: the objects with which its steps work, and the history of its thread."""

from collections.abc import Sequence
from typing import Any, Final

from plait.agents.context import Context
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.registry import Execution
from plait.agents.execution.state import ExecutionState
from plait.parts.messages.message import Message, find_run
from plait.parts.messages.model_history import is_decisive
from plait.parts.messages.thread_messages import ThreadMessages

__all__ = ["RunHistory", "RunPass", "cut_history", "read_after"]

# The messages that are read at once, and those read before the shown ones, which may have the calls of shown results.
_PAGE: Final = 200
_BEFORE: Final = 100


class RunHistory:
    """The newest messages of a thread, at least `count` of them, and all since a run was begun.

    The messages are read once, and again only after a change of messages other than the newest.
    """

    def __init__(self, messages: ThreadMessages, begun_at: int, count: int) -> None:
        self.messages = messages
        self._begun_at = begun_at
        self._count = max(_PAGE, count) + _BEFORE
        self._found: list[Message] = []
        # The mark of the messages when the history was read.
        self._mark: object = None

    async def read(self) -> Sequence[Message]:
        """Return the messages, oldest first."""
        mark = self.messages.mark
        if mark is None or mark != self._mark or not self._found:
            self._found = await self._read_all()
        else:
            self._found = [*self._found, *await read_after(self.messages, self._found[-1].position)]
        self._mark = mark
        return self._found

    async def has(self, message: Message) -> bool:
        """Whether a message that was read, or came later, is still there."""
        mark = self.messages.mark
        return (mark is not None and mark == self._mark) or await self.messages.get(message.id) is not None

    async def _read_all(self) -> list[Message]:
        page = await self.messages.list(self._count)
        found = page.messages
        while page.has_more and found[0].created_at >= self._begun_at:
            page = await self.messages.list(_PAGE, before=found[0].position)
            found = [*page.messages, *found]
        return found


class RunPass:
    """The definitions, the thread and the steps of a run, and all that this pass has read and opened."""

    def __init__(self, execution: Execution, ctx: Context[Any]) -> None:
        self.execution = execution
        self.thread = ctx.thread
        self.step = step = ctx.step
        self.messages = execution.find_messages(ctx.thread)
        self.history = RunHistory(self.messages, step.begun_at, execution.most_history)
        self.state = ExecutionState(self.messages, step)
        self.servers = McpServers(ctx.thread)


async def read_after(messages: ThreadMessages, position: int, *, max_depth: int = 0) -> list[Message]:
    """Return all messages after a position, oldest first."""
    found = list[Message]()
    while True:
        page = await messages.list(_PAGE, after=position, order="asc", max_depth=max_depth)
        found += page.messages
        if not page.has_more:
            return found
        position = found[-1].position


def cut_history(history: Sequence[Message], run: str, count: int) -> Sequence[Message]:
    """Return the newest messages: `count`, or all from the question of a run on, and the calls of their results."""
    start = min(max(0, len(history) - count), _find_question(history, run))
    shown = history[start:]
    missing = {each.tool_call_id for each in shown if each.role == "tool"}
    missing.difference_update(call.get("id") for each in shown for call in each.tool_calls or ())
    for at in range(start - 1, -1, -1):
        if not missing:
            break
        if history[at].tool_calls and (found := missing.intersection(history[at].tool_call_ids)):
            missing -= found
            start = at
    return history[start:]


def _find_question(history: Sequence[Message], run: str) -> int:
    """Return the place of a run's question, the last message before its answers that is none; 0 without one."""
    question = None
    for at in range(len(history) - 1, -1, -1):
        message = history[at]
        found = find_run(message)
        if found is not None or is_decisive(message):
            if found == run:
                question = None
            elif question is not None:
                break
        elif question is None and message.role != "tool" and (message.content or not message.silent):
            question = at
    return question or 0
