"""The load generator: `python -m benchmarks.generator JOB` runs one load and prints its result, both as JSON."""

import sys

import msgspec

from benchmarks.clients import Clients
from benchmarks.loads import LOADS, Job
from benchmarks.native import NATIVE_LOADS
from benchmarks.protocols import NATIVE, PROTOCOLS
from benchmarks.results import Result, tree

__all__ = ["generate", "main"]


def generate(job: Job) -> Result:
    """Run one load in this process."""
    protocol = PROTOCOLS[job.protocol]
    clients = Clients(job.port, protocol=protocol)
    loads = NATIVE_LOADS if protocol is NATIVE else LOADS
    try:
        return loads[job.load](clients, job, tree(job.pid))
    finally:
        clients.close_all()


def main() -> None:
    """Run the job named on the command line."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    print(msgspec.json.encode(generate(job)).decode())


if __name__ == "__main__":
    main()
