"""The loads: each drives one server over sockets and returns how much it got done."""

import functools
import itertools
from collections.abc import Callable

import msgspec
import psutil

from benchmarks.clients import Client, Clients
from benchmarks.documents import call, push, revisions
from benchmarks.protocols import COLYSEUS, seats
from benchmarks.results import Clock, Result
from benchmarks.wire import text

__all__ = ["LOADS", "WARM_UP", "Job", "Load", "pump"]

WARM_UP = 0.3


class Job(msgspec.Struct, frozen=True):
    """The settings of one run of the generator."""

    load: str
    port: int
    # The server's first process; the processor time of all its children counts.
    pid: int
    # Unique to the run, so that every run has threads of its own.
    name: str
    seconds: float = 2.0
    # Their meaning depends on the load: sockets, pushes, frames in flight, bytes of state and so on.
    sockets: int = 1
    count: int = 1000
    window: int = 1
    size: int = 30
    pause: float = 0.0
    length: int = 0
    method: str = "echo"
    kind: str = "bench-agent"
    protocol: str = "cloudflare"

    def path(self, suffix: object = "") -> str:
        """The socket URL of a thread of this run."""
        return f"/agents/{self.kind}/{self.name}{suffix}"


Load = Callable[[Clients, Job, list[psutil.Process]], Result]


def pump(
    clients: Clients,
    server: list[psutil.Process],
    job: Job,
    *,
    send: Callable[[int], None],
    done: Callable[[], int],
) -> Result:
    """Keep up to `job.window` operations in flight for `job.seconds`, after a short warm-up."""
    sent = 0
    deadline = WARM_UP

    def step() -> bool:
        nonlocal sent
        free = job.window - (sent - done())
        if free * 2 >= job.window:
            send(free)
            sent += free
        return clock.seconds >= deadline

    clock = Clock(server)
    clients.run(step)
    before = done()
    deadline = job.seconds
    clock = Clock(server, lambda: clients.spun)
    clients.run(step)
    result = clock.result(done() - before)
    clients.run(lambda: done() >= sent)
    return result


def rpc(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """Calls from one socket; `add` answers with a state frame and a result, `echo` with a result."""
    (client,) = clients.join([job.path()])
    clients.wait = 0.0 if job.window == 1 else 1.0
    answers = 2 if job.method == "add" else 1
    frames = itertools.cycle([text(call(number, job.method, 1)) for number in range(8192)])
    before = client.texts

    def send(count: int) -> None:
        clients.send(client, b"".join(itertools.islice(frames, count)))

    return pump(clients, server, job, send=send, done=lambda: (client.texts - before) // answers)


def rpc_apart(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """`add` on many threads, each with one socket that waits for one result before the next call."""
    frame = text(call(1, "add", 1))
    everyone = clients.join(job.path(n) for n in range(job.sockets))
    due = {client: client.texts + 2 for client in everyone}
    count = 0

    def touched(client: Client) -> None:
        nonlocal count
        if client.texts >= due[client]:
            due[client] += 2
            count += 1
            clients.send(client, frame)

    for client in everyone:
        clients.send(client, frame)
    clock = Clock(server)
    clients.run(lambda: clock.seconds >= WARM_UP, touched=touched)
    count, clock = 0, Clock(server)
    clients.run(lambda: clock.seconds >= job.seconds, touched=touched)
    return clock.result(count)


def burst(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """One socket writes states as fast as it can, until a second one has received all of them, or the last.

    A server may skip states that a later one has replaced. The last state is longer than all others.
    """
    source, sink = clients.join([job.path()] * 2)
    *states, last = itertools.islice(revisions(job.size), job.count)
    padding = max(map(len, states)) - len(last) + 1
    states.append(last[:-1] + b',"last":"%b"}' % (b"!" * max(padding, 0)))
    data = b"".join(text(push(state)) for state in states)
    size = len(push(states[-1]))

    def write() -> Result:
        sink.reader.longest, due = 0, sink.texts + len(states)
        clock = Clock(server)
        clients.send(source, data)
        clients.run(lambda: sink.texts >= due or sink.reader.longest >= size)
        return clock.result(len(states))

    write()
    total = write()
    while total.seconds < job.seconds:
        total = total.plus(write())
    return total


def fan_out(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """One socket writes states that many receive; counts deliveries."""
    source, *sinks = clients.join([job.path()] * (job.sockets + 1))
    frames = itertools.cycle([text(push(state)) for state in itertools.islice(revisions(job.size), 512)])
    before = clients.texts
    clients.pause = job.pause

    def send(count: int) -> None:
        clients.send(source, b"".join(itertools.islice(frames, count)))

    result = pump(clients, server, job, send=send, done=lambda: (clients.texts - before) // len(sinks))
    return msgspec.structs.replace(result, count=result.count * len(sinks))


def stream(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """Streaming calls of `job.count` chunks, one after the other; counts chunks."""
    (client,) = clients.join([job.path()])
    frame = text(call(1, job.method, job.count))
    before = client.texts

    def send(count: int) -> None:
        clients.send(client, frame * count)

    result = pump(clients, server, job, send=send, done=lambda: (client.texts - before) // (job.count + 1))
    return msgspec.structs.replace(result, count=result.count * job.count)


def threads(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """Open sockets to new threads, `job.window` at a time; counts first states."""
    names = itertools.count()

    def send(count: int) -> None:
        for _ in range(count):
            clients.open(job.path(next(names)))

    return pump(clients, server, job, send=send, done=lambda: clients.joined)


def join(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """Many sockets join one thread at the same moment, `job.count` times over; counts joins."""
    results: list[Result] = []
    for turn in range(job.count + 1):
        path = job.path(turn)
        first = clients.join([path])
        clock = Clock(server)
        everyone = clients.rush([path] * job.sockets)
        results.append(clock.result(job.sockets))
        clients.settle()
        clients.close([*first, *everyone])
    return functools.reduce(Result.plus, results[1:])


def touch(clients: Clients, job: Job, server: list[psutil.Process]) -> Result:
    """One of many sockets calls a method that changes a board, as soon as all have the last change; counts deliveries.

    `job.count` cards get a text of `job.length` characters, or, for 0, votes. The bytes are those that the other
    sockets received.
    """
    is_ours = clients.protocol is not COLYSEUS
    paths = [job.path()] * job.sockets if is_ours else seats(job.port, job.size, job.sockets)
    everyone = caller, *others = clients.join(paths)
    clients.run(lambda: all(each.texts >= clients.protocol.greetings for each in everyone))
    numbers = itertools.count(1000)  # No card has this many votes at first, so each call changes the board.
    frames = job.sockets - 1 + clients.protocol.answers
    before, received = clients.texts, sum(each.bytes for each in others)

    def send(_: int) -> None:
        clients.send(caller, clients.protocol.call(job.method, [next(numbers), job.count, job.length]))

    def done() -> int:
        return (clients.texts - before) // frames

    result = pump(clients, server, job, send=send, done=done)
    each = (sum(each.bytes for each in others) - received) / len(others) / done()
    deliveries = result.count * job.sockets
    return msgspec.structs.replace(result, count=deliveries, bytes=round(each * deliveries))


LOADS: dict[str, Load] = {
    "rpc": rpc,
    "rpc-apart": rpc_apart,
    "burst": burst,
    "fan-out": fan_out,
    "stream": stream,
    "threads": threads,
    "join": join,
    "touch": touch,
}
