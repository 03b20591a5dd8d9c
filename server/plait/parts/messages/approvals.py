"""The calls of tools in a thread's messages that wait until a person approves them."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from plait.errors import NotFound
from plait.parts.messages.message import APPROVAL, Message, read_call
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.part import find_role
from plait_schemas.conversation import PendingApproval

__all__ = ["Approvals"]

FindCalls = Callable[[Collection[str]], Awaitable[Sequence[tuple[Message, Mapping[str, Any]]]]]
"""Returns the calls with some ids that are in the newest messages, each after its message, in order."""

# In the class, `list` is a method.
_Approvals = list[PendingApproval]


class Approvals:
    """Finds the calls for which runs wait, and answers them."""

    __slots__ = ("_find_calls", "_writer")

    def __init__(self, writer: MessageWriter, find_calls: FindCalls) -> None:
        self._writer = writer
        self._find_calls = find_calls

    async def list(self, *, is_silent: bool = True) -> _Approvals:
        """Return the calls that wait, in the order of the conversation; those in silent messages only if wanted.

        Raises StoreError.
        """
        while True:
            runs = self._find_runs()
            found = await self._find(runs, is_silent=is_silent)
            if runs == self._find_runs():
                return found

    async def answer(self, call: str, approved: bool, note: str) -> bool:
        """Approve a call, or refuse it; return whether it has waited until then. Raises NotFound for no call."""
        if (run := self._find_runs().get(call)) is not None:
            is_taken: bool = await self._tasks.send(run, APPROVAL + call, {"approved": approved, "reason": note})
            return is_taken
        if not await self._find({call: ""}, is_silent=True):
            raise NotFound(f"there is no call {call[:80]!r} of a tool")
        return False

    def watch(self, tell: Callable[[Sequence[PendingApproval]], None]) -> Callable[[], None]:
        """Call a function with the calls that wait whenever they change, when that is durable.

        Those in silent messages are left out. Returns a function that ends this.
        """
        actor, tasks = self._writer.actor, self._tasks
        if tasks is None:
            return lambda: None
        known = {run: [each for each, of in self._find_runs().items() if of == run] for run in tasks.awaited}

        def look(run: Any) -> None:
            calls = _read_calls(tasks.find_awaited(run.id))
            if calls != known.get(run.id, []):
                known[run.id] = calls
                actor.begin("approvals", lambda: self.list(is_silent=False), told, is_used=False)

        def told(found: Any, error: BaseException | None) -> None:
            if error is None:
                tell(found)

        stop: Callable[[], None] = tasks.follow(look)
        return stop

    # Inside

    @property
    def _tasks(self) -> Any:
        actor = self._writer.actor
        part = find_role(actor.kind.cls, "tasks")
        return None if part is None else part.of(actor)

    def _find_runs(self) -> dict[str, str]:
        """Return the runs that wait, by the ids of the calls for which they wait."""
        awaited: Mapping[str, Sequence[str]] = {} if self._tasks is None else self._tasks.awaited
        return {call: run for run, events in awaited.items() for call in _read_calls(events)}

    async def _find(self, runs: Mapping[str, str], *, is_silent: bool) -> _Approvals:
        found = [(each, *read_call(call)) for each, call in await self._find_calls(runs)]
        shown = [each for each in found if is_silent or not each[0].silent]
        return [PendingApproval(id, tool, args, each.id, run=runs[id]) for each, id, tool, args in shown]


def _read_calls(events: Sequence[str]) -> list[str]:
    return [each.removeprefix(APPROVAL) for each in events if each.startswith(APPROVAL)]
