"""Many clients that push, each to a thread of its own."""

from collections.abc import Iterator

import psutil

from benchmarks.clients import Client, Clients
from benchmarks.loads import WARM_UP, Job
from benchmarks.native import Pusher
from benchmarks.results import Clock, Result

__all__ = ["push"]


def push(clients: Clients, job: Job, server: list[psutil.Process], names: Iterator[str]) -> Result:
    """Clients of one thread each push with `job.window` pushes in flight; counts acks."""
    everyone = clients.join(f"/agents/bench-agent/{next(names)}" for _ in range(job.sockets))
    pushers = {client: Pusher(clients, client) for client in everyone}
    half, count = job.window // 2, 0
    due = dict.fromkeys(everyone, half)

    def touched(client: Client) -> None:
        nonlocal count
        while pushers[client].answers >= due[client]:
            due[client] += half
            count += half
            pushers[client].send(half)

    for pusher in pushers.values():
        pusher.send(job.window)
    clock = Clock(server)
    clients.run(lambda: clock.seconds >= WARM_UP, touched=touched)
    count, clock = 0, Clock(server)
    clients.run(lambda: clock.seconds >= job.seconds, touched=touched)
    return clock.result(count)
