"""Writes in one text over sockets: `python -m benchmarks.text_loads JOB` runs one load and prints its result."""

import sys
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from benchmarks.clients import Client, Clients, LoadError
from benchmarks.edits import Edit, appends, encode_updates, letters, passage, typing
from benchmarks.native import place
from benchmarks.native_socket import NativeSocket
from benchmarks.protocols import NATIVE, PROTOCOLS, YJS, native_call
from benchmarks.results import Clock, Result, tree
from benchmarks.wire import binary, text
from benchmarks.yjs_socket import YjsSocket, sync, update

__all__ = ["TextJob", "make_edits", "write"]


# A hundred thousand edits take long on a busy machine.
TIMEOUT = 110.0


class TextJob(msgspec.Struct, frozen=True):
    """The settings of one run."""

    port: int
    pid: int
    # The thread or room. In plait it begins with the length of the text.
    name: str
    protocol: str
    # "append" or "type"; or "number" for a number beside the text, or "stream" for an rpc that appends.
    edits: str
    length: int
    writers: int
    readers: int
    # The edits of all writers together: those that are measured, and those before them.
    count: int
    warm: int
    # The unanswered edits of each writer.
    window: int

    @property
    def path(self) -> str:
        """The socket URL."""
        return f"/{self.name}" if self.protocol == YJS.name else f"/threads/page/{self.name}"


Send = Callable[[int], None]
"""Sends the given number of edits, of all writers in turn."""


def make_edits(job: TextJob) -> list[list[Edit]]:
    """The edits of each writer, made on the initial text and on its own edits."""
    each = -(-(job.count + job.warm) // job.writers)
    if job.edits == "type":
        return [typing(job.length, each, seed) for seed in range(job.writers)]
    return [appends(job.length, each) for _ in range(job.writers)]


def write(job: TextJob) -> Result:
    """Send the edits, and wait until every socket has received them; the bytes are those of all readers together."""
    edits = make_edits(job)
    clients = Clients(job.port, timeout=TIMEOUT, protocol=PROTOCOLS[job.protocol])
    try:
        updates = encode_updates(passage(job.length), edits) if job.protocol == YJS.name else []
        first_client = begin(job, updates[0]) if updates else None
        everyone = clients.join([job.path] * (job.writers + job.readers))
        clients.run(lambda: all(each.texts >= clients.protocol.greetings for each in everyone))
        if first_client is not None:
            first_client.close()
        writers, readers = everyone[: job.writers], everyone[job.writers :]
        send = make_sender(clients, writers, job, edits, updates[1:])
        total = job.count + job.warm
        expected = letters([edit for own in edits for edit in own]) if job.edits != "number" else 0
        before = [each.texts for each in everyone]
        sent = 0

        # The caller of a method also gets an answer.
        first = job.writers if job.edits == "stream" else 0

        def done() -> int:
            return min(each.texts - texts for each, texts in zip(everyone[first:], before[first:], strict=True))

        def go_on(limit: int) -> bool:
            nonlocal sent
            finished, window = done(), job.window * job.writers
            free = min(window - (sent - finished), limit - sent)
            if free and (free * 2 >= window or free == limit - sent):
                send(free)
                sent += free
            return finished >= limit

        clients.run(lambda: go_on(job.warm))
        received = sum(each.bytes for each in readers)
        clock = Clock(tree(job.pid))
        clients.run(lambda: go_on(total))
        result = clock.result(job.count)
        received = sum(each.bytes for each in readers) - received
        check(job, job.length + expected)
        return msgspec.structs.replace(result, bytes=received)
    finally:
        clients.close_all()


def begin(job: TextJob, first: bytes) -> YjsSocket:
    """Put the text into a room of Yjs, which keeps it as long as the returned client is connected."""
    client = YjsSocket(job.port, job.path)
    client.send(binary(update(first)))
    # The server answers the next message when it has the text.
    client.send(binary(sync(0)))
    client.read_update()
    return client


def make_sender(
    clients: Clients, writers: Sequence[Client], job: TextJob, edits: Sequence[Sequence[Edit]], updates: Sequence[bytes]
) -> Send:
    """Send edits in the protocol of the job."""
    if job.edits == "stream":
        return make_caller(clients, writers[0], edits[0])
    if job.protocol == NATIVE.name:
        everyone = [Pusher(clients, writer, own, job.edits) for writer, own in zip(writers, edits, strict=True)]
        frames = [pusher.frame for pusher in everyone]
    else:
        each = len(edits[0])
        frames = [iter(updates[n * each : (n + 1) * each]).__next__ for n in range(len(writers))]
        frames = [wrap(frame) for frame in frames]
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        turns: list[list[bytes]] = [[] for _ in writers]
        for number in range(sent, sent + count):
            turns[number % len(writers)].append(frames[number % len(writers)]())
        sent += count
        for writer, own in zip(writers, turns, strict=True):
            if own:
                clients.send(writer, b"".join(own))

    return send


def make_caller(clients: Clients, caller: Client, edits: Sequence[Edit]) -> Send:
    """Call the method that appends."""
    chunks = iter([insert for _, _, insert in edits])
    return lambda count: clients.send(caller, native_call("stream", [list(islice(chunks, count))]))


def wrap(following: Callable[[], bytes]) -> Callable[[], bytes]:
    """Make frames of updates."""
    return lambda: binary(update(following()))


class Pusher:
    """A client of plait that pushes edits, each on the latest version that it has."""

    def __init__(self, clients: Clients, client: Client, edits: Sequence[Edit], kind: str) -> None:
        self._client = client
        self._edits = iter(edits)
        self._kind = kind
        epoch, version = place(client.welcome)
        self._epoch = epoch.encode()
        # Each answer and each change of others is one version.
        self._first = version - client.texts
        self._ref = 0

    def frame(self) -> bytes:
        """The next push."""
        self._ref += 1
        base = self._first + self._client.texts
        return text(
            b'{"type":"push","ref":%d,"base":["%b",%d],"ops":[%b]}' % (self._ref, self._epoch, base, self._op())
        )

    def _op(self) -> bytes:
        at, remove, insert = next(self._edits)
        if self._kind == "number":
            return b'{"op":"replace","path":"/n","value":%d}' % self._ref
        if remove:
            return b'{"op":"splice","path":"/note","at":%d,"remove":%d}' % (at, remove)
        return b'{"op":"splice","path":"/note","at":%d,"insert":"%b"}' % (at, insert.encode())


def check(job: TextJob, length: int) -> None:
    """Raise LoadError unless the server has a text of the length that the edits make."""
    if job.protocol == YJS.name:
        return  # Its code in Node reads the text after such edits in benchmarks/rejoin.py.
    client = NativeSocket(job.port, job.path)
    client.close()
    if len(client.document["note"]) != length:
        raise LoadError(f"the text has {len(client.document['note'])} characters instead of {length}")


def main() -> None:
    """Run the job named on the command line."""
    print(msgspec.json.encode(write(msgspec.json.decode(sys.argv[1], type=TextJob))).decode())


if __name__ == "__main__":
    main()
