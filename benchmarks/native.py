"""The loads of the native protocol: pushes of operations, on versions that the client really has."""

import re

import msgspec
import psutil

from benchmarks.clients import Client, Clients, LoadError
from benchmarks.loads import LOADS, Job, Load, pump
from benchmarks.results import Result
from benchmarks.wire import text

__all__ = ["NATIVE_LOADS", "Pusher", "place"]

PLACE = re.compile(rb'"epoch":"([^"]+)","version":(\d+)')
UNANSWERED = 64


def place(welcome: bytes) -> tuple[str, int]:
    """Return the epoch and version in a `joined` frame."""
    match = PLACE.search(welcome)
    if match is None:
        raise LoadError(f"no epoch and version in {welcome!r}")
    return match[1].decode(), int(match[2])


class Pusher:
    """A client that pushes operations, one number at a time, and receives only answers."""

    def __init__(self, clients: Clients, client: Client) -> None:
        self._clients = clients
        self._client = client
        self._epoch, self._version = place(client.welcome)
        self._before = client.texts
        self._ref = 0

    @property
    def answers(self) -> int:
        """Pushes that were answered."""
        return self._client.texts - self._before

    def send(self, count: int) -> None:
        """Push `count` times."""
        base = self._version + self.answers
        frames = [self._push(ref, base) for ref in range(self._ref + 1, self._ref + count + 1)]
        self._ref += count
        self._clients.send(self._client, b"".join(frames))

    def _push(self, ref: int, base: int) -> bytes:
        return text(
            b'{"type":"push","ref":%d,"base":["%b",%d],"ops":[{"op":"replace","path":"/n","value":%d}]}'
            % (ref, self._epoch.encode(), base, ref)
        )


def burst(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """One socket pushes as fast as the protocol allows, and a second one receives the changes; counts acks."""
    source, sink = clients.join([job.path()] * 2)
    pusher, before = Pusher(clients, source), sink.texts
    job = msgspec.structs.replace(job, window=UNANSWERED)
    return pump(clients, server, job, send=pusher.send, done=lambda: min(pusher.answers, sink.texts - before))


def fan_out(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """One socket pushes operations that many receive; counts deliveries."""
    source, *sinks = clients.join([job.path()] * (job.sockets + 1))
    pusher, before = Pusher(clients, source), clients.texts
    clients.pause = job.pause
    everyone = job.sockets + 1  # The source gets an ack.
    result = pump(clients, server, job, send=pusher.send, done=lambda: (clients.texts - before) // everyone)
    return msgspec.structs.replace(result, count=result.count * len(sinks))


NATIVE_LOADS: dict[str, Load] = {"burst": burst, "fan-out": fan_out, "touch": LOADS["touch"]}
