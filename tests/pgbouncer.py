"""A private PgBouncer before a private PostgreSQL server."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from tests.ports import hold_port
from tests.postgres import Postgres

__all__ = ["PgBouncer"]

_CONFIG: Final = """
[databases]
postgres = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = {mode}
"""


class PgBouncer:
    """Pools the connections to a server in a mode. `folder` is made, in a `private_folder`."""

    def __init__(self, folder: Path, server: Postgres, mode: Literal["session", "transaction"]) -> None:
        self._folder = folder
        self._server = server
        self._mode = mode
        self._held = hold_port()
        self._port: int = self._held.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o755)
        (self._folder / "users.txt").write_text('"plait" ""\n')
        config = self._folder / "pgbouncer.ini"
        settings = {"server": self._server.port, "port": self._port, "folder": self._folder, "mode": self._mode}
        config.write_text(_CONFIG.format(**settings))
        # It does not run as root.
        command = [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "-q", str(config)]
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, user=self._server.user, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + 30
        while not self._is_ready():
            assert self._process.poll() is None, log.name
            assert time.monotonic() < deadline, log.name
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
        self._held.close()

    @property
    def url(self) -> str:
        """The URL of the server's database, through the pooler."""
        return f"postgresql://plait@127.0.0.1:{self._port}/postgres"

    def _is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
