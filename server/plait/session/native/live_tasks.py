"""Shows the runs of a thread's tasks to clients of the native protocol: pages, and each change."""

from collections.abc import Callable, Sequence
from typing import Final

from plait.actor.connection import Rights
from plait.actor.transport import Frame
from plait.parts.tasks.client_methods import show_run
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.thread_tasks import ThreadTasks
from plait_schemas import messages
from plait_schemas.codec import encode_json
from plait_schemas.frames import encode
from plait_schemas.messages import Open
from plait_schemas.task_run import TaskRun as ShownRun

__all__ = ["LiveTasks", "read_newest"]

# Maximum runs of a page, and their maximum size; a single run may be larger.
_MOST_ON_PAGE: Final = 500
_MOST_BYTES: Final = 1 << 20


class LiveTasks:
    """The runs of one part of a thread. A revision is the number of changes reported since this object was made."""

    __slots__ = ("_part", "_revision", "_tasks")

    def __init__(self, part: str, tasks: ThreadTasks) -> None:
        self._part = part
        self._tasks = tasks
        self._revision = 0

    def may_open(self, rights: Rights) -> bool:
        """Whether a client with these rights may see the runs: always, as it may see the state."""
        return True

    def watch(self, tell: Callable[[int, Sequence[Frame]], None]) -> Callable[[], None]:
        """Call `tell` with each revision and its frame; return a function that stops this."""

        def hand_on(run: TaskRun) -> None:
            self._revision += 1
            shown = show_run(run, self._tasks.find(run.name))
            tell(self._revision, [Frame(encode(messages.Part(self._part, self._revision, "update", run=shown)))])

        return self._tasks.watch(hand_on)

    async def read(self, frame: Open, rights: Rights) -> bytes:
        """Return the page that an Open asks for, which is always the newest one. Raises StoreError."""
        # Later changes are sent after the page, even if the page contains them.
        revision = self._revision
        runs = await read_newest(self._tasks, frame.limit)
        return encode(messages.Page(frame.part, revision, reset=True, runs=runs))


async def read_newest(tasks: ThreadTasks, limit: int) -> list[ShownRun]:
    """Return the durable runs for clients, oldest first; if there are too many, runs that have not ended are preferred.

    Raises StoreError.
    """
    found, size = dict[str, ShownRun](), 0
    async for run in tasks.newest(min(max(limit, 1), _MOST_ON_PAGE)):
        shown = show_run(run, tasks.find(run.name))
        size += len(encode_json(shown))
        if len(found) >= _MOST_ON_PAGE or (found and size > _MOST_BYTES):
            break
        # A run that ends during the reading is found twice.
        found.setdefault(run.id, shown)
    return sorted(found.values(), key=lambda run: run.created_at)
