"""A private PgBouncer before a private PostgreSQL server."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from tests.postgres import Postgres
from tests.private_server import PrivateServer, find_program

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


class PgBouncer(PrivateServer):
    """Pools the connections to a server in a mode. Its folder is in a `private_folder`."""

    def __init__(self, folder: Path, server: Postgres, mode: Literal["session", "transaction"]) -> None:
        super().__init__(folder)
        # It does not run as root.
        self.user = server.user
        self._server = server
        self._mode = mode

    def prepare(self) -> None:
        """Write the configuration."""
        super().prepare()
        (self.folder / "users.txt").write_text('"plait" ""\n')
        settings = {"server": self._server.port, "port": self.port, "folder": self.folder, "mode": self._mode}
        self._config.write_text(_CONFIG.format(**settings))

    def _command(self) -> Sequence[str | Path]:
        return find_program("pgbouncer"), "-q", self._config

    def _is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        """The URL of the server's database, through the pooler."""
        return f"postgresql://plait@127.0.0.1:{self.port}/postgres"

    @property
    def _config(self) -> Path:
        return self.folder / "pgbouncer.ini"
