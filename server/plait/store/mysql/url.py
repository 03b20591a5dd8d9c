"""The URL of a store in MariaDB or MySQL, and its options. Does not need the driver."""

import re
from typing import Final, Self
from urllib.parse import unquote

from plait.store.url_parts import ShownUrl, split_url

__all__ = ["MysqlUrl"]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_OPTIONS: Final = ("prefix", "socket", "ssl", "ssl_ca")
_PORT: Final = 3306


class MysqlUrl(ShownUrl):
    """The parts of a URL, `mysql://user:password@host:port,other:port/database?prefix=…`."""

    # A connection leads to the first one that can be written.
    hosts: list[tuple[str, int]]
    user: str
    password: str
    database: str
    # Begins the names of tables.
    prefix: str
    # The path of a Unix socket, which is used instead of the hosts.
    socket: str | None
    # Whether connections are encrypted, and the file of the authorities if they are not the system's.
    has_tls: bool
    authorities: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError, without the password."""
        parts = split_url(url, _OPTIONS)
        shown, options, found = parts.shown, parts.options, cls()
        found._shown = shown
        found.hosts, found.database = parts.split_hosts(_PORT), unquote(parts.path)
        if not found.database or parts.user is None:
            raise ValueError(f"{shown}: a user and a database are needed, as in mysql://user:password@host/database")
        found.user, found.password = parts.user, parts.password or ""
        found.prefix = parts.match("prefix", _NAME, "plait_")
        found.socket, found.authorities = options.get("socket"), options.get("ssl_ca")
        found.has_tls = parts.choose("ssl", "off", "on") == "on" or bool(found.authorities)
        return found
