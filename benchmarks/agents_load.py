"""Runs agents over HTTP: `python -m benchmarks.agents_load JOB` runs one load and prints its result, both as JSON."""

import itertools
import re
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterator

import msgspec

from benchmarks.clients import LoadError
from benchmarks.results import Clock, Result, tree

__all__ = ["RunJob", "RunResult"]

WARM_UP = 0.5
# Seconds without an answer after which the load is given up.
PATIENCE = 30.0
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ID = re.compile(rb"\r\nx-thread-id: *([^\r]+)", re.IGNORECASE)
BODY = b'{"by":1}'


class RunJob(msgspec.Struct, frozen=True):
    """The settings of one run of the load."""

    port: int
    pid: int
    agent: str
    threads: int
    connections: int
    seconds: float


class RunResult(Result, frozen=True):
    """Runs in some seconds, with the median and the 99th percentile of their milliseconds."""

    p50: float = 0.0
    p99: float = 0.0
    # Runs that are missing in the number of their thread; None if the agent does not count.
    lost: int | None = None


class Caller:
    """One connection with one request at a time."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.began = time.perf_counter()
        self.sock.sendall(request)

    def receive(self) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer. Raises LoadError unless it is a 200."""
        data = self.sock.recv(1 << 16)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head, body = data[:end], data[end + 4 :]
        match = LENGTH.search(head)
        if head[9:12] != b"200" or match is None:
            raise LoadError(f"not the answer of an agent: {data[:300]!r}")
        while len(body) < int(match[1]):
            body += self._more()
        return head, body

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.receive()

    def _more(self) -> bytes:
        data = self.sock.recv(1 << 16)
        if not data:
            raise LoadError("the server closed the connection")
        return data


class Load:
    """Connections that run an agent in many threads in turn, each again as soon as it has its answer."""

    def __init__(self, job: RunJob) -> None:
        self._job = job
        self._callers = [Caller(job.port) for _ in range(job.connections)]
        first = self._callers[0]
        # A server without threads returns no id. This agent writes nothing, so it answers fast.
        ids = [ID.search(first.ask(self._request(None, "none"))[0]) for _ in range(job.threads)]
        self._requests = [self._request(None if id is None else id[1]) for id in ids]
        self._spent: list[float] = []

    def run(self) -> RunResult:
        """Warm up, then measure."""
        job, server = self._job, tree(self._job.pid)
        before = self._count()
        requests = itertools.cycle(self._requests)
        ran = self._drive(requests, WARM_UP)
        self._spent.clear()
        clock = Clock(server)
        self._drive(requests, job.seconds)
        result = clock.result(len(self._spent))
        ran += len(self._spent)
        cuts = statistics.quantiles(self._spent, n=100)
        lost = None if before is None else before + ran + 1 - int(self._count() or 0)
        fields = msgspec.structs.asdict(result)
        return RunResult(**fields, p50=cuts[49] * 1000, p99=cuts[98] * 1000, lost=lost)

    def close(self) -> None:
        """Close the connections."""
        for caller in self._callers:
            caller.sock.close()

    def _drive(self, requests: Iterator[bytes], seconds: float) -> int:
        """Run agents for some seconds, wait for all answers, and return their number."""
        spent, epoll = self._spent, select.epoll()
        by_fd = {caller.sock.fileno(): caller for caller in self._callers}
        for fd, caller in by_fd.items():
            epoll.register(fd, select.EPOLLIN)
            caller.send(next(requests))
        waiting, now = len(by_fd), time.perf_counter
        deadline = now() + seconds
        while waiting:
            if not (ready := epoll.poll(PATIENCE)):
                raise LoadError(f"no answer within {PATIENCE:g} s")
            for fd, _ in ready:
                caller = by_fd[fd]
                caller.receive()
                spent.append(now() - caller.began)
                if now() < deadline:
                    caller.send(next(requests))
                else:
                    waiting -= 1
        epoll.close()
        return len(spent)

    def _count(self) -> int | None:
        """Run a counting agent once more in its only thread, and return the count; None for other loads."""
        if self._job.agent != "add" or len(self._requests) > 1:
            return None
        return int(self._callers[0].ask(self._requests[0])[1])

    def _request(self, id: bytes | None, agent: str = "") -> bytes:
        known = b"" if id is None else b"x-thread-id: %b\r\n" % id
        head = b"POST /run/%b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n%bContent-Length: %d"
        return head % ((agent or self._job.agent).encode(), self._job.port, known, len(BODY)) + b"\r\n\r\n" + BODY


def main() -> None:
    """Run the job named on the command line."""
    load = Load(msgspec.json.decode(sys.argv[1], type=RunJob))
    try:
        print(msgspec.json.encode(load.run()).decode())
    finally:
        load.close()


if __name__ == "__main__":
    main()
