"""Private NATS servers with JetStream in temporary folders."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.private_server import PrivateServer

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


class Nats(PrivateServer):
    """A server with JetStream, unless it has none. `more` is added to its configuration."""

    def __init__(
        self, folder: Path, *, name: str = "n", more: str = "", has_jetstream: bool = True, sync: str = "2m"
    ) -> None:
        super().__init__(folder, ports=3)
        self.name = name
        self.more = more
        if has_jetstream:
            self.more += _JETSTREAM.format(folder=folder / "data", sync=sync)
        self.routes, self._monitor = self._other_ports

    def prepare(self) -> None:
        """Write the configuration."""
        super().prepare()
        text = _CONFIG.format(name=self.name, port=self.port, monitor=self._monitor, more=self.more)
        self._config.write_text(text)

    def _command(self) -> Sequence[str | Path]:
        return _SERVER, "-c", self._config

    def _is_ready(self) -> bool:
        try:
            found = self.ask("healthz")
        except OSError:
            return False
        return isinstance(found, dict) and found.get("status") == "ok"

    @property
    def url(self) -> str:
        """The URL of the server, without a stream."""
        return f"nats://127.0.0.1:{self.port}"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store with one copy, and with more options."""
        return new_stream(self.url, "replicas=1") + options

    def ask(self, path: str) -> object:
        """Return a report of the server's monitoring."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/{path}", timeout=5) as answer:
            found: object = json.load(answer)
            return found

    def find_meta_leader(self) -> str:
        """Return the server that makes streams, as this one knows it; empty if it knows none."""
        found = self.ask("jsz")
        assert isinstance(found, dict)
        return str((found.get("meta_cluster") or {}).get("leader", ""))

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"


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

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in self.servers:
                stack.push(each)
                each.prepare()
            self.start()
            self._stack = stack.pop_all()
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
        running = self._running()
        for each in running:
            os.kill(each.pid, signal.SIGKILL)
        for each in running:
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
