"""How long a client of one thread waits while costly clients use others.

`python -m benchmarks.neighbours` measures all of them and exits with 1 if any breaks the aims; with a JOB, it prints
one result.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.attackers import ATTACKS, Attack, AttackJob
from benchmarks.contest import Effort, run
from benchmarks.native_socket import NativeSocket
from benchmarks.servers import ROOT, Server, serve
from benchmarks.shapes import TYPED_SHAPES

__all__ = ["HELD_AIM", "WAIT_AIM", "NeighbourOutcome", "Waits", "neighbours"]

# Milliseconds that a client waits at most, and of processor time for which one step holds the event loop.
WAIT_AIM = 250
HELD_AIM = 60

# Why some attacks are known to hold the loop longer. They still count as breaking the aims.
KNOWN = {
    "plait.v1, operations": "each of 20,000 operations is decoded, checked, applied and encoded",
    "Cloudflare, states, changed rows": "4,900 rows are compared one by one",
    "HTTP PUT, changed rows": "4,900 rows are compared one by one",
    "Cloudflare, states, lists of one number": "two objects of 60,000 members are taken apart",
    "HTTP PUT, lists of one number": "two objects of 60,000 members are taken apart",
    **{
        f"Cloudflare, crossing states, {shape}, 2 at once": "what both writers have changed is compared"
        for shape in ("members", "rows without ids", "changed rows")
    },
    **{
        f"Cloudflare, crossing typed states without a field, {shape}, 2 at once": "objects are decoded and compared"
        for shape in TYPED_SHAPES
    },
}

# Calls a second; and the length of these runs, as a multiple of that of other runs.
RATE = 40
LONGER = 4


class NeighbourJob(msgspec.Struct, frozen=True):
    """What one run has to do."""

    port: int
    name: str
    seconds: float
    attack: Attack | None


class Waits(msgspec.Struct, frozen=True):
    """Milliseconds that a client waited for echoes, and for durable changes, in order.

    And the longest step of the event loop, and the most processor time of one.
    """

    echoes: list[float]
    changes: list[float]
    step: float
    held: float

    @property
    def longest(self) -> float:
        """The longest wait."""
        return max(self.echoes[-1], self.changes[-1])

    @property
    def meets_aims(self) -> bool:
        """Whether neither the waits nor the steps were too long."""
        return self.longest <= WAIT_AIM and self.held <= HELD_AIM


class NeighbourOutcome(msgspec.Struct):
    """How long a client of another thread waited during one attack, or without one; or what went wrong."""

    title: str
    waits: Waits | None
    failure: str = ""


def neighbours(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[NeighbourOutcome]:
    """Without an attack, and beside each."""
    outcomes: list[NeighbourOutcome] = []
    for number, attack in enumerate((None, *ATTACKS)):
        title = "no attack" if attack is None else attack.title
        with serve("guarded", folder / f"neighbours-{number}") as server:
            result = measure(server, attack, effort.seconds * (1 if effort.is_quick else LONGER))
        if isinstance(result, str):
            outcomes.append(NeighbourOutcome(title, None, result))
            tell(f"beside {title} failed: {result}")
        else:
            outcomes.append(NeighbourOutcome(title, result))
            tell(f"beside {title}: waited {result.longest:.0f} ms at most, the loop was held {result.held:.0f} ms")
    return outcomes


def measure(server: Server, attack: Attack | None, seconds: float) -> Waits | str:
    """One run in a process of its own; a text is the reason why there is no result."""
    job = NeighbourJob(server.port, "neighbour", seconds, attack)
    return run(Waits, "benchmarks.neighbours", msgspec.json.encode(job).decode())


def load(job: NeighbourJob) -> Waits:
    """Call at a steady rate; the attackers are a process of their own."""
    neighbour = NativeSocket(job.port, "/threads/bench-agent/neighbour")
    watch = NativeSocket(job.port, "/threads/watch/one")
    for _ in range(10):
        neighbour.call("add", 1)
    attackers = begin(job) if job.attack is not None else None
    try:
        watch.call("begin")
        found: dict[str, list[float]] = {"echo": [], "add": []}
        start = time.perf_counter()
        for number in range(round(job.seconds * RATE)):
            time.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            method = ("echo", "add")[number % 2]
            sent = time.perf_counter()
            neighbour.call(method, 1)
            found[method].append((time.perf_counter() - sent) * 1000)
        return Waits(sorted(found["echo"]), sorted(found["add"]), *watch.call("longest"))
    finally:
        if attackers is not None:
            attackers.kill()
            attackers.wait()


def begin(job: NeighbourJob) -> subprocess.Popen[bytes]:
    """Start the attackers, and wait until they are ready to send."""
    assert job.attack is not None
    told = msgspec.json.encode(AttackJob(job.attack, job.port)).decode()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attackers", told], cwd=ROOT, stdout=subprocess.PIPE, stderr=sys.stderr
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def check() -> int:
    """Measure all, and print which break the aims."""
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        outcomes = neighbours(Path(folder), Effort(), print)
    broken = [each.title for each in outcomes if each.waits is None or not each.waits.meets_aims]
    for title in broken:
        reason = f", as is known: {KNOWN[title]}" if title in KNOWN else ""
        print(f"breaks the aims: {title}{reason}")
    return 1 if broken else 0


def main() -> int:
    """Run the job named on the command line, or check all."""
    if not sys.argv[1:]:
        return check()
    print(msgspec.json.encode(load(msgspec.json.decode(sys.argv[1], type=NeighbourJob))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
