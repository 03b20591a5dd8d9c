"""Private MariaDB servers in temporary folders."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from tests.private_server import PrivateServer, copy_folder, find_program

__all__ = ["Mariadb", "new_prefix"]

# The processes are killed, but never the machine. So nothing is lost that was written to a file.
_OPTIONS: Final = (
    "--bind-address=127.0.0.1",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=32M",
    "--innodb-flush-method=nosync",
    "--aria-pagecache-buffer-size=8M",
    "--key-buffer-size=1M",
    "--max-connections=100",
    "--performance-schema=off",
)
_DATABASE: Final = "plait"
# It is read before the server has users.
_FIRST: Final = f"""
FLUSH PRIVILEGES;
CREATE DATABASE {_DATABASE};
CREATE USER plait@'127.0.0.1';
GRANT ALL ON *.* TO plait@'127.0.0.1';
"""


class Mariadb(PrivateServer):
    """A server with a database. Its Unix socket is in its folder, too."""

    def prepare(self) -> None:
        """Copy a new database."""
        super().prepare()
        # Each server removes what the temporary folder has of others when it starts.
        self._temporary.mkdir()
        copy_folder(_make_template(), self.folder)

    def _command(self) -> Sequence[str | Path]:
        return (
            *(find_program("mariadbd"), "--no-defaults", *_OPTIONS, f"--datadir={self.folder / 'data'}"),
            *(f"--port={self.port}", f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}"),
            *(f"--tmpdir={self._temporary}", *_as_root()),
        )

    def _is_ready(self) -> bool:
        return self._run("SELECT 1").returncode == 0

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"mysql://plait@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return self.folder / "socket"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_prefix(self.url, options)

    def execute(self, *statements: str) -> str:
        """Execute SQL, and return the rows."""
        done = self._run(";".join(statements))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

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
        everything = primary.execute("SELECT @@gtid_binlog_pos")
        self.until(lambda: self.execute("SELECT @@gtid_slave_pos") == everything)

    def cut_off(self) -> None:
        """Stop the replication."""
        self.execute("STOP SLAVE")

    def promote(self) -> None:
        """Make this replica a primary."""
        self.execute("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

    # Inside

    def _run(self, sql: str) -> subprocess.CompletedProcess[str]:
        command = ["mariadb", "--no-defaults", f"--socket={self.socket}", "--user=root", "-BN", "-e", sql]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    @property
    def _temporary(self) -> Path:
        return self.folder / "temporary"


def new_prefix(url: str, options: str = "") -> str:
    """Return the URL of an empty store in a database, with more options."""
    return f"{url}?prefix=p{os.urandom(6).hex()}_{options}"


@cache
def _make_template() -> Path:
    """Make the database that the servers of this process copy; it is removed when the process ends."""
    template = Path(tempfile.mkdtemp(prefix="plait-mariadb-"))
    atexit.register(shutil.rmtree, template, ignore_errors=True)
    data, first = template / "data", template / "first.sql"
    first.write_text(_FIRST)
    made = subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", f"--extra-file={first}", *_as_root()),
        ],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(template)},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return template


def _as_root() -> Sequence[str]:
    return ("--user=root",) if os.geteuid() == 0 else ()
