"""What one load measured, and the clock that measures it."""

import sys
import time
from collections.abc import Callable, Iterable

import msgspec
import psutil

__all__ = ["Clock", "Result", "cpu_seconds", "resident", "tree", "wait_for_quiet"]


class Result(msgspec.Struct, frozen=True):
    """The number of operations in some seconds, and the processor time that both sides spent on them."""

    count: int
    seconds: float
    generator_cpu: float
    server_cpu: float
    # The processor time of all other processes on the machine.
    other_cpu: float
    # The bytes that the sockets received for these operations, if they were counted.
    bytes: int = 0

    def plus(self, other: "Result") -> "Result":
        """The sum of two runs."""
        return Result(
            count=self.count + other.count,
            seconds=self.seconds + other.seconds,
            generator_cpu=self.generator_cpu + other.generator_cpu,
            server_cpu=self.server_cpu + other.server_cpu,
            other_cpu=self.other_cpu + other.other_cpu,
            bytes=self.bytes + other.bytes,
        )

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.count / self.seconds

    @property
    def cost(self) -> float:
        """The server's processor microseconds per operation."""
        return self.server_cpu / self.count * 1e6

    @property
    def is_generator_busier(self) -> bool:
        """Whether the load generator limits the rate, and not the server."""
        return self.generator_cpu > self.server_cpu

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used processor time that the measured ones may have needed."""
        return self.other_cpu > self.seconds / 10


def tree(pid: int) -> list[psutil.Process]:
    """A process and everything it started."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """The processor time that processes have used so far."""
    return sum(map(_cpu_seconds, processes))


def _cpu_seconds(process: psutil.Process) -> float:
    if sys.platform == "linux":
        # The clock that clock_getcpuclockid(3) names: exact, while /proc counts hundredths of a second.
        return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return float(times.user + times.system)


def machine_seconds() -> float:
    """The processor time that all processes of the machine have used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def wait_for_quiet(limit: float) -> None:
    """Return when the machine has been almost idle for half a second, or after the limit."""
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        before = machine_seconds()
        time.sleep(0.5)
        if machine_seconds() - before < 0.05:
            return


def resident(processes: Iterable[psutil.Process]) -> int:
    """The resident memory of processes, in bytes."""
    return sum(process.memory_info().rss for process in processes)


class Clock:
    """Starts when it is made. `spun` returns the seconds in which the generator was spinning while it waited."""

    def __init__(self, server: list[psutil.Process], spun: Callable[[], float] = float) -> None:
        self._server = server
        self._spun = spun
        self._start = time.perf_counter()
        self._before = self._readings()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self._start

    def result(self, count: int) -> Result:
        """Stop, and return the result for `count` operations."""
        seconds = self.seconds
        own, server, machine, spun = (b - a for a, b in zip(self._before, self._readings(), strict=True))
        return Result(
            count=count,
            seconds=seconds,
            generator_cpu=max(own - spun, 0.0),
            server_cpu=server,
            other_cpu=max(machine - own - server, 0.0),
        )

    def _readings(self) -> tuple[float, float, float, float]:
        return time.process_time(), cpu_seconds(self._server), machine_seconds(), self._spun()
