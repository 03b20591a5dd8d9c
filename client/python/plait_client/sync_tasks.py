"""The tasks of a thread without asyncio."""

from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from plait_client.loop import LoopThread
from plait_client.room_tasks import RoomTasks
from plait_client.sync_part import SyncPart, Wait
from plait_schemas.task_run import TaskRun

__all__ = ["SyncTasks"]

R = TypeVar("R")


class SyncTasks(SyncPart[TaskRun]):
    """The runs of a thread's tasks; each method returns when it is done. `SyncRoom.tasks` returns it."""

    def __init__(self, tasks: RoomTasks, loop: LoopThread, wait: Wait) -> None:
        super().__init__(tasks, loop, wait)
        self._tasks = tasks

    def of(self, part: str) -> "SyncTasks":
        """Return the tasks that the thread's class declares by another name."""
        return SyncTasks(self._loop.do(lambda: self._tasks.of(part)), self._loop, self._wait)

    def run(self, name: str, /, *args: Any, key: str | None = None) -> str:
        """See RoomTasks."""
        return self._ask(self._tasks.run(name, *args, key=key))

    def get(self, id: str) -> TaskRun | None:
        """See RoomTasks."""
        return self._ask(self._tasks.get(id))

    def send(self, id: str, event: str, data: Any = None) -> bool:
        """See RoomTasks."""
        return self._ask(self._tasks.send(id, event, data))

    def approve(
        self, id: str, name: str, *, reason: str = "", metadata: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """See RoomTasks."""
        return self._ask(self._tasks.approve(id, name, reason=reason, metadata=metadata))

    def reject(
        self, id: str, name: str, *, reason: str = "", metadata: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """See RoomTasks."""
        return self._ask(self._tasks.reject(id, name, reason=reason, metadata=metadata))

    def cancel(self, id: str) -> bool:
        """See RoomTasks."""
        return self._ask(self._tasks.cancel(id))

    def _ask(self, answer: Awaitable[R]) -> R:
        found: R = self._wait(lambda: answer, "no answer about the task")
        return found
