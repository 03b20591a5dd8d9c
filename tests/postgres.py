"""Private PostgreSQL servers in temporary folders."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from tests.ports import hold_port

__all__ = ["Postgres", "new_schema", "private_folder"]

# The processes are killed, but never the machine. So nothing is lost that was written to a file.
_OPTIONS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    # In its folder: in /dev/shm, a server that is killed would leave it.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "60",
    "autovacuum_naptime": "5",
    "wal_level": "replica",
    "wal_receiver_status_interval": "1",
    "log_min_messages": "fatal",
}


class Postgres:
    """A server, which keeps its port over restarts. `folder` is made, in a `private_folder`.

    It has more `options`, and the port of a `former` server that has ended, if there is one.
    """

    def __init__(
        self, folder: Path, *, options: Mapping[str, str] | None = None, former: "Postgres | None" = None
    ) -> None:
        self.folder = folder
        self._options = {**_OPTIONS, **(options or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._held = hold_port() if former is None else former._held
        self.port: int = self._held.getsockname()[1]
        self._address = ("-h", "127.0.0.1", "-p", str(self.port))
        self.user = "postgres" if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        """Make a new database, and start the server."""
        self._make_folder()
        self._run("initdb", "-D", str(self.folder), "-U", "plait", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        self._held.close()

    @property
    def pid(self) -> int:
        """The id of its first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql://plait@127.0.0.1:{self.port}/postgres"

    @property
    def ports(self) -> Sequence[int]:
        """Where it listens."""
        return (self.port,)

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_schema(self.url, options)

    @property
    def is_running(self) -> bool:
        """Whether its first process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, **options: str) -> None:
        """Start the server, and wait until it can be connected."""
        settings = self._options | {"port": str(self.port)} | options
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        deadline = time.monotonic() + 30
        self._begin(arguments)
        is_ready = [_find("pg_isready"), "-q", *self._address]
        while subprocess.run(is_ready, check=False).returncode:
            assert time.monotonic() < deadline, self._log
            assert self._process is not None
            if self._process.poll() is not None:  # The processes of one that was killed have not ended yet.
                self._begin(arguments)
            time.sleep(0.02)

    def _begin(self, arguments: list[str]) -> None:
        # PostgreSQL does not run as root.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_find("postgres"), "-D", self.folder, *arguments], user=self.user, stdout=log, stderr=log, cwd="/"
            )

    @property
    def _log(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.log"

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT stops it in order, SIGQUIT does not, and SIGKILL leaves its processes to end alone."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(by)
        process.wait(30)

    def pause(self) -> None:
        """Stop all processes of the server with SIGSTOP."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal_all(signal.SIGCONT)

    def crash(self) -> None:
        """Kill all processes of the server."""
        self._signal_all(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)
        self._process = None
        (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def execute(self, *statements: str) -> str:
        """Execute SQL, and return what the last statement has found."""
        commands = [part for statement in statements for part in ("-c", statement)]
        command = [
            _find("psql"),
            "-XAtq",
            *self._address,
            "-U",
            "plait",
            "postgres",
            *commands,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def until(self, statement: str, found: str) -> None:
        """Wait until SQL finds something."""
        deadline = time.monotonic() + 60
        while self.execute(statement) != found:
            assert time.monotonic() < deadline, statement
            time.sleep(0.02)

    @contextmanager
    def standby(self, folder: Path, *, former: "Postgres | None" = None) -> Iterator["Postgres"]:
        """Run a standby that follows this server, under the name `standby`; it may have the port of a former server."""
        found = Postgres(folder, former=former)
        found._make_folder()
        found._run("pg_basebackup", "-D", str(folder), *self._address, "-U", "plait", "-c", "fast")
        (folder / "standby.signal").touch()
        with (folder / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"primary_conninfo = 'host=127.0.0.1 port={self.port} user=plait application_name=standby'\n"
            )
        try:
            found.start()
            yield found
        finally:
            found.__exit__()

    # Inside

    def _signal_all(self, by: signal.Signals) -> None:
        assert self._process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], check=True, capture_output=True, text=True
        ).stdout.split()
        for pid in (self._process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, by)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700)
        if self.user is not None:
            shutil.chown(self.folder, self.user)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_find(program), *arguments], user=self.user, check=False, capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder for servers, which the user of PostgreSQL may enter. It may not enter those of pytest."""
    with tempfile.TemporaryDirectory(prefix="plait-postgres-") as path:
        folder = Path(path)
        folder.chmod(0o711)
        yield folder


def new_schema(url: str, options: str = "") -> str:
    """Return the URL of an empty store in a database, with more options."""
    return f"{url}?schema=s{os.urandom(6).hex()}{options}"


def _find(program: str) -> Path:
    """Return the path of a program of the newest PostgreSQL that is installed."""
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: int(path.parent.parent.name))
