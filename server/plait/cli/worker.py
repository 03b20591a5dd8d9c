"""One of the workers of `plait serve --workers`, which the parent starts with `python -m plait.cli.worker`."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from socket import socket

import msgspec

from plait.cli.serving import Service
from plait.cluster.owners import Worker
from plait.store.held_folder import hold_folder, remove_folder
from plait.web.log_config import configure_logging
from plait.web.workers.control import Control

__all__: list[str] = []


def main() -> None:
    """Serve until the parent says so, or has ended."""
    _, text, listener, control = sys.argv
    service = msgspec.json.decode(text, type=Service)
    worker = Worker.from_environment()
    assert worker is not None
    bound, connected = (socket(fileno=int(number)) for number in (listener, control))
    for each in (bound, connected):
        each.set_inheritable(False)
        # A forked child would hold the sockets open after the end of this process.
        os.register_at_fork(after_in_child=partial(_close, each))
    # The parent replaces its workers when it gets this signal; a worker that gets it, too, continues.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    configure_logging(service.log_level, service.log_format, worker=worker.number, is_first=worker.is_first)
    held = hold_folder(Path(worker.folder))
    told = Control(connected, is_restart=worker.is_restart)
    service.run(bound, control=told)
    if told.is_orphaned:
        # The last worker to end removes the folder, as the parent would have done.
        os.close(held)
        remove_folder(Path(worker.folder))


def _close(held: socket) -> None:
    """Close a socket, even if the event loop of the former process uses it."""
    if (number := held.detach()) >= 0:
        os.close(number)


if __name__ == "__main__":
    main()
