"""The tasks of a thread in a client: beginning runs, showing them, and sending them events."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from plait_client.live import Live
from plait_client.room_part import RoomPart
from plait_client.task_runs import TaskRuns
from plait_schemas.task_run import TaskRun

__all__ = ["RoomTasks"]


class RoomTasks(RoomPart[TaskRun]):
    """The runs of a thread's tasks: those that have not ended, and the last ones that have. `Room.tasks` returns it.

    The methods raise what `Room.call` raises; after Disconnected, a request may be repeated.
    """

    def __init__(self, live: Live, part: str, call: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(live, live.session.conversations.find(part, TaskRuns))
        # The `call` of the room.
        self._call = call

    def of(self, part: str) -> "RoomTasks":
        """Return the tasks that the thread's class declares by another name."""
        return RoomTasks(self._live, part, self._call)

    async def run(self, name: str, /, *args: Any, key: str | None = None) -> str:
        """Begin a run of a task, and return its id when it is durable.

        If a run of this task with the `key` has not ended, its id is returned instead.
        """
        given = {} if key is None else {"key": key}
        id: str = await self._call(f"task:{name}", *args, **given)
        return id

    async def get(self, id: str) -> TaskRun | None:
        """Return a run by its id, even if it is no longer shown; None if there is none."""
        return msgspec.convert(await self._call("tasks:get", id), TaskRun | None)

    async def send(self, id: str, event: str, data: Any = None) -> bool:
        """Send an event to a run; return False if the run has ended, or has got an event of this name before."""
        return bool(await self._call("tasks:send", id, event, data))

    async def approve(
        self, id: str, name: str, *, reason: str = "", metadata: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Give the approval `name` for which a run asks, as `send` does."""
        return await self._decide(id, name, reason, metadata, approved=True)

    async def reject(
        self, id: str, name: str, *, reason: str = "", metadata: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Refuse the approval `name` for which a run asks, as `send` does."""
        return await self._decide(id, name, reason, metadata, approved=False)

    async def cancel(self, id: str) -> bool:
        """Cancel a run; return False if it has ended."""
        return bool(await self._call("tasks:cancel", id))

    # Inside

    async def _decide(self, id: str, name: str, reason: str, metadata: Mapping[str, Any], *, approved: bool) -> bool:
        return await self.send(id, name, {"approved": approved, "reason": reason, "metadata": {**metadata}})
