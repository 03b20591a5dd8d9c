"""Private NATS servers with JetStream in temporary folders."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.ports import hold_port

__all__ = ["Nats", "NatsCluster", "new_stream"]

_SERVER: Final = Path(sys.executable).parent / "nats-server"
# The processes are killed, but never the machine. So nothing is lost that was written to a file.
_CONFIG: Final = """
server_name: {name}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
{more}
"""
_JETSTREAM: Final = """
jetstream {{ store_dir: "{folder}", max_file_store: 4GB, max_memory_store: 64MB, sync_interval: {sync} }}
"""


class Nats:
    """A server, which keeps its ports and its folder over restarts. `more` is added to its configuration."""

    def __init__(
        self, folder: Path, *, name: str = "n", more: str = "", has_jetstream: bool = True, sync: str = "2m"
    ) -> None:
        self.folder = folder
        self.name = name
        self.more = more
        if has_jetstream:
            self.more += _JETSTREAM.format(folder=folder / "data", sync=sync)
        self._process: subprocess.Popen[bytes] | None = None
        self._held = [hold_port() for _ in range(3)]
        self.port, self.routes, self._monitor = (each.getsockname()[1] for each in self._held)

    def __enter__(self) -> Self:
        self.begin()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop(signal.SIGKILL)
        for each in self._held:
            each.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of the server, without a stream."""
        return f"nats://127.0.0.1:{self.port}"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store with one copy, and with more options."""
        return new_stream(self.url, "replicas=1") + options

    def begin(self) -> None:
        """Start the server, and do not wait for it."""
        self.folder.mkdir(exist_ok=True, parents=True)
        config = self.folder / "nats.conf"
        text = _CONFIG.format(name=self.name, port=self.port, monitor=self._monitor, more=self.more)
        config.write_text(text)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([_SERVER, "-c", config], stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until JetStream answers."""
        assert self._process is not None
        deadline = time.monotonic() + 30
        while not self._is_ready():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def start(self) -> None:
        """Start the server, and wait until JetStream answers."""
        self.begin()
        self.wait()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the server; SIGKILL is a crash."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(by)
        process.wait(30)

    def pause(self) -> None:
        """Stop the process, which keeps its connections."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process."""
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, path: str) -> object:
        """Return what the server's monitoring tells."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/{path}", timeout=5) as answer:
            found: object = json.load(answer)
            return found

    def find_meta_leader(self) -> str:
        """Return the server that makes streams, as this one knows it; empty if it knows none."""
        found = self.ask("jsz")
        assert isinstance(found, dict)
        return str((found.get("meta_cluster") or {}).get("leader", ""))

    def _is_ready(self) -> bool:
        try:
            found = self.ask("healthz")
        except OSError:
            return False
        return isinstance(found, dict) and found.get("status") == "ok"


class NatsCluster:
    """Three servers, each with a copy of every stream."""

    def __init__(self, folder: Path, *, sync: str = "2m") -> None:
        self.servers = [Nats(folder / f"n{number}", name=f"n{number}", sync=sync) for number in range(3)]
        routes = ", ".join(f"nats-route://127.0.0.1:{each.routes}" for each in self.servers)
        for each in self.servers:
            # Clients are told of no server but those of their URL, as they may have to go through a proxy.
            each.more += (
                f"cluster {{ name: c, listen: 127.0.0.1:{each.routes}, routes: [{routes}], no_advertise: true }}"
            )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for each in self.servers:
            self._stack.push(each)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL of the servers, without a stream."""
        return f"nats://{','.join(f'127.0.0.1:{each.port}' for each in self.servers)}"

    @property
    def ports(self) -> Sequence[int]:
        """Where the servers listen."""
        return [each.port for each in self.servers]

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store with a copy on each server, and with more options."""
        return new_stream(self.url, "replicas=3") + options

    def start(self) -> None:
        """Start the servers that do not run, and wait until JetStream answers, and all have the same leader."""
        for each in self.servers:
            if not each.is_running:
                each.begin()
        for each in self.servers:
            each.wait()
        deadline = time.monotonic() + 30
        while len(leaders := {each.find_meta_leader() for each in self.servers}) > 1 or "" in leaders:
            assert time.monotonic() < deadline, leaders
            time.sleep(0.02)

    def crash(self) -> None:
        """Kill the servers, all at once."""
        for each in self._running():
            os.kill(each.pid, signal.SIGKILL)
        for each in self._running():
            each.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all processes, which keep their connections."""
        for each in self._running():
            each.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        for each in self._running():
            each.resume()

    def find_leader(self, stream: str) -> Nats:
        """Return the server that leads a stream."""
        name = self._find_leader_name(stream)
        (found,) = (each for each in self.servers if each.name == name)
        return found

    def _find_leader_name(self, stream: str) -> str:
        deadline = time.monotonic() + 30
        while True:
            for each in self._running():
                try:
                    found = each.ask("jsz?streams=true")
                except OSError:
                    continue
                assert isinstance(found, dict)
                for account in found.get("account_details") or ():
                    for detail in account.get("stream_detail") or ():
                        if detail["name"] == stream and (leader := (detail.get("cluster") or {}).get("leader")):
                            return str(leader)
            assert time.monotonic() < deadline, stream
            time.sleep(0.05)

    def _running(self) -> Sequence[Nats]:
        return [each for each in self.servers if each.is_running]


def new_stream(url: str, *options: str) -> str:
    """Return the URL of an empty store on servers, with more options."""
    return f"{url}/s{os.urandom(6).hex()}{'?' if options else ''}{'&'.join(options)}"
