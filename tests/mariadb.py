"""Private MariaDB servers in temporary folders."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from tests.ports import hold_port

__all__ = ["Mariadb", "new_prefix"]

# The processes are killed, but never the machine. So nothing is lost that was written to a file.
_OPTIONS: Final = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "32M",
    "innodb-flush-method": "nosync",
    "aria-pagecache-buffer-size": "8M",
    "key-buffer-size": "1M",
    "max-connections": "100",
    "performance-schema": "off",
}
_DATABASE: Final = "plait"


class Mariadb:
    """A server, which keeps its port over restarts. `folder` is made, and has its Unix socket, too.

    It has more `options`, and the port of a `former` server that has ended, if there is one.
    """

    def __init__(self, folder: Path, *options: str, former: "Mariadb | None" = None) -> None:
        self.folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._held = hold_port() if former is None else former._held
        self.port: int = self._held.getsockname()[1]

    def __enter__(self) -> Self:
        """Make a new database, and start the server."""
        self.folder.mkdir(mode=0o700)
        # Each server removes what the temporary folder has of others when it starts.
        self._temporary.mkdir()
        made = subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db"),
                *("--auth-root-authentication-method=normal", *_as_root()),
            ],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"TMPDIR": str(self._temporary)},
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()
        self.execute(
            f"CREATE DATABASE {_DATABASE}",
            "CREATE USER plait@'127.0.0.1'",
            "GRANT ALL ON *.* TO plait@'127.0.0.1'",
        )
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
        return f"mysql://plait@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def ports(self) -> Sequence[int]:
        """Where it listens."""
        return (self.port,)

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_prefix(self.url, options)

    def start(self, *options: str) -> None:
        """Start the server, and wait until it can be connected."""
        settings = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_find("mariadbd"), "--no-defaults", *settings, f"--datadir={self.folder / 'data'}"),
                    *(f"--port={self.port}", f"--socket={self._socket}", f"--pid-file={self.folder / 'pid'}"),
                    f"--tmpdir={self._temporary}",
                    *(*_as_root(), *self._options, *options),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while self._run("SELECT 1").returncode:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM stops it in order, SIGKILL does not."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(by)
        process.wait(60)

    def crash(self) -> None:
        """Kill the server."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the server with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def execute(self, *statements: str) -> str:
        """Execute SQL, and return what is found."""
        done = self._run(";".join(statements))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def until(self, statement: str, found: str) -> None:
        """Wait until SQL finds something."""
        deadline = time.monotonic() + 60
        while self.execute(statement) != found:
            assert time.monotonic() < deadline, statement
            time.sleep(0.02)

    # Replication

    @contextmanager
    def replica(self, folder: Path) -> Iterator["Mariadb"]:
        """Run a replica, which nothing may write; this server needs `--log-bin`."""
        with Mariadb(folder, "--log-bin", "--log-slave-updates", "--server-id=2") as found:
            where = self.execute("SELECT @@gtid_current_pos")
            source = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {self.port}, MASTER_USER = 'plait'"
            found.execute(
                "RESET MASTER",
                f"SET GLOBAL gtid_slave_pos = '{where}'",
                f"CHANGE MASTER TO {source}, MASTER_USE_GTID = slave_pos",
                "START SLAVE",
                "SET GLOBAL read_only = 1",
            )
            yield found

    def wait_for(self, primary: "Mariadb") -> None:
        """Wait until this replica has everything."""
        self.until("SELECT @@gtid_slave_pos", primary.execute("SELECT @@gtid_binlog_pos"))

    def cut_off(self) -> None:
        """Stop the replication."""
        self.execute("STOP SLAVE")

    def promote(self) -> None:
        """Make this replica a primary."""
        self.execute("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

    # Inside

    def _run(self, sql: str) -> subprocess.CompletedProcess[str]:
        command = ["mariadb", "--no-defaults", f"--socket={self._socket}", "--user=root", "-BN", "-e", sql]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"

    @property
    def _temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def _log(self) -> Path:
        return self.folder / "log"


def new_prefix(url: str, options: str = "") -> str:
    """Return the URL of an empty store in a database, with more options."""
    return f"{url}?prefix=p{os.urandom(6).hex()}_{options}"


def _as_root() -> Sequence[str]:
    return ("--user=root",) if os.geteuid() == 0 else ()


def _find(program: str) -> str:
    """Return the path of a program, which may be one for root only."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found is not None, f"{program} is not installed: run tests/system.sh"
    return found
