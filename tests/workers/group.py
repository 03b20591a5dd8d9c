"""`plait serve --workers` in processes of its own: which they are, what they have logged, and how to hurt them."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
from tests.integration.socket_client import TIMEOUT
from tests.running import Process

__all__ = ["Group"]

_LOOK_EVERY: Final = 0.05


class Group(Process):
    """A parent and its workers."""

    def __init__(
        self,
        target: str,
        *,
        cwd: Path,
        count: int = 2,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(target, cwd=cwd, environment=environment, options=("--workers", str(count), *options))
        self.count = count
        # The processes of the workers, so that none survives the test.
        self._seen: set[psutil.Process] = set()

    def start(self) -> None:
        """Start it, and wait until all workers listen."""
        super().start()
        self.processes()

    def __exit__(self, *exception: object) -> None:
        if self.is_running:
            self.processes()
        super().__exit__(*exception)
        for each in self._seen:
            if each.is_running():
                each.kill()

    def processes(self) -> dict[int, psutil.Process]:
        """Return the processes that run, by the number of their worker: of a worker that is replaced, the newest."""
        found: dict[int, psutil.Process] = {}
        for each in sorted(psutil.Process(self.pid).children(), key=lambda each: each.create_time()):
            try:
                if each.status() != psutil.STATUS_ZOMBIE and "plait.cli.worker" in each.cmdline():
                    found[json.loads(each.environ()["PLAIT_WORKER"])["number"]] = each
                    self._seen.add(each)
            except psutil.NoSuchProcess:
                pass
        return found

    def hurt(self, worker: int, by: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a worker, and return the id of its process."""
        pid = self.processes()[worker].pid
        os.kill(pid, by)
        return pid

    def folder(self) -> Path:
        """Return the folder of the sockets that link the workers."""
        return Path(json.loads(self.processes()[0].environ()["PLAIT_WORKER"])["folder"])

    def starts(self, worker: int) -> int:
        """Return how often a worker has started to the end."""
        return self.count_lines(rf"worker {worker} uvicorn.error: Application startup complete")

    def count_lines(self, pattern: str) -> int:
        """Return how many lines of the log have a pattern."""
        return len(re.findall(pattern, self.log.read_text()))

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so in the log, or among the processes."""
        deadline = time.monotonic() + TIMEOUT
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(self.log.read_text())
            time.sleep(_LOOK_EVERY)

    def until_gone(self, pid: int) -> None:
        """Wait until a process has ended, which may be a child of another one."""
        self.until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
