"""A run of a durable task, as clients see it."""

from typing import Any, Literal

import msgspec

__all__ = ["RunStatus", "TaskRun"]

RunStatus = Literal["waiting", "running", "sleeping", "done", "failed", "cancelled"]
"""Whether a run has not begun, is under way, waits for a time or an event, or is over."""


class TaskRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run of a task: `value` is its last status, and `created_at` is in microseconds.

    `result` is its return value, if clients may begin the task.
    """

    id: str
    name: str
    status: RunStatus
    value: Any = None
    result: Any = None
    created_at: int = 0
