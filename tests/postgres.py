"""Private PostgreSQL servers in temporary folders."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from tests.private_server import PrivateServer, copy_folder

__all__ = ["Postgres", "find_postgres", "new_schema", "private_folder"]

# The processes are killed, but never the machine. So nothing is lost that was written to a file.
_OPTIONS: Final = (
    "--listen_addresses=127.0.0.1",
    "--unix_socket_directories=",
    "--fsync=off",
    "--full_page_writes=off",
    "--shared_buffers=32MB",
    # In its folder: in /dev/shm, a server that is killed would leave it.
    "--dynamic_shared_memory_type=mmap",
    "--max_connections=60",
    "--autovacuum_naptime=60",
    "--wal_level=replica",
    "--wal_receiver_status_interval=1",
    "--log_min_messages=fatal",
)
# No test makes a database, and two thirds of the files are of those that would be copied for it.
_SMALLER: Final = """
UPDATE pg_database SET datistemplate = false;
DROP DATABASE template0;
DROP DATABASE template1;
"""


class Postgres(PrivateServer):
    """A server, whose folder is in a `private_folder`. SIGKILL alone leaves its processes to end by themselves."""

    orderly: ClassVar = signal.SIGINT
    at_once: ClassVar = signal.SIGQUIT

    def __init__(
        self,
        folder: Path,
        *options: str,
        former: "Postgres | None" = None,
        primary: "Postgres | None" = None,
    ) -> None:
        super().__init__(folder, *options, former=former)
        self.user = _find_user()
        self._address = ("-h", "127.0.0.1", "-p", str(self.port))
        # The server that it follows as a standby.
        self._primary = primary

    def prepare(self) -> None:
        """Make a new database, or copy that of the primary."""
        super().prepare()
        folder = ("-D", str(self.folder))
        if self._primary is None:
            copy_folder(_make_template(), self.folder)
            return
        _run("pg_basebackup", *folder, *self._primary._address, "-U", "plait", "-c", "fast")
        (self.folder / "standby.signal").touch()
        source = f"host=127.0.0.1 port={self._primary.port} user=plait application_name=standby"
        with (self.folder / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{source}'\n")

    def _command(self) -> Sequence[str | Path]:
        return find_postgres("postgres"), "-D", self.folder, *_OPTIONS, f"--port={self.port}"

    def _is_ready(self) -> bool:
        return subprocess.run([find_postgres("pg_isready"), "-q", *self._address], check=False).returncode == 0

    def _check_running(self) -> None:
        if not self.is_running:  # The processes of one that was killed had not ended yet.
            self.begin()

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql://plait@127.0.0.1:{self.port}/postgres"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_schema(self.url, options)

    def crash(self) -> None:
        """Kill all processes of the server."""
        super().crash()
        (self.folder / "postmaster.pid").unlink(missing_ok=True)

    def execute(self, *statements: str) -> str:
        """Execute SQL, and return what the last statement has found."""
        commands = [part for statement in statements for part in ("-c", statement)]
        command = [find_postgres("psql"), "-XAtq", *self._address, "-U", "plait", "postgres", *commands]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    # Replication

    def replica(self, folder: Path, *, former: "Postgres | None" = None) -> "Postgres":
        """Return a standby that follows this server; it may have the port of a former server."""
        return Postgres(folder, former=former, primary=self)

    def wait_for(self, primary: "Postgres") -> None:
        """Wait until this standby has everything."""
        everything = primary.execute("SELECT pg_current_wal_lsn()")
        self.until(lambda: self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{everything}'") == "t")

    def cut_off(self) -> None:
        """Stop the replication."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        self.until(lambda: self.execute("SELECT count(*) FROM pg_stat_wal_receiver") == "0")

    def promote(self) -> None:
        """Make this standby a primary."""
        self.execute("SELECT pg_promote()")

    def require_standby(self) -> None:
        """Make commits wait for the standby."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")

    # Inside

    def _find_pids(self) -> list[int]:
        command = ["ps", "-o", "pid=", "--ppid", str(self.pid)]
        children = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        return [self.pid, *map(int, children)]


@cache
def _make_template() -> Path:
    """Make the database that the servers of this process copy; it is removed when the process ends."""
    template = Path(tempfile.mkdtemp(prefix="plait-postgres-"))
    atexit.register(shutil.rmtree, template, ignore_errors=True)
    if (user := _find_user()) is not None:
        shutil.chown(template, user)
    options = ("-U", "plait", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "--wal-segsize=4")
    _run("initdb", "-D", str(template), *options)
    _run("postgres", "--single", "-D", str(template), "postgres", statements=_SMALLER)
    return template


def _find_user() -> str | None:
    """Return as whom the programs run that refuse root, if not as the user of this process."""
    return "postgres" if os.geteuid() == 0 else None


def _run(program: str, *arguments: str, statements: str = "") -> None:
    command = [find_postgres(program), *arguments]
    done = subprocess.run(
        command, user=_find_user(), check=False, capture_output=True, text=True, cwd="/", input=statements
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


def find_postgres(program: str) -> Path:
    """Return the path of a program of the newest PostgreSQL that is installed."""
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: int(path.parent.parent.name))
